/* SPDX-License-Identifier: Apache-2.0
 *
 * "%41": one byte of a text in percent-encoding. What becomes of a '%' that begins no byte is the caller's
 * to say, and so is '+'.
 */
#ifndef DAEMON_BASE_PERCENT_H
#define DAEMON_BASE_PERCENT_H

static inline int percent_digit(char c)
{
        if (c >= '0' && c <= '9')
                return c - '0';
        c = (char)(c | 0x20);
        return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that the three characters at `text` stand for; -1 where they are no such three, or for NUL. */
static inline int percent_byte(const char *text)
{
        int high = text[0] == '%' ? percent_digit(text[1]) : -1;
        int low = high >= 0 ? percent_digit(text[2]) : -1;
        return low >= 0 && (high | low) != 0 ? high << 4 | low : -1;
}

#endif
