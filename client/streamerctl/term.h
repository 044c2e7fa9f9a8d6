/* SPDX-License-Identifier: Apache-2.0
 *
 * What a terminal changes: colour, and tables and progress that fit its width. A pipe or a file gets the plain and
 * the whole text.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Columns of the terminal that the descriptor is; 0: it is none, or its size is unknown. */
int term_width(int fd);

/* Escape sequences for a word of a state ("ready", "failed", ...) and after it; "" for none. */
const char *term_state(const char *word);
const char *term_title(void);
const char *term_plain(void);

/* Characters of UTF-8 text; bytes of its first n characters. */
int text_width(const char *text);
size_t text_bytes(const char *text, int n);
/* A copy of at most `to` characters. What is too wide loses its middle: names differ at their ends. malloc'd. */
char *text_cut(const char *text, int to);
