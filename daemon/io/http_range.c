/* SPDX-License-Identifier: Apache-2.0
 *
 * The range of a ticket:
 *
 *   asked for > bytes land and are hashed leaf by leaf > whole > landed
 *       \            \
 *        \____________\____ failed: pause, and asked for again (http_retry) > given up
 *
 * A straggler near the end of a load, when there is nothing else to take, gets a hedge: a second request
 * over another connection, into a slot of its own. Whichever is whole first wins; a hedge's bytes are
 * moved to their place only then, and hashed there, so that the loser's are never seen.
 */
#include "daemon/io/http_thread.h"

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/io/http_policy.h"

#include <string.h>

#define MS UINT64_C(1000000)
#define BUFFER (256u * 1024)

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

void range_begin(struct http_thread *self, const struct ticket *ticket)
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
        if (!range->first.busy || range->hedge.busy || now - range->begun_ns < HTTP_TICK_MS * MS)
                return;
        reader_lock(reader);
        uint64_t after = http_pace_straggler(&http_job(job)->pace);
        bool late = after > 0 && now - range->begun_ns > after && job->next == job->plan->n_blocks;
        reader_unlock(reader);
        if (!late || (range->hedge.to = reader_slot_get(reader)) == NULL)
                return;
        log_debug("a hedge for a range of %.1f s (%s)", (double)(now - range->begun_ns) / 1e9,
                  object_of(&range->ticket)->path);
        ask(&range->hedge, on_hedge_done);
}

/* ---- all of a thread's ---- */

void ranges_give_up(struct http_thread *self)
{
        list_each_safe (pos, &self->ranges) {
                struct range *range = container_of(pos, struct range, link);
                if (http_job_stopped(self, range->ticket.job))
                        range_lost(range, NULL);
        }
}

unsigned ranges_tend(struct http_thread *self)
{
        uint64_t now = now_ns(), next = HTTP_TICK_MS * MS;
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

void ranges_forget(struct http_thread *self)
{
        list_each_safe (pos, &self->spare)
                range_free(container_of(pos, struct range, link));
}
