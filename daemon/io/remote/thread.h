/* SPDX-License-Identifier: Apache-2.0
 *
 * A network thread, and what it has in flight: private to http_engine.c, range.c and hedge.c.
 */
#ifndef DAEMON_IO_REMOTE_THREAD_H
#define DAEMON_IO_REMOTE_THREAD_H

#include "daemon/io/http/transfer.h"
#include "daemon/io/reader/copy_queue.h"
#include "daemon/io/remote/concurrency.h"
#include "daemon/io/remote/remote.h"

#define HTTP_TICK_MS 100u /* between two looks at what is in flight */

struct http_thread {
        struct reader_thread base;
        struct http_loop loop;
        struct copy_queue copy_queue;
        struct list ranges; /* in flight */
        struct list unused; /* ranges that keep their handles */
        unsigned n;         /* ranges; under the reader's lock */
        bool look;          /* atomic: there may be tickets to take or to give up */
};

/* What the engine keeps for a job, under the reader's lock. */
struct http_job {
        struct concurrency pace;
        uint64_t moved_ns; /* atomic: when a byte came last */
        uint64_t came;     /* atomic: bytes, those of hedges, too */
        unsigned asking;   /* ranges whose requests are under way, and are not paused */
};
static inline struct http_job *http_job(const struct read_job *job)
{
        return job->pace;
}

/* Where the block's bytes go, memory being found for them. NULL: error. */
unsigned char *http_block_target(const struct ticket *ticket, struct error *error);
/* The block is whole and hashed at `data`: lands it, or starts its copies; the ticket is done with. */
void http_block_done(struct http_thread *self, struct ticket *ticket, const unsigned char *data, uint64_t took_ns);
/* Of the thread with the fewest ranges: a run, and its first block. */
bool http_take_run(struct http_thread *self, struct read_run *run, struct ticket *ticket);
void http_thread_remove_range(struct http_thread *self);
void http_slow_down(struct reader *reader, struct read_job *job);
/* A range counts as one that asks: false where its server has asked to slow down, and enough others do. */
bool http_try_count_request(struct reader *reader, struct read_job *job);
/* One that was paused asks again; or one does not ask any more. */
void http_count_request(struct reader *reader, struct read_job *job, bool asks);
/* Bytes of an answer have come, and were taken: those that a pause puts off come again. */
static inline void http_job_moved(struct http_job *job, uint64_t now, size_t n)
{
        __atomic_store_n(&job->moved_ns, now, __ATOMIC_RELAXED);
        __atomic_fetch_add(&job->came, n, __ATOMIC_RELAXED);
}
/* With the lock held: the block that was asked for at `since_ns` is late, nothing else is left to take, and the
 * server has time for more. */
bool http_block_late_locked(struct http_thread *self, struct read_job *job, uint64_t since_ns, uint64_t now);
/* A server began to answer, so long after it was asked. */
void http_answered(struct http_thread *self, struct read_job *job, uint64_t after_ns);

/* ---- ranges ---- */

/* One more in flight, if there is one to be had. */
bool range_take(struct http_thread *self);
/* Those that waited for a slot. */
void ranges_resume(struct http_thread *self);
/* One turn: tries what has waited, hedges what is late. Milliseconds that the loop may wait. */
unsigned ranges_tick(struct http_thread *self);
/* Those whose jobs were stopped; all where the reader ends. */
void ranges_end_stopped(struct http_thread *self);
void ranges_free_unused(struct http_thread *self); /* frees the unused ones */

#endif
