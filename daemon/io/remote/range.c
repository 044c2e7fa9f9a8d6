/* SPDX-License-Identifier: Apache-2.0
 *
 * A range: one request for a run of blocks.
 *
 *   waiting > requested <> paused          (enum range_state; the run ends in any of them)
 *      ^__________|_________|
 *
 * Bytes fill the current block, hashed leaf by leaf. When it is full it has landed, and the next one begins. Without a
 * slot for that the range is paused until there is one. After a failure it waits, and is then requested from the first
 * missing byte, or given up.
 *
 * Bytes received before a failure stay: each answer is checked to be of the same version. A run may be
 * shortened in flight, when the rest of it passes to another request; the connection is then closed at the new end.
 *
 * A silent range (the words are at the head of schedule.c) receives no byte for several times the usual time of an
 * answer. It does not count against the limit of its load. Once no block is left to take it is requested again, once,
 * and its first request is cancelled.
 *
 * A straggler near the end of a load, when no block is left to take and the throughput has fallen (concurrency.h),
 * first passes the rest of its run (up to http.request_max, which a slow connection would keep) to another request; its
 * last block gets a hedge: a second request over another connection, into a slot of its own. The request that completes
 * first wins; a hedge's bytes are copied to their destination and hashed only then, so that the loser's are never used.
 */
#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"
#include "daemon/io/remote/remote.h"

#define BUFFER (256u * 1024)
#define REPEATS 4u /* of one load at a time */

/* ---- jobs, which several threads share: with the reader's lock held ---- */

/* All in any case: the one with the fewest ranges is to take the block, which the threads find out themselves. */
void http_wake(struct reader *reader)
{
        struct engine *engine = &reader->engines[READ_HTTP];
        if (engine->jobs == 0 && !reader->stopping)
                return;
        list_each_item (struct http_thread, t, &engine->threads, base.link) {
                http_thread_recheck(t);
                http_loop_wake(&t->loop);
        }
}

/* The limit applies to new runs. Once the server has asked to slow down it applies to retries of earlier ones, too. */
static bool may_request(const struct http_job *own)
{
        return own->concurrency.slowed_ns == 0 || own->requests < own->concurrency.limit;
}

bool http_block_late_locked(struct read_job *job, uint64_t since_ns, uint64_t now)
{
        struct http_job *own = job->http;
        uint64_t after = concurrency_straggler(&own->concurrency);
        concurrency_add_bytes(&own->concurrency, load_relaxed(&own->received), now);
        bool slow = after > 0 && now - since_ns > after && !concurrency_is_saturated(&own->concurrency);
        return slow && job->next == job->plan->n_blocks && may_request(own);
}

bool http_try_repeat_locked(struct read_job *job)
{
        bool may = job->next == job->plan->n_blocks && job->http->repeats < REPEATS;
        job->http->repeats += may;
        return may;
}

/* ---- ranges ---- */

static struct reader *reader_of(const struct range *range)
{
        return range->thread->base.reader;
}

static const struct object *object_of(const struct range *range)
{
        const struct read_run *run = &range->run; /* its blocks are of one file */
        return &run->job->objects[run->job->plan->blocks[run->end - 1].file];
}

static uint64_t block_end(const struct plan_block *block)
{
        return block->file_off + block->len;
}

/* NULL: no memory. */
static struct range *range_new(struct http_thread *self)
{
        struct range *range = aligned_alloc(_Alignof(struct range), sizeof(*range));
        if (range == NULL)
                return NULL;
        *range = (struct range){.thread = self, .retry.known = true};
        return range;
}

static void range_free(struct range *range)
{
        http_transfer_deinit(&range->first);
        http_transfer_deinit(&range->hedge);
        reader_fill_deinit(&range->fill);
        free(range);
}

static void set_state(struct range *range, enum range_state state)
{
        static const unsigned may_follow[] = {
                [RANGE_WAITING] = 1u << RANGE_REQUESTED,
                [RANGE_REQUESTED] = 1u << RANGE_PAUSED | 1u << RANGE_WAITING,
                [RANGE_PAUSED] = 1u << RANGE_REQUESTED | 1u << RANGE_WAITING,
        };
        struct http_job *own = range->run.job->http;
        bool was = range->state == RANGE_REQUESTED, is = state == RANGE_REQUESTED;
        if (range->state == state)
                return;
        change_state(range->state, state, may_follow);
        if (was == is)
                return;
        lock_scope(&reader_of(range)->mutex);
        require(is || own->requests > 0);
        own->requests += is ? 1u : -1u;
        if (!is && own->concurrency.slowed_ns > 0)
                http_wake(reader_of(range)); /* a range of another thread may wait for it */
}

