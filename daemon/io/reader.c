/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/reader.h"

#include "daemon/base/log.h"
#include "daemon/io/reader_http.h"
#include "daemon/io/reader_pread.h"

#include <errno.h>
#include <string.h>

/* Threads that hang are replaced until there are this many times the base. */
#define THREADS_CAP 3u
/* What has just come goes first for so many times what it may have in flight. */
#define HEAD_START 2u
#define EXPECT_NS (UINT64_C(1) * 1000000000)

/* ---- engines ---- */

void reader_wake_locked(struct reader *reader, bool all)
{
        for (size_t i = 0; i < READ_ENGINES; i++)
                reader->engines[i].ops->wake(reader, all);
}

/* ---- the lock ---- */

/* With the lock held. */
static void show(struct reader *reader)
{
        for (size_t i = 0; i < READ_ENGINES; i++) {
                __atomic_store_n(&reader->seen.threads[i], reader->engines[i].alive, __ATOMIC_RELAXED);
                __atomic_store_n(&reader->seen.stuck[i], reader->engines[i].stuck, __ATOMIC_RELAXED);
        }
        __atomic_store_n(&reader->seen.free_slots, reader->staging.n_free, __ATOMIC_RELAXED);
        __atomic_store_n(&reader->seen.untouched, reader->untouched, __ATOMIC_RELAXED);
        __atomic_store_n(&reader->seen.blocks, reader->blocks, __ATOMIC_RELAXED);
}

void reader_unlock(struct reader *reader)
{
        do {
                errands_run(&reader->errands);
                show(reader);
                park_unlock(&reader->work, &reader->mutex);
        } while (errands_left(&reader->errands) && pthread_mutex_trylock(&reader->mutex) == 0);
}

/* The loop's way to the lock. */
static void leave(struct reader *reader, struct errand *errand)
{
        errand_post(&reader->errands, errand);
        if (pthread_mutex_trylock(&reader->mutex) == 0)
                reader_unlock(reader);
}

/* ---- giving back ---- */

/* A dead one is told of by the last that was on its way there. */
static void give_targets(struct reader *reader, const struct ticket *ticket)
{
        for (size_t i = 0; i < ticket->job->n_targets; i++) {
                struct read_target *target = ticket->job->targets[i];
                if ((ticket->targets >> i & 1) == 0)
                        continue;
                target->in_flight--;
                if (target->in_flight == 0 && read_target_dead(target))
                        wake_post(reader->wake, &target->idle_item);
        }
}

/* The last ticket home ends the job, by way of the loop. */
static void job_settle(struct reader *reader, struct read_job *job)
{
        bool done = job->stopped || job->next == job->plan->n_blocks;
        if (!done || job->in_flight > 0 || job->held > 0 || job->over)
                return;
        struct engine *engine = &reader->engines[job->engine];
        job->over = true;
        job->over_ns = now_ns();
        list_remove(&job->link);
        if (engine->ops->end != NULL)
                engine->ops->end(reader, job);
        show(reader); /* who is told looks at once */
        wake_post(reader->wake, &job->item);
        engine->jobs--;
        reader_wake_locked(reader, true); /* the others' shares have grown */
}

static void job_failed(struct read_job *job, const struct error *error)
{
        if (job->failed)
                return;
        job->failed = job->stopped = true;
        job->error = *error;
}

void reader_release(struct reader *reader, struct read_job *job, const struct error *error)
{
        reader_lock(reader);
        if (error != NULL)
                job_failed(job, error);
        job->held--;
        job_settle(reader, job);
        reader_unlock(reader);
}

void reader_run_end(struct reader *reader, struct read_run *run, const struct error *error)
{
        reader_lock(reader);
        list_remove(&run->link);
        if (error != NULL)
                job_failed(run->job, error);
        require(run->next == run->end || run->job->stopped);
        run->job->held--;
        job_settle(reader, run->job);
        if (error != NULL)
                reader_wake_locked(reader, true);
        reader_unlock(reader);
}

