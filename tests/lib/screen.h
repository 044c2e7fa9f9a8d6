/* SPDX-License-Identifier: Apache-2.0
 *
 * A program on a terminal of ours: what it has drawn, its size, keys. The terminal understands what
 * curses sends to a vt100, and no more; a character that is not ASCII is shown as '?'.
 */
#ifndef TESTS_LIB_SCREEN_H
#define TESTS_LIB_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SCREEN_ROWS 60
#define SCREEN_COLUMNS 200

struct screen {
        pid_t pid;
        int fd;
        int rows, columns, row, column;
        int top, bottom;                             /* the lines that scroll */
        char cells[SCREEN_ROWS][SCREEN_COLUMNS + 1]; /* lines, each NUL-terminated */
        char escape[32];                             /* a sequence that has begun */
        size_t escape_len;
        bool in_escape;
        char *raw; /* everything that was written */
        size_t raw_len;
        bool over; /* nobody writes any more */
};

/* Runs it with this environment on top (NAME=VALUE, NULL ends; NULL: none). */
void screen_start(struct screen *s, int rows, int columns, const char *const *argv, const char *const *environment);
/* Waits until some line holds the text; fails with the whole screen. */
void screen_until(struct screen *s, const char *text);
/* Waits until the line (from 0) begins with it. */
void screen_until_line(struct screen *s, int line, const char *text);
/* Waits until no line does. */
void screen_until_not(struct screen *s, const char *text);
bool screen_has(const struct screen *s, const char *text);
void screen_type(struct screen *s, const char *keys);
void screen_resize(struct screen *s, int rows, int columns);
/* Reads to the end: the exit code. */
int screen_finish(struct screen *s);

#endif
