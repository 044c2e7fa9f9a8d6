/* SPDX-License-Identifier: Apache-2.0
 *
 * The book's rows by what they are of, while what an earlier run has left is taken back: the book is looked
 * through once, and not for each model and process.
 */
#ifndef DAEMON_RESIDENT_KEEP_ROWS_H
#define DAEMON_RESIDENT_KEEP_ROWS_H

#include "daemon/resident/book.h"

struct row_of {
        uint64_t of;  /* a model's or a process's number in the book */
        size_t place; /* in the book */
        void *row;    /* it may have been dropped since */
};

/* In the order of `of`, and of the book. */
struct rows_of {
        struct row_of *rows;
        size_t n;
};

struct keep_rows {
        struct rows_of names, leases; /* of models */
        struct rows_of held;          /* leases of processes */
};

void keep_rows_init(struct keep_rows *rows, struct book *book);
void keep_rows_deinit(struct keep_rows *rows);

/* Those of one that have not been dropped: the next from *at on, which is 0 for the first; NULL at the end. */
struct book_name *rows_next_name(const struct rows_of *rows, uint64_t of, size_t *at);
struct book_lease *rows_next_lease(const struct rows_of *rows, uint64_t of, size_t *at);

#endif
