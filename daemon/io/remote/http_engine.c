/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine for objects over HTTP(S): network threads, each with a loop and kept-alive connections of its own, on
 * which blocks are fetched as ranges straight to their destination. They are started with the first job.
 *
 * A network thread takes as many runs of blocks as its load may have in flight, evenly with the other threads so that
 * TLS and hashing use more than one core, and makes a range of each (range.c). This file completes blocks and runs the
 * threads:
 *
 *   asleep > woken: takes runs, ends the runs of stopped jobs > serves transfers in flight > asleep ...
 *               \
 *                \ nothing for IDLE_MS: closes connections, frees handles; the daemon ends: the thread ends
 */
#include "daemon/base/log/log.h"
#include "daemon/base/thread/threads.h"
#include "daemon/io/remote/remote.h"

#define MS UINT64_C(1000000)
#define CAPACITY_MIN 32u /* ranges of one thread, at least */
#define COPY_TICK_MS 2u
#define COPIES 256u    /* slots of one thread that are being copied to devices; with more, many GiB, it waits for one */
#define REPEATS 4u     /* of one load at a time */
#define IDLE_MS 15000u /* then connections are closed, and handles freed */

static void http_wake(struct reader *reader, bool all)
{
        struct engine *engine = &reader->engines[READ_HTTP];
        (void)all; /* the thread with the fewest ranges is to take it, which the threads find out themselves */
        if (engine->jobs == 0 && !reader->stopping)
                return;
        list_each_item (struct http_thread, t, &engine->threads, base.link) {
                http_thread_recheck(t);
                http_loop_wake(&t->loop);
        }
}

/* ---- blocks ---- */

/* With the lock held. */
static void apply_concurrency(struct read_job *job)
{
        const struct concurrency *concurrency = &http_job(job)->concurrency;
        job->limit = concurrency->limit;
        job->split_from = concurrency_split(concurrency);
}

static bool sample(struct read_job *job, uint64_t now)
{
        struct http_job *own = http_job(job);
        return concurrency_add_bytes(&own->concurrency, load_relaxed(&own->received), now);
}

/* The limit applies to new runs. Once the server has asked to slow down it applies to retries of earlier ones, too. */
static bool may_request(const struct http_job *own)
{
        return own->concurrency.slowed_ns == 0 || own->requests < own->concurrency.limit;
}

bool http_try_count_request(struct reader *reader, struct read_job *job)
{
        struct http_job *own = http_job(job);
        reader_lock(reader);
        bool may = may_request(own);
        own->requests += may;
        reader_unlock(reader);
        return may;
}

void http_count_request(struct reader *reader, struct read_job *job, bool under_way)
{
        struct http_job *own = http_job(job);
        reader_lock(reader);
        own->requests += under_way ? 1u : -1u;
        if (!under_way && own->concurrency.slowed_ns > 0)
                http_wake(reader, true); /* a range of another thread may wait for it */
        reader_unlock(reader);
}

bool http_block_late_locked(struct http_thread *self, struct read_job *job, uint64_t since_ns, uint64_t now)
{
        const struct http_job *own = http_job(job);
        uint64_t after = concurrency_straggler(&own->concurrency);
        if (sample(job, now)) {
                apply_concurrency(job);
                http_thread_recheck(self); /* there may be runs to split by now */
        }
        bool late = after > 0 && now - since_ns > after;
        return late && job->next == job->plan->n_blocks && !concurrency_is_saturated(&own->concurrency) &&
               may_request(own);
}

bool http_is_silent(struct http_thread *self, struct read_job *job, uint64_t silent_ns)
{
        reader_lock(self->base.reader);
        bool silent = silent_ns > concurrency_silence(&http_job(job)->concurrency);
        reader_unlock(self->base.reader);
        return silent;
}

void http_count_silent(struct reader *reader, struct read_job *job, bool silent)
{
        reader_lock(reader);
        job->silent += silent ? 1u : -1u;
        if (silent)
                http_wake(reader, true);
        reader_unlock(reader);
}

bool http_try_repeat(struct reader *reader, struct read_job *job)
{
        struct http_job *own = http_job(job);
        reader_lock(reader);
        bool may = job->next == job->plan->n_blocks && own->repeats < REPEATS;
        own->repeats += may;
        reader_unlock(reader);
        return may;
}

void http_repeat_over(struct reader *reader, struct read_job *job)
{
        reader_lock(reader);
        http_job(job)->repeats--;
        reader_unlock(reader);
}

void http_answered(struct http_thread *self, struct read_job *job, uint64_t after_ns)
{
        reader_lock(self->base.reader);
        concurrency_answered(&http_job(job)->concurrency, after_ns);
        apply_concurrency(job);
        reader_unlock(self->base.reader);
        http_thread_recheck(self); /* more may be in flight by now */
}

void http_slow_down(struct reader *reader, struct read_job *job)
{
        reader_lock(reader);
        concurrency_slow_down(&http_job(job)->concurrency, now_ns());
        apply_concurrency(job);
        unsigned limit = job->limit;
        reader_unlock(reader);
        log_debug("the server asks to slow down: %u ranges in flight", limit);
}

