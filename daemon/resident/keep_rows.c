/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/keep_rows.h"

#include "daemon/base/util.h"

#include <stdlib.h>

static void add(struct rows_of *rows, uint64_t of, void *row)
{
        struct row_of *room = with_room(rows->rows, rows->n, sizeof(*room));
        require(room != NULL); /* at the start, of some megabytes at the most */
        rows->rows = room;
        rows->rows[rows->n] = (struct row_of){of, rows->n, row};
        rows->n++;
}

static int by_of(const void *a, const void *b)
{
        const struct row_of *x = a, *y = b;
        int r = (x->of > y->of) - (x->of < y->of);
        return r != 0 ? r : (x->place > y->place) - (x->place < y->place);
}

static void sort(struct rows_of *rows)
{
        if (rows->n > 0)
                qsort(rows->rows, rows->n, sizeof(*rows->rows), by_of);
}

void keep_rows_init(struct keep_rows *rows, struct book *book)
{
        *rows = (struct keep_rows){.names = {0}};
        for (struct book_name *row = NULL; (row = book_each_name(book, row)) != NULL;)
                add(&rows->names, row->model, row);
        for (struct book_lease *row = NULL; (row = book_each_lease(book, row)) != NULL;) {
                add(&rows->leases, row->model, row);
                add(&rows->held, row->process, row);
        }
        sort(&rows->names);
        sort(&rows->leases);
        sort(&rows->held);
}

void keep_rows_deinit(struct keep_rows *rows)
{
        free(rows->names.rows);
        free(rows->leases.rows);
        free(rows->held.rows);
}

static size_t first_of(const struct rows_of *rows, uint64_t of)
{
        size_t from = 0, to = rows->n;
        while (from < to) {
                size_t middle = from + (to - from) / 2;
                if (rows->rows[middle].of < of)
                        from = middle + 1;
                else
                        to = middle;
        }
        return from;
}

/* *at: one more than where the one before was. */
static void *next_of(const struct rows_of *rows, uint64_t of, size_t *at)
{
        size_t i = *at > 0 ? *at : first_of(rows, of);
        if (i >= rows->n || rows->rows[i].of != of)
                return NULL;
        *at = i + 1;
        return rows->rows[i].row;
}

struct book_name *rows_next_name(const struct rows_of *rows, uint64_t of, size_t *at)
{
        struct book_name *row;
        while ((row = next_of(rows, of, at)) != NULL && row->model == 0)
                ;
        return row;
}

struct book_lease *rows_next_lease(const struct rows_of *rows, uint64_t of, size_t *at)
{
        struct book_lease *row;
        while ((row = next_of(rows, of, at)) != NULL && row->id == 0)
                ;
        return row;
}
