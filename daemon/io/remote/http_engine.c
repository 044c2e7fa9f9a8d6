/* SPDX-License-Identifier: Apache-2.0
 *
 * A network thread takes as many runs of blocks as its load may have in flight, evenly with the other
 * threads so that TLS and hashing use more than one core, and makes a range of each (range.c). This file completes
 * blocks and runs the threads:
 *
 *   asleep > woken: takes runs, gives up stopped jobs > serves what is in flight > asleep ...
 *               \
 *                \ nothing for IDLE_MS: closes connections, frees handles; the daemon ends: the thread ends
 */
#include "daemon/io/remote/http_engine.h"

#include "daemon/base/log/log.h"
#include "daemon/base/thread/threads.h"
#include "daemon/io/remote/thread.h"

#include <string.h>

#define MS UINT64_C(1000000)
#define PLACES 32u /* ranges of one thread, at least */
#define COPY_TICK_MS 2u
#define FLIGHTS 256u   /* slots on their way to devices, of one thread; of more, which are many GiB, it waits for one */
#define IDLE_MS 15000u /* then connections are closed, and handles freed */

static void http_wake(struct reader *reader, bool all)
{
        struct engine *engine = &reader->engines[READ_HTTP];
        (void)all; /* who has the fewest is to take it, which is theirs to find out */
        if (engine->jobs == 0 && !reader->stopping)
                return;
        list_each (pos, &engine->threads) {
                struct http_thread *t = container_of(pos, struct http_thread, base.link);
                __atomic_store_n(&t->look, true, __ATOMIC_SEQ_CST);
                http_loop_wake(&t->loop);
        }
}

/* ---- blocks ---- */

unsigned char *http_block_target(const struct ticket *ticket, struct error *error)
{
        const struct plan_block *block = ticket->block;
        if (ticket->slot != NULL)
                return reader_slot_data(ticket);
        struct segment *segment = &ticket->job->targets[0]->segments[block->segment];
        uint64_t since = now_ns();
        int r = segment->device->ops->prepare(segment, block->offset, block->len, error);
        stages_add(&ticket->job->stages, STAGE_memory, now_ns() - since);
        if (r < 0)
                return NULL;
        return segment->base + block->offset;
}

void http_thread_remove_range(struct http_thread *self)
{
        reader_lock(self->base.reader);
        self->n--;
        reader_unlock(self->base.reader);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST);
}

/* With the lock held: what the pace says is what holds from now on. */
static void pace_applies(struct read_job *job)
{
        const struct http_job *own = http_job(job);
        job->limit = own->pace.limit;
        job->split_from = concurrency_split(&own->pace);
}

static bool sample(struct read_job *job, uint64_t now)
{
        struct http_job *own = http_job(job);
        return concurrency_add_bytes(&own->pace, __atomic_load_n(&own->came, __ATOMIC_RELAXED), now);
}

/* The limit holds for new runs. Where the server has asked to slow down it does for the tries of those that were
 * taken before, too. */
static bool has_room(const struct http_job *own)
{
        return own->pace.slowed_ns == 0 || own->asking < own->pace.limit;
}

bool http_try_count_request(struct reader *reader, struct read_job *job)
{
        struct http_job *own = http_job(job);
        reader_lock(reader);
        bool may = has_room(own);
        own->asking += may;
        reader_unlock(reader);
        return may;
}

void http_count_request(struct reader *reader, struct read_job *job, bool asks)
{
        struct http_job *own = http_job(job);
        reader_lock(reader);
        own->asking += asks ? 1u : -1u;
        if (!asks && own->pace.slowed_ns > 0)
                http_wake(reader, true); /* who waits for it may be another thread's */
        reader_unlock(reader);
}

bool http_block_late_locked(struct http_thread *self, struct read_job *job, uint64_t since_ns, uint64_t now)
{
        const struct concurrency *pace = &http_job(job)->pace;
        uint64_t after = concurrency_straggler(pace);
        if (sample(job, now)) {
                pace_applies(job);
                __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST); /* there may be runs to split by now */
        }
        bool late = after > 0 && now - since_ns > after;
        return late && job->next == job->plan->n_blocks && !concurrency_is_saturated(pace) && has_room(http_job(job));
}