/* A silent ticket does not count against its job's limit, so that another one is taken. */
static void set_silent(struct range *range, bool silent)
{
        if (range->silent == silent)
                return;
        range->silent = silent;
        lock_scope(&reader_of(range)->mutex);
        range->run.job->silent += silent ? 1u : -1u;
        if (silent)
                http_wake(reader_of(range));
}

/* The second request was answered, or has ended. */
static void end_repeat(struct range *range)
{
        if (range->repeat != REPEAT_UNANSWERED)
                return;
        range->repeat = REPEAT_USED;
        lock_scope(&reader_of(range)->mutex);
        require(range->run.job->http->repeats > 0);
        range->run.job->http->repeats--;
}

static void cancel_requests(struct range *range)
{
        end_repeat(range);
        http_transfer_cancel(&range->first);
        http_transfer_cancel(&range->hedge);
        set_state(range, RANGE_WAITING);
}

static void hedge_free_slot(struct range *range)
{
        if (range->hedge_slot != NULL)
                reader_slot_put(reader_of(range), range->hedge_slot);
        range->hedge_slot = NULL;
}

/* It has no current block. An error is the whole job's. */
static void range_end(struct range *range, const struct error *error)
{
        struct http_thread *self = range->thread;
        require(!range->has_block);
        cancel_requests(range);
        hedge_free_slot(range);
        reader_run_end(self->base.reader, &range->run, error);
        list_remove(&range->link);
        range_free(range);
        http_thread_recheck(self);
        lock_scope(&self->base.reader->mutex);
        self->n_ranges--;
}

/* Error NULL: the job was stopped. */
static void range_fail(struct range *range, const struct error *error)
{
        cancel_requests(range); /* before the block's memory is reused */
        set_silent(range, false);
        if (range->has_block)
                reader_return_ticket(&range->thread->base, &range->ticket, error);
        range->has_block = false;
        range_end(range, error);
}

static bool run_over(struct range *range)
{
        lock_scope(&reader_of(range)->mutex);
        return reader_run_over_locked(&range->run);
}

/* ---- blocks ---- */

/* False: there is no memory for it. */
static bool block_begin(struct range *range, struct error *error)
{
        range->has_block = true;
        range->begun_ns = now_ns();
        reader_fill_begin(&range->ticket, &range->fill);
        range->to = reader_block_data(&range->ticket);
        return reader_block_prepare(reader_of(range), &range->ticket, 0, range->ticket.block->len, error) == 0;
}

/* False: `error` is set; or the run is over; or there is no slot just now. */
static bool have_block(struct range *range, struct error *error)
{
        struct reader *reader = reader_of(range);
        if (range->has_block)
                return true;
        pthread_mutex_lock(&reader->mutex);
        bool taken = reader_run_next_locked(&range->thread->base, &range->run, &range->ticket);
        pthread_mutex_unlock(&reader->mutex); /* preparing memory may take long */
        return taken && block_begin(range, error);
}

/* Bytes of the current block; *taken of them. STREAMER_EFAILED: they cannot be decrypted. */
static int block_fill(struct range *range, const unsigned char *data, size_t n, size_t *taken, struct error *error)
{
        uint64_t left = range->ticket.block->len - range->fill.have;
        *taken = left < n ? (size_t)left : n;
        return reader_fill(&range->ticket, &range->fill, range->to, data, *taken, error);
}

/* Whether runs are left to the other threads. */
static void set_waits(struct http_thread *self, bool waits)
{
        lock_scope(&self->base.reader->mutex);
        self->waits = waits;
        http_wake(self->base.reader);
}

/* If the queue is full, this waits for a device, which may hang. */
static void land_ticket(struct http_thread *self, struct ticket *ticket, const unsigned char *data)
{
        bool waits = ticket->slot != NULL && self->copy_queue.n == self->copy_queue.most;
        if (waits)
                set_waits(self, true);
        copy_queue_land(&self->copy_queue, ticket, data);
        if (waits)
                set_waits(self, false);
}

