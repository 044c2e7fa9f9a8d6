/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a failure travels with the request that failed. A function that can fail for reasons
 * outside the program takes a struct error and returns its code (a STREAMER_E*, negative); broken
 * invariants assert instead.
 */
#ifndef DAEMON_BASE_ERROR_H
#define DAEMON_BASE_ERROR_H

#include "proto/codes.h"

#include <stddef.h>

struct error {
        int code;        /* 0, or STREAMER_E* */
        char text[1000]; /* "what: why (where)", one line of printable UTF-8 */
};

/* Sets and returns code. Control bytes in the formatted text are escaped as \xNN; too long a text
 * is cut with "...". `error` may be NULL. */
int error_set(struct error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* As error_set, ending with ": strerror(errno_value)". */
int error_errno(struct error *error, int code, int errno_value, const char *format, ...)
        __attribute__((format(printf, 4, 5)));

/* Makes text one line of printable UTF-8: control characters, line separators and bytes that are no
 * UTF-8 become \xNN; what does not fit is cut at a whole character and ends with "...". */
void error_escape(char *out, size_t size, const char *text);

#endif
