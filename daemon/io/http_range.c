/* SPDX-License-Identifier: Apache-2.0
 *
 * What one request asks for: a run of blocks.
 *
 *   asked for > bytes land in the block at hand, hashed leaf by leaf > it is full: landed, the next ... > over
 *       \            \                                            \
 *        \            \                                            no slot for the next: paused until there is
 *         \____________\_ failed: pause, and asked for again from the byte that is missing > given up
 *
 * Bytes that came before a failure stay: they are of the version that each answer is checked for. A run may
 * become shorter while it is under way, since the reader splits it for who has nothing else to do; its
 * connection is closed where it ends then.
 *
 * A straggler near the end of a load, when there is nothing else to take, first leaves the rest of its run
 * to another request; its last block gets a hedge: a second request over another connection, into a slot of
 * its own. Whichever is whole first wins; a hedge's bytes are moved to their place only then, and hashed
 * there, so that the loser's are never seen.
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

        /* The block at hand, where `held`: */
        bool held;
        struct ticket ticket;
        unsigned char *to;
        struct fill fill;
        uint64_t begun_ns; /* it, or the present try for it */
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
                range->fill.hash = hash_new();
                if (range->fill.hash == NULL) {
                        free(range);
                        return NULL;
                }
                list_init(&range->link);
                range->thread = self;
                range->first.range = range->hedge.range = range;
        }
        range->retry = (struct http_retry){0};
        range->waiting = range->held = false;
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
        if (range->hedge_to != NULL)
                reader_slot_put(range->thread->reader, range->hedge_to);
        range->hedge_to = NULL;
}

/* No block is at hand. An error is the whole job's. */
static void range_over(struct range *range, const struct error *error)
{
        struct http_thread *self = range->thread;
        require(!range->held);
        cancel(&range->first);
        cancel(&range->hedge);
        give_hedge_slot(range);
        reader_run_end(self->reader, &range->run, error);
        drop_led(&range->first);
        drop_led(&range->hedge);
        list_remove(&range->link);
        list_append(&self->spare, &range->link);
        http_place_gone(self);
}

static void range_free(struct range *range)
{
        list_remove(&range->link);
        http_transfer_deinit(&range->first.transfer);
        http_transfer_deinit(&range->hedge.transfer);
        hash_free(range->fill.hash);
        free(range);
}

/* Error NULL: the job was stopped, or the daemon ends. */
static void range_lost(struct range *range, const struct error *error)
{
        struct http_thread *self = range->thread;
        struct error why = error != NULL ? *error : (struct error){0};
        bool failed = error != NULL || http_job_cut_short(self, range->run.job, &why);
        cancel(&range->first); /* before its block's memory is another's */
        cancel(&range->hedge);
        if (range->held)
                reader_give(self->reader, &range->ticket, failed ? &why : NULL);
        range->held = false;
        range_over(range, failed ? &why : NULL);
}

static bool run_over(struct range *range)
{
        struct reader *reader = range->thread->reader;
        reader_lock(reader);
        bool over = reader_run_over_locked(&range->run);
        reader_unlock(reader);
        return over;
}

/* ---- blocks ---- */

/* False: there is no memory for it. */
static bool block_begin(struct range *range, struct error *error)
{
        range->held = true;
        range->begun_ns = now_ns();
        reader_fill_begin(&range->ticket, &range->fill);
        range->to = http_block_target(&range->ticket, error);
        return range->to != NULL;
}

/* False: `error` is set; or the run is over; or there is no slot just now. */
static bool have_block(struct range *range, struct error *error)
{
        struct reader *reader = range->thread->reader;
        if (range->held)
                return true;
        reader_lock(reader);
        bool taken = reader_run_next_locked(reader, &range->run, &range->ticket);
        reader_unlock(reader);
        return taken && block_begin(range, error);
}

static size_t feed(struct range *range, const unsigned char *data, size_t n)
{
        uint64_t left = range->ticket.block->len - range->fill.have;
        size_t taken = left < n ? (size_t)left : n;
        reader_fill(&range->ticket, &range->fill, range->to, data, taken);
        return taken;
}

