/* SPDX-License-Identifier: Apache-2.0
 *
 * Error texts contain names that others chose: paths, tensor names, values from files. They reach terminals, the
 * journal and replies, so every text is one printable line.
 */
#include "daemon/base/error.h"

#include "daemon/base/util.h"
#include "proto/codec.h"

/* Longer than struct error's text: error_escape() truncates. */
#define FORMAT_SIZE 2048

/* C0 and DEL; C1 (U+0080 to U+009F), which terminals obey as well; U+2028 and U+2029 break lines;
 * U+202A to U+202E and U+2066 to U+2069 turn the direction of what follows. */
static bool printable(const char *s, size_t n)
{
        const unsigned char *c = (const unsigned char *)s;
        if (n == 1)
                return c[0] >= 0x20 && c[0] != 0x7f;
        if (n == 2)
                return c[0] != 0xc2 || c[1] >= 0xa0;
        if (n == 3 && c[0] == 0xe2 && c[1] == 0x80)
                return c[2] < 0xa8 || c[2] > 0xae;
        if (n == 3 && c[0] == 0xe2 && c[1] == 0x81)
                return c[2] < 0xa6 || c[2] > 0xa9;
        return true;
}

/* One character of the result; returns how many of the `left` bytes it took. */
static size_t escape_one(char out[8], const char *s, size_t left)
{
        unsigned char lead = (unsigned char)*s;
        size_t n = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        if (n <= left && codec_utf8(s, n) && printable(s, n)) {
                memcpy(out, s, n);
                out[n] = '\0';
                return n;
        }
        snprintf(out, 8, "\\x%02x", (unsigned)lead);
        return 1;
}

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
                char one[8];
                at += escape_one(one, text + at, len - at);
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
        error->outside = false;
        error_escape(error->text, sizeof(error->text), text);
        return code;
}

int error_errno(struct error *error, int code, int errno_value, const char *format, ...)
{
        char text[FORMAT_SIZE];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        return error_set(error, code, "%s: %s", text, strerrordesc_np(errno_value) ?: "unknown error");
}

int error_no_memory(struct error *error)
{
        return error_set(error, STREAMER_ENOMEM, "no memory");
}
