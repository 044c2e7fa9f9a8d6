/* SPDX-License-Identifier: Apache-2.0
 *
 * The log, from any thread: a message is one printable line, with fields. If standard error is the journal's stream the
 * message goes to the journal with its fields; else a line goes to standard error: with time and level, with a "<n>"
 * priority for a service manager, or as one JSON object.
 *
 *   log_event(LOG_LEVEL_INFO, LOG_MODEL_READY, LOG_FIELDS(LOG_TEXT("model", name)), "%s: ready", name);
 *
 * Never a secret, never a raw control byte. Logging does not block: what standard error or the journal does not accept
 * at once is lost, and the number of lost lines is logged later. Files, where writing may block, are written by a
 * thread from log_start() on. A message that repeats within some seconds is counted instead of written.
 */
#ifndef DAEMON_BASE_LOG_LOG_H
#define DAEMON_BASE_LOG_LOG_H

#include "daemon/base/log/message.h"

#include <stdbool.h>

#define LOG_BATCH_MAX ((size_t)128 << 10) /* bytes of lines that wait for the thread */

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
/* Waits for that thread, 2 s at the most, and logs what was counted; after log_stop() callers write themselves. */
void log_flush(void);
void log_stop(void);

/* About once a second: logs what was counted. */
void log_tick(void);
/* Lines that the output did not accept. */
uint64_t log_lost(void);

/* Logs a message; `fields` may be NULL. */
void log_event(enum log_level level, enum log_message message, const struct log_field *fields, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

#define log_error(...) log_event(LOG_LEVEL_ERROR, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_warn(...) log_event(LOG_LEVEL_WARN, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_info(...) log_event(LOG_LEVEL_INFO, LOG_NO_ID, NULL, __VA_ARGS__)
#define log_debug(...) log_event(LOG_LEVEL_DEBUG, LOG_NO_ID, NULL, __VA_ARGS__)

#endif
