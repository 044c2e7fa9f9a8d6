/* SPDX-License-Identifier: Apache-2.0 */
#include "client/streamerctl/columns.h"

#include <inttypes.h>

/* ---- cells ---- */

void add_text(struct table *t, const json_t *row, const char *key)
{
        table_add(t, json_str(row, key));
}

void add_number(struct table *t, const json_t *row, const char *key)
{
        table_addf(t, "%" PRIu64, json_u64(row, key));
}

void add_size(struct table *t, const json_t *row, const char *key)
{
        char text[HUMAN_MAX];
        table_add(t, human_size(text, json_u64(row, key)));
}

void add_time(struct table *t, const json_t *row, const char *key)
{
        char text[HUMAN_MAX];
        table_add(t, human_time(text, json_u64(row, key)));
}

void add_time_or_nothing(struct table *t, const json_t *row, const char *key)
{
        if (json_u64(row, key) > 0)
                add_time(t, row, key);
        else
                table_add(t, "");
}

void add_yes_no(struct table *t, const json_t *row, const char *key)
{
        table_add(t, json_bool(row, key) ? "yes" : "no");
}

/* ---- tables ---- */

void columns_print(const json_t *rows, const struct column *columns, size_t n, bool whole, below_fn *below)
{
        struct table t = {.n_columns = n, .columns = columns, .whole = whole};
        const json_t *row;
        for (size_t i = 0; (row = json_array_get(rows, i)); i++) {
                for (size_t c = 0; c < n; c++)
                        columns[c].add(&t, row, columns[c].key);
                if (below)
                        below(&t, row);
        }
        table_print_deinit(&t);
}
