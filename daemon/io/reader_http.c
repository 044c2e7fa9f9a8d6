/* SPDX-License-Identifier: Apache-2.0
 *
 * A network thread takes as many tickets as its load may have in flight, evenly with the other threads
 * so that TLS and hashing use more than one core, and makes a range of each:
 *
 *   taken > asked for > bytes land and are hashed leaf by leaf > whole > landed
 *              \            \
 *               \____________\____ failed: pause, and asked for again (http_retry) > given up
 *
 * A straggler near the end of a load, when there is nothing else to take, gets a hedge: a second request
 * over another connection, into a slot of its own. Whichever is whole first wins; a hedge's bytes are
 * moved to their place only then, and hashed there, so that the loser's are never seen.
 */
#include "daemon/io/reader_http.h"

#include "daemon/base/log.h"
#include "daemon/io/http_policy.h"
#include "daemon/io/http_thread.h"

#include <inttypes.h>
#include <string.h>

#define MS UINT64_C(1000000)
#define STACK_SIZE (512 * KiB)
#define PLACES 32u /* tickets of one thread */
#define BUFFER (256u * 1024)
#define TICK_MS 100u
#define COPY_TICK_MS 2u
#define IDLE_MS 15000u /* then connections are closed, and handles freed */

struct attempt {
        struct http_transfer transfer;
        struct range *range;
        unsigned char *to;
        char *led;
        struct hash_cursor hash;
        bool busy;
};

struct range {
        struct list link;
        struct http_thread *thread;
        struct ticket ticket;
        struct attempt first, hedge;
        struct http_retry retry;
        uint64_t begun_ns; /* of the present try */
        bool waiting;      /* for its next try */
};

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

static void ticket_gone(struct http_thread *self)
{
        pthread_mutex_lock(&self->reader->mutex);
        self->n--;
        pthread_mutex_unlock(&self->reader->mutex);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST);
}

static void pace_landed(struct reader *reader, const struct ticket *ticket, uint64_t took_ns)
{
        struct read_job *job = ticket->job;
        pthread_mutex_lock(&reader->mutex);
        struct http_job *own = http_job(job);
        http_pace_landed(&own->pace, ticket->block->len, took_ns, now_ns());
        if (own->stream == NULL)
                job->limit = own->pace.limit;
        pthread_mutex_unlock(&reader->mutex);
}

void http_slow_down(struct reader *reader, struct read_job *job)
{
        pthread_mutex_lock(&reader->mutex);
        struct http_job *own = http_job(job);
        http_pace_slow_down(&own->pace, now_ns());
        if (own->stream == NULL)
                job->limit = own->pace.limit;
        unsigned limit = own->pace.limit;
        pthread_mutex_unlock(&reader->mutex);
        log_debug("the server asks to slow down: %u ranges in flight", limit);
}

void http_block_done(struct http_thread *self, struct ticket *ticket, const unsigned char *data, uint64_t took_ns)
{
        int r = 0;
        reader_read_took(ticket, took_ns);
        pace_landed(self->reader, ticket, took_ns);
        if (ticket->slot != NULL) {
                while (self->flights.n == FLIGHTS_MAX) {
                        flights_wait(&self->flights);
                        flights_reap(&self->flights);
                }
                r = flights_start(&self->flights, ticket, data);
        }
        ticket_gone(self);
        if (r == 1)
                return;
        reader_landed(ticket);
        reader_give(self->reader, ticket, NULL);
}

void http_block_lost(struct http_thread *self, struct ticket *ticket, const struct error *error)
{
        struct error ending = {0};
        pthread_mutex_lock(&self->reader->mutex);
        self->n--;
        if (error == NULL && !ticket->job->stopped) {
                error_set(&ending, STREAMER_ECANCELED, "the daemon is ending");
                error = &ending;
        }
        pthread_mutex_unlock(&self->reader->mutex);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST);
        reader_give(self->reader, ticket, error);
}

/* ---- ranges ---- */

