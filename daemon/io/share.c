/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual time counts bytes times SHARE_WEIGHT_MAX, so that no weight loses a byte to rounding; at
 * 100 GiB/s and the default weight it lasts for years, and is compared by difference all the same.
 */
#include "daemon/io/share.h"

#include "daemon/base/util.h"

void share_init(struct share *share, unsigned weight, uint64_t now)
{
        require(weight >= 1 && weight <= SHARE_WEIGHT_MAX);
        *share = (struct share){.weight = weight, .due = now};
}

void share_head_start(struct share *share, uint64_t bytes)
{
        share->ahead = bytes;
}

unsigned share_of(const struct share *share, unsigned heaviest, unsigned n)
{
        require(heaviest >= share->weight);
        uint64_t part = (uint64_t)n * share->weight / (share->weight + heaviest);
        return part > 0 ? (unsigned)part : 1;
}

static bool earlier(uint64_t a, uint64_t b)
{
        return (int64_t)(a - b) < 0;
}

bool share_before(const struct share *a, const struct share *b)
{
        return earlier(a->due, b->due);
}

void share_take(struct share *share, uint64_t *now, uint64_t bytes)
{
        if (share->ahead >= bytes) {
                share->ahead -= bytes;
                return;
        }
        share->ahead = 0;
        if (earlier(*now, share->due))
                *now = share->due;
        share->due = *now + bytes * SHARE_WEIGHT_MAX / share->weight;
}
