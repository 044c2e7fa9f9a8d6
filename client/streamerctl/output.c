/* SPDX-License-Identifier: Apache-2.0
 *
 * Names come from files and other users: before they reach a terminal, whatever could move its
 * cursor is escaped. Widths are counted in characters, not bytes.
 */
#include "client/streamerctl/output.h"

#include "client/streamerctl/term.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PROSE_MIN 16
#define WRITE_MAX ((size_t)1 << 26)

/* ---- bytes ---- */

bool write_whole(int fd, const void *data, uint64_t size)
{
        const char *at = data;
        while (size > 0) {
                ssize_t n = write(fd, at, size < WRITE_MAX ? (size_t)size : WRITE_MAX);
                if (n < 0 && errno != EINTR)
                        return false;
                at += n > 0 ? n : 0;
                size -= n > 0 ? (uint64_t)n : 0;
        }
        return true;
}

char *part_name(char out[PART_NAME_MAX])
{
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(out, PART_NAME_MAX, ".streamerctl-%d-%jd.%09ld.part", (int)getpid(), (intmax_t)now.tv_sec,
                 now.tv_nsec);
        return out;
}

struct permissions permissions_of(int dir, const char *name)
{
        struct stat st;
        bool replaces = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
        return (struct permissions){.replaces = replaces, .mode = replaces ? st.st_mode & 0777 : 0};
}

mode_t permissions_to_open(const struct permissions *p)
{
        return p->replaces ? 0600 : 0666;
}

bool permissions_set(const struct permissions *p, int fd)
{
        return !p->replaces || fchmod(fd, p->mode) == 0;
}

/* ---- figures ---- */

char *human_size(char out[HUMAN_MAX], uint64_t bytes)
{
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
        double v = (double)bytes;
        size_t unit = 0;
        /* From 1023.95 on it is rounded to 1024.0. */
        for (; v >= (unit == 0 ? 1024 : 1023.95) && unit < 6; unit++)
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

char *human_left(char out[HUMAN_MAX], uint64_t done, uint64_t total, uint64_t ns)
{
        double left = done == 0 || done > total ? -1 : (double)(total - done) * (double)ns / (double)done / 1e9;
        out[0] = '\0';
        if (left < 0 || left > 1e8)
                return out;
        uint64_t seconds = (uint64_t)left + (left > (double)(uint64_t)left);
        if (seconds < 60)
                snprintf(out, HUMAN_MAX, "%" PRIu64 " s", seconds);
        else
                human_time(out, seconds * UINT64_C(1000000000));
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

/* The width of a column that is not printed. */
#define DROPPED (-1)

static const char *heading(const struct column *column)
{
        return column->title + (column->title[0] == '>' || column->title[0] == '?');
}

static int *widths_of(const struct table *t)
{
        int *widths = calloc(t->n_columns, sizeof(*widths));
        if (!widths)
                out_of_memory();
        for (size_t i = 0; i < t->n_columns; i++) {
                bool any = t->columns[i].title[0] != '?';
                widths[i] = text_width(heading(&t->columns[i]));
                for (size_t k = i; k < t->n_cells; k += t->n_columns) {
                        int width = text_width(t->cells[k]);
                        any |= width > 0;
                        widths[i] = width > widths[i] ? width : widths[i];
                }
                if (!any)
                        widths[i] = DROPPED;
        }
        return widths;
}

/* Columns of the terminal that the table takes. */
static int width_of(const struct table *t, const int *widths)
{
        int sum = -2;
        for (size_t i = 0; i < t->n_columns; i++)
                sum += widths[i] == DROPPED ? 0 : widths[i] + 2;
        return sum;
}

/* Takes up to `excess` from a column of prose; what it had more than its heading and the least that says something. */
static int narrow(const struct column *column, int *width, int excess)
{
        int least = text_width(heading(column)) > PROSE_MIN ? text_width(heading(column)) : PROSE_MIN;
        int spare = *width > least ? *width - least : 0, taken = spare < excess ? spare : excess;
        *width -= taken;
        return taken;
}

/* Cuts prose first, then drops columns, the least important first. What remains is whole, even if it does not fit:
 * users type it. */
static void fit(const struct table *t, int *widths, int room)
{
        int excess = width_of(t, widths) - room;
        for (size_t i = t->n_columns; i-- > 0 && excess > 0;)
                if (t->columns[i].fate == COLUMN_CUT)
                        excess -= narrow(&t->columns[i], &widths[i], excess);
        while (excess > 0) {
                size_t least = t->n_columns;
                for (size_t i = 0; i < t->n_columns; i++)
                        if (widths[i] != DROPPED && t->columns[i].fate > 0 &&
                            (least == t->n_columns || t->columns[i].fate > t->columns[least].fate))
                                least = i;
                if (least == t->n_columns)
                        return;
                excess -= widths[least] + 2;
                widths[least] = DROPPED;
        }
}

static const char *colour_of(const struct column *column, const char *cell)
{
        if (cell == heading(column))
                return term_title();
        return strcmp(column->title, "STATE") == 0 ? term_state(cell) : "";
}

/* A line, without blanks at its end; `cells` NULL: of the headings. */
static void print_row(const struct table *t, const int *widths, char *const *cells)
{
        int blanks = 0; /* before the next text */
        for (size_t i = 0; i < t->n_columns; i++) {
                const struct column *column = &t->columns[i];
                const char *text = cells ? cells[i] : heading(column), *colour = colour_of(column, text);
                if (widths[i] == DROPPED)
                        continue;
                char *cell = text_cut(text, widths[i]);
                int pad = widths[i] - text_width(cell);
                bool right = column->title[0] == '>';
                if (cell[0]) {
                        printf("%*s%s%s%s", blanks + (right ? pad : 0), "", colour, cell,
                               colour[0] ? term_plain() : "");
                        blanks = right ? 2 : pad + 2;
                } else {
                        blanks += pad + 2;
                }
                free(cell);
        }
        putchar('\n');
}

void table_print_deinit(struct table *t)
{
        int *widths = widths_of(t), room = t->whole ? 0 : term_width(STDOUT_FILENO);
        if (room > 0)
                fit(t, widths, room);
        print_row(t, widths, NULL);
        for (size_t i = 0; i < t->n_cells; i += t->n_columns)
                print_row(t, widths, &t->cells[i]);
        for (size_t i = 0; i < t->n_cells; i++)
                free(t->cells[i]);
        free(t->cells);
        free(widths);
}