void http_answered(struct http_thread *self, struct read_job *job, uint64_t after_ns)
{
        reader_lock(self->base.reader);
        concurrency_answered(&http_job(job)->pace, after_ns);
        pace_applies(job);
        reader_unlock(self->base.reader);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST); /* there may be more in flight by now */
}

void http_slow_down(struct reader *reader, struct read_job *job)
{
        reader_lock(reader);
        concurrency_slow_down(&http_job(job)->pace, now_ns());
        pace_applies(job);
        unsigned limit = http_job(job)->pace.limit;
        reader_unlock(reader);
        log_debug("the server asks to slow down: %u ranges in flight", limit);
}

void http_block_done(struct http_thread *self, struct ticket *ticket, const unsigned char *data, uint64_t took_ns)
{
        int r = 0;
        stages_add(&ticket->job->stages, STAGE_storage, took_ns);
        reader_lock(self->base.reader);
        concurrency_add_block(&http_job(ticket->job)->pace, ticket->block->len, took_ns, now_ns());
        sample(ticket->job, now_ns());
        pace_applies(ticket->job);
        reader_unlock(self->base.reader);
        if (ticket->slot != NULL) {
                struct read_job *job = ticket->job; /* held by this thread's range */
                uint64_t since = now_ns();
                while (copy_queue_full(&self->copy_queue)) {
                        copy_queue_wait(&self->copy_queue);
                        copy_queue_reap(&self->copy_queue);
                }
                r = copy_queue_start(&self->copy_queue, ticket, data);
                stages_add(&job->stages, STAGE_copy, now_ns() - since);
        }
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST); /* there may be more in flight by now */
        if (r == 1) {
                copy_queue_mark_copying(&self->copy_queue);
                return;
        }
        reader_notify_block(ticket);
        reader_return_ticket(self->base.reader, ticket, NULL);
}

/* ---- a thread ---- */

/* Those with the fewest take first: who has more than another leaves it to that one. */
bool http_take_run(struct http_thread *self, struct read_run *run, struct ticket *ticket)
{
        struct reader *reader = self->base.reader;
        struct http_thread *fewest = self;
        reader_lock(reader);
        list_each (pos, &reader->engines[READ_HTTP].threads) {
                struct http_thread *t = container_of(pos, struct http_thread, base.link);
                if (t->n < fewest->n)
                        fewest = t;
        }
        bool taken = fewest == self && self->n < reader->engines[READ_HTTP].places &&
                     reader_run_begin_locked(reader, READ_HTTP, self->base.node, run, ticket);
        self->n += taken;
        if (fewest != self) {
                __atomic_store_n(&fewest->look, true, __ATOMIC_SEQ_CST);
                http_loop_wake(&fewest->loop);
        }
        reader_unlock(reader);
        return taken;
}

static void look(struct http_thread *self)
{
        if (!__atomic_exchange_n(&self->look, false, __ATOMIC_SEQ_CST))
                return;
        ranges_end_stopped(self);
        ranges_resume(self);
        while (range_take(self))
                ;
}

static void forget(struct http_thread *self)
{
        ranges_free_unused(self);
        http_loop_close_idle(&self->loop);
}

static bool stopping(struct http_thread *self)
{
        reader_lock(self->base.reader);
        bool stop = self->base.reader->stopping;
        reader_unlock(self->base.reader);
        return stop;
}

static void turn(struct http_thread *self, bool *idle)
{
        look(self);
        copy_queue_reap(&self->copy_queue);
        unsigned wait_ms = ranges_tick(self);
        bool busy = !list_empty(&self->ranges) || self->copy_queue.n > 0;
        if (!busy && __atomic_load_n(&self->look, __ATOMIC_RELAXED))
                busy = true; /* for want of memory it could not take what there is */
        else if (!busy && !*idle)
                wait_ms = IDLE_MS;
        else if (!busy)
                wait_ms = 4 * IDLE_MS;
        else if (self->copy_queue.n > 0)
                wait_ms = COPY_TICK_MS;
        uint64_t before = now_ns();
        http_loop_run(&self->loop, wait_ms);
        bool rested = !busy && now_ns() - before >= (IDLE_MS - HTTP_TICK_MS) * MS;
        if (rested && !*idle)
                forget(self);
        *idle = rested || (*idle && !busy);
}