static void land(struct range *range)
{
        struct ticket ticket = range->ticket;
        range->held = false;
        range->retry.made = 0; /* it made progress */
        http_block_done(range->thread, &ticket, range->to, now_ns() - range->begun_ns);
}

/* ---- answers ---- */

static struct http_job *job_of(const struct range *range)
{
        return http_job(range->run.job);
}

static const struct object *object_of(const struct range *range)
{
        return &range->run.job->objects[range->file];
}

static enum http_outcome on_accept(struct http_transfer *t)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        const struct object *object = object_of(a->range);
        http_answered(a->range->thread, a->range->run.job, http_transfer_answered_ns(t));
        if (remote_check_answer(object, &t->answer, &t->error) < 0)
                return HTTP_FAILED;
        if (t->answer.ranged || t->request.len == object->version.size)
                return HTTP_OK;
        error_set(&t->error, STREAMER_EFAILED, "the server answers the whole instead of a range (%s)", object->path);
        return HTTP_AGAIN;
}

static enum http_sink on_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct range *range = container_of(t, struct attempt, transfer)->range;
        uint64_t end = t->request.offset + t->received + n; /* in the object */
        size_t done = 0;
        __atomic_store_n(&job_of(range)->moved_ns, t->moved_ns, __ATOMIC_RELAXED);
        while (done < n) {
                if (!have_block(range, &t->error)) {
                        t->taken = done;
                        if (t->error.code != 0)
                                return HTTP_BROKEN;
                        return run_over(range) ? HTTP_ENOUGH : HTTP_PAUSE;
                }
                done += feed(range, data + done, n - done);
                if (range->fill.have == range->ticket.block->len)
                        land(range);
        }
        bool shorter = !range->held && end < t->request.offset + t->request.len && run_over(range);
        return shorter ? HTTP_ENOUGH : HTTP_MORE;
}

static enum http_sink on_hedge_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct range *range = container_of(t, struct attempt, transfer)->range;
        memcpy(range->hedge_to + t->received, data, n);
        __atomic_store_n(&job_of(range)->moved_ns, t->moved_ns, __ATOMIC_RELAXED);
        return HTTP_MORE;
}

/* A link that redirects led to once, and that no longer serves, is no failure of the object's. */
static bool led_astray(struct attempt *a)
{
        if (a->led == NULL)
                return false;
        remote_set_led(object_of(a->range), NULL);
        drop_led(a);
        return true;
}

static void on_first_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        struct range *range = a->range;
        a->busy = false;
        if (t->answer.led != NULL)
                remote_set_led(object_of(range), t->answer.led);
        if (!range->held && run_over(range)) {
                range_over(range, NULL);
                return;
        }
        if (outcome == HTTP_OK) {
                outcome = HTTP_AGAIN;
                error_set(&t->error, STREAMER_EFAILED, "short body (%s)", t->request.shown);
        }
        if (http_status_slow_down(t->answer.status))
                http_slow_down(range->thread->reader, range->run.job);
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
        a->busy = false;
        if (outcome != HTTP_OK) { /* the first goes on alone */
                give_hedge_slot(range);
                return;
        }
        cancel(&range->first);
        log_debug("a hedge won (%s)", object_of(range)->path);
        reader_fill_begin(&range->ticket, &range->fill);
        feed(range, range->hedge_to, range->ticket.block->len);
        land(range);
        range_over(range, NULL);
}

/* ---- tries ---- */

static void ask(struct attempt *a, uint64_t from, uint64_t to)
{
        struct range *range = a->range;
        const struct object *object = object_of(range);
        struct http_transfer *t = &a->transfer;
        bool first = a == &range->first;
        drop_led(a);
        a->led = remote_led(object);
        t->http = remote_http(object);
        t->from = a->led;
        t->fresh = !first;
        t->buffer_size = BUFFER;
        t->accept = on_accept;
        t->bytes = first ? on_bytes : on_hedge_bytes;
        t->done = first ? on_first_done : on_hedge_done;
        remote_request(object, from, to - from, &t->request);
        a->busy = true;
        http_loop_add(&range->thread->loop, t);
}

