/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the job whose block is next: of the jobs that may take one (capacity of the engine within its share, and a
 * slot if it needs one), the one that is due first by its weight. The choice is made under the reader's lock, from the
 * state of that moment; a thread that gets no block waits until capacity or a slot is returned.
 *
 * A job may take its next block where all of these rules allow it, in this order:
 *
 *   rule        may_take() and others               a job takes no block if
 *   reads       has_blocks()                        it was stopped, or none is left
 *   stuck       read_job.stuck                      one of its threads is stuck
 *   limit       receiving() < limit                 so many of its tickets are neither copied nor silent
 *   share       fair_share_of() capacity            it has its part of the engine's threads that are not stuck
 *   storage     storage_has_capacity()              the jobs of one file system together have io.concurrency blocks in
 *                                                   flight, or it has a quarter of that, and yields to the next two:
 *   announced     announced_load                      a load that opens its files there, for a second
 *   head start    fair_share.head_start               a load that has read little yet
 *   slots       slot_for()                          it has its part of the free slots
 *
 * The words for what does not move, here and in io/http, io/remote and base/thread/work:
 *
 *   silent      a ticket or request      no byte for a few times the usual time of an answer; another one may be made
 *   stalled     a request                no byte for http.stall: it has failed
 *   stuck       a thread                 no byte for io.stall (a worker: its work has taken so long); it is replaced
 *   no_bytes    a job                    no byte for io.stall over the network, where no thread is stuck
 *   stalled     a job, as clients see    it has a stuck thread, or no_bytes
 */
#include "daemon/io/reader/engine.h"

#include <errno.h>

#define ANNOUNCED_NS (UINT64_C(1) * 1000000000)

/* ---- whose turn it is ---- */

/* Blocks that no thread has reserved. */
static bool has_blocks(const struct read_job *job)
{
        return !job->stopped && job->next < job->plan->n_blocks;
}

/* The largest weight of the jobs that compete with `self`. A stalled one does not. */
static unsigned heaviest(const struct reader *reader, const struct read_job *self)
{
        unsigned weight = self->share.weight;
        list_each_item (const struct read_job, job, &reader->jobs, link)
                if (has_blocks(job) && job->stuck == 0 && !job->no_bytes && job->share.weight > weight)
                        weight = job->share.weight;
        return weight;
}

/* ---- storage that several read from ---- */

/* A job that has just been added, and lives. */
static bool has_head_start(const struct read_job *job)
{
        return job->share.head_start > 0 && has_blocks(job) && job->stuck == 0;
}

/* Each job's part of it by weight, one block at the least; more as long as there is capacity. */
static bool storage_has_capacity(const struct reader *reader, const struct read_job *self)
{
        unsigned busy = self->busy, weights = self->share.weight, stuck = 0;
        if (self->storage == 0 || self->busy == 0)
                return true;
        bool yields = false; /* to an announced load, or has a head start */
        /* A load that takes longer to read its headers waits for something else than this storage. */
        list_each_item (const struct announced_load, announced, &reader->announced, link)
                yields = yields ||
                         (announced->storage == self->storage && now_ns() - announced->since_ns <= ANNOUNCED_NS);
        list_each_item (const struct read_job, job, &reader->jobs, link) {
                if (job == self || job->storage != self->storage)
                        continue;
                busy += job->busy;
                stuck += job->stuck;
                weights += has_blocks(job) && job->stuck == 0 ? job->share.weight : 0;
                yields = yields || has_head_start(job);
        }
        unsigned limit = reader->opts.concurrency; /* less the stuck reads: each may cost a thread, too */
        limit = stuck < limit ? limit - stuck : 1;
        if (yields && !has_head_start(self))
                return self->busy < limit / 4;
        return busy < limit || self->busy < (uint64_t)limit * self->share.weight / weights;
}

/* ---- streams ---- */

/* The first of the unfinished streams that no thread reads; at most OBJECT_STREAMS of them are read at a time. NULL:
 * none. */
static struct read_stream *free_stream(const struct read_job *job)
{
        unsigned open = 0;
        for (struct read_stream *s = job->streams; s < job->streams + job->n_streams && open < OBJECT_STREAMS; s++) {
                if (!s->busy && s->next < s->end)
                        return s;
                open += s->busy;
        }
        return NULL;
}

/* ---- slots ---- */

static bool slot_for(const struct reader *reader, struct read_job *job, size_t block, unsigned most)
{
        unsigned n_free = reader->staging.n_free;
        if (job->plan->blocks[block].in_place)
                return true;
        if (n_free > 0 && job->slots < fair_share_of(&job->share, most, n_free + job->slots))
                return true;
        if (job->no_slot_since_ns == 0)
                job->no_slot_since_ns = now_ns();
        return false;
}

