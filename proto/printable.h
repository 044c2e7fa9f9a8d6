/* SPDX-License-Identifier: Apache-2.0
 *
 * Which characters of a name or an error text may reach a terminal or a log as they are. Names come from other users:
 * what is not printable is written as \xHH for each byte, by the daemon, the library and streamerctl alike.
 */
#pragma once

#include <stddef.h>

/* The bytes of the printable character that begins at s, of which `left` bytes are there; 0: *s is to be escaped. Not
 * printable are: what is not UTF-8; controls (C0, DEL and C1, which terminals obey as well); U+2028 and U+2029, which
 * break lines; the characters with Unicode's property Bidi_Control (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to
 * U+2069), which turn the direction of text. */
size_t printable_char(const char *s, size_t left);

#define PRINTABLE_MAX 5 /* of printable_next() */

/* Writes the next character of a text, or the escape of its first byte, with a NUL; returns how many of the `left`
 * bytes it took. */
size_t printable_next(char out[PRINTABLE_MAX], const char *s, size_t left);
