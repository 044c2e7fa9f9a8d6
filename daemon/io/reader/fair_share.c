/* SPDX-License-Identifier: Apache-2.0
 *
 * Virtual time counts bytes times FAIR_SHARE_WEIGHT_MAX, so that no weight loses a byte to rounding; at
 * 100 GiB/s and the default weight it lasts for years, and is compared by difference all the same.
 */
#include "daemon/io/reader/fair_share.h"

#include "daemon/base/util.h"

void fair_share_init(struct fair_share *share, unsigned weight, uint64_t now, uint64_t head_start)
{
        require(weight >= 1 && weight <= FAIR_SHARE_WEIGHT_MAX);
        *share = (struct fair_share){.weight = weight, .due = now, .ahead = head_start};
}

unsigned fair_share_of(const struct fair_share *share, unsigned heaviest, unsigned n)
{
        require(heaviest >= share->weight);
        uint64_t part = (uint64_t)n * share->weight / (share->weight + heaviest);
        return part > 0 ? (unsigned)part : 1;
}

bool fair_share_before(const struct fair_share *a, const struct fair_share *b)
{
        return (int64_t)(a->due - b->due) < 0;
}

void fair_share_take(struct fair_share *share, uint64_t *now, uint64_t bytes)
{
        if (share->ahead >= bytes) {
                share->ahead -= bytes;
                return;
        }
        share->ahead = 0;
        if ((int64_t)(*now - share->due) < 0)
                *now = share->due;
        share->due = *now + bytes * FAIR_SHARE_WEIGHT_MAX / share->weight;
}