/* Tickets that count against the limit. A server that answers none gets twice as many requests at most. */
static unsigned receiving(const struct read_job *job)
{
        unsigned silent = job->silent < job->limit ? job->silent : job->limit;
        return job->in_flight - job->copying - silent;
}

/* Threads that are not stuck, and those that may still be started. */
static unsigned usable_threads(const struct engine *engine)
{
        unsigned n = engine->alive - engine->stuck, room = engine->base * READER_THREADS_CAP - engine->alive;
        if (n >= engine->base)
                return n;
        return n + room < engine->base ? n + room : engine->base;
}

/* What is copied has been read: it holds its slot, and no capacity. The next thread of a job with a stuck one would be
 * stuck, too. */
static bool may_take(const struct reader *reader, struct read_job *job)
{
        if (!has_blocks(job) || job->stuck > 0 || receiving(job) >= job->limit)
                return false;
        const struct engine *engine = &reader->engines[job->engine];
        unsigned most = heaviest(reader, job);
        unsigned others = engine->busy - job->busy;
        unsigned usable = usable_threads(engine) * engine->capacity;
        if (job->busy >= fair_share_of(&job->share, most, usable > others ? usable - others : 0))
                return false;
        const struct read_stream *stream = free_stream(job);
        if (job->streams != NULL && stream == NULL)
                return false;
        return storage_has_capacity(reader, job) &&
               slot_for(reader, job, stream != NULL ? stream->next : job->next, most);
}

static bool on_other_node(const struct read_job *job, int node)
{
        return node != NUMA_ANYWHERE && job->node != NUMA_ANYWHERE && job->node != node;
}

static bool precedes(const struct read_job *a, const struct read_job *b, int node)
{
        bool remote = on_other_node(a, node);
        return remote != on_other_node(b, node) ? !remote : fair_share_before(&a->share, &b->share);
}

/* Of the jobs on the node, else of all, the one whose next block is first by virtual time; of equals the one that has
 * waited longest. No job takes all capacity, so the threads of either node also serve the other's. */
static struct read_job *choose(const struct reader *reader, enum read_engine engine, int node)
{
        struct read_job *first = NULL;
        list_each_item (struct read_job, job, &reader->jobs, link)
                if (job->engine == engine && (first == NULL || precedes(job, first, node)) && may_take(reader, job))
                        first = job;
        return first;
}

static void take_block(struct reader *reader, struct read_job *job, size_t block, struct ticket *ticket)
{
        ticket->job = job;
        ticket->block = &job->plan->blocks[block];
        if (job->no_slot_since_ns != 0)
                stages_add(&job->stages, STAGE_slot, now_ns() - job->no_slot_since_ns);
        job->no_slot_since_ns = 0;
        ticket->slot = ticket->block->in_place ? NULL : reader_slot_get_locked(reader, job->node);
        ticket->copied = false;
        ticket->stream = NULL;
        ticket->targets = 0;
        for (size_t i = 0; i < job->n_targets; i++)
                if (!read_target_dead(job->targets[i])) {
                        job->targets[i]->in_flight++;
                        ticket->targets |= UINT64_C(1) << i;
                }
        job->slots += ticket->slot != NULL;
        job->in_flight++;
        reader_add_busy(reader, job, 1);
        fair_share_take(&job->share, &reader->virtual_time, ticket->block->len);
        list_remove(&job->link);
        list_append(&reader->jobs, &job->link);
}

/* The blocks [next, end) are taken later. They keep the job from ending. */
static void reserve(struct read_job *job, size_t next, size_t end, struct read_run *run)
{
        *run = (struct read_run){.job = job, .next = next, .end = end};
        job->next = end;
        job->held++;
}

static bool try_take(struct reader_thread *thread, const struct read_job *only, struct read_run *run,
                     struct ticket *ticket)
{
        struct read_job *job = choose(thread->reader, thread->engine, thread->node);
        if (job == NULL || (only != NULL && job != only))
                return false;
        struct read_stream *stream = free_stream(job);
        size_t block = stream != NULL ? stream->next++ : job->next;
        job->next++;
        *run = (struct read_run){.job = NULL};
        if (stream == NULL && plan_request_end(job->plan, block, 1) > block + 1)
                reserve(job, block + 1, plan_request_end(job->plan, block, 1), run);
        take_block(thread->reader, job, block, ticket);
        ticket->stream = stream;
        if (stream != NULL)
                stream->busy = true;
        reader_thread_work_for(thread, job);
        thread->reader->engines[thread->engine].ops->wake(thread->reader); /* for the next block */
        return true;
}

bool reader_has_work_locked(const struct reader *reader, enum read_engine engine)
{
        return choose(reader, engine, NUMA_ANYWHERE) != NULL;
}

/* ---- tickets ---- */

