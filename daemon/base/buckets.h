/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table of a fixed number of lists. It never grows, so no operation can fail and no turn of the loop is spent
 * on growing. The daemon's objects of one kind are limited by descriptors or memory to some tens of thousands, about a
 * dozen in a list.
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
/* The list for this key, shared with other keys. The low bits of `key` must be evenly distributed. */
static inline struct list *bucket(struct buckets *buckets, uint64_t key)
{
        return &buckets->of[key % BUCKETS];
}

#endif
