/* SPDX-License-Identifier: Apache-2.0
 *
 * A network thread takes as many runs of blocks as its load may have in flight, evenly with the other
 * threads so that TLS and hashing use more than one core, and makes a range of each (http_range.c); or it
 * reads a stream (http_stream.c). Here is what becomes of a block, and the threads' own life:
 *
 *   asleep > woken: takes what it may, gives up what was stopped > tends what is in flight > asleep ...
 *               \
 *                \ nothing for IDLE_MS: connections and handles go; the daemon ends: the thread, too
 */
#include "daemon/io/reader_http.h"

#include "daemon/base/log.h"
#include "daemon/base/prompt.h"
#include "daemon/io/http_thread.h"

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
                struct http_thread *t = container_of(pos, struct http_thread, link);
                __atomic_store_n(&t->look, true, __ATOMIC_SEQ_CST);
                http_loop_wake(&t->loop);
        }
}

/* ---- blocks ---- */

unsigned char *http_block_target(const struct ticket *ticket, struct error *error)
{
        const struct plan_block *block = ticket->block;
        if (ticket->slot != NULL)
                return ticket->slot;
        struct segment *segment = &ticket->job->targets[0]->segments[block->segment];
        if (segment->device->ops->prepare(segment, block->offset, block->len, error) < 0)
                return NULL;
        return segment->base + block->offset;
}

void http_place_gone(struct http_thread *self)
{
        reader_lock(self->reader);
        self->n--;
        reader_unlock(self->reader);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST);
}

/* With the lock held: what the pace says is what holds from now on. A stream takes its tickets by name. */
static void pace_applies(struct read_job *job)
{
        const struct http_job *own = http_job(job);
        if (own->stream != NULL)
                return;
        job->limit = own->pace.limit;
        job->split_from = http_pace_split(&own->pace);
}

static bool sample(struct read_job *job, uint64_t now)
{
        struct http_job *own = http_job(job);
        return http_pace_came(&own->pace, __atomic_load_n(&own->came, __ATOMIC_RELAXED), now);
}

static void pace_landed(struct reader *reader, const struct ticket *ticket, uint64_t took_ns)
{
        reader_lock(reader);
        http_pace_landed(&http_job(ticket->job)->pace, ticket->block->len, took_ns, now_ns());
        sample(ticket->job, now_ns());
        pace_applies(ticket->job);
        reader_unlock(reader);
}

/* The limit holds for new runs. Where the server has asked to slow down it does for the tries of those that were
 * taken before, too. */
static bool has_room(const struct http_job *own)
{
        return own->pace.slowed_ns == 0 || own->asking < own->pace.limit;
}

bool http_may_ask(struct reader *reader, struct read_job *job)
{
        struct http_job *own = http_job(job);
        reader_lock(reader);
        bool may = has_room(own);
        own->asking += may;
        reader_unlock(reader);
        return may;
}

void http_asks(struct reader *reader, struct read_job *job, bool asks)
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
        const struct http_pace *pace = &http_job(job)->pace;
        uint64_t after = http_pace_straggler(pace);
        if (sample(job, now)) {
                pace_applies(job);
                __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST); /* there may be runs to split by now */
        }
        bool late = after > 0 && now - since_ns > after;
        return late && job->next == job->plan->n_blocks && !http_pace_flows(pace) && has_room(http_job(job));
}

void http_answered(struct http_thread *self, struct read_job *job, uint64_t after_ns)
{
        reader_lock(self->reader);
        http_pace_answered(&http_job(job)->pace, after_ns);
        pace_applies(job);
        reader_unlock(self->reader);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST); /* there may be more in flight by now */
}

void http_slow_down(struct reader *reader, struct read_job *job)
{
        reader_lock(reader);
        http_pace_slow_down(&http_job(job)->pace, now_ns());
        pace_applies(job);
        unsigned limit = http_job(job)->pace.limit;
        reader_unlock(reader);
        log_debug("the server asks to slow down: %u ranges in flight", limit);
}

void http_block_done(struct http_thread *self, struct ticket *ticket, const unsigned char *data, uint64_t took_ns)
{
        int r = 0;
        reader_read_took(ticket, took_ns);
        pace_landed(self->reader, ticket, took_ns);
        if (ticket->slot != NULL) {
                while (flights_full(&self->flights)) {
                        flights_wait(&self->flights);
                        flights_reap(&self->flights);
                }
                r = flights_start(&self->flights, ticket, data);
        }
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST); /* there may be more in flight by now */
        if (r == 1) {
                flights_leave_place(&self->flights);
                return;
        }
        reader_landed(ticket);
        reader_give(self->reader, ticket, NULL);
}

bool http_job_cut_short(struct http_thread *self, const struct read_job *job, struct error *error)
{
        reader_lock(self->reader);
        bool stopped = job->stopped;
        reader_unlock(self->reader);
        if (!stopped)
                error_set(error, STREAMER_ECANCELED, "the daemon is ending");
        return !stopped;
}

/* ---- a thread ---- */

/* Those with the fewest take first: who has more than another leaves it to that one. */
bool http_take_run(struct http_thread *self, struct read_run *run, struct ticket *ticket)
{
        struct reader *reader = self->reader;
        struct http_thread *fewest = self;
        reader_lock(reader);
        list_each (pos, &reader->engines[READ_HTTP].threads) {
                struct http_thread *t = container_of(pos, struct http_thread, link);
                if (t->n < fewest->n)
                        fewest = t;
        }
        bool taken = fewest == self && self->n < reader->engines[READ_HTTP].places &&
                     reader_run_begin_locked(reader, READ_HTTP, self->node, run, ticket);
        self->n += taken;
        if (fewest != self) {
                __atomic_store_n(&fewest->look, true, __ATOMIC_SEQ_CST);
                http_loop_wake(&fewest->loop);
        }
        reader_unlock(reader);
        return taken;
}