/* The current block is full: lands it, or starts its copies. */
static void block_land(struct range *range)
{
        struct reader *reader = reader_of(range);
        struct read_job *job = range->run.job;
        struct concurrency *concurrency = &job->http->concurrency;
        uint64_t now = now_ns(), took_ns = now - range->begun_ns;
        set_silent(range, false);
        stages_add(&job->stages, STAGE_storage, took_ns);
        pthread_mutex_lock(&reader->mutex);
        concurrency_add_block(concurrency, range->ticket.block->len, took_ns, now);
        concurrency_add_bytes(concurrency, load_relaxed(&job->http->received), now);
        job->limit = concurrency->limit;
        pthread_mutex_unlock(&reader->mutex);
        range->has_block = false;
        range->retry.made = 0;              /* it made progress */
        http_thread_recheck(range->thread); /* more may be in flight by now */
        land_ticket(range->thread, &range->ticket, range->to);
}

/* ---- answers ---- */

/* The number that may be in flight after the server has answered a request, or has asked to slow down. */
static void update_limit(struct range *range, bool slow_down, uint64_t answered_ns)
{
        struct read_job *job = range->run.job;
        struct concurrency *concurrency = &job->http->concurrency;
        lock_scope(&reader_of(range)->mutex);
        if (slow_down)
                concurrency_slow_down(concurrency, now_ns());
        else
                concurrency_answered(concurrency, answered_ns);
        job->limit = concurrency->limit;
        if (slow_down)
                log_debug("the server asks to slow down: %u ranges in flight", job->limit);
        else
                http_thread_recheck(range->thread); /* more may be in flight by now */
}

static enum http_outcome on_accept(struct http_transfer *t)
{
        struct range *range = t->context;
        const struct object *object = object_of(range);
        update_limit(range, false, http_transfer_answered_ns(t));
        if (t == &range->first)
                end_repeat(range);
        enum remote_difference difference = remote_compare_answer(object, &t->answer, &t->error);
        if (difference == REMOTE_OTHER_ETAG && t == &range->first && !range->other_etag) {
                range->other_etag = true; /* it is asked for once more: the object's may come back */
                return HTTP_RETRY;
        }
        if (difference == REMOTE_SAME && t == &range->first && range->other_etag)
                remote_two_etags(object, &t->error);
        if (difference != REMOTE_SAME || t->error.code != 0)
                return HTTP_FAILED;
        if (t->answer.status == 206 || t->request.len == object->version.size)
                return HTTP_OK;
        error_set(&t->error, STREAMER_EFAILED, "the server answers the whole instead of a range (%s)", object->path);
        return HTTP_RETRY;
}

enum http_sink range_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct range *range = t->context;
        uint64_t end = t->request.offset + t->received + n; /* in the object */
        size_t done = 0;
        while (done < n) {
                if (!have_block(range, &t->error)) {
                        t->taken = done;
                        if (t->error.code != 0)
                                return HTTP_BROKEN;
                        if (run_over(range))
                                return HTTP_ENOUGH;
                        set_state(range, RANGE_PAUSED);
                        return HTTP_PAUSE;
                }
                size_t taken;
                range->wrong = block_fill(range, data + done, n - done, &taken, &t->error) < 0;
                if (range->wrong)
                        return HTTP_BROKEN;
                http_job_moved(range->run.job, t->moved_ns, taken);
                done += taken;
                if (range->fill.have == range->ticket.block->len)
                        block_land(range);
        }
        bool shorter = !range->has_block && end < t->request.offset + t->request.len && run_over(range);
        return shorter ? HTTP_ENOUGH : HTTP_MORE;
}

static void on_first_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct range *range = t->context;
        set_state(range, RANGE_WAITING);
        end_repeat(range);
        if (t->answer.redirect_url != NULL)
                remote_set_redirect_url(object_of(range), t->answer.redirect_url);
        if (!range->has_block && run_over(range)) {
                range_end(range, NULL);
                return;
        }
        if (outcome == HTTP_OK) {
                outcome = HTTP_RETRY;
                error_set(&t->error, STREAMER_EFAILED, "short body (%s)", t->request.shown);
        }
        if (http_status_slow_down(t->answer.status))
                update_limit(range, true, 0);
        /* The stored target of a redirect may have expired: the next try starts from the object's own URL. */
        if (range->redirected && !range->wrong) {
                outcome = HTTP_RETRY;
                remote_set_redirect_url(object_of(range), NULL);
        }
        if (outcome == HTTP_FAILED || range->wrong || !http_retry(t, &range->retry))
                range_fail(range, &t->error);
}

static enum http_sink hedge_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct range *range = t->context;
        memcpy(range->hedge_slot + t->received, data, n);
        http_job_moved(range->run.job, t->moved_ns, n);
        return HTTP_MORE;
}

