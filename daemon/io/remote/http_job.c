/* SPDX-License-Identifier: Apache-2.0
 *
 * A job over HTTP(S), which several network threads share: its runs are taken by the thread with the fewest ranges, its
 * requests are counted and limited, and its blocks are completed. Its counts are under the reader's lock.
 */
#include "daemon/base/log/log.h"
#include "daemon/io/remote/remote.h"

#define REPEATS 4u /* of one load at a time */

void http_wake(struct reader *reader, bool all)
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

/* ---- requests ---- */

static void sample(struct http_job *own, uint64_t now)
{
        concurrency_add_bytes(&own->concurrency, load_relaxed(&own->received), now);
}

/* The limit applies to new runs. Once the server has asked to slow down it applies to retries of earlier ones, too. */
static bool may_request(const struct http_job *own)
{
        return own->concurrency.slowed_ns == 0 || own->requests < own->concurrency.limit;
}

bool http_try_count_request(struct reader *reader, struct read_job *job)
{
        struct http_job *own = http_job(job);
        lock_scope(&reader->mutex);
        bool may = may_request(own);
        own->requests += may;
        return may;
}

void http_count_request(struct reader *reader, struct read_job *job, bool under_way)
{
        struct http_job *own = http_job(job);
        lock_scope(&reader->mutex);
        own->requests += under_way ? 1u : -1u;
        if (!under_way && own->concurrency.slowed_ns > 0)
                http_wake(reader, true); /* a range of another thread may wait for it */
}

bool http_block_late_locked(struct read_job *job, uint64_t since_ns, uint64_t now)
{
        struct http_job *own = http_job(job);
        uint64_t after = concurrency_straggler(&own->concurrency);
        sample(own, now);
        bool late = after > 0 && now - since_ns > after;
        return late && job->next == job->plan->n_blocks && !concurrency_is_saturated(&own->concurrency) &&
               may_request(own);
}

bool http_is_silent(struct http_thread *self, struct read_job *job, uint64_t silent_ns)
{
        lock_scope(&self->base.reader->mutex);
        return silent_ns > concurrency_silence(&http_job(job)->concurrency);
}

void http_count_silent(struct reader *reader, struct read_job *job, bool silent)
{
        lock_scope(&reader->mutex);
        job->silent += silent ? 1u : -1u;
        if (silent)
                http_wake(reader, true);
}

bool http_try_repeat(struct reader *reader, struct read_job *job)
{
        struct http_job *own = http_job(job);
        lock_scope(&reader->mutex);
        bool may = job->next == job->plan->n_blocks && own->repeats < REPEATS;
        own->repeats += may;
        return may;
}

void http_repeat_over(struct reader *reader, struct read_job *job)
{
        lock_scope(&reader->mutex);
        http_job(job)->repeats--;
}

void http_answered(struct http_thread *self, struct read_job *job, uint64_t after_ns)
{
        lock_scope(&self->base.reader->mutex);
        concurrency_answered(&http_job(job)->concurrency, after_ns);
        job->limit = http_job(job)->concurrency.limit;
        http_thread_recheck(self); /* more may be in flight by now */
}

void http_slow_down(struct reader *reader, struct read_job *job)
{
        reader_lock(reader);
        concurrency_slow_down(&http_job(job)->concurrency, now_ns());
        unsigned limit = job->limit = http_job(job)->concurrency.limit;
        reader_unlock(reader);
        log_debug("the server asks to slow down: %u ranges in flight", limit);
}

/* ---- runs and blocks ---- */

/* The thread with the fewest ranges takes first: a thread that has more than another leaves the run to that one. */
bool http_take_run(struct http_thread *self, struct read_run *run, struct ticket *ticket)
{
        struct reader *reader = self->base.reader;
        struct http_thread *fewest = self;
        lock_scope(&reader->mutex);
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
        return taken;
}

void http_block_done(struct http_thread *self, struct ticket *ticket, const unsigned char *data, uint64_t took_ns)
{
        struct read_job *job = ticket->job; /* held by this thread's range */
        struct http_job *own = http_job(job);
        int r = 0;
        stages_add(&job->stages, STAGE_storage, took_ns);
        reader_lock(self->base.reader);
        concurrency_add_block(&own->concurrency, ticket->block->len, took_ns, now_ns());
        sample(own, now_ns());
        job->limit = own->concurrency.limit;
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