bool http_job_stopped(struct http_thread *self, const struct read_job *job)
{
        reader_lock(self->reader);
        bool stopped = job->stopped || self->reader->stopping;
        reader_unlock(self->reader);
        return stopped;
}

static void look(struct http_thread *self)
{
        if (!__atomic_exchange_n(&self->look, false, __ATOMIC_SEQ_CST))
                return;
        ranges_give_up(self);
        ranges_go_on(self);
        while (range_take(self))
                ;
}

static void forget(struct http_thread *self)
{
        ranges_forget(self);
        http_loop_forget(&self->loop);
}

static bool stopping(struct http_thread *self)
{
        reader_lock(self->reader);
        bool stop = self->reader->stopping;
        reader_unlock(self->reader);
        return stop;
}

static void turn(struct http_thread *self, bool *idle)
{
        look(self);
        streams_tend(self);
        flights_reap(&self->flights);
        unsigned wait_ms = ranges_tend(self);
        bool busy = !list_empty(&self->ranges) || streams_wait(self) || self->flights.n > 0;
        if (!busy && __atomic_load_n(&self->look, __ATOMIC_RELAXED))
                busy = true; /* for want of memory it could not take what there is */
        else if (!busy && !*idle)
                wait_ms = IDLE_MS;
        else if (!busy)
                wait_ms = 4 * IDLE_MS;
        else if (self->flights.n > 0)
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
        struct reader *reader = self->reader;
        bool idle = true;
        thread_begin("network");
        while (!stopping(self))
                turn(self, &idle);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST);
        ranges_give_up(self);
        streams_tend(self);
        while (self->flights.n > 0) {
                flights_wait(&self->flights);
                flights_reap(&self->flights);
        }
        forget(self);
        flights_deinit(&self->flights);
        reader_lock(reader);
        reader_leave_locked(reader, READ_HTTP);
        reader_unlock(reader);
        return NULL;
}

static bool http_start(struct reader *reader)
{
        struct error error = {0};
        struct http_thread *self = calloc(1, sizeof(*self));
        unsigned slots = reader->staging.n_slots;
        if (self == NULL || flights_init(&self->flights, reader, slots < FLIGHTS ? slots : FLIGHTS) < 0 ||
            http_loop_init(&self->loop, &error) < 0) {
                if (self != NULL)
                        flights_deinit(&self->flights);
                free(self);
                return false;
        }
        self->reader = reader;
        list_init(&self->ranges);
        list_init(&self->spare);
        list_init(&self->streams);
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, READER_STACK);
        self->node = reader_place_thread(reader, &attr);
        bool ok = thread_start(&self->thread, &attr, http_main, self) == 0;
        pthread_attr_destroy(&attr);
        if (!ok) {
                flights_deinit(&self->flights);
                http_loop_deinit(&self->loop);
                free(self);
                return false;
        }
        list_append(&reader->engines[READ_HTTP].threads, &self->link);
        return true;
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

static bool any_streamed(const struct read_job *job)
{
        for (size_t i = 0; i < job->plan->n_blocks; i++)
                if (object_streamed(&job->objects[job->plan->blocks[i].file]))
                        return true;
        return false;
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
        http_pace_init(&own->pace, reader->opts.concurrency, now_ns());
        own->moved_ns = now_ns();
        job->limit = own->pace.limit;
        job->run_parts = own->pace.most;
        if (http_opts(reader->opts.http)->request_max > reader->opts.block_size)
                job->run_most = (size_t)(http_opts(reader->opts.http)->request_max / reader->opts.block_size);
        job->pace = own;
        if (!any_streamed(job))
                return 0;
        return stream_new(container_of(engine->threads.next, struct http_thread, link), job, error);
}

static void http_end(struct reader *reader, struct read_job *job)
{
        (void)reader;
        free(job->pace);
        job->pace = NULL;
}

static void http_join(struct reader *reader)
{
        list_each_safe (pos, &reader->engines[READ_HTTP].threads) {
                struct http_thread *t = container_of(pos, struct http_thread, link);
                list_remove(&t->link);
                pthread_join(t->thread, NULL);
                /* Not before: threads that leave wake all others, by their loops. */
                http_loop_deinit(&t->loop);
                free(t);
        }
}

static void http_detach(struct reader *reader)
{
        list_each (pos, &reader->engines[READ_HTTP].threads)
                pthread_detach(container_of(pos, struct http_thread, link)->thread);
}

static const struct engine_ops ops = {
        .start = http_start,
        .wake = http_wake,
        .watch = http_watch,
        .begin = http_begin,
        .end = http_end,
        .join = http_join,
        .detach = http_detach,
};

/* As with files' threads: a load at full concurrency leaves as many free, since it gets half of them at most. */
static unsigned places_of(unsigned concurrency, unsigned threads)
{
        unsigned even = threads > 0 ? (concurrency * READER_THREADS_PER_BLOCK + threads - 1) / threads : 0;
        return even > PLACES ? even : PLACES;
}

void reader_http_init(struct reader *reader)
{
        const struct http *http = reader->opts.http;
        unsigned threads = http != NULL ? http_opts(http)->threads : 0;
        reader->engines[READ_HTTP] =
                (struct engine){.ops = &ops, .base = threads, .places = places_of(reader->opts.concurrency, threads)};
}
