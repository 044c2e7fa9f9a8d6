/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies in flight of one reader thread: filled and hashed blocks that are copied from their slot to devices, while the
 * thread fills the next. A block has landed when the event of each of its copies has fired. A failed copy fails its
 * target, not the block.
 */
#pragma once

#include "daemon/io/reader/engine.h"

#define COPY_QUEUE_DEVICES 64

struct device_copy {
        struct read_target *target;
        struct copier *copier;
        void *event;
};

struct block_copy {
        struct ticket ticket;
        struct device_copy copies[READ_TARGETS]; /* not done yet */
        size_t n;
};

struct copy_queue {
        struct reader *reader;
        struct copier *copiers[COPY_QUEUE_DEVICES]; /* by device number, made when first used */
        struct block_copy *oldest_first;
        unsigned n, most;
        struct device_span *spans; /* of the block whose copies are started */
        size_t spans_max;
};

/* 0, or -1: no memory. */
int copy_queue_init(struct copy_queue *copy_queue, struct reader *reader, unsigned most);
void copy_queue_deinit(struct copy_queue *copy_queue); /* none may be in flight; accepts a zeroed one */

/* There is no place for another. */
static inline bool copy_queue_full(const struct copy_queue *copy_queue)
{
        return copy_queue->n == copy_queue->most;
}

/* Starts the copies of a slot's block, whose bytes begin at `data`. 1: in flight, and the ticket is taken over; 0: not
 * in flight (copied at once, or failed). */
int copy_queue_start(struct copy_queue *copy_queue, const struct ticket *ticket, const unsigned char *data);

/* The last one started: its block occupies its slot only, and no thread. */
void copy_queue_mark_copying(struct copy_queue *copy_queue);

/* Until every copy of the oldest is done, or has failed; then reap. At least one is in flight. */
void copy_queue_wait(struct copy_queue *copy_queue);
/* Completes blocks whose copies are done, and returns their slots. */
void copy_queue_reap(struct copy_queue *copy_queue);
