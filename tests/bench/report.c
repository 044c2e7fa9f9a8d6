/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints rows and writes bench.json.
 */
#include "tests/bench/bench.h"

#include <jansson.h>

static const struct {
        const char *name, *unit;
        enum better better;
        double target;
} promised[] = {
#define X(name, unit, better, target) {#name, unit, better, target},
        ROWS(X)
#undef X
};

static struct {
        bool measured;
        double value, ceiling;
} rows[ROW_COUNT];

const char *row_name(enum row row)
{
        return promised[row].name;
}

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

static bool reached(enum row row)
{
        double value = rows[row].value, target = promised[row].target;
        if (target <= 0)
                return rows[row].measured;
        return rows[row].measured && (promised[row].better == HIGHER ? value >= target : value <= target);
}

void report_row(enum row row, double value, double ceiling)
{
        rows[row].measured = true;
        rows[row].value = value;
        rows[row].ceiling = ceiling;
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

static void print_number(double value, bool known)
{
        if (known)
                printf("%12.3f ", value);
        else
                printf("%12s ", "-");
}

void report_print(void)
{
        printf("\n%-32s %12s %12s %12s  %-12s %s\n", "row", "value", "ceiling", "target", "unit", "reached");
        for (enum row i = 0; i < ROW_COUNT; i++) {
                printf("%-32s ", promised[i].name);
                print_number(rows[i].value, rows[i].measured);
                print_number(rows[i].ceiling, rows[i].ceiling > 0);
                printf("%s %9.3f  %-12s %s\n", promised[i].better == HIGHER ? ">=" : "<=", promised[i].target,
                       promised[i].unit, reached(i) ? "yes" : "no");
        }
}

static json_t *number_or_null(double value, bool known)
{
        return known ? json_real(value) : json_null();
}

static json_t *row_json(enum row row)
{
        json_t *o = json_object();
        json_object_set_new(o, "name", json_string(promised[row].name));
        json_object_set_new(o, "value", number_or_null(rows[row].value, rows[row].measured));
        json_object_set_new(o, "unit", json_string(promised[row].unit));
        json_object_set_new(o, "ceiling", number_or_null(rows[row].ceiling, rows[row].ceiling > 0));
        json_object_set_new(o, "target", json_real(promised[row].target));
        json_object_set_new(o, "reached", json_boolean(reached(row)));
        return o;
}

void report_write(const char *path)
{
        json_t *list = json_array();
        for (enum row i = 0; i < ROW_COUNT; i++)
                json_array_append_new(list, row_json(i));
        if (json_dump_file(list, path, JSON_INDENT(2) | JSON_REAL_PRECISION(6)))
                die("%s cannot be written", path);
        json_decref(list);
        printf("\nwritten: %s\n", path);
}
