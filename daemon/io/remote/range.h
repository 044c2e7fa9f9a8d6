/* SPDX-License-Identifier: Apache-2.0
 *
 * A range, private to range.c, which requests a run of blocks, and hedge.c, which handles late ones.
 */
#ifndef DAEMON_IO_REMOTE_RANGE_H
#define DAEMON_IO_REMOTE_RANGE_H

#include "daemon/io/reader/leaf_hash.h"
#include "daemon/io/remote/thread.h"

struct attempt {
        struct http_transfer transfer;
        struct range *range;
        char *led;
        bool busy;
};

struct range {
        struct list link;
        struct http_thread *thread;
        struct read_run run;
        struct attempt first, hedge;
        unsigned char *hedge_to;
        uint32_t file;
        struct http_retry retry;
        bool waiting; /* for its next try */
        bool asks;    /* and counts as one of its job's that do */

        /* The block at hand, where `held`: */
        bool held;
        struct ticket ticket;
        unsigned char *to;
        struct fill fill;
        uint64_t begun_ns; /* it, or the present try for it */
};

static inline struct http_job *range_job(const struct range *range)
{
        return http_job(range->run.job);
}

static inline const struct object *range_object(const struct range *range)
{
        return &range->run.job->objects[range->file];
}

static inline uint64_t block_end(const struct plan_block *block)
{
        return block->file_off + block->len;
}

/* NULL: no memory. */
struct range *range_new(struct http_thread *self);
/* No block is at hand. An error is the whole job's. */
void range_end(struct range *range, const struct error *error);
/* Bytes of the block at hand; the number of those taken. */
size_t range_feed(struct range *range, const unsigned char *data, size_t n);
void range_land(struct range *range); /* the block at hand, which is full */
/* What is left of its run; over where nothing is. */
void range_request_rest(struct range *range);

/* Of the first request: as many as there are blocks for, and the rest again later. */
enum http_sink range_bytes(struct http_transfer *t, const unsigned char *data, size_t n);
/* Bytes [from, to) of the object. */
void range_ask(struct attempt *a, uint64_t from, uint64_t to);
void attempt_cancel(struct attempt *a);

/* ---- hedges ---- */

/* With nothing left to take, and an unused slot. */
void hedge_if_late(struct range *range, uint64_t now);
void hedge_give_slot(struct range *range);
enum http_sink hedge_bytes(struct http_transfer *t, const unsigned char *data, size_t n);
void hedge_done(struct http_transfer *t, enum http_outcome outcome);

#endif
