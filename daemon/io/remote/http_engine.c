/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for objects over HTTP(S): network threads, each with a loop and kept-alive connections of its own, which
 * are started with the first job. A thread takes as many runs of blocks as their loads may have in flight, evenly with
 * the other threads so that TLS and hashing use more than one core, and makes a range of each (range.c):
 *
 *   asleep > woken: takes runs, ends the runs of stopped jobs > serves transfers in flight > asleep ...
 *               \
 *                \ nothing for IDLE_MS: closes connections; the daemon ends: the thread ends
 */
#include "daemon/io/remote/remote.h"

#define COPY_TICK_MS 2u
#define COPIES 256u    /* slots of one thread that are being copied to devices; with more, many GiB, it waits for one */
#define IDLE_MS 15000u /* then connections are closed */

static void turn(struct http_thread *self)
{
        if (__atomic_exchange_n(&self->recheck, false, __ATOMIC_SEQ_CST)) {
                ranges_recheck(self);
                while (range_take(self))
                        ;
        }
        copy_queue_reap(&self->copy_queue);
        unsigned wait_ms = ranges_tick(self);
        uint64_t now = now_ns();
        /* A recheck that is left: there was no memory for a range. */
        if (!list_empty(&self->ranges) || self->copy_queue.n > 0 || load_relaxed(&self->recheck)) {
                self->busy_ns = now;
        } else if (self->busy_ns > 0 && now - self->busy_ns >= IDLE_MS * MS) {
                http_loop_close_idle(&self->loop);
                self->busy_ns = 0;
        }
        if (self->busy_ns != now)
                wait_ms = IDLE_MS;
        else if (self->copy_queue.n > 0)
                wait_ms = COPY_TICK_MS;
        http_loop_run(&self->loop, wait_ms);
}

static void *http_main(void *arg)
{
        struct http_thread *self = arg;
        struct reader *reader = self->base.reader;
        thread_begin("network");
        while (!load_relaxed(&reader->stopping))
                turn(self);
        ranges_recheck(self);
        while (self->copy_queue.n > 0)
                copy_queue_wait(&self->copy_queue);
        copy_queue_deinit(&self->copy_queue); /* frees copiers, which may take long */
        lock_scope(&reader->mutex);
        reader_end_thread_locked(reader, READ_HTTP);
        return NULL;
}

/* Its loop lives as long as the thread is listed: other threads wake it. */
static void http_thread_free(struct reader_thread *thread)
{
        struct http_thread *self = container_of(thread, struct http_thread, base);
        copy_queue_deinit(&self->copy_queue);
        http_loop_deinit(&self->loop);
        free(self);
}

static bool http_thread_init(struct reader_thread *thread)
{
        struct http_thread *self = container_of(thread, struct http_thread, base);
        unsigned slots = thread->reader->staging.n_slots;
        list_init(&self->ranges);
        return copy_queue_init(&self->copy_queue, thread, slots < COPIES ? slots : COPIES) == 0 &&
               http_loop_init(&self->loop, &(struct error){0}) == 0;
}

static int http_begin(struct reader *reader, struct read_job *job, struct error *error)
{
        struct engine *engine = &reader->engines[READ_HTTP];
        if (engine->alive == 0)
                return error_set(error, STREAMER_ELIMIT, "no network thread could be started");
        struct http_job *own = calloc(1, sizeof(*own));
        if (own == NULL)
                return error_no_memory(error);
        concurrency_init(&own->concurrency, reader->opts.concurrency, now_ns());
        job->moved_ns = now_ns();
        job->limit = own->concurrency.limit;
        job->run_blocks = plan_request_blocks(job->plan, own->concurrency.most,
                                              (size_t)(reader->opts.request_max / reader->opts.block_size));
        job->http = own;
        return 0;
}

const struct engine_ops http_engine_ops = {
        .capacity_min = 32,
        .thread_size = sizeof(struct http_thread),
        .thread_init = http_thread_init,
        .thread_main = http_main,
        .thread_free = http_thread_free,
        .wake = http_wake,
        .begin = http_begin,
};
