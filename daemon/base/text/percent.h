/* SPDX-License-Identifier: Apache-2.0
 *
 * Percent-encoding, as "%41".
 */
#pragma once

#include <ctype.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <string.h>

/* All bytes but A-Z a-z 0-9 - . _ ~ and those in `keep` as %XX. Returns the end of what it wrote, where it puts a NUL;
 * `to` has space for three times the text, and the NUL. */
static inline char *percent_encode(char *to, const char *text, const char *keep)
{
        static const char digits[] = "0123456789ABCDEF";
        for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
                if ((*c < 0x80 && isalnum(*c)) || strchr("-._~", *c) != NULL || strchr(keep, *c) != NULL) {
                        *to++ = (char)*c;
                        continue;
                }
                *to++ = '%';
                *to++ = digits[*c >> 4];
                *to++ = digits[*c & 15];
        }
        *to = '\0';
        return to;
}

/* In place; `plus` is what '+' encodes. False where a '%' is not followed by two digits or encodes NUL. */
static inline bool percent_decode(char *text, char plus)
{
        char *to = text;
        for (const char *from = text; *from != '\0'; from++) {
                if (*from != '%') {
                        *to++ = *from == '+' ? plus : *from;
                        continue;
                }
                int high = OPENSSL_hexchar2int((unsigned char)from[1]);
                int low = high >= 0 ? OPENSSL_hexchar2int((unsigned char)from[2]) : -1;
                if (low < 0 || (high | low) == 0)
                        return false;
                *to++ = (char)(high << 4 | low);
                from += 2;
        }
        *to = '\0';
        return true;
}
