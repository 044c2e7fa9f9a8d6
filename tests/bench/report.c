/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows on the terminal and in bench.json.
 */
#include "tests/bench/bench.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MAX 64

struct row {
        const char *name, *unit, *why; /* why: it was not measured */
        double value, ceiling, target;
        enum better better;
};

static struct row rows[ROWS_MAX];
static size_t n_rows;

static int by_value(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

double median(const double *values, size_t n)
{
        double *sorted = must_alloc(n * sizeof(*sorted)), m = 0;

        memcpy(sorted, values, n * sizeof(*sorted));
        qsort(sorted, n, sizeof(*sorted), by_value);
        if (n > 0)
                m = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
        free(sorted);
        return m;
}

static bool reached(const struct row *r)
{
        if (r->why)
                return false;
        return r->better == HIGHER ? r->value >= r->target : r->value <= r->target;
}

static void add(struct row row)
{
        if (n_rows == ROWS_MAX)
                die("too many rows");
        rows[n_rows++] = row;
}

void report_row(const char *name, double value, const char *unit, double ceiling, enum better better, double target)
{
        add((struct row){
                .name = name, .unit = unit, .value = value, .ceiling = ceiling, .target = target, .better = better});
}

void report_missing(const char *name, const char *unit, double target, const char *why)
{
        add((struct row){.name = name, .unit = unit, .target = target, .why = why});
        report_note("%s was not measured: %s", name, why);
}

void report_note(const char *format, ...)
{
        va_list args;

        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        putchar('\n');
        fflush(stdout);
}

void report_print(void)
{
        printf("\n%-32s %12s %12s %12s  %-12s %s\n", "row", "value", "ceiling", "target", "unit", "reached");
        for (size_t i = 0; i < n_rows; i++) {
                const struct row *r = &rows[i];
                printf("%-32s ", r->name);
                if (r->why)
                        printf("%12s ", "-");
                else
                        printf("%12.3f ", r->value);
                if (r->ceiling > 0)
                        printf("%12.3f", r->ceiling);
                else
                        printf("%12s", "");
                printf(" %s %9.3f  %-12s %s\n", r->better == HIGHER ? ">=" : "<=", r->target, r->unit,
                       reached(r) ? "yes" : "no");
        }
}

static json_t *row_json(const struct row *r)
{
        json_t *o = json_object();

        json_object_set_new(o, "name", json_string(r->name));
        json_object_set_new(o, "value", r->why ? json_null() : json_real(r->value));
        json_object_set_new(o, "unit", json_string(r->unit));
        json_object_set_new(o, "ceiling", r->ceiling > 0 ? json_real(r->ceiling) : json_null());
        json_object_set_new(o, "target", json_real(r->target));
        json_object_set_new(o, "reached", json_boolean(reached(r)));
        return o;
}

void report_write(const char *path)
{
        json_t *list = json_array();

        for (size_t i = 0; i < n_rows; i++)
                json_array_append_new(list, row_json(&rows[i]));
        if (json_dump_file(list, path, JSON_INDENT(2) | JSON_REAL_PRECISION(6)))
                die("%s cannot be written", path);
        json_decref(list);
        printf("\nwritten: %s\n", path);
}
