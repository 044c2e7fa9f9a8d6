/* SPDX-License-Identifier: Apache-2.0
 *
 * Names come from files and other users: before they reach a terminal, whatever could move its
 * cursor is escaped. Widths are counted in characters, not bytes.
 */
#include "client/streamerctl/output.h"

#include "client/streamerctl/term.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define COLUMN_MIN 8

/* ---- figures ---- */

char *human_size(char out[HUMAN_MAX], uint64_t bytes)
{
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
        double v = (double)bytes;
        size_t unit = 0;
        for (; v >= 1024 && unit < 6; unit++)
                v /= 1024;
        if (unit == 0)
                snprintf(out, HUMAN_MAX, "%" PRIu64 " B", bytes);
        else
                snprintf(out, HUMAN_MAX, "%.1f %s", v, units[unit]);
        return out;
}

char *human_rate(char out[HUMAN_MAX], uint64_t bytes, uint64_t ns)
{
        double per_second = ns == 0 ? 0 : (double)bytes * 1e9 / (double)ns;
        human_size(out, per_second < 1e18 ? (uint64_t)per_second : 0);
        strcat(out, "/s"); /* a size is at most 11 characters */
        return out;
}

char *human_time(char out[HUMAN_MAX], uint64_t ns)
{
        uint64_t s = ns / 1000000000;
        if (ns < 1000000)
                snprintf(out, HUMAN_MAX, "%.1f us", (double)ns / 1e3);
        else if (s == 0)
                snprintf(out, HUMAN_MAX, "%.1f ms", (double)ns / 1e6);
        else if (s < 60)
                snprintf(out, HUMAN_MAX, "%.2f s", (double)ns / 1e9);
        else if (s < 3600)
                snprintf(out, HUMAN_MAX, "%" PRIu64 "m%" PRIu64 "s", s / 60, s % 60);
        else if (s < 86400)
                snprintf(out, HUMAN_MAX, "%" PRIu64 "h%" PRIu64 "m", s / 3600, s / 60 % 60);
        else
                snprintf(out, HUMAN_MAX, "%" PRIu64 "d%" PRIu64 "h", s / 86400, s / 3600 % 24);
        return out;
}

/* ---- names ---- */

char *escape(const char *s)
{
        char *out = streamer_printable(s);
        if (!out)
                out_of_memory();
        return out;
}

void put_escaped(FILE *f, const char *s)
{
        char *safe = escape(s);
        fputs(safe, f);
        streamer_free(safe);
}

void out_of_memory(void)
{
        fputs("streamerctl: insufficient memory\n", stderr);
        exit(streamer_exit_code(STREAMER_ENOMEM));
}

/* ---- tables ---- */

void table_add(struct table *t, const char *cell)
{
        if (t->n_cells == t->cap) {
                t->cap = t->cap == 0 ? 64 : 2 * t->cap;
                t->cells = realloc(t->cells, t->cap * sizeof(*t->cells));
                if (!t->cells)
                        out_of_memory();
        }
        t->cells[t->n_cells++] = escape(cell);
}

void table_addf(struct table *t, const char *format, ...)
{
        char cell[256];
        va_list ap;
        va_start(ap, format);
        vsnprintf(cell, sizeof(cell), format, ap);
        va_end(ap);
        table_add(t, cell);
}

/* A cell that is too wide loses its middle: names differ at their ends. */
static char *cut(const char *cell, int to)
{
        int have = text_width(cell), head = (to - 3 + 1) / 2, tail = to - 3 - head;
        if (have <= to)
                return strdup(cell);
        char *out = malloc(strlen(cell) + 4);
        if (out)
                sprintf(out, "%.*s...%s", (int)text_bytes(cell, head), cell, cell + text_bytes(cell, have - tail));
        return out;
}

static void print_cell(const char *text, int to, bool right, bool last, const char *colour)
{
        char *cell = cut(text, to);
        if (!cell)
                out_of_memory();
        int pad = to - text_width(cell);
        printf("%*s%s%s%s", right ? pad : 0, "", colour, cell, colour[0] ? term_plain() : "");
        printf("%*s%s", right || last ? 0 : pad, "", last ? "\n" : "  ");
        free(cell);
}

static int *widths_of(const struct table *t)
{
        int *widths = calloc(t->n_columns, sizeof(*widths));
        if (!widths)
                out_of_memory();
        for (size_t i = 0; i < t->n_columns; i++)
                widths[i] = text_width(t->columns[i].title + (t->columns[i].title[0] == '>'));
        for (size_t i = 0; i < t->n_cells; i++)
                if (text_width(t->cells[i]) > widths[i % t->n_columns])
                        widths[i % t->n_columns] = text_width(t->cells[i]);
        return widths;
}

/* Takes from the widest column of text, again and again. Figures stay whole, whatever comes of it. */
static void fit(const struct table *t, int *widths, int room)
{
        for (;;) {
                int sum = 2 * ((int)t->n_columns - 1);
                size_t widest = t->n_columns;
                for (size_t i = 0; i < t->n_columns; i++) {
                        sum += widths[i];
                        if (t->columns[i].title[0] != '>' && (widest == t->n_columns || widths[i] > widths[widest]))
                                widest = i;
                }
                if (sum <= room || widest == t->n_columns || widths[widest] <= COLUMN_MIN)
                        return;
                widths[widest]--;
        }
}

void table_print_deinit(struct table *t)
{
        int *widths = widths_of(t), room = t->whole ? 0 : term_width();
        if (room > 0)
                fit(t, widths, room);
        for (size_t i = 0; i < t->n_columns; i++) {
                bool right = t->columns[i].title[0] == '>';
                print_cell(t->columns[i].title + right, widths[i], right, i + 1 == t->n_columns, term_title());
        }
        for (size_t i = 0; i < t->n_cells; i++) {
                size_t column = i % t->n_columns;
                bool is_state = strcmp(t->columns[column].title, "STATE") == 0;
                print_cell(t->cells[i], widths[column], t->columns[column].title[0] == '>', column + 1 == t->n_columns,
                           is_state ? term_state(t->cells[i]) : "");
                free(t->cells[i]);
        }
        free(t->cells);
        free(widths);
}
