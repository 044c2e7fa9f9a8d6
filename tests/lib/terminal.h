/* SPDX-License-Identifier: Apache-2.0
 *
 * A program on a pseudo-terminal: its screen, size and keys. The terminal supports what curses sends to a vt100;
 * non-ASCII characters are shown as '?'.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SCREEN_ROWS 60
#define SCREEN_COLUMNS 200

struct terminal {
        pid_t pid;
        int fd;
        int rows, columns, row, column;
        int top, bottom;                             /* first and last line of the scroll region */
        char cells[SCREEN_ROWS][SCREEN_COLUMNS + 1]; /* lines, each NUL-terminated */
        char escape[32];                             /* an incomplete escape sequence */
        size_t escape_len;
        bool in_escape;
        char *raw; /* all output */
        size_t raw_len;
        bool over; /* the last writer has exited */
};

/* NULL if pseudo-terminals work here, else the reason for a skip. */
const char *terminal_unavailable(void);

/* Runs it with these additional environment variables (NAME=VALUE, ends with NULL; NULL: none). */
void terminal_start(struct terminal *s, int rows, int columns, const char *const *argv, const char *const *environment);
/* Waits until a line contains the text; fails with the whole screen. */
void terminal_until(struct terminal *s, const char *text);
/* Waits until the line (from 0) begins with the text. */
void terminal_until_line(struct terminal *s, int line, const char *text);
/* Waits until no line contains the text. */
void terminal_until_not(struct terminal *s, const char *text);
bool terminal_has(const struct terminal *s, const char *text);
void terminal_type(struct terminal *s, const char *keys);
void terminal_resize(struct terminal *s, int rows, int columns);
/* Reads to the end; returns the exit code. */
int terminal_finish(struct terminal *s);