void hedge_done(struct http_transfer *t, enum http_outcome outcome)
{
        struct range *range = t->context;
        /* The first continues alone; or it is complete as well and is reported next. */
        if (outcome != HTTP_OK || !range->has_block) {
                hedge_free_slot(range);
                if (http_status_slow_down(t->answer.status))
                        update_limit(range, true, 0);
                range->hedge_failed_ns = now_ns();
                return;
        }
        http_transfer_cancel(&range->first);
        log_debug("a hedge won (%s)", object_of(range)->path);
        struct error error = {0};
        size_t taken;
        reader_fill_begin(&range->ticket, &range->fill);
        if (block_fill(range, range->hedge_slot, range->ticket.block->len, &taken, &error) < 0) {
                range_fail(range, &error);
                return;
        }
        block_land(range);
        range_end(range, NULL);
}

/* ---- requests ---- */

/* Bytes [from, to) of the object, by the first request or the hedge. */
static void request(struct range *range, struct http_transfer *t, uint64_t from, uint64_t to)
{
        const struct object *object = object_of(range);
        bool first = t == &range->first;
        cleanup_free char *redirect_url = remote_redirect_url(object);
        t->http = remote_of(object)->http;
        t->context = range;
        t->fresh = !first || range->retry.fresh || range->other_etag;
        t->data = true;
        t->buffer_size = BUFFER;
        t->accept = on_accept;
        t->bytes = first ? range_bytes : hedge_bytes;
        t->done = first ? on_first_done : hedge_done;
        remote_request(object, from, to - from, &t->request);
        if (first)
                range->redirected = redirect_url != NULL;
        http_loop_add(&range->thread->loop, t, redirect_url);
}

/* Requests the rest of the run; ends the run if it is complete. */
static void request_rest(struct range *range)
{
        struct reader *reader = reader_of(range);
        struct read_job *job = range->run.job;
        range->begun_ns = now_ns();
        pthread_mutex_lock(&reader->mutex);
        bool over = reader_run_over_locked(&range->run), ends = over && !range->has_block;
        size_t end = range->run.end;
        bool may = may_request(job->http);
        pthread_mutex_unlock(&reader->mutex);
        if (ends) {
                range_end(range, NULL);
                return;
        }
        if (!may)
                return; /* it goes on waiting, until a request ends */
        set_state(range, RANGE_REQUESTED);
        const struct plan_block *block = range->has_block ? range->ticket.block : &job->plan->blocks[range->run.next];
        request(range, &range->first, block->file_off + (range->has_block ? range->fill.have : 0),
                block_end(over ? block : &job->plan->blocks[end - 1]));
}

/* A thread that waits for a device serves none of its ranges meanwhile. */
struct http_thread *http_next_taker_locked(struct http_thread *self)
{
        const struct engine *engine = &self->base.reader->engines[READ_HTTP];
        struct http_thread *fewest = self;
        list_each_item (struct http_thread, t, &engine->threads, base.link)
                if (!t->waits && t->n_ranges < fewest->n_ranges)
                        fewest = t;
        return fewest;
}

/* A thread that has more ranges than another leaves the run to that one. */
static bool take_run(struct range *range)
{
        struct http_thread *self = range->thread;
        struct reader *reader = reader_of(range);
        const struct engine *engine = &reader->engines[READ_HTTP];
        lock_scope(&reader->mutex);
        require(!self->waits);
        struct http_thread *taker = http_next_taker_locked(self);
        if (taker != self) {
                http_thread_recheck(taker);
                http_loop_wake(&taker->loop);
                return false;
        }
        bool taken =
                self->n_ranges < engine->capacity && reader_run_begin_locked(&self->base, &range->run, &range->ticket);
        self->n_ranges += taken;
        return taken;
}

bool range_take(struct http_thread *self)
{
        struct range *range = range_new(self);
        struct error error = {0};
        if (range == NULL) {
                http_thread_recheck(self);
                return false;
        }
        if (!take_run(range)) {
                range_free(range);
                return false;
        }
        list_append(&self->ranges, &range->link);
        if (block_begin(range, &error))
                request_rest(range);
        else
                range_fail(range, &error);
        return true;
}

/* ---- silent and late ranges ---- */

enum remedy { REMEDY_NONE, REMEDY_REPEAT, REMEDY_PASS_ON, REMEDY_HEDGE };

