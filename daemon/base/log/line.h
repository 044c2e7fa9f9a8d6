/* SPDX-License-Identifier: Apache-2.0
 *
 * The four formats of a log line. Each is at most LOG_LINE_MAX bytes, which a pipe takes whole: long texts are
 * truncated, and fields that do not fit are left out.
 */
#ifndef DAEMON_BASE_LOG_LINE_H
#define DAEMON_BASE_LOG_LINE_H

#include "daemon/base/log/message.h"

#define LOG_LINE_MAX 4096 /* PIPE_BUF */

struct log_record {
        enum log_level level;
        enum log_message message;
        const struct log_field *fields; /* NULL: none; ends with a row without a name */
        const char *text;               /* one printable line */
};

/* Bytes of the line, its end included. JOURNAL is a datagram of the journal's native protocol. */
size_t log_line(char out[LOG_LINE_MAX], enum log_format format, const struct log_record *record);

#endif
