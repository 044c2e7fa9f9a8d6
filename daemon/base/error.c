/* SPDX-License-Identifier: Apache-2.0
 *
 * Error texts contain names that others chose: paths, tensor names, values from files. They reach terminals, the
 * journal and replies, so every text is one printable line.
 */
#include "daemon/base/error.h"

#include "daemon/base/util.h"
#include "proto/printable.h"

#include <errno.h>
#include <sys/resource.h>

/* Longer than struct error's text: error_escape() truncates. */
#define FORMAT_SIZE 2048

void error_escape(char *out, size_t size, const char *text)
{
        error_escape_n(out, size, text, strlen(text));
}

void error_escape_n(char *out, size_t size, const char *text, size_t len)
{
        static const char dots[] = "...";
        size_t end = 0, cut = 0; /* truncated: the longest whole part that leaves space for the dots */
        require(size >= sizeof(dots));
        for (size_t at = 0; at < len;) {
                char one[PRINTABLE_MAX];
                at += printable_next(one, text + at, len - at);
                size_t n = strlen(one);
                if (end + n >= size) {
                        memcpy(out + cut, dots, sizeof(dots));
                        return;
                }
                memcpy(out + end, one, n);
                end += n;
                if (end + sizeof(dots) <= size)
                        cut = end;
        }
        out[end] = '\0';
}

int error_set(struct error *error, int code, const char *format, ...)
{
        va_list args;
        va_start(args, format);
        error_vset(error, code, format, args);
        va_end(args);
        return code;
}

int error_vset(struct error *error, int code, const char *format, va_list args)
{
        require(code < 0);
        if (error == NULL)
                return code;
        /* Formatted into a buffer: the arguments may refer to the text that is replaced. */
        char text[FORMAT_SIZE];
        vsnprintf(text, sizeof(text), format, args);
        error->code = code;
        error->outside = error->unreachable = error->hopeless = false;
        error_escape(error->text, sizeof(error->text), text);
        return code;
}

void error_errno_text(char out[static ERROR_ERRNO_SIZE], int errno_value)
{
        struct rlimit files;
        const char *text = strerrordesc_np(errno_value) ?: "unknown error";
        if (errno_value == EMFILE && getrlimit(RLIMIT_NOFILE, &files) == 0)
                snprintf(out, ERROR_ERRNO_SIZE, "%s: the daemon may open %llu (ulimit -n, LimitNOFILE=)", text,
                         (unsigned long long)files.rlim_cur);
        else
                snprintf(out, ERROR_ERRNO_SIZE, "%s", text);
}

static int code_of(int errno_value, int code)
{
        if (errno_value == EMFILE || errno_value == ENFILE)
                return STREAMER_ELIMIT;
        return errno_value == ENOMEM ? STREAMER_ENOMEM : code;
}

int error_errno(struct error *error, int code, int errno_value, const char *format, ...)
{
        char text[FORMAT_SIZE], why[ERROR_ERRNO_SIZE];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        error_errno_text(why, errno_value);
        return error_set(error, code_of(errno_value, code), "%s: %s", text, why);
}

int error_no_memory(struct error *error)
{
        return error_set(error, STREAMER_ENOMEM, "no memory");
}