/* Also counts its ticket as silent, or not. */
static enum remedy choose_remedy(struct range *range, uint64_t now)
{
        struct read_job *job = range->run.job;
        bool silent = false, repeats = false, late = false, last = false;
        bool hedged = !http_transfer_is_idle(&range->hedge), hedge_failed = now - range->hedge_failed_ns < SECOND / 2;
        if (now - range->begun_ns >= HTTP_TICK_MS * MS) {
                lock_scope(&reader_of(range)->mutex);
                uint64_t silent_ns = http_transfer_silent_ns(&range->first, now);
                silent = silent_ns > concurrency_silence(&job->http->concurrency);
                repeats = silent && range->repeat == REPEAT_UNUSED && !hedged && http_try_repeat_locked(job);
                late = !repeats && range->has_block && http_block_late_locked(job, range->begun_ns, now);
                last = reader_run_over_locked(&range->run);
        }
        set_silent(range, silent && range->has_block);
        if (repeats)
                return REMEDY_REPEAT;
        if (!late || hedged || hedge_failed)
                return REMEDY_NONE;
        if (!last)
                return REMEDY_PASS_ON;
        /* What decrypts it is past its beginning. */
        return range->ticket.block->continues ? REMEDY_NONE : REMEDY_HEDGE;
}

/* Over another connection, unless this one was closed for it. */
static void repeat_request(struct range *range, uint64_t now)
{
        log_debug("no byte for %.1f s: requested again (%s)", (double)http_transfer_silent_ns(&range->first, now) / 1e9,
                  object_of(range)->path);
        http_transfer_cancel(&range->first);
        set_state(range, RANGE_WAITING);
        range->repeat = REPEAT_UNANSWERED;
        request_rest(range);
}

static void pass_rest_to_other(struct range *range)
{
        struct http_thread *self = range->thread;
        struct range *other = range_new(self);
        if (other == NULL)
                return;
        pthread_mutex_lock(&self->base.reader->mutex);
        bool moved = reader_run_move_locked(&range->run, &other->run);
        self->n_ranges += moved;
        pthread_mutex_unlock(&self->base.reader->mutex);
        if (!moved) {
                range_free(other);
                return;
        }
        list_append(&self->ranges, &other->link);
        request_rest(other);
}

static void begin_hedge(struct range *range, uint64_t now)
{
        range->hedge_slot = reader_slot_get(reader_of(range));
        if (range->hedge_slot == NULL)
                return;
        log_debug("a hedge for a range of %.1f s (%s)", (double)(now - range->begun_ns) / 1e9, object_of(range)->path);
        request(range, &range->hedge, range->ticket.block->file_off, block_end(range->ticket.block));
}

/* Its first request is under way. */
static void watch_range(struct range *range, uint64_t now)
{
        switch (choose_remedy(range, now)) {
        case REMEDY_NONE:
                break;
        case REMEDY_REPEAT:
                repeat_request(range, now);
                break;
        case REMEDY_PASS_ON:
                pass_rest_to_other(range);
                break;
        case REMEDY_HEDGE:
                begin_hedge(range, now);
                break;
        }
}

/* ---- all of a thread's ranges ---- */

void ranges_recheck(struct http_thread *self)
{
        struct reader *reader = self->base.reader;
        list_each_item_safe (struct range, range, &self->ranges, link) {
                struct error error = {0};
                pthread_mutex_lock(&reader->mutex);
                bool stopped = range->run.job->stopped, ends = reader->stopping;
                pthread_mutex_unlock(&reader->mutex);
                if (stopped) {
                        range_fail(range, NULL);
                } else if (ends) {
                        error_set(&error, STREAMER_ECANCELED, "the daemon is ending");
                        range_fail(range, &error);
                } else if (range->state != RANGE_PAUSED) {
                        continue;
                } else if (have_block(range, &error)) {
                        set_state(range, RANGE_REQUESTED);
                        http_transfer_resume(&range->first);
                } else if (error.code != 0) {
                        range_fail(range, &error);
                } else if (run_over(range)) {
                        range_end(range, NULL);
                }
        }
}

unsigned ranges_tick(struct http_thread *self)
{
        uint64_t now = now_ns(), next = HTTP_TICK_MS * MS;
        list_each_item_safe (struct range, range, &self->ranges, link) {
                require((range->state == RANGE_WAITING) == http_transfer_is_idle(&range->first));
                if (range->state != RANGE_WAITING)
                        watch_range(range, now);
                else if (range->retry.at_ns <= now)
                        request_rest(range);
                else if (range->retry.at_ns - now < next)
                        next = range->retry.at_ns - now;
        }
        return (unsigned)((next + MS - 1) / MS);
}