/* With the lock held. */
static void lose(struct reader *reader, struct read_job *job, struct read_target *target, const struct error *error)
{
        bool lives = false;
        if (!read_target_dead(target)) {
                target->error = *error;
                __atomic_store_n(&target->dead, true, __ATOMIC_RELEASE);
                wake_post(reader->wake, &target->died_item);
                if (target->in_flight == 0)
                        wake_post(reader->wake, &target->idle_item);
        }
        for (size_t i = 0; i < job->n_targets; i++)
                lives = lives || !read_target_dead(job->targets[i]);
        if (!lives) {
                job_failed(job, error);
                job_settle(reader, job); /* it may be that nobody holds a ticket */
        }
}

void reader_lose(struct reader *reader, struct read_job *job, struct read_target *target, const struct error *error)
{
        reader_lock(reader);
        lose(reader, job, target, error);
        reader_unlock(reader);
}

void reader_landed(const struct ticket *ticket)
{
        struct read_job *job = ticket->job;
        bool lives = false;
        for (size_t i = 0; i < job->n_targets; i++)
                lives = lives || ((ticket->targets >> i & 1) != 0 && !read_target_dead(job->targets[i]));
        if (lives)
                job->landed(job, ticket->block);
}

void reader_give(struct reader *reader, struct ticket *ticket, const struct error *error)
{
        struct read_job *job = ticket->job;
        reader_lock(reader);
        if (error != NULL)
                job_failed(job, error);
        give_targets(reader, ticket);
        if (ticket->slot != NULL) {
                staging_put(&reader->staging, ticket->slot);
                job->slots--;
        }
        job->in_flight--;
        reader->blocks--;
        if (ticket->copied)
                job->copying--;
        else
                reader_place_left(reader, job);
        bool others = job->link.next != job->link.prev || ticket->slot != NULL;
        job_settle(reader, job);
        /* This thread takes the next block itself; what it freed may let another one in. */
        if (others || error != NULL)
                reader_wake_locked(reader, error != NULL);
        reader_unlock(reader);
}

/* ---- jobs ---- */

static void target_died(struct errand *item)
{
        struct read_target *target = container_of(item, struct read_target, died_item);
        target->died(target);
}

static void target_idle(struct errand *item)
{
        struct read_target *target = container_of(item, struct read_target, idle_item);
        target->idle(target);
}

/* ---- what the loop wants ---- */

enum { WANT_START = 1, WANT_STOP = 2, WANT_WEIGHT = 4, WANT_DROP = 8 };

static void job_begin(struct reader *reader, struct read_job *job)
{
        struct engine *engine = &reader->engines[job->engine];
        share_init(&job->share, job->weight > 0 ? job->weight : READER_WEIGHT, reader->virtual_time);
        if (job->storage != 0)
                share_head_start(&job->share, HEAD_START * reader->opts.concurrency * reader->opts.block_size);
        list_append(&reader->jobs, &job->link);
        engine->jobs++;
        if (engine->ops->begin != NULL && engine->ops->begin(reader, job, &job->error) < 0)
                job->failed = job->stopped = true;
        job_settle(reader, job); /* a model without bytes */
        reader_wake_locked(reader, true);
}

static void job_stop(struct reader *reader, struct read_job *job)
{
        if (job->over)
                return;
        job->stopped = true;
        reader->engines[job->engine].ops->wake(reader, true);
        job_settle(reader, job);
}

static void job_reweigh(struct reader *reader, struct read_job *job)
{
        job->share.weight = __atomic_load_n(&job->weight_wanted, __ATOMIC_RELAXED);
        park_call_all(&reader->work); /* somebody's share has grown */
}