void http_block_done(struct http_thread *self, struct ticket *ticket, const unsigned char *data, uint64_t took_ns)
{
        struct read_job *job = ticket->job; /* held by this thread's range */
        int r = 0;
        stages_add(&job->stages, STAGE_storage, took_ns);
        reader_lock(self->base.reader);
        concurrency_add_block(&http_job(job)->concurrency, ticket->block->len, took_ns, now_ns());
        sample(job, now_ns());
        apply_concurrency(job);
        reader_unlock(self->base.reader);
        if (ticket->slot != NULL) {
                uint64_t since = now_ns();
                while (copy_queue_full(&self->copy_queue)) {
                        copy_queue_wait(&self->copy_queue);
                        copy_queue_reap(&self->copy_queue);
                }
                r = copy_queue_start(&self->copy_queue, ticket, data);
                stages_add(&job->stages, STAGE_copy, now_ns() - since);
        }
        http_thread_recheck(self); /* more may be in flight by now */
        if (r == 1) {
                copy_queue_mark_copying(&self->copy_queue);
                return;
        }
        reader_notify_block(ticket);
        reader_return_ticket(self->base.reader, ticket, NULL);
}

/* ---- a thread ---- */

/* The thread with the fewest ranges takes first: a thread that has more than another leaves the run to that one. */
bool http_take_run(struct http_thread *self, struct read_run *run, struct ticket *ticket)
{
        struct reader *reader = self->base.reader;
        struct http_thread *fewest = self;
        reader_lock(reader);
        list_each_item (struct http_thread, t, &reader->engines[READ_HTTP].threads, base.link)
                if (t->n_ranges < fewest->n_ranges)
                        fewest = t;
        bool taken = fewest == self && self->n_ranges < reader->engines[READ_HTTP].capacity &&
                     reader_run_begin_locked(reader, READ_HTTP, self->base.node, run, ticket);
        self->n_ranges += taken;
        if (fewest != self) {
                http_thread_recheck(fewest);
                http_loop_wake(&fewest->loop);
        }
        reader_unlock(reader);
        return taken;
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
        if (__atomic_exchange_n(&self->recheck, false, __ATOMIC_SEQ_CST)) {
                ranges_end_stopped(self);
                ranges_resume(self);
                while (range_take(self))
                        ;
        }
        copy_queue_reap(&self->copy_queue);
        unsigned wait_ms = ranges_tick(self);
        bool busy = !list_empty(&self->ranges) || self->copy_queue.n > 0;
        if (!busy && load_relaxed(&self->recheck))
                busy = true; /* there was no memory for a range */
        else if (!busy && !*idle)
                wait_ms = IDLE_MS;
        else if (!busy)
                wait_ms = 4 * IDLE_MS;
        else if (self->copy_queue.n > 0)
                wait_ms = COPY_TICK_MS;
        uint64_t before = now_ns();
        http_loop_run(&self->loop, wait_ms);
        bool rested = !busy && now_ns() - before >= (IDLE_MS - HTTP_TICK_MS) * MS;
        if (rested && !*idle) {
                ranges_free_unused(self);
                http_loop_close_idle(&self->loop);
        }
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
        ranges_end_stopped(self);
        while (self->copy_queue.n > 0) {
                copy_queue_wait(&self->copy_queue);
                copy_queue_reap(&self->copy_queue);
        }
        ranges_free_unused(self);
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
        if (self == NULL)
                return false;
        list_init(&self->ranges);
        list_init(&self->unused);
        if (copy_queue_init(&self->copy_queue, reader, slots < COPIES ? slots : COPIES) == 0 &&
            http_loop_init(&self->loop, &error) == 0 &&
            reader_thread_start(reader, READ_HTTP, &self->base, http_main) == 0)
                return true;
        copy_queue_deinit(&self->copy_queue);
        http_thread_free(&self->base);
        return false;
}

/* ---- the engine ---- */

static void http_watch(struct reader *reader, uint64_t now)
{
        list_each_item (struct read_job, job, &reader->jobs, link) {
                if (job->engine != READ_HTTP || http_job(job) == NULL)
                        continue;
                uint64_t moved = load_relaxed(&http_job(job)->moved_ns);
                store_relaxed(&job->no_progress, now > moved && now - moved >= reader->opts.stall_ns);
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
        concurrency_init(&own->concurrency, reader->opts.concurrency, now_ns());
        own->moved_ns = now_ns();
        job->limit = own->concurrency.limit;
        job->run_parts = own->concurrency.most;
        if (http_opts(reader->opts.http)->request_max > reader->opts.block_size)
                job->run_most = (size_t)(http_opts(reader->opts.http)->request_max / reader->opts.block_size);
        job->engine_data = own;
        return 0;
}

static void http_end(struct reader *reader, struct read_job *job)
{
        (void)reader;
        free(job->engine_data);
        job->engine_data = NULL;
}

/* As with the threads for files: a load at full concurrency leaves as many places free as it takes. */
static void http_init(const struct reader *reader, struct engine *engine)
{
        const struct http *http = reader->opts.http;
        unsigned threads = http != NULL ? http_opts(http)->threads : 0;
        unsigned needed = reader->opts.concurrency * READER_THREADS_PER_BLOCK;
        unsigned even = threads > 0 ? (needed + threads - 1) / threads : 0;
        engine->base = threads;
        engine->capacity = even > CAPACITY_MIN ? even : CAPACITY_MIN;
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
