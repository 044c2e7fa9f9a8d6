/* SPDX-License-Identifier: Apache-2.0
 *
 * How long the loop keeps everybody waiting: the time from one wait for events to the next, less
 * what was spent waiting. Kept as the longest of all and as a histogram, shown by `status`, and
 * handed to the metrics.
 *
 * On a machine with more to do than processors most of it may be time in which the loop was ready and
 * had no processor. The kernel counts that (schedstat), so the longest turn without it is told as well:
 * what the loop did itself, or waited for in a lock or a call. In a virtual machine that has what the host took
 * away in it. So the longest turns are kept with what they ran, by the kernel's count, which leaves out what it knows
 * to be the host's, and with their time and processor, to be held against what else stood still there and then.
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
#define STALL_KEPT 8u
#define STALL_KEPT_FROM_NS UINT64_C(10000000)

struct stall {
        uint64_t turns, longest_ns;
        uint64_t longest_own_ns; /* less the time without a processor */
        uint64_t counts[STALL_BUCKETS];
        struct stall_kept {
                uint64_t at_ns; /* when it began, by CLOCK_MONOTONIC */
                uint64_t ns, own_ns, ran_ns;
                unsigned cpu; /* where it ended */
        } kept[STALL_KEPT];   /* the longest of STALL_KEPT_FROM_NS and more, longest first */
        unsigned n_kept;
        struct stall_clocks {
                uint64_t now_ns;
                uint64_t idle_ns;  /* in all: waiting for events */
                uint64_t ready_ns; /* in all: without a processor, whether in a turn or when an event came */
                uint64_t ran_ns;   /* in all: on a processor */
                unsigned cpu;      /* that it is on */
        } last;                    /* at the wait before; none yet: 0 */
};

/* UINT64_MAX for the last. */
uint64_t stall_bound_ns(unsigned bucket);

/* The loop is about to wait. Answers the busy time since the wait before. Pure. */
uint64_t stall_turn(struct stall *stall, const struct stall_clocks *clocks);

/* ---- on a loop ---- */

struct stall_watch {
        struct stall stall;
        uv_prepare_t prepare;
        int schedstat; /* of the loop's thread; -1 where the kernel does not tell */
        struct stall_clocks clocks;
        uint64_t looked_ns; /* into schedstat */
};

/* By the loop's thread, before anything else runs on the loop. Closed with the loop's other handles. */
void stall_watch_start(struct stall_watch *watch, uv_loop_t *loop);
void stall_watch_deinit(struct stall_watch *watch);

#endif
