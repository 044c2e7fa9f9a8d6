/* SPDX-License-Identifier: Apache-2.0
 *
 * Text for people: sizes, durations, names made safe for a terminal, aligned columns, progress.
 */
#pragma once

#include "streamer/client.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define HUMAN_MAX 32
#define PART_NAME_MAX 64

/* "3.9 GiB"; "12 B". Returns out. */
char *human_size(char out[HUMAN_MAX], uint64_t bytes);
char *human_rate(char out[HUMAN_MAX], uint64_t bytes, uint64_t ns); /* "2.8 GiB/s" */
char *human_time(char out[HUMAN_MAX], uint64_t ns);                 /* "1.42 s", "3m12s", "2d4h" */
/* The time that the rest takes where `done` of `total` took `ns`, in whole seconds; "" where that is not known. */
char *human_left(char out[HUMAN_MAX], uint64_t done, uint64_t total, uint64_t ns);

/* A copy in which control characters and bytes that are not UTF-8 are \xNN. malloc'd. */
char *escape(const char *s);
void put_escaped(FILE *f, const char *s); /* allocates nothing */

/* Whether all bytes were written; else errno says why. */
bool write_whole(int fd, const void *data, uint64_t size);

/* The name of a file that is not whole yet. No process has given it before: its number alone is that of a container's
 * every process. Returns out. */
char *part_name(char out[PART_NAME_MAX]);
/* A file that replaces another one has its permissions. */
struct permissions {
        bool replaces; /* a regular file; else all that the umask leaves */
        mode_t mode;
};
struct permissions permissions_of(int dir, const char *name);
mode_t permissions_to_open(const struct permissions *p);   /* until they are set */
bool permissions_set(const struct permissions *p, int fd); /* else errno says why */

/* Ends the program with an error line and the exit code of STREAMER_ENOMEM; the line is text also with --json. */
_Noreturn void out_of_memory(void);

/* A table: cells are copied, escaped; columns whose title begins with '>' are right-aligned, and those with '?'
 * are not printed where all their cells are empty. */
struct table {
        size_t n_columns;
        const struct column *columns;
        char **cells;
        size_t n_cells, cap;
        bool whole; /* also where the terminal is narrower */
};
/* What becomes of a column where the terminal is too narrow. From 1: it is dropped, those of higher numbers first. */
enum {
        COLUMN_CUT = -1, /* prose: its cells lose their middle, before columns are dropped */
        COLUMN_KEEP = 0, /* whole: a name that users type, a state */
};
/* A column picks a member of each row of JSON and adds its text as a cell. */
struct column {
        const char *title;
        const char *key;
        void (*add)(struct table *table, const json_t *row, const char *key);
        int fate; /* COLUMN_CUT, COLUMN_KEEP or from 1 */
};
void table_add(struct table *t, const char *cell);
void table_addf(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_print_deinit(struct table *t); /* nothing but the titles if there are no rows */

/* Progress of a load on standard error: a bar that is redrawn on a terminal, else a line a second; with --json an
 * object a second. */
struct ctl;
struct progress {
        bool silent, json, terminal, drawn;
        uint64_t last_ns, first_ns, first_bytes;
};
void progress_init(struct progress *p, const struct ctl *ctl);
void progress_show(struct progress *p, const streamer_progress *now);
void progress_clear(struct progress *p); /* erases the bar, before other output */
