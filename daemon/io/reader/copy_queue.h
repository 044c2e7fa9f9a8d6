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
        struct reader_thread *thread;
        struct copier *copiers[COPY_QUEUE_DEVICES]; /* by device number, made when first used */
        struct block_copy *oldest_first;
        unsigned n, most;
        struct device_span *spans; /* of the block whose copies are started */
        size_t spans_max;
};

/* 0, or -1: no memory. */
int copy_queue_init(struct copy_queue *copy_queue, struct reader_thread *thread, unsigned most);
void copy_queue_deinit(struct copy_queue *copy_queue); /* none may be in flight; accepts a zeroed one */

/* A block that is filled and hashed, from `data` on, has landed; or its copies are started: then it occupies its slot
 * only, and no capacity. Takes over the ticket. Waits for the oldest block's copies if the queue is full. */
void copy_queue_land(struct copy_queue *copy_queue, struct ticket *ticket, const unsigned char *data);

/* Completes blocks whose copies are done, and returns their slots. */
void copy_queue_reap(struct copy_queue *copy_queue);
/* The same, once every copy of the oldest is done, or has failed. At least one is in flight. A thread that waits serves
 * no other job: it takes capacity of this one, though not one of its reads. */
void copy_queue_wait(struct copy_queue *copy_queue);
