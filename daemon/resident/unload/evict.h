/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses what to evict: a pure function of values.
 *
 * Candidates are ordered by value: a higher priority is worth more; then a later use. From the most valuable down, a
 * candidate is spared if all that are not spared yet still yield the bytes without it. So no victim is superfluous:
 * without any one of them the bytes would be missing. A large victim spares the small and older ones that it makes
 * needless.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What may be evicted: neither in use nor pinned. */
struct evict_candidate {
        uint64_t bytes;     /* that its eviction frees */
        uint64_t last_used; /* of a clock */
        uint64_t priority;
        void *owner; /* of the caller */
        bool chosen; /* result */
};

/* Sets `chosen` of each and sorts them, the least valuable first. False, with none chosen, where all candidates
 * together do not free `needed` bytes. */
bool evict_choose(struct evict_candidate *candidates, size_t n, uint64_t needed);