static uint64_t end_of(const struct plan_block *block)
{
        return block->file_off + block->len;
}

/* What is left of the run. False: nothing is. */
static bool what_is_left(struct range *range, uint64_t *from, uint64_t *to)
{
        struct reader *reader = range->thread->reader;
        const struct plan_block *blocks = range->run.job->plan->blocks;
        reader_lock(reader);
        bool over = reader_run_over_locked(&range->run);
        size_t end = range->run.end;
        reader_unlock(reader);
        if (over && !range->held)
                return false;
        const struct plan_block *block = range->held ? range->ticket.block : &blocks[range->run.next];
        range->file = block->file;
        *from = range->held ? block->file_off + range->fill.have : block->file_off;
        *to = over ? end_of(block) : end_of(&blocks[end - 1]);
        return true;
}

static void try_first(struct range *range)
{
        uint64_t from, to;
        range->waiting = false;
        range->begun_ns = now_ns();
        if (!what_is_left(range, &from, &to)) {
                range_over(range, NULL);
                return;
        }
        ask(&range->first, from, to);
}

bool range_take(struct http_thread *self)
{
        struct range *range = range_new(self);
        struct error error = {0};
        if (range == NULL) {
                __atomic_store_n(&self->look, true, __ATOMIC_SEQ_CST);
                return false;
        }
        if (!http_take_run(self, &range->run, &range->ticket)) {
                list_append(&self->spare, &range->link);
                return false;
        }
        list_append(&self->ranges, &range->link);
        if (block_begin(range, &error))
                try_first(range);
        else
                range_lost(range, &error);
        return true;
}

/* ---- stragglers ---- */

static void leave_the_rest(struct range *range)
{
        struct http_thread *self = range->thread;
        struct range *other = range_new(self);
        if (other == NULL)
                return;
        reader_lock(self->reader);
        reader_run_move_locked(&range->run, &other->run);
        self->n++;
        reader_unlock(self->reader);
        list_append(&self->ranges, &other->link);
        try_first(other);
}

/* With nothing left to take, and a slot that nobody needs. */
static void maybe_hedge(struct range *range, uint64_t now)
{
        struct reader *reader = range->thread->reader;
        const struct read_job *job = range->run.job;
        if (!range->first.busy || !range->held || range->hedge.busy || now - range->begun_ns < HTTP_TICK_MS * MS)
                return;
        reader_lock(reader);
        uint64_t after = http_pace_straggler(&http_job(job)->pace);
        bool late = after > 0 && now - range->begun_ns > after && job->next == job->plan->n_blocks;
        bool last = reader_run_over_locked(&range->run);
        reader_unlock(reader);
        if (late && !last)
                leave_the_rest(range);
        if (!late || !last || (range->hedge_to = reader_slot_get(reader)) == NULL)
                return;
        log_debug("a hedge for a range of %.1f s (%s)", (double)(now - range->begun_ns) / 1e9, object_of(range)->path);
        ask(&range->hedge, range->ticket.block->file_off, end_of(range->ticket.block));
}

/* ---- all of a thread's ---- */

void ranges_give_up(struct http_thread *self)
{
        list_each_safe (pos, &self->ranges) {
                struct range *range = container_of(pos, struct range, link);
                if (http_job_stopped(self, range->run.job))
                        range_lost(range, NULL);
        }
}

void ranges_go_on(struct http_thread *self)
{
        list_each_safe (pos, &self->ranges) {
                struct range *range = container_of(pos, struct range, link);
                struct error error = {0};
                if (!range->first.busy || !range->first.transfer.paused)
                        continue;
                if (have_block(range, &error))
                        http_transfer_go_on(&range->first.transfer);
                else if (error.code != 0)
                        range_lost(range, &error);
                else if (run_over(range))
                        range_over(range, NULL);
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
