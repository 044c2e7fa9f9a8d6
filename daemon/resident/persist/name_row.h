/* SPDX-License-Identifier: Apache-2.0
 *
 * A name on one device, as it is persisted: which models of the fd store it leads to, and what it takes to load what it
 * leads to again. All of it are facts of the name: names of one generation may have different sources, owners and
 * callers.
 */
#pragma once

#include "daemon/resident/model.h"

/* The model that has the name, and while that is being stored, the one before it. */
#define NAME_ROW_MODELS 2
#define NAME_ROW_RANKS 64

/* A name on one device. */
struct name_row {
        char *name;
        char *device; /* its UUID; NULL: its model's */
        char *source; /* what was loaded under the name, without the query of a URL; NULL: this and the caller are its
                         model's */
        char *pattern;
        uint64_t number; /* of the generation */
        bool verified;
        bool stale;           /* as the model's */
        bool loadable;        /* from its source on its device: nothing of them is missing */
        struct caller caller; /* for whom it was loaded under this name */
        struct model_settings settings;
        uint32_t owner;   /* of the name */
        uint64_t charged; /* uid + 1 of the user who is charged for the name; 0: none, or the model's caller */
        uint32_t rank, n_ranks;
        uint64_t order;                   /* of the names of one generation: ascending, the oldest first */
        uint64_t models[NAME_ROW_MODELS]; /* ids in the store, the newest first */
        size_t n_models;
};

/* It leads to something that a later run has, or is to have; else it says that the name was removed. */
static inline bool name_row_counts(const struct name_row *row)
{
        return row->n_models > 0 || row->settings.pinned || row->n_ranks > 0;
}
/* The row of a name, without models. Borrows the name's texts, but for the source. STREAMER_ENOMEM. */
int name_row_of(struct name_row *row, const struct model_name *name);
void name_row_deinit(struct name_row *row); /* of one that owns its texts; accepts a zeroed one */
/* A zeroed one behind the n rows of a list, which then has one more. NULL: no memory. */
struct name_row *name_row_append(struct name_row **rows, size_t *n);
