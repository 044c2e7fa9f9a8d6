/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of what to evict: a pure function of values.
 *
 * Candidates stand in an order of worth: higher priority is worth more; among equals the one used
 * later; then the one whose keep-alive lasts longer. The rule, from the most worthy down: a candidate
 * is spared if all that are not spared yet still bring the bytes without it. So
 *
 *   - the most worthy go only where nothing else suffices (least recently used first),
 *   - and no victim is superfluous: without any one of them the bytes would be missing. A large
 *     victim spares the small and older ones that it makes needless.
 *
 * What is in use (leased), pinned, not ready, or holds nothing is no candidate at all.
 */
#ifndef DAEMON_RESIDENT_EVICT_H
#define DAEMON_RESIDENT_EVICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct evict_candidate {
        uint64_t bytes;     /* that come back with it */
        uint64_t last_used; /* of a clock */
        uint64_t expires;   /* of the same clock; 0: never */
        uint64_t priority;
        uint64_t held; /* by leases, and work that touches it */
        bool pinned, ready;
        void *owner; /* the caller's */
        bool chosen; /* the answer */
};

/* Sets `chosen` of each, and sorts them: the least worthy first. False, with none chosen, where all
 * that may go do not bring `needed` bytes. */
bool evict_choose(struct evict_candidate *candidates, size_t n, uint64_t needed);

/* What may go, in bytes. */
uint64_t evict_possible(const struct evict_candidate *candidates, size_t n);

#endif