static void job_drop(struct reader *reader, struct read_job *job)
{
        for (size_t i = 0; i < job->n_targets; i++)
                if (__atomic_exchange_n(&job->targets[i]->dropped, false, __ATOMIC_ACQUIRE))
                        lose(reader, job, job->targets[i], &job->targets[i]->why);
}

/* The count goes down last: with nothing asked the job is the loop's alone. */
static void job_run(struct errand *errand)
{
        struct read_job *job = container_of(errand, struct read_job, errand);
        struct reader *reader = job->reader;
        unsigned asked = __atomic_load_n(&job->asked, __ATOMIC_ACQUIRE), left;
        do {
                unsigned wants = __atomic_exchange_n(&job->wants, 0, __ATOMIC_ACQUIRE);
                if ((wants & WANT_START) != 0)
                        job_begin(reader, job);
                if ((wants & WANT_WEIGHT) != 0)
                        job_reweigh(reader, job);
                if ((wants & WANT_DROP) != 0)
                        job_drop(reader, job);
                if ((wants & WANT_STOP) != 0)
                        job_stop(reader, job);
                left = __atomic_sub_fetch(&job->asked, asked, __ATOMIC_ACQ_REL);
                asked = left;
        } while (left > 0);
}

static void job_ask(struct reader *reader, struct read_job *job, unsigned want)
{
        __atomic_or_fetch(&job->wants, want, __ATOMIC_RELEASE);
        if (__atomic_fetch_add(&job->asked, 1, __ATOMIC_ACQ_REL) == 0)
                leave(reader, &job->errand);
}

static void farewell_run(struct errand *errand)
{
        struct read_job *job = container_of(errand, struct read_job, farewell);
        wake_post(job->reader->wake, &job->item);
}

/* Whoever has the lock may be about to look at the job for the loop's sake: errands are run in turn, so that
 * one more comes after that. */
static void job_ended(struct errand *item)
{
        struct read_job *job = container_of(item, struct read_job, item);
        if (__atomic_load_n(&job->asked, __ATOMIC_ACQUIRE) > 0)
                leave(job->reader, &job->farewell);
        else
                job->ended(job);
}

static void expect_begin(struct errand *errand)
{
        struct read_expect *expect = container_of(errand, struct read_expect, begin);
        if (expect->storage != 0)
                list_append(&expect->reader->expected, &expect->link);
}

static void expect_forget(struct reader *reader, struct read_expect *expect)
{
        expect->storage = 0;
        list_remove(&expect->link);
        reader_wake_locked(reader, true);
}

static void expect_end(struct errand *errand)
{
        struct read_expect *expect = container_of(errand, struct read_expect, end);
        if (expect->storage != 0)
                expect_forget(expect->reader, expect);
        free(expect);
}

struct read_expect *reader_expect(struct reader *reader, uint64_t storage)
{
        struct read_expect *expect = calloc(1, sizeof(*expect));
        if (expect == NULL)
                return NULL;
        *expect = (struct read_expect){.reader = reader,
                                       .storage = storage,
                                       .since_ns = now_ns(),
                                       .begin.run = expect_begin,
                                       .end.run = expect_end};
        leave(reader, &expect->begin);
        return expect;
}

struct read_expect *reader_expect_over(struct reader *reader, struct read_expect *expect)
{
        if (expect != NULL)
                leave(reader, &expect->end);
        return NULL;
}

/* Who takes longer over its headers waits for something else. */
static void forget_expected(struct reader *reader, uint64_t now)
{
        list_each_safe (pos, &reader->expected) {
                struct read_expect *expect = container_of(pos, struct read_expect, link);
                if (now - expect->since_ns > EXPECT_NS)
                        expect_forget(reader, expect);
        }
}

