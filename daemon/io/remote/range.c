/* SPDX-License-Identifier: Apache-2.0
 *
 * What one request asks for: a run of blocks.
 *
 *   asked for > bytes land in the block at hand, hashed leaf by leaf > it is full: landed, the next ... > over
 *       \            \                                            \
 *        \            \                                            no slot for the next: paused until there is
 *         \____________\_ failed: pause, and asked for again from the byte that is missing > given up
 *
 * Bytes received before a failure stay: each answer is checked to be of the same version. The reader may shorten a run
 * that is in flight, to give its second half to an idle thread; the connection is then closed at the new end.
 */
#include "daemon/io/remote/range.h"

#include "daemon/base/util.h"
#include "daemon/io/http/policy.h"

#define MS UINT64_C(1000000)
#define BUFFER (256u * 1024)

/* ---- ranges ---- */

struct range *range_new(struct http_thread *self)
{
        struct range *range;
        if (!list_empty(&self->unused)) {
                range = container_of(self->unused.next, struct range, link);
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
        range->retry = (struct http_retry){.known = true};
        range->waiting = range->asks = range->held = false;
        return range;
}

static void drop_led(struct attempt *a)
{
        free(a->led);
        a->led = NULL;
}

static void set_asks(struct range *range, bool asks)
{
        if (range->asks != asks)
                http_count_request(range->thread->base.reader, range->run.job, asks);
        range->asks = asks;
}

void attempt_cancel(struct attempt *a)
{
        if (a->busy)
                http_loop_remove(&a->range->thread->loop, &a->transfer);
        a->busy = false;
        if (a == &a->range->first)
                set_asks(a->range, false);
}

void range_end(struct range *range, const struct error *error)
{
        struct http_thread *self = range->thread;
        require(!range->held);
        attempt_cancel(&range->first);
        attempt_cancel(&range->hedge);
        hedge_give_slot(range);
        reader_run_end(self->base.reader, &range->run, error);
        drop_led(&range->first);
        drop_led(&range->hedge);
        list_remove(&range->link);
        list_append(&self->unused, &range->link);
        http_thread_remove_range(self);
}

/* Error NULL: the job was stopped. */
static void range_lost(struct range *range, const struct error *error)
{
        attempt_cancel(&range->first); /* before its block's memory is another's */
        attempt_cancel(&range->hedge);
        if (range->held)
                reader_return_ticket(range->thread->base.reader, &range->ticket, error);
        range->held = false;
        range_end(range, error);
}

static bool run_over(struct range *range)
{
        struct reader *reader = range->thread->base.reader;
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
        struct reader *reader = range->thread->base.reader;
        if (range->held)
                return true;
        reader_lock(reader);
        bool taken = reader_run_next_locked(reader, &range->run, &range->ticket);
        reader_unlock(reader);
        return taken && block_begin(range, error);
}

size_t range_feed(struct range *range, const unsigned char *data, size_t n)
{
        uint64_t left = range->ticket.block->len - range->fill.have;
        size_t taken = left < n ? (size_t)left : n;
        reader_fill(&range->ticket, &range->fill, range->to, data, taken);
        return taken;
}

void range_land(struct range *range)
{
        struct ticket ticket = range->ticket;
        range->held = false;
        range->retry.made = 0; /* it made progress */
        http_block_done(range->thread, &ticket, range->to, now_ns() - range->begun_ns);
}

/* ---- answers ---- */

static enum http_outcome on_accept(struct http_transfer *t)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        const struct object *object = range_object(a->range);
        http_answered(a->range->thread, a->range->run.job, http_transfer_answered_ns(t));
        if (remote_check_answer(object, &t->answer, &t->error) < 0)
                return HTTP_FAILED;
        if (t->answer.ranged || t->request.len == object->version.size)
                return HTTP_OK;
        error_set(&t->error, STREAMER_EFAILED, "the server answers the whole instead of a range (%s)", object->path);
        return HTTP_RETRY;
}

enum http_sink range_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct range *range = container_of(t, struct attempt, transfer)->range;
        uint64_t end = t->request.offset + t->received + n; /* in the object */
        size_t done = 0;
        while (done < n) {
                if (!have_block(range, &t->error)) {
                        t->taken = done;
                        if (t->error.code != 0)
                                return HTTP_BROKEN;
                        if (run_over(range))
                                return HTTP_ENOUGH;
                        /* Slots may be with those that wait until it does not ask. */
                        set_asks(range, false);
                        return HTTP_PAUSE;
                }
                size_t taken = range_feed(range, data + done, n - done);
                http_job_moved(range_job(range), t->moved_ns, taken);
                done += taken;
                if (range->fill.have == range->ticket.block->len)
                        range_land(range);
        }
        bool shorter = !range->held && end < t->request.offset + t->request.len && run_over(range);
        return shorter ? HTTP_ENOUGH : HTTP_MORE;
}

