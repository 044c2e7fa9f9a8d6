/* SPDX-License-Identifier: Apache-2.0
 *
 * The log, from any thread: a message is one printable line with fields beside it. Where standard
 * error is the journal's stream it goes to the journal with its fields; else a line goes to standard
 * error: with time and level, with a "<n>" priority for a service manager, or as one JSON object.
 *
 *   log_event(LOG_LEVEL_INFO, LOG_MODEL_READY, LOG_FIELDS(LOG_TEXT("model", name)), "%s: ready", name);
 *
 * Never a secret, never a raw control byte. Nobody waits for the log: what standard error or the
 * journal does not take at once is lost, and the number of lost lines is told when it does again. To
 * a file, which makes whoever writes wait, a thread writes from log_start() on. A message that repeats
 * within some seconds is counted, not written.
 */
#ifndef DAEMON_BASE_LOG_H
#define DAEMON_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum log_format { LOG_FORMAT_AUTO, LOG_FORMAT_PLAIN, LOG_FORMAT_PREFIX, LOG_FORMAT_JOURNAL, LOG_FORMAT_JSON };

/* The events that programs look for, each with the MESSAGE_ID that it keeps for ever; listed in
 * docs/logging.md. */
// clang-format off
#define LOG_MESSAGES(X) \
        X(STARTED,         "462373793fb948d18813211b120f8c4e", "the daemon serves") \
        X(STOPPING,        "432dd16fdcd34de28e5a14fcfd61521d", "the daemon was told to end") \
        X(MODEL_READY,     "f556871bc85f4a2cb3e2fc44114610b9", "a load has ended well") \
        X(MODEL_FAILED,    "623544edab8e4812a6fe71f8ef889b4e", "a load has failed or was cancelled") \
        X(MODEL_GONE,      "cb3dfd5b866b4ba6b26b5c7c752a2527", "a model's memory was given back") \
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
#define LOG_TEXT(name, text)                                                                                           \
        (struct log_field)                                                                                             \
        {                                                                                                              \
                name, text, 0                                                                                          \
        }
#define LOG_NUMBER(name, number)                                                                                       \
        (struct log_field)                                                                                             \
        {                                                                                                              \
                name, NULL, number                                                                                     \
        }
#define LOG_FIELDS(...)                                                                                                \
        (const struct log_field[])                                                                                     \
        {                                                                                                              \
                __VA_ARGS__,                                                                                           \
                {                                                                                                      \
                        0                                                                                              \
                }                                                                                                      \
        }

struct log_output {
        enum log_format format;
        bool to_stderr;      /* AUTO takes standard error even where that is the journal's stream */
        const char *journal; /* its socket; NULL: the system's */
};

/* Sets the level, and looks at what standard error is; the output is then AUTO's. May be called again. */
void log_init(enum log_level level);
void log_set_level(enum log_level level);             /* from any thread; the output stays */
void log_set_output(const struct log_output *output); /* not between log_start() and log_stop() */

/* Where writing may wait a thread does it from here on, up to log_stop(). */
void log_start(void);
/* Waits for that thread, 2 s at the most, and tells what was counted; stop goes on without a thread. */
void log_flush(void);
void log_stop(void);

/* About once a second: tells what was counted. */
void log_tick(void);
/* Lines that nobody took. */
uint64_t log_lost(void);

int log_level_parse(const char *word);  /* error|warn|warning|info|debug, any case; -1 if none */
int log_format_parse(const char *word); /* auto|plain|prefix|journal|json; -1 if none */

/* The one door. `fields` may be NULL. */
void log_event(enum log_level level, enum log_message message, const struct log_field *fields, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

#define log_error(...) log_event(LOG_LEVEL_ERROR, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_warn(...) log_event(LOG_LEVEL_WARN, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_info(...) log_event(LOG_LEVEL_INFO, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_debug(...) log_event(LOG_LEVEL_DEBUG, LOG_NO_ID, NULL, __VA_ARGS__)

#endif
