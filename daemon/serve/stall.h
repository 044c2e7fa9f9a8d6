/* SPDX-License-Identifier: Apache-2.0
 *
 * How long the loop keeps everybody waiting: the time from one wait for events to the next, less
 * what was spent waiting. Kept as the longest of all and as a histogram, shown by `status`, and
 * handed to the metrics.
 */
#ifndef DAEMON_SERVE_STALL_H
#define DAEMON_SERVE_STALL_H

#include <stdint.h>
#include <uv.h>

/* Turns shorter than so many milliseconds; the last one counts what no bound holds. */
#define STALL_BOUNDS_MS                                                                                                \
        {                                                                                                              \
                1, 5, 10, 25, 50, 100, 250, 1000                                                                       \
        }
#define STALL_BUCKETS 9

struct stall {
        uint64_t turns, longest_ns;
        uint64_t counts[STALL_BUCKETS];
        uint64_t last_ns, last_idle_ns; /* at the wait before; 0: none yet */
};

/* UINT64_MAX for the last. */
uint64_t stall_bound_ns(unsigned bucket);

/* The loop is about to wait. `idle_ns`: what it has spent waiting in all. Answers the busy time
 * since the wait before. Pure. */
uint64_t stall_turn(struct stall *stall, uint64_t now_ns, uint64_t idle_ns);

/* ---- on a loop ---- */

struct stall_watch {
        struct stall stall;
        uv_prepare_t prepare;
};

/* Before anything else runs on the loop. Closed with the loop's other handles. */
void stall_watch_start(struct stall_watch *watch, uv_loop_t *loop);

#endif