static void give_back(void *staging)
{
        staging_give_back(staging);
}

static void give_ring_back(struct reader *reader)
{
        const struct reader_opts *opts = &reader->opts;
        if (!staging_is_free(&reader->staging))
                return;
        if (opts->if_unpinned != NULL)
                opts->if_unpinned(opts->pinning, give_back, &reader->staging);
        else
                give_back(&reader->staging);
}

/* False: nothing came for long, and the thread is to end. The last one stays, and gives the ring's memory back, unless
 * a device has it pinned. */
static bool wait_for_work(struct reader *reader, struct engine *engine)
{
        bool gives_back = staging_in_memory(&reader->staging) && load_relaxed(&reader->staging.pinned) != RING_PINNED;
        bool for_ever = engine->alive - engine->stuck == 1 && !gives_back;
        struct timespec until = timespec_of(now_ns() + reader->opts.idle_ns);
        engine->waiting++;
        int r = for_ever ? pthread_cond_wait(&reader->work, &reader->mutex)
                         : pthread_cond_clockwait(&reader->work, &reader->mutex, CLOCK_MONOTONIC, &until);
        engine->waiting--;
        if (r != ETIMEDOUT)
                return true;
        if (engine->alive - engine->stuck > 1)
                return false;
        if (gives_back)
                give_ring_back(reader);
        return true;
}

bool reader_take_ticket(struct reader_thread *thread, struct read_run *run, struct ticket *ticket)
{
        struct reader *reader = thread->reader;
        struct engine *engine = &reader->engines[thread->engine];
        lock_scope(&reader->mutex);
        bool taken = false;
        engine->starting -= !thread->started;
        thread->started = true;
        /* More threads than the base are left from a time when some were stuck. */
        while (!reader->stopping && engine->alive - engine->stuck <= engine->base &&
               !(taken = try_take(thread, NULL, run, ticket)) && wait_for_work(reader, engine))
                ;
        if (!taken)
                reader_end_thread_locked(reader, thread->engine);
        return taken;
}

/* Counted at once, so that two do not leave for one too many; and what this one gave back last
 * may be another's to take. */
void reader_end_thread_locked(struct reader *reader, enum read_engine kind)
{
        reader->engines[kind].alive--;
        reader_wake_locked(reader);
        pthread_cond_broadcast(&reader->ended);
}

bool reader_try_take_ticket(struct reader_thread *thread, const struct read_job *only, struct read_run *run,
                            struct ticket *ticket)
{
        lock_scope(&thread->reader->mutex);
        return !thread->reader->stopping && try_take(thread, only, run, ticket);
}

/* ---- runs ---- */

bool reader_run_begin_locked(struct reader_thread *thread, struct read_run *run, struct ticket *ticket)
{
        struct reader *reader = thread->reader;
        struct read_job *job = reader->stopping ? NULL : choose(reader, thread->engine, thread->node);
        if (job == NULL)
                return false;
        size_t first = job->next;
        reserve(job, first + 1, plan_request_end(job->plan, first, job->run_blocks), run);
        take_block(reader, job, first, ticket);
        return true;
}

bool reader_run_over_locked(const struct read_run *run)
{
        return run->job->stopped || run->next == run->end;
}

bool reader_run_next_locked(struct reader_thread *thread, struct read_run *run, struct ticket *ticket)
{
        struct reader *reader = thread->reader;
        struct read_job *job = run->job;
        if (reader->stopping || reader_run_over_locked(run) || !slot_for(reader, job, run->next, heaviest(reader, job)))
                return false;
        take_block(reader, job, run->next++, ticket);
        return true;
}

bool reader_run_take(struct reader_thread *thread, struct read_run *run, bool wait, struct ticket *ticket)
{
        struct reader *reader = thread->reader;
        lock_scope(&reader->mutex);
        bool taken;
        while (!(taken = reader_run_next_locked(thread, run, ticket)) && wait && !reader->stopping &&
               !reader_run_over_locked(run)) {
                reader->waiting_runs++;
                pthread_cond_wait(&reader->runs, &reader->mutex);
                reader->waiting_runs--;
        }
        if (!taken)
                return false;
        reader_thread_work_for(thread, run->job);
        reader->engines[thread->engine].ops->wake(reader); /* for the next block */
        return true;
}

bool reader_run_is_over(struct reader_thread *thread, const struct read_run *run)
{
        lock_scope(&thread->reader->mutex);
        return thread->reader->stopping || reader_run_over_locked(run);
}

bool reader_run_move_locked(struct read_run *run, struct read_run *to)
{
        size_t from = plan_chunk_begin(run->job->plan, run->next, run->end);
        if (from == run->end)
                return false;
        *to = (struct read_run){.job = run->job, .next = from, .end = run->end};
        run->end = from;
        run->job->held++;
        return true;
}
