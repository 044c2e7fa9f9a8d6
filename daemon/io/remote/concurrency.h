/* SPDX-License-Identifier: Apache-2.0
 *
 * How many ranges of one load are in flight. Pure: time comes from the caller.
 *
 * A distant server gets the maximum: the ranges fill the time until it answers. A near one begins with a quarter, since
 * each further range may only cost it time:
 *
 *   settling > measured: no gain > back to the best number, retried after some windows
 *       ^          \
 *       |           \ throughput grew
 *       |____________\_ twice as many
 *
 * A server that asks to slow down halves the number; then it grows by one at a time, and by doubling again after some
 * windows without such an answer.
 *
 * Near the end of a load, requests are cut in two and blocks requested twice if that may end it sooner: never
 * while the throughput holds, since one more request would then take its share from the others.
 */
#ifndef DAEMON_IO_REMOTE_CONCURRENCY_H
#define DAEMON_IO_REMOTE_CONCURRENCY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct concurrency {
        unsigned limit, most;
        bool answered, settled;
        /* The window, which ends when as many blocks as the limit have landed, not too soon: */
        unsigned landed;
        uint64_t window_ns, bytes;
        /* The best that was measured: */
        unsigned best;
        uint64_t rate;      /* bytes a second with it; 0: none yet */
        unsigned held;      /* windows since it was tried to have more */
        uint64_t slowed_ns; /* when it was last halved; 0: never */
        unsigned calm;      /* windows since then that are to come before it grows as ever */
        uint64_t block_ns;  /* what a block takes, smoothed; 0: none has landed */
        /* The throughput, by samples: */
        uint64_t first_ns, first_bytes; /* when there were some; 0: not yet */
        uint64_t sample_ns, sample_bytes;
        uint64_t flow, average; /* bytes a second: of the last few samples, of all; 0: not known yet */
};

void concurrency_init(struct concurrency *pace, unsigned most, uint64_t now);
/* The server has begun to answer a request, so long after it was asked. */
void concurrency_answered(struct concurrency *pace, uint64_t after_ns);
/* So many bytes have arrived in all. True: a sample has ended. */
bool concurrency_add_bytes(struct concurrency *pace, uint64_t bytes, uint64_t now);
/* The throughput holds: the server is busy, or the link is saturated. */
bool concurrency_is_saturated(const struct concurrency *pace);
/* So many blocks are worth the cost of another request, once a place is free. SIZE_MAX: none, or not known yet. */
size_t concurrency_split(const struct concurrency *pace);
void concurrency_add_block(struct concurrency *pace, uint64_t bytes, uint64_t took_ns, uint64_t now);
void concurrency_slow_down(struct concurrency *pace, uint64_t now);
/* A block that takes longer is a straggler. 0: not known yet. */
uint64_t concurrency_straggler(const struct concurrency *pace);

#endif
