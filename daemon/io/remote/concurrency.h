/* SPDX-License-Identifier: Apache-2.0
 *
 * How many ranges of one load are in flight. Pure: time comes from the caller.
 *
 * A distant server gets the maximum: the ranges fill the time until it answers. A server at low latency begins with a
 * quarter, since each further range may only cost it time:
 *
 *   changed > stable, measured: no gain > back to the best number, retried after some windows
 *      ^          \
 *      |           \ throughput grew
 *      |____________\_ twice as many
 *
 * A server that asks to slow down halves the number; then it grows by one at a time, and by doubling again after some
 * windows without such an answer.
 *
 * Near the end of a load, the rest of a request passes to another one and blocks are requested twice if that may end it
 * sooner: never while the throughput holds, since one more request would then take its share from the others.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct concurrency {
        unsigned limit, most;
        bool stable; /* the limit has been the same for a window */
        /* The window, which ends when as many blocks as the limit have landed, WINDOW_LEAST at least: */
        unsigned landed;
        uint64_t window_ns, bytes;
        /* The best that was measured: */
        unsigned best;
        uint64_t rate;                /* bytes a second with it; 0: none yet */
        unsigned windows_since_probe; /* since a larger number was last tried */
        uint64_t slowed_ns;           /* when it was last halved; 0: never */
        unsigned additive_windows;    /* windows in which it still grows by one */
        uint64_t block_ns;            /* time of a block, smoothed; 0: none has landed */
        uint64_t answer_ns;           /* from a request to its first byte, smoothed; 0: none has been answered */
        /* The throughput, by samples: */
        uint64_t first_ns, first_bytes; /* the first; 0: none yet */
        uint64_t sample_ns, sample_bytes;
        uint64_t flow, average; /* bytes a second: of the last few samples, of all; 0: unknown yet */
};

void concurrency_init(struct concurrency *c, unsigned most, uint64_t now);
/* The server has begun to answer a request, so long after it was sent. */
void concurrency_answered(struct concurrency *c, uint64_t after_ns);
/* `bytes`: received in all. */
void concurrency_add_bytes(struct concurrency *c, uint64_t bytes, uint64_t now);
/* The throughput holds: the server is busy, or the link is saturated. */
bool concurrency_is_saturated(const struct concurrency *c);
void concurrency_add_block(struct concurrency *c, uint64_t bytes, uint64_t took_ns, uint64_t now);
void concurrency_slow_down(struct concurrency *c, uint64_t now);
/* A block that takes longer is a straggler. 0: unknown yet. */
uint64_t concurrency_straggler(const struct concurrency *c);
/* A request that receives no byte for longer is silent. */
uint64_t concurrency_silence(const struct concurrency *c);
