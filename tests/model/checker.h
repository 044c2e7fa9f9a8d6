/* SPDX-License-Identifier: Apache-2.0
 *
 * A model checker: random steps against a daemon, and against a model of its promises (which generation serves which
 * name on which device, the leases of each client, what may be evicted, what the host cache has, what was revoked).
 * After each step the checker compares the two; every attach compares every byte.
 *
 * Steps are sequential, so that each step has one outcome or one of few. Exceptions are attaches to a loading model,
 * clients that exit while a load waits for memory, and broken connections. tests/soak/soak.c tests concurrency.
 */
#pragma once

#include <stdint.h>

// clang-format off
#define CHECKER_COUNTS(X) \
        X(steps) X(attaches) X(refused_attaches) X(by_digest) X(by_generation) X(detaches) X(kills) X(loads) \
        X(aliases) X(replaced) X(out_of_memory) X(evicted) X(cancels) X(unloads) X(busy) X(drains) X(drain_timeouts) X(revoked) \
        X(pins) X(unpins) X(priorities) X(rewrites) X(rechecks) X(verifies) X(keep_alives) X(expired) X(no_evict) \
        X(joins) X(waits) X(breaks) X(left_disconnected) X(events) \
        X(two_names) X(replaced_while_read) X(denied) X(by_others) \
        X(disk_hits) X(damages) X(disk_damaged) \
        X(links) X(published) X(put) X(publish_aborts) X(publish_replaced) X(publishers_killed) \
        /* daemons with several devices only */ \
        X(replicas) X(partial) X(single_device_unloads) X(cached) X(restored) X(dropped_from_cache) X(lost) \
        X(ranks) X(rank_aliases) X(ranks_evicted)
// clang-format on

struct checker_counts {
#define X(name) uint64_t name;
        CHECKER_COUNTS(X)
#undef X
};

/* The daemon's devices. */
enum checker_kind {
        CHECKER_HOST, /* a host device */
        CHECKER_GPUS, /* two fake GPUs, one for each kind of handle, a host cache and a host device */
        CHECKER_KINDS,
};
const char *checker_kind_name(enum checker_kind kind);

/* Starts a daemon in `folder` and performs `steps` random steps from `seed`. Then it unloads every model, ends every
 * lease and checks for leaked bytes, leases, descriptors and threads. Fails (die) with the seed and the step at which
 * the daemon and the model differ. Adds to `counts`. */
void checker_run(enum checker_kind kind, const char *folder, uint64_t seed, uint64_t steps,
                 struct checker_counts *counts);

/* Prints "checker: steps 1000 attaches 301 ..." on one line, and the times of the loop on another. */
void checker_print(const struct checker_counts *counts);
