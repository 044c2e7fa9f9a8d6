/* SPDX-License-Identifier: Apache-2.0
 *
 * One line a message on standard error, from any thread; "<n>" priority prefixes when standard
 * error is the journal, else time and level. Never a secret, never a raw control byte.
 */
#ifndef DAEMON_BASE_LOG_H
#define DAEMON_BASE_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_init(enum log_level level);
int log_level_parse(const char *word); /* error|warn|warning|info|debug, any case; -1 if none */
void log_write(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