static struct range *range_new(struct http_thread *self)
{
        struct range *range;
        if (!list_empty(&self->spare)) {
                range = container_of(self->spare.next, struct range, link);
                list_remove(&range->link);
        } else {
                range = calloc(1, sizeof(*range));
                if (range == NULL)
                        return NULL;
                list_init(&range->link);
                range->thread = self;
                range->first.range = range->hedge.range = range;
        }
        range->retry = (struct http_retry){0};
        range->waiting = false;
        list_append(&self->ranges, &range->link);
        return range;
}

static void drop_led(struct attempt *a)
{
        free(a->led);
        a->led = NULL;
}

static void cancel(struct attempt *a)
{
        if (a->busy)
                http_loop_remove(&a->range->thread->loop, &a->transfer);
        a->busy = false;
}

static void give_hedge_slot(struct range *range)
{
        if (range->hedge.to != NULL)
                reader_slot_put(range->thread->reader, range->hedge.to);
        range->hedge.to = NULL;
}

/* The ticket is another's by now, or gone. */
static void range_over(struct range *range)
{
        struct http_thread *self = range->thread;
        cancel(&range->first);
        cancel(&range->hedge);
        give_hedge_slot(range);
        drop_led(&range->first);
        drop_led(&range->hedge);
        list_remove(&range->link);
        list_append(&self->spare, &range->link);
}

static void range_free(struct range *range)
{
        list_remove(&range->link);
        http_transfer_deinit(&range->first.transfer);
        http_transfer_deinit(&range->hedge.transfer);
        free(range);
}

static void range_lost(struct range *range, const struct error *error)
{
        struct ticket ticket = range->ticket;
        struct error kept = error != NULL ? *error : (struct error){0};
        range_over(range);
        http_block_lost(range->thread, &ticket, error != NULL ? &kept : NULL);
}

static void range_won(struct range *range, unsigned char *data)
{
        struct ticket ticket = range->ticket;
        uint64_t took = now_ns() - range->begun_ns;
        range_over(range);
        http_block_done(range->thread, &ticket, data, took);
}

/* ---- answers ---- */

static const struct object *object_of(const struct ticket *ticket)
{
        return &ticket->job->objects[ticket->block->file];
}

static enum http_outcome on_accept(struct http_transfer *t)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        const struct object *object = object_of(&a->range->ticket);
        if (remote_check_answer(object, &t->answer, &t->error) < 0)
                return HTTP_FAILED;
        if (t->answer.ranged || t->request.len == object->version.size)
                return HTTP_OK;
        error_set(&t->error, STREAMER_EFAILED, "the server answers the whole instead of a range (%s)", object->path);
        return HTTP_AGAIN;
}

static enum http_sink on_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        struct range *range = a->range;
        memcpy(a->to + t->received, data, n);
        if (a == &range->first)
                reader_hash(&range->ticket, &a->hash, a->to, t->received + n);
        __atomic_store_n(&http_job(range->ticket.job)->moved_ns, t->moved_ns, __ATOMIC_RELAXED);
        return HTTP_MORE;
}

static void remember_led(struct attempt *a)
{
        const char *led = a->transfer.answer.led;
        if (led != NULL)
                remote_set_led(object_of(&a->range->ticket), led);
}

/* A link that redirects led to once, and that no longer serves, is no failure of the object's. */
static bool led_astray(struct attempt *a)
{
        if (a->led == NULL)
                return false;
        remote_set_led(object_of(&a->range->ticket), NULL);
        drop_led(a);
        return true;
}

static void on_first_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        struct range *range = a->range;
        a->busy = false;
        if (outcome == HTTP_OK) {
                remember_led(a);
                range_won(range, a->to);
                return;
        }
        if (http_status_slow_down(t->answer.status))
                http_slow_down(range->thread->reader, range->ticket.job);
        bool again = led_astray(a) || outcome == HTTP_AGAIN;
        if (again && http_retry(t, &range->retry, 0))
                range->waiting = true;
        else
                range_lost(range, &t->error);
}

static void on_hedge_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        struct range *range = a->range;
        const struct ticket *ticket = &range->ticket;
        a->busy = false;
        if (outcome != HTTP_OK) { /* the first goes on alone */
                give_hedge_slot(range);
                return;
        }
        cancel(&range->first);
        memcpy(range->first.to, a->to, ticket->block->len);
        reader_hash_begin(ticket, &a->hash);
        reader_hash(ticket, &a->hash, range->first.to, ticket->block->len);
        log_debug("a hedge won (%s)", object_of(ticket)->path);
        range_won(range, range->first.to);
}