void reader_start(struct reader *reader, struct read_job *job)
{
        list_init(&job->runs);
        job->next = 0;
        job->run_most = job->run_parts = 1;
        job->split_from = SIZE_MAX;
        job->in_flight = job->copying = job->busy = job->slots = job->stalled = job->held = 0;
        job->quiet = false;
        job->stopped = job->over = job->failed = false;
        job->begun_ns = now_ns();
        job->read_ns = 0;
        job->item.run = job_ended;
        require(job->n_targets > 0 && job->n_targets <= READ_TARGETS);
        for (size_t i = 0; i < job->n_targets; i++) {
                job->targets[i]->in_flight = 0;
                job->targets[i]->dropped = false;
                job->targets[i]->died_item.run = target_died;
                job->targets[i]->idle_item.run = target_idle;
        }
        job->node = reader_job_node(job);
        job->limit = reader->opts.concurrency;
        job->pace = NULL;
        job->reader = reader;
        job->errand.run = job_run;
        job->farewell.run = farewell_run;
        job->asked = job->wants = 0;
        job_ask(reader, job, WANT_START);
}

void reader_stop(struct reader *reader, struct read_job *job)
{
        job_ask(reader, job, WANT_STOP);
}

void reader_set_weight(struct reader *reader, struct read_job *job, unsigned weight)
{
        __atomic_store_n(&job->weight_wanted, weight, __ATOMIC_RELAXED);
        job_ask(reader, job, WANT_WEIGHT);
}

void reader_drop(struct reader *reader, struct read_job *job, struct read_target *target, const struct error *error)
{
        if (read_target_dead(target) || __atomic_load_n(&target->dropped, __ATOMIC_ACQUIRE))
                return;
        target->why = *error;
        __atomic_store_n(&target->dropped, true, __ATOMIC_RELEASE);
        job_ask(reader, job, WANT_DROP);
}

void reader_read_took(const struct ticket *ticket, uint64_t ns)
{
        __atomic_add_fetch(&ticket->job->read_ns, ns, __ATOMIC_RELAXED);
}

/* ---- threads ---- */

static void grow(struct reader *reader, struct engine *engine)
{
        unsigned cap = engine->base * THREADS_CAP;
        while (!reader->stopping && engine->alive - engine->stuck < engine->base && engine->alive < cap) {
                if (!engine->ops->start(reader))
                        break;
                engine->alive++;
        }
}

static void watch_run(struct errand *errand)
{
        struct reader *reader = container_of(errand, struct reader, watch);
        struct engine *files = &reader->engines[READ_PREAD];
        __atomic_store_n(&reader->watching, false, __ATOMIC_RELEASE);
        unsigned before = files->stuck;
        for (size_t i = 0; i < READ_ENGINES; i++)
                reader->engines[i].ops->watch(reader, now_ns());
        grow(reader, files);
        forget_expected(reader, now_ns());
        if (files->stuck != before)
                park_call_all(&reader->work);
        if (files->stuck > before)
                __atomic_store_n(&reader->newly_stuck, files->stuck, __ATOMIC_RELAXED);
}

void reader_watch(struct reader *reader)
{
        if (!__atomic_exchange_n(&reader->watching, true, __ATOMIC_ACQUIRE)) {
                reader->watch.run = watch_run;
                leave(reader, &reader->watch);
        }
        unsigned stuck = __atomic_exchange_n(&reader->newly_stuck, 0, __ATOMIC_RELAXED);
        if (stuck > 0)
                log_event(LOG_LEVEL_WARN, LOG_STORAGE_STALLED, NULL,
                          "reader: %u of %u threads hang in reads of storage that does not answer", stuck,
                          __atomic_load_n(&reader->seen.threads[READ_PREAD], __ATOMIC_RELAXED));
}

bool reader_job_stalled(const struct read_job *job)
{
        return __atomic_load_n(&job->stalled, __ATOMIC_RELAXED) > 0 || __atomic_load_n(&job->quiet, __ATOMIC_RELAXED);
}

