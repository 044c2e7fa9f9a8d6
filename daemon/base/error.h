/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a failure travels with the failed request. A function that can fail for external reasons takes a struct
 * error and returns its code (a negative STREAMER_E*); broken invariants abort.
 */
#pragma once

#include "proto/codes.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct error {
        int code;         /* 0, or STREAMER_E* */
        char text[1000];  /* "what: why (where)", one line of printable UTF-8 */
        bool outside;     /* the source is outside the roots */
        bool unreachable; /* the store gave no answer, or none but that it cannot serve (5xx): no refusal */
        bool hopeless;    /* it needs more than there can be: no wait helps */
};

/* Sets and returns code; the flags become false. Control bytes in the formatted text are escaped as
 * \xNN; too long a text is cut with "...". `error` may be NULL. */
int error_set(struct error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int error_vset(struct error *error, int code, const char *format, va_list args) __attribute__((format(printf, 3, 0)));
/* As error_set, ending with ": " and the text of errno_value. What the daemon itself lacks says nothing of its subject:
 * a limit of descriptors is STREAMER_ELIMIT, and ENOMEM is STREAMER_ENOMEM, whatever `code`. */
int error_errno(struct error *error, int code, int errno_value, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
/* It is one of these. */
static inline bool error_is_lack(int code)
{
        return code == STREAMER_ELIMIT || code == STREAMER_ENOMEM;
}
#define ERROR_ERRNO_SIZE 128
/* strerror(); of EMFILE also the limit. */
void error_errno_text(char out[static ERROR_ERRNO_SIZE], int errno_value);
/* For an allocation without a text of its own; returns STREAMER_ENOMEM. */
int error_no_memory(struct error *error);

/* Makes text one line of printable UTF-8: control characters, line separators and bytes that are no
 * UTF-8 become \xNN; what does not fit is cut at a whole character and ends with "...". */
void error_escape(char *out, size_t size, const char *text);
void error_escape_n(char *out, size_t size, const char *text, size_t len); /* which may hold NULs */