/* ---- tries ---- */

static void ask(struct attempt *a, void (*done)(struct http_transfer *, enum http_outcome))
{
        struct range *range = a->range;
        const struct ticket *ticket = &range->ticket;
        const struct object *object = object_of(ticket);
        struct http_transfer *t = &a->transfer;
        drop_led(a);
        a->led = remote_led(object);
        t->http = remote_http(object);
        t->from = a->led;
        t->fresh = a == &range->hedge;
        t->buffer_size = BUFFER;
        t->accept = on_accept;
        t->bytes = on_bytes;
        t->done = done;
        remote_request(object, ticket->block->file_off, ticket->block->len, &t->request);
        reader_hash_begin(ticket, &a->hash);
        a->busy = true;
        http_loop_add(&range->thread->loop, t);
}

static void try_first(struct range *range)
{
        range->waiting = false;
        range->begun_ns = now_ns();
        ask(&range->first, on_first_done);
}

static void begin(struct http_thread *self, const struct ticket *ticket)
{
        struct error error = {0};
        struct ticket held = *ticket;
        struct range *range = range_new(self);
        if (range == NULL) {
                error_set(&error, STREAMER_ENOMEM, "no memory");
                http_block_lost(self, &held, &error);
                return;
        }
        range->ticket = held;
        range->first.to = http_block_target(&held, &error);
        if (range->first.to == NULL)
                range_lost(range, &error);
        else
                try_first(range);
}

/* With nothing left to take, and a slot that nobody needs. */
static void maybe_hedge(struct range *range, uint64_t now)
{
        struct reader *reader = range->thread->reader;
        const struct read_job *job = range->ticket.job;
        if (!range->first.busy || range->hedge.busy || now - range->begun_ns < TICK_MS * MS)
                return;
        pthread_mutex_lock(&reader->mutex);
        uint64_t after = http_pace_straggler(&http_job(job)->pace);
        bool late = after > 0 && now - range->begun_ns > after && job->next == job->plan->n_blocks;
        pthread_mutex_unlock(&reader->mutex);
        if (!late || (range->hedge.to = reader_slot_get(reader)) == NULL)
                return;
        log_debug("a hedge for a range of %.1f s (%s)", (double)(now - range->begun_ns) / 1e9,
                  object_of(&range->ticket)->path);
        ask(&range->hedge, on_hedge_done);
}

/* ---- a thread ---- */

/* Those with the fewest take first: who has more than another leaves it to that one. */
static bool take(struct http_thread *self, struct ticket *ticket)
{
        struct reader *reader = self->reader;
        struct http_thread *fewest = self;
        pthread_mutex_lock(&reader->mutex);
        list_each (pos, &reader->engines[READ_HTTP].threads) {
                struct http_thread *t = container_of(pos, struct http_thread, link);
                if (t->n < fewest->n)
                        fewest = t;
        }
        bool taken = fewest == self && self->n < PLACES && reader_try_locked(reader, READ_HTTP, self->node, ticket);
        self->n += taken;
        if (fewest != self) {
                __atomic_store_n(&fewest->look, true, __ATOMIC_SEQ_CST);
                http_loop_wake(&fewest->loop);
        }
        pthread_mutex_unlock(&reader->mutex);
        return taken;
}

bool http_job_stopped(struct http_thread *self, const struct read_job *job)
{
        pthread_mutex_lock(&self->reader->mutex);
        bool stopped = job->stopped || self->reader->stopping;
        pthread_mutex_unlock(&self->reader->mutex);
        return stopped;
}

static void give_up_stopped(struct http_thread *self)
{
        list_each_safe (pos, &self->ranges) {
                struct range *range = container_of(pos, struct range, link);
                if (http_job_stopped(self, range->ticket.job))
                        range_lost(range, NULL);
        }
}

static void look(struct http_thread *self)
{
        struct ticket ticket;
        if (!__atomic_exchange_n(&self->look, false, __ATOMIC_SEQ_CST))
                return;
        give_up_stopped(self);
        while (take(self, &ticket))
                begin(self, &ticket);
}

