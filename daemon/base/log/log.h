/* SPDX-License-Identifier: Apache-2.0
 *
 * The log, from any thread: a message is one printable line, with fields, and goes to the journal or to standard error.
 * Never a secret, never a raw control byte. From log_start() on a thread writes, and logging does not block: lines that
 * find its queue full are lost, and their number is logged later. A message that repeats within some seconds is counted
 * instead of written.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- messages ---- */

#define LOG_LINE_MAX 4096 /* PIPE_BUF */
#define LOG_FIELDS_MAX 24 /* of a message, its text, priority, identifier and MESSAGE_ID included */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum log_format { LOG_FORMAT_AUTO, LOG_FORMAT_PLAIN, LOG_FORMAT_PREFIX, LOG_FORMAT_JOURNAL, LOG_FORMAT_JSON };

/* The events that programs look for, each with the MESSAGE_ID that it keeps for ever; listed in
 * docs/logging.md. */
// clang-format off
#define LOG_MESSAGES(X) \
        X(STARTED,         "462373793fb948d18813211b120f8c4e", "the daemon accepts connections") \
        X(STOPPING,        "432dd16fdcd34de28e5a14fcfd61521d", "the daemon is shutting down") \
        X(MODEL_READY,     "f556871bc85f4a2cb3e2fc44114610b9", "a load has completed") \
        X(MODEL_FAILED,    "623544edab8e4812a6fe71f8ef889b4e", "a load has failed or was cancelled") \
        X(MODEL_FREED,     "cb3dfd5b866b4ba6b26b5c7c752a2527", "a model's memory was freed") \
        X(DEVICE_LOST,     "2c7109ae6dfe4488825450565e0cc14e", "a device is out of service") \
        X(STORAGE_STALLED, "ae619cb7852b44c3ac34d882ef9b44b6", "reads hang in storage that does not answer")
// clang-format on

enum log_message {
        LOG_NO_ID,
#define X(name, id, what) LOG_##name,
        LOG_MESSAGES(X)
#undef X
};

/* A value beside the text. Names are in small letters; the journal has them in capitals. */
struct log_field {
        const char *name;
        const char *text; /* NULL: the number */
        uint64_t number;
};
#define LOG_TEXT(name, text) ((struct log_field){name, text, 0})
#define LOG_NUMBER(name, number) ((struct log_field){name, NULL, number})
#define LOG_FIELDS(...) ((const struct log_field[]){__VA_ARGS__, {0}})

extern const char *const log_levels[], *const log_formats[]; /* names by value; NULL ends them */

/* ---- logging ---- */

#define LOG_BATCH_MAX ((size_t)128 << 10) /* bytes of lines that wait for the thread, and again of those it writes */

struct log_output {
        enum log_format format;
        bool to_stderr;      /* AUTO chooses standard error even if that is the journal's stream */
        const char *journal; /* the file whose absence means that there is no journal; NULL: the system's socket */
};

/* Both may be called again; at first the level is INFO and the format PLAIN. */
void log_set_level(enum log_level level);             /* from any thread */
void log_set_output(const struct log_output *output); /* not between log_start() and log_stop() */

/* A thread writes from here on, up to log_stop(). No other thread may log before. */
void log_start(void);
/* Waits for that thread, 2 s at the most, and logs what was counted; after log_stop() callers write themselves. */
void log_flush(void);
void log_stop(void);

/* About once a second: logs what was counted. False: nothing is left to be. */
bool log_tick(void);
/* Lines that the output did not accept. */
uint64_t log_lost(void);

/* Logs a message; `fields` may be NULL. */
void log_event(enum log_level level, enum log_message message, const struct log_field *fields, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

#define log_error(...) log_event(LOG_LEVEL_ERROR, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_warn(...) log_event(LOG_LEVEL_WARN, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_info(...) log_event(LOG_LEVEL_INFO, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_debug(...) log_event(LOG_LEVEL_DEBUG, LOG_NO_ID, NULL, __VA_ARGS__)