static void on_first_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct attempt *a = container_of(t, struct attempt, transfer);
        struct range *range = a->range;
        a->busy = false;
        set_asks(range, false);
        if (t->answer.led != NULL)
                remote_set_redirect_url(range_object(range), t->answer.led);
        if (!range->held && run_over(range)) {
                range_end(range, NULL);
                return;
        }
        if (outcome == HTTP_OK) {
                outcome = HTTP_RETRY;
                error_set(&t->error, STREAMER_EFAILED, "short body (%s)", t->request.shown);
        }
        if (http_status_slow_down(t->answer.status))
                http_slow_down(range->thread->base.reader, range->run.job);
        /* The stored target of a redirect may have expired: the next try starts from the object's own URL. */
        bool redirected = a->led != NULL;
        if (redirected) {
                remote_set_redirect_url(range_object(range), NULL);
                drop_led(a);
        }
        if ((redirected || outcome == HTTP_RETRY) && http_retry(t, &range->retry, 0))
                range->waiting = true;
        else
                range_lost(range, &t->error);
}

/* ---- tries ---- */

void range_ask(struct attempt *a, uint64_t from, uint64_t to)
{
        struct range *range = a->range;
        const struct object *object = range_object(range);
        struct http_transfer *t = &a->transfer;
        bool first = a == &range->first;
        drop_led(a);
        a->led = remote_redirect_url(object);
        t->http = remote_http(object);
        t->from = a->led;
        t->fresh = !first;
        t->buffer_size = BUFFER;
        t->accept = on_accept;
        t->bytes = first ? range_bytes : hedge_bytes;
        t->done = first ? on_first_done : hedge_done;
        remote_request(object, from, to - from, &t->request);
        a->busy = true;
        http_loop_add(&range->thread->loop, t);
}

/* What is left of the run. False: nothing is. */
static bool what_is_left(struct range *range, uint64_t *from, uint64_t *to)
{
        struct reader *reader = range->thread->base.reader;
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
        *to = over ? block_end(block) : block_end(&blocks[end - 1]);
        return true;
}

void range_request_rest(struct range *range)
{
        uint64_t from, to;
        range->begun_ns = now_ns();
        if (!what_is_left(range, &from, &to)) {
                range_end(range, NULL);
                return;
        }
        range->asks = http_try_count_request(range->thread->base.reader, range->run.job);
        range->waiting = !range->asks;
        if (range->asks)
                range_ask(&range->first, from, to);
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
                list_append(&self->unused, &range->link);
                return false;
        }
        list_append(&self->ranges, &range->link);
        if (block_begin(range, &error))
                range_request_rest(range);
        else
                range_lost(range, &error);
        return true;
}

/* ---- all of a thread's ---- */

void ranges_end_stopped(struct http_thread *self)
{
        list_each_safe (pos, &self->ranges) {
                struct range *range = container_of(pos, struct range, link);
                struct error ending;
                reader_lock(self->base.reader);
                bool stopped = range->run.job->stopped, ends = self->base.reader->stopping;
                reader_unlock(self->base.reader);
                if (stopped || ends)
                        error_set(&ending, STREAMER_ECANCELED, "the daemon is ending");
                if (stopped || ends)
                        range_lost(range, stopped ? NULL : &ending);
        }
}

void ranges_resume(struct http_thread *self)
{
        list_each_safe (pos, &self->ranges) {
                struct range *range = container_of(pos, struct range, link);
                struct error error = {0};
                if (!range->first.busy || !range->first.transfer.paused)
                        continue;
                if (have_block(range, &error)) {
                        set_asks(range, true);
                        http_transfer_resume(&range->first.transfer);
                } else if (error.code != 0)
                        range_lost(range, &error);
                else if (run_over(range))
                        range_end(range, NULL);
        }
}

unsigned ranges_tick(struct http_thread *self)
{
        uint64_t now = now_ns(), next = HTTP_TICK_MS * MS;
        list_each_safe (pos, &self->ranges) {
                struct range *range = container_of(pos, struct range, link);
                if (range->waiting && range->retry.at_ns <= now)
                        range_request_rest(range);
                else if (range->waiting && range->retry.at_ns - now < next)
                        next = range->retry.at_ns - now;
                else
                        hedge_if_late(range, now);
        }
        return (unsigned)((next + MS - 1) / MS);
}

void ranges_free_unused(struct http_thread *self)
{
        list_each_safe (pos, &self->unused) {
                struct range *range = container_of(pos, struct range, link);
                list_remove(&range->link);
                http_transfer_deinit(&range->first.transfer);
                http_transfer_deinit(&range->hedge.transfer);
                hash_free(range->fill.hash);
                free(range);
        }
}