/* Milliseconds that the loop may wait. */
static unsigned tend_ranges(struct http_thread *self)
{
        uint64_t now = now_ns(), next = TICK_MS * MS;
        list_each_safe (pos, &self->ranges) {
                struct range *range = container_of(pos, struct range, link);
                if (range->waiting && range->retry.at_ns <= now)
                        try_first(range);
                else if (range->waiting && range->retry.at_ns - now < next)
                        next = range->retry.at_ns - now;
                else
                        maybe_hedge(range, now);
        }
        return (unsigned)((next + MS - 1) / MS);
}

static void tend_copies(struct http_thread *self)
{
        if (self->flights.n > 0 && list_empty(&self->ranges))
                flights_wait(&self->flights);
        if (self->flights.n > 0)
                flights_reap(&self->flights);
}

static void forget(struct http_thread *self)
{
        list_each_safe (pos, &self->spare)
                range_free(container_of(pos, struct range, link));
        http_loop_forget(&self->loop);
}

static bool stopping(struct http_thread *self)
{
        pthread_mutex_lock(&self->reader->mutex);
        bool stop = self->reader->stopping;
        pthread_mutex_unlock(&self->reader->mutex);
        return stop;
}

static void turn(struct http_thread *self, bool *idle)
{
        look(self);
        streams_tend(self);
        tend_copies(self);
        unsigned wait_ms = tend_ranges(self);
        bool busy = !list_empty(&self->ranges) || streams_wait(self) || self->flights.n > 0;
        if (!busy && !*idle)
                wait_ms = IDLE_MS;
        else if (!busy)
                wait_ms = 4 * IDLE_MS;
        else if (self->flights.n > 0)
                wait_ms = COPY_TICK_MS;
        uint64_t before = now_ns();
        http_loop_run(&self->loop, wait_ms);
        bool rested = !busy && now_ns() - before >= (IDLE_MS - TICK_MS) * MS;
        if (rested && !*idle)
                forget(self);
        *idle = rested || (*idle && !busy);
}

static void *http_main(void *arg)
{
        struct http_thread *self = arg;
        struct reader *reader = self->reader;
        bool idle = true;
        pthread_setname_np(pthread_self(), "network");
        while (!stopping(self))
                turn(self, &idle);
        __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST);
        give_up_stopped(self);
        streams_tend(self);
        while (self->flights.n > 0) {
                flights_wait(&self->flights);
                flights_reap(&self->flights);
        }
        forget(self);
        flights_deinit(&self->flights);
        pthread_mutex_lock(&reader->mutex);
        reader_leave_locked(reader, READ_HTTP);
        pthread_mutex_unlock(&reader->mutex);
        return NULL;
}

static bool http_start(struct reader *reader)
{
        struct error error = {0};
        struct http_thread *self = calloc(1, sizeof(*self));
        if (self == NULL || http_loop_init(&self->loop, &error) < 0) {
                free(self);
                return false;
        }
        self->reader = self->flights.reader = reader;
        list_init(&self->ranges);
        list_init(&self->spare);
        list_init(&self->streams);
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, STACK_SIZE);
        self->node = reader_place_thread(reader, &attr);
        bool ok = pthread_create(&self->thread, &attr, http_main, self) == 0;
        pthread_attr_destroy(&attr);
        if (!ok) {
                http_loop_deinit(&self->loop);
                free(self);
                return false;
        }
        list_append(&reader->engines[READ_HTTP].threads, &self->link);
        return true;
}

/* ---- the engine ---- */

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

static void http_watch(struct reader *reader, uint64_t now)
{
        list_each (pos, &reader->jobs) {
                struct read_job *job = container_of(pos, struct read_job, link);
                if (job->engine != READ_HTTP || http_job(job) == NULL)
                        continue;
                uint64_t moved = __atomic_load_n(&http_job(job)->moved_ns, __ATOMIC_RELAXED);
                job->quiet = now > moved && now - moved >= reader->opts.stall_ns;
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

void reader_http_init(struct reader *reader)
{
        const struct http *http = reader->opts.http;
        reader->engines[READ_HTTP] =
                (struct engine){.ops = &ops, .base = http != NULL ? http_opts(http)->threads : 0, .places = PLACES};
}
