/* SPDX-License-Identifier: Apache-2.0
 *
 * A model checker: random steps against a daemon, and beside it a model of what the daemon has
 * promised (who serves under which name on which device, who holds what, what may be evicted, what the host cache
 * has, what was taken by force). After each step the two are compared; every attach compares every byte.
 *
 * Steps are one after another, so that each outcome is known or one of few; but for attaches to what is
 * loading, clients that go while a load waits for room, and connections that break. What happens at once is the soak's
 * matter (tests/soak/soak.c).
 */
#ifndef TESTS_LIB_CHECKER_H
#define TESTS_LIB_CHECKER_H

#include "tests/lib/stalls.h"

#include <stdint.h>

// clang-format off
#define CHECKER_COUNTS(X) \
        X(steps) X(attaches) X(refused_attaches) X(by_digest) X(by_generation) X(detaches) X(kills) X(loads) \
        X(aliases) X(replaced) X(no_room) X(evicted) X(cancels) X(unloads) X(busy) X(drains) X(overdue) X(taken) \
        X(pins) X(unpins) X(priorities) X(rewrites) X(looks) X(verifies) X(kept_alive) X(expired) X(no_evict) \
        X(joins) X(waits) X(breaks) X(left_broken) X(heard) \
        /* where there are several devices */ \
        X(replicas) X(partial) X(off_one_device) X(cached) X(brought_back) X(left_cache) X(lost) \
        X(ranks) X(rank_aliases) X(ranks_evicted)
// clang-format on

struct checker_counts {
#define X(name) uint64_t name;
        CHECKER_COUNTS(X)
#undef X
        struct stalls stalls;
};

/* Which devices the daemon has. */
enum checker_kind {
        CHECKER_HOST, /* the host */
        CHECKER_GPUS, /* two GPUs, which are stand-ins, one of each kind of handle; a host cache; and the host */
        CHECKER_KINDS,
};
const char *checker_kind_name(enum checker_kind kind);

/* Takes `steps` steps from `seed` against a daemon of its own in `folder`, then takes everything back
 * and looks for what is left: bytes, leases, descriptors, threads. Fails (die) with the seed and the
 * step where the two differ. Adds to `counts`. */
void checker_run(enum checker_kind kind, const char *folder, uint64_t seed, uint64_t steps,
                 struct checker_counts *counts);

/* "checker: steps 1000 attaches 301 ..." on one line, and on another how long the loop stood. */
void checker_print(const struct checker_counts *counts);

#endif
