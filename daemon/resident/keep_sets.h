/* SPDX-License-Identifier: Apache-2.0
 *
 * What an earlier run has left in the store, sorted by the names of its descriptors: the book, and the
 * descriptors of each model and of each process. Nothing here looks into them.
 */
#ifndef DAEMON_RESIDENT_KEEP_SETS_H
#define DAEMON_RESIDENT_KEEP_SETS_H

#include "daemon/base/inherit.h"
#include "daemon/resident/keep.h"

/* The descriptors of one model, or of one process (then the pidfd is its record). */
struct set {
        struct list link;
        uint64_t id;
        int record;
        int segments[GENERATION_SEGMENTS];
        unsigned n_segments; /* behind the highest number that came */
        bool twice;          /* two of one name */
};

struct sets {
        struct list models, processes; /* of struct set */
        int book;
        unsigned books;
};

/* Takes what has one of our names; what is of no version's is dropped. */
void sets_sort(struct sets *sets, struct inherit *inherit);
/* With whatever was not taken out of it. */
struct set *set_free(struct set *set);

#endif
