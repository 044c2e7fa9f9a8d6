/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows of names (snapshot.h) were written, and which are due: what they say now may differ from that. A change
 * marks a name on a device; the row is made when it is written, and only if it differs from the last one. So the cost
 * of a change does not depend on how many names there are.
 */
#pragma once

#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/base/tree.h"

/* A name on a device. It exists while a row of it is in a place, or due. */
struct journal_row {
        struct tree_node by_key;
        struct list in_due;
        unsigned char digest[DIGEST_SIZE]; /* of the row as it was written last */
        bool stored, filed;                /* in the memory of the service manager, in the state file */
        const char *device;                /* its UUID; behind the name */
        char name[];
};

struct journal {
        struct tree rows;
        struct list due;
};

void journal_init(struct journal *journal);
void journal_deinit(struct journal *journal);

/* The row is due. STREAMER_ENOMEM, and it is not, unless it exists. */
int journal_mark(struct journal *journal, const char *name, const char *device);
/* All rows are due, as if those of a place had never been written. */
void journal_restart(struct journal *journal, bool stored, bool filed);
/* It was written, or is in no place: frees it if it is in none. */
void journal_settle(struct journal *journal, struct journal_row *row);
