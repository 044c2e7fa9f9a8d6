/* SPDX-License-Identifier: Apache-2.0
 *
 * The log, from any thread: a message is one printable line, with fields, and goes to the journal or to standard error.
 * Never a secret, never a raw control byte. From log_start() on a thread writes, and logging does not block: lines that
 * find its queue full are lost, and their number is logged later. A message that repeats within some seconds is counted
 * instead of written.
 */
#ifndef DAEMON_BASE_LOG_LOG_H
#define DAEMON_BASE_LOG_LOG_H

#include "daemon/base/log/message.h"

#include <stdbool.h>

#define LOG_BATCH_MAX ((size_t)128 << 10) /* bytes of lines that wait for the thread, and again of those it writes */

struct log_output {
        enum log_format format;
        bool to_stderr;      /* AUTO chooses standard error even if that is the journal's stream */
        const char *journal; /* the file whose absence means that there is no journal; NULL: the system's socket */
};

/* Both may be called again; at first the level is INFO and the format PLAIN. */
void log_set_level(enum log_level level);             /* from any thread */
void log_set_output(const struct log_output *output); /* not between log_start() and log_stop() */

/* A thread writes from here on, up to log_stop(). */
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
