/* SPDX-License-Identifier: Apache-2.0
 *
 * Who has a key, found among very many: lists, each of those whose keys fall together. There are always as many,
 * so that nothing can fail and no turn of the loop is spent on making room. What the daemon keeps of one kind is
 * bounded by its descriptors or its memory to some tens of thousands, which makes a list a dozen long.
 */
#ifndef DAEMON_BASE_BUCKETS_H
#define DAEMON_BASE_BUCKETS_H

#include "daemon/base/list.h"

#define BUCKETS 4096

struct buckets {
        struct list of[BUCKETS];
};

static inline void buckets_init(struct buckets *buckets)
{
        for (size_t i = 0; i < BUCKETS; i++)
                list_init(&buckets->of[i]);
}
/* Where those with this key are, and others. `key` is to be spread evenly in its low bits. */
static inline struct list *bucket(struct buckets *buckets, uint64_t key)
{
        return &buckets->of[key % BUCKETS];
}

#endif
