/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/printable.h"

#include "proto/codec.h"

#include <stdio.h>
#include <string.h>

static bool is_control(const unsigned char *c, size_t n)
{
        if (n == 1)
                return c[0] < 0x20 || c[0] == 0x7f;
        return n == 2 && c[0] == 0xc2 && c[1] < 0xa0;
}

static bool is_break_or_turn(const unsigned char *c, size_t n)
{
        if (n == 2)
                return c[0] == 0xd8 && c[1] == 0x9c;
        if (n != 3 || c[0] != 0xe2)
                return false;
        if (c[1] == 0x81)
                return c[2] >= 0xa6 && c[2] <= 0xa9;
        return c[1] == 0x80 && (c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xa8 && c[2] <= 0xae));
}

size_t printable_char(const char *s, size_t left)
{
        const unsigned char *c = (const unsigned char *)s;
        size_t n = c[0] < 0x80 ? 1 : c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
        return n <= left && codec_utf8(s, n) && !is_control(c, n) && !is_break_or_turn(c, n) ? n : 0;
}

size_t printable_next(char out[PRINTABLE_MAX], const char *s, size_t left)
{
        size_t n = printable_char(s, left);
        if (n == 0) {
                snprintf(out, PRINTABLE_MAX, "\\x%02x", (unsigned)(unsigned char)*s);
                return 1;
        }
        memcpy(out, s, n);
        out[n] = 0;
        return n;
}