void reader_job_reads(const struct read_job *job, uint64_t *took_ns, uint64_t *room_ns)
{
        size_t n = job->plan != NULL ? job->plan->n_blocks : 0;
        uint64_t limit = job->limit > 0 ? job->limit : 1; /* a stream */
        uint64_t depth = n < limit ? n : limit;
        uint64_t took = __atomic_load_n(&job->read_ns, __ATOMIC_RELAXED);
        *room_ns = depth * (job->over_ns - job->begun_ns);
        *took_ns = took < *room_ns ? took : *room_ns;
}

void reader_usage(const struct reader *reader, struct reader_usage *usage)
{
        unsigned n_free = __atomic_load_n(&reader->seen.free_slots, __ATOMIC_RELAXED);
        unsigned untouched = __atomic_load_n(&reader->seen.untouched, __ATOMIC_RELAXED);
        unsigned used = reader->staging.n_slots - n_free;
        *usage = (struct reader_usage){.slots = reader->staging.n_slots,
                                       /* Slots that are still to be touched are nobody's. */
                                       .used_slots = used > untouched ? used - untouched : 0,
                                       .blocks = __atomic_load_n(&reader->seen.blocks, __ATOMIC_RELAXED),
                                       .ring_bytes = reader->staging.bytes};
        for (size_t i = 0; i < READ_ENGINES; i++) {
                usage->threads += __atomic_load_n(&reader->seen.threads[i], __ATOMIC_RELAXED);
                usage->stuck_threads += __atomic_load_n(&reader->seen.stuck[i], __ATOMIC_RELAXED);
        }
}

int reader_init(struct reader *reader, const struct reader_opts *opts, struct wake *wake, struct error *error)
{
        *reader = (struct reader){.opts = *opts, .wake = wake};
        int r = staging_init(&reader->staging, opts->memory_limit, opts->block_size, error);
        if (r < 0)
                return r;
        reader_place_ring(reader);
        pthread_condattr_t attr;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_mutex_init(&reader->mutex, NULL);
        park_init(&reader->work);
        pthread_cond_init(&reader->ended, &attr);
        pthread_condattr_destroy(&attr);
        list_init(&reader->jobs);
        list_init(&reader->expected);
        reader->engines[READ_PREAD] = (struct engine){
                .ops = &reader_pread_ops, .base = opts->concurrency * READER_THREADS_PER_BLOCK, .places = 1};
        reader_http_init(reader);
        for (size_t i = 0; i < READ_ENGINES; i++)
                list_init(&reader->engines[i].threads);
        while (staging_get(&reader->staging) != NULL)
                reader->untouched++;
        reader_lock(reader);
        grow(reader, &reader->engines[READ_PREAD]);
        unsigned alive = reader->engines[READ_PREAD].alive;
        reader_unlock(reader);
        if (alive == 0)
                return error_set(error, STREAMER_ENOMEM, "reader: no thread could be started");
        return 0;
}

static unsigned alive_threads(const struct reader *reader)
{
        unsigned n = 0;
        for (size_t i = 0; i < READ_ENGINES; i++)
                n += reader->engines[i].alive;
        return n;
}

bool reader_deinit(struct reader *reader, uint64_t deadline_ns)
{
        struct timespec until = timespec_of(deadline_ns);
        reader_lock(reader);
        reader->stopping = true;
        reader_wake_locked(reader, true);
        reader_unlock(reader);
        reader_lock(reader);
        while (alive_threads(reader) > 0 && pthread_cond_timedwait(&reader->ended, &reader->mutex, &until) == 0)
                ;
        bool all = alive_threads(reader) == 0;
        for (size_t i = 0; !all && i < READ_ENGINES; i++)
                reader->engines[i].ops->detach(reader);
        reader_unlock(reader);
        if (!all)
                return false;
        for (size_t i = 0; i < READ_ENGINES; i++)
                reader->engines[i].ops->join(reader);
        park_deinit(&reader->work);
        pthread_cond_destroy(&reader->ended);
        pthread_mutex_destroy(&reader->mutex);
        staging_deinit(&reader->staging);
        return true;
}