static void *http_main(void *arg)
{
        struct http_thread *self = arg;
        struct reader *reader = self->base.reader;
        bool idle = true;
        thread_begin("network");
        while (!stopping(self))
                turn(self, &idle);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST);
        ranges_end_stopped(self);
        while (self->copy_queue.n > 0) {
                copy_queue_wait(&self->copy_queue);
                copy_queue_reap(&self->copy_queue);
        }
        forget(self);
        copy_queue_deinit(&self->copy_queue);
        reader_lock(reader);
        reader_end_thread_locked(reader, READ_HTTP);
        reader_unlock(reader);
        return NULL;
}

/* Its loop lives as long as the thread is listed: other threads wake it. */
static void http_thread_free(struct reader_thread *thread)
{
        struct http_thread *self = container_of(thread, struct http_thread, base);
        http_loop_deinit(&self->loop);
        free(self);
}

static bool http_start(struct reader *reader)
{
        struct error error = {0};
        struct http_thread *self = calloc(1, sizeof(*self));
        unsigned slots = reader->staging.n_slots;
        if (self == NULL || copy_queue_init(&self->copy_queue, reader, slots < FLIGHTS ? slots : FLIGHTS) < 0 ||
            http_loop_init(&self->loop, &error) < 0) {
                if (self != NULL)
                        copy_queue_deinit(&self->copy_queue);
                free(self);
                return false;
        }
        list_init(&self->ranges);
        list_init(&self->unused);
        if (reader_thread_start(reader, READ_HTTP, &self->base, http_main) == 0)
                return true;
        copy_queue_deinit(&self->copy_queue);
        http_thread_free(&self->base);
        return false;
}

/* ---- the engine ---- */

static void http_watch(struct reader *reader, uint64_t now)
{
        list_each (pos, &reader->jobs) {
                struct read_job *job = container_of(pos, struct read_job, link);
                if (job->engine != READ_HTTP || http_job(job) == NULL)
                        continue;
                uint64_t moved = __atomic_load_n(&http_job(job)->moved_ns, __ATOMIC_RELAXED);
                __atomic_store_n(&job->quiet, now > moved && now - moved >= reader->opts.stall_ns, __ATOMIC_RELAXED);
        }
}

static int http_begin(struct reader *reader, struct read_job *job, struct error *error)
{
        struct engine *engine = &reader->engines[READ_HTTP];
        struct http_job *own = calloc(1, sizeof(*own));
        if (own == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        while (engine->alive < engine->base && engine->ops->start(reader))
                engine->alive++;
        if (engine->alive == 0) {
                free(own);
                return error_set(error, STREAMER_ELIMIT, "no network thread could be started");
        }
        concurrency_init(&own->pace, reader->opts.concurrency, now_ns());
        own->moved_ns = now_ns();
        job->limit = own->pace.limit;
        job->run_parts = own->pace.most;
        if (http_opts(reader->opts.http)->request_max > reader->opts.block_size)
                job->run_most = (size_t)(http_opts(reader->opts.http)->request_max / reader->opts.block_size);
        job->pace = own;
        return 0;
}

static void http_end(struct reader *reader, struct read_job *job)
{
        (void)reader;
        free(job->pace);
        job->pace = NULL;
}

/* As with the threads for files: a load at full concurrency leaves as many places free as it takes. */
static void http_init(const struct reader *reader, struct engine *engine)
{
        const struct http *http = reader->opts.http;
        unsigned threads = http != NULL ? http_opts(http)->threads : 0;
        unsigned needed = reader->opts.concurrency * READER_THREADS_PER_BLOCK;
        unsigned even = threads > 0 ? (needed + threads - 1) / threads : 0;
        engine->base = threads;
        engine->places = even > PLACES ? even : PLACES;
}

const struct engine_ops http_engine_ops = {
        .init = http_init,
        .start = http_start,
        .wake = http_wake,
        .watch = http_watch,
        .begin = http_begin,
        .end = http_end,
        .free = http_thread_free,
};
