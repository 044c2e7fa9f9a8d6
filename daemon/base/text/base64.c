/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/text/base64.h"

#include <stdint.h>

/* -1: it is no digit. */
static int value_of(char c, enum base64_form form)
{
        if (c >= 'A' && c <= 'Z')
                return c - 'A';
        if (c >= 'a' && c <= 'z')
                return c - 'a' + 26;
        if (c >= '0' && c <= '9')
                return c - '0' + 52;
        if (c == '+' || (c == '-' && form == BASE64_RELAXED))
                return 62;
        if (c == '/' || (c == '_' && form == BASE64_RELAXED))
                return 63;
        return -1;
}

bool base64_decode(char *text, size_t len, enum base64_form form, size_t *decoded)
{
        size_t digits = len, out = 0;
        while (digits > 0 && len - digits < 2 && text[digits - 1] == '=')
                digits--;
        bool padded = len % 4 == 0;
        if (digits % 4 == 1 || (!padded && (form == BASE64_STANDARD || digits < len)))
                return false;
        uint32_t bits = 0;
        for (size_t i = 0; i < digits; i++) {
                int value = value_of(text[i], form);
                if (value < 0)
                        return false;
                bits = bits << 6 | (uint32_t)value;
                /* Digits 1, 2 and 3 of each four complete a byte. */
                if (i % 4 != 0)
                        text[out++] = (char)(bits >> (6 - 2 * (i % 4)));
        }
        unsigned unused = digits % 4 == 2 ? 4 : digits % 4 == 3 ? 2 : 0;
        if ((bits & ((1u << unused) - 1)) != 0)
                return false;
        *decoded = out;
        return true;
}
