/* SPDX-License-Identifier: Apache-2.0
 *
 * What a message of the log consists of (a level, an event, its fields and its text), and the four formats of its line.
 */
#ifndef DAEMON_BASE_LOG_MESSAGE_H
#define DAEMON_BASE_LOG_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

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

struct log_record {
        enum log_level level;
        enum log_message message;
        const struct log_field *fields; /* NULL: none; ends with a row without a name */
        const char *text;               /* one printable line */
};

/* Bytes of the line, its end included: at most LOG_LINE_MAX, which a pipe takes whole. Long texts are truncated, and
 * fields that do not fit are left out. JOURNAL is a line NAME=VALUE for each field, and a NUL. */
size_t log_line(char out[LOG_LINE_MAX], enum log_format format, const struct log_record *record);

extern const char *const log_levels[], *const log_formats[]; /* names by value; NULL ends them */

#endif
