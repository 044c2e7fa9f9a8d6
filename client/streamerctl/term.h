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

/* Columns of UTF-8 text on a terminal; bytes of as many characters as fit into so many columns. */
int text_width(const char *text);
size_t text_bytes(const char *text, int columns);
/* A copy of at most `to` columns. What is too wide loses its middle: names differ at their ends. malloc'd. */
char *text_cut(const char *text, int to);
