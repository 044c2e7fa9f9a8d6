/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted shares of the reader among the loads that read. Pure functions of values; the caller holds a lock.
 *
 * Amount: of a scarce resource (threads, slots) a load may hold
 *
 *     (free + held) x weight / (weight + heaviest)
 *
 * which is half for the heaviest load, and keeps two loads in the ratio of their weights. The rest stays free for the
 * next load. Order: by virtual time, as in start-time fair queueing. A block of n bytes advances its load by n /
 * weight; the least advanced load is next. A load that could not take blocks for a while resumes at the others' time.
 * Virtual time counts bytes times FAIR_SHARE_WEIGHT_MAX, so that no weight loses a byte to rounding; at 100 GiB/s and
 * the default weight it lasts for years, and is compared by difference all the same.
 */
#pragma once

#include "daemon/base/util.h"

#define FAIR_SHARE_WEIGHT_MAX 10000u

struct fair_share {
        unsigned weight;     /* 1 to FAIR_SHARE_WEIGHT_MAX */
        uint64_t due;        /* virtual time at which its next block is due */
        uint64_t head_start; /* bytes that are still free: see fair_share_init() */
};

/* `now`: the virtual time, which begins at 0 and is moved by fair_share_take(). Does not count the first `head_start`
 * bytes, so that a new load, whose headers have waited behind the blocks of others in the storage's queue, has
 * precedence meanwhile. */
static inline void fair_share_init(struct fair_share *share, unsigned weight, uint64_t now, uint64_t head_start)
{
        require(weight >= 1 && weight <= FAIR_SHARE_WEIGHT_MAX);
        *share = (struct fair_share){.weight = weight, .due = now, .head_start = head_start};
}

/* How many of `n` (what is free and what it holds) it may hold; 1 at least. `heaviest`: the largest weight of the loads
 * that share, itself included. */
static inline unsigned fair_share_of(const struct fair_share *share, unsigned heaviest, unsigned n)
{
        require(heaviest >= share->weight);
        uint64_t part = (uint64_t)n * share->weight / (share->weight + heaviest);
        return part > 0 ? (unsigned)part : 1;
}

/* a's next block precedes b's. */
static inline bool fair_share_before(const struct fair_share *a, const struct fair_share *b)
{
        return (int64_t)(a->due - b->due) < 0;
}

/* It takes a block of so many bytes. */
static inline void fair_share_take(struct fair_share *share, uint64_t *now, uint64_t bytes)
{
        if (share->head_start >= bytes) {
                share->head_start -= bytes;
                return;
        }
        share->head_start = 0;
        if ((int64_t)(*now - share->due) < 0)
                *now = share->due;
        share->due = *now + bytes * FAIR_SHARE_WEIGHT_MAX / share->weight;
}
