/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/reader.h"

#include "daemon/base/log.h"
#include "daemon/io/reader_http.h"
#include "daemon/io/reader_pread.h"

#include <errno.h>
#include <string.h>

/* Threads: twice a load's share, so that one load at full concurrency leaves as many free; those
 * that hang are replaced until there are this many times the base. */
#define THREADS_PER_CONCURRENCY 2u
#define THREADS_CAP 3u

/* ---- engines ---- */

static void wake_engines(struct reader *reader, bool all)
{
        for (size_t i = 0; i < READ_ENGINES; i++)
                reader->engines[i].ops->wake(reader, all);
}

static unsigned places_of(const struct engine *engine)
{
        return (engine->alive - engine->stuck) * engine->places;
}

/* ---- taking turns ---- */

static bool has_blocks(const struct read_job *job)
{
        return !job->stopped && job->next < job->plan->n_blocks;
}

/* Of those that want a share. One whose storage hangs wants none, and must not make the others'
 * smaller. */
static unsigned heaviest(const struct reader *reader, const struct read_job *self)
{
        unsigned weight = self->share.weight;
        list_each (pos, &reader->jobs) {
                const struct read_job *job = container_of(pos, struct read_job, link);
                if (has_blocks(job) && job->stalled == 0 && !job->quiet && job->share.weight > weight)
                        weight = job->share.weight;
        }
        return weight;
}

static bool slot_for(const struct reader *reader, const struct read_job *job, unsigned most)
{
        unsigned n_free = reader->staging.n_free;
        if (job->plan->blocks[job->next].in_place)
                return true;
        return n_free > 0 && job->slots < share_of(&job->share, most, n_free + job->slots);
}

static bool may_take(const struct reader *reader, const struct read_job *job)
{
        if (!has_blocks(job) || job->in_flight >= job->limit)
                return false;
        const struct engine *engine = &reader->engines[job->engine];
        unsigned most = heaviest(reader, job);
        unsigned others = engine->busy - (job->in_flight - job->stalled);
        unsigned usable = places_of(engine);
        if (job->in_flight - job->stalled >= share_of(&job->share, most, usable > others ? usable - others : 0))
                return false;
        return slot_for(reader, job, most);
}

/* The one whose next block is due first; of equals the one that has waited longest. */
static struct read_job *choose(const struct reader *reader, enum read_engine engine)
{
        struct read_job *first = NULL;
        list_each (pos, &reader->jobs) {
                struct read_job *job = container_of(pos, struct read_job, link);
                if (job->engine == engine && (first == NULL || share_before(&job->share, &first->share)) &&
                    may_take(reader, job))
                        first = job;
        }
        return first;
}

static bool is_dead(const struct read_target *target)
{
        return __atomic_load_n(&target->dead, __ATOMIC_ACQUIRE);
}

/* Those that live, each with one more on its way. */
static uint64_t take_targets(struct read_job *job)
{
        uint64_t taken = 0;
        for (size_t i = 0; i < job->n_targets; i++) {
                if (is_dead(job->targets[i]))
                        continue;
                job->targets[i]->in_flight++;
                taken |= UINT64_C(1) << i;
        }
        return taken;
}

/* A dead one is told of by the last that was on its way there. */
static void give_targets(struct reader *reader, const struct ticket *ticket)
{
        for (size_t i = 0; i < ticket->job->n_targets; i++) {
                struct read_target *target = ticket->job->targets[i];
                if ((ticket->targets >> i & 1) == 0)
                        continue;
                target->in_flight--;
                if (target->in_flight == 0 && is_dead(target))
                        wake_post(reader->wake, &target->idle_item);
        }
}

static void take_next(struct reader *reader, struct read_job *job, struct ticket *ticket)
{
        ticket->job = job;
        ticket->block = &job->plan->blocks[job->next++];
        ticket->slot = ticket->block->in_place ? NULL : staging_get(&reader->staging);
        ticket->targets = take_targets(job);
        job->slots += ticket->slot != NULL;
        job->in_flight++;
        reader->engines[job->engine].busy++;
        share_take(&job->share, &reader->virtual_time, ticket->block->len);
        list_remove(&job->link);
        list_append(&reader->jobs, &job->link);
}

static bool try_take(struct reader *reader, enum read_engine engine, struct ticket *ticket)
{
        struct read_job *job = choose(reader, engine);
        if (job != NULL)
                take_next(reader, job, ticket);
        return job != NULL;
}

void reader_touch_ring(struct reader *reader)
{
        pthread_mutex_lock(&reader->mutex);
        while (reader->untouched > 0 && !reader->stopping) {
                unsigned char *slot = reader->staging.base + --reader->untouched * reader->staging.stride;
                pthread_mutex_unlock(&reader->mutex);
                staging_touch(&reader->staging, slot);
                pthread_mutex_lock(&reader->mutex);
                staging_put(&reader->staging, slot);
                wake_engines(reader, false);
        }
        pthread_mutex_unlock(&reader->mutex);
}

bool reader_take(struct reader *reader, enum read_engine kind, struct ticket *ticket)
{
        struct engine *engine = &reader->engines[kind];
        pthread_mutex_lock(&reader->mutex);
        bool taken = false;
        /* More threads than the base are left from a time when some hung. */
        while (!reader->stopping && engine->alive - engine->stuck <= engine->base &&
               !(taken = try_take(reader, kind, ticket)))
                pthread_cond_wait(&reader->work, &reader->mutex);
        if (!taken)
                reader_leave_locked(reader, kind);
        pthread_mutex_unlock(&reader->mutex);
        return taken;
}

/* Counted at once, so that two do not leave for one place too many; and what this one gave back last
 * may be another's to take. */
void reader_leave_locked(struct reader *reader, enum read_engine kind)
{
        reader->engines[kind].alive--;
        wake_engines(reader, true);
        pthread_cond_broadcast(&reader->ended);
}

bool reader_try_locked(struct reader *reader, enum read_engine kind, struct ticket *ticket)
{
        return !reader->stopping && try_take(reader, kind, ticket);
}

bool reader_try(struct reader *reader, enum read_engine kind, struct ticket *ticket)
{
        pthread_mutex_lock(&reader->mutex);
        bool taken = reader_try_locked(reader, kind, ticket);
        pthread_mutex_unlock(&reader->mutex);
        return taken;
}

bool reader_try_job_locked(struct reader *reader, struct read_job *job, struct ticket *ticket)
{
        bool may = !reader->stopping && has_blocks(job) && slot_for(reader, job, heaviest(reader, job));
        if (may)
                take_next(reader, job, ticket);
        return may;
}

unsigned char *reader_slot_get(struct reader *reader)
{
        pthread_mutex_lock(&reader->mutex);
        unsigned char *slot = staging_get(&reader->staging);
        pthread_mutex_unlock(&reader->mutex);
        return slot;
}

void reader_slot_put(struct reader *reader, unsigned char *slot)
{
        pthread_mutex_lock(&reader->mutex);
        staging_put(&reader->staging, slot);
        wake_engines(reader, false);
        pthread_mutex_unlock(&reader->mutex);
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
        wake_post(reader->wake, &job->item);
        engine->jobs--;
        wake_engines(reader, true); /* the others' shares have grown */
}

void reader_release(struct reader *reader, struct read_job *job)
{
        pthread_mutex_lock(&reader->mutex);
        job->held--;
        job_settle(reader, job);
        pthread_mutex_unlock(&reader->mutex);
}

static void job_failed(struct read_job *job, const struct error *error)
{
        if (job->failed)
                return;
        job->failed = job->stopped = true;
        job->error = *error;
}

void reader_lose(struct reader *reader, struct read_job *job, struct read_target *target, const struct error *error)
{
        bool lives = false;
        pthread_mutex_lock(&reader->mutex);
        if (!is_dead(target)) {
                target->error = *error;
                __atomic_store_n(&target->dead, true, __ATOMIC_RELEASE);
                wake_post(reader->wake, &target->died_item);
                if (target->in_flight == 0)
                        wake_post(reader->wake, &target->idle_item);
        }
        for (size_t i = 0; i < job->n_targets; i++)
                lives = lives || !is_dead(job->targets[i]);
        if (!lives) {
                job_failed(job, error);
                job_settle(reader, job); /* it may be that nobody holds a ticket */
        }
        pthread_mutex_unlock(&reader->mutex);
}

void reader_landed(const struct ticket *ticket)
{
        struct read_job *job = ticket->job;
        bool lives = false;
        for (size_t i = 0; i < job->n_targets; i++)
                lives = lives || ((ticket->targets >> i & 1) != 0 && !is_dead(job->targets[i]));
        if (lives)
                job->landed(job, ticket->block);
}

void reader_give(struct reader *reader, struct ticket *ticket, const struct error *error)
{
        struct read_job *job = ticket->job;
        pthread_mutex_lock(&reader->mutex);
        if (error != NULL)
                job_failed(job, error);
        give_targets(reader, ticket);
        if (ticket->slot != NULL) {
                staging_put(&reader->staging, ticket->slot);
                job->slots--;
        }
        job->in_flight--;
        reader->engines[job->engine].busy--;
        bool others = job->link.next != job->link.prev || ticket->slot != NULL;
        job_settle(reader, job);
        /* This thread takes the next block itself; what it freed may let another one in. */
        if (others || error != NULL)
                wake_engines(reader, error != NULL);
        pthread_mutex_unlock(&reader->mutex);
}

/* ---- jobs ---- */

static void target_died(struct wake_item *item)
{
        struct read_target *target = container_of(item, struct read_target, died_item);
        target->died(target);
}

static void target_idle(struct wake_item *item)
{
        struct read_target *target = container_of(item, struct read_target, idle_item);
        target->idle(target);
}

static void job_ended(struct wake_item *item)
{
        struct read_job *job = container_of(item, struct read_job, item);
        job->ended(job);
}

void reader_start(struct reader *reader, struct read_job *job)
{
        job->next = 0;
        job->in_flight = job->slots = job->stalled = job->held = 0;
        job->quiet = false;
        job->stopped = job->over = job->failed = false;
        job->begun_ns = now_ns();
        job->read_ns = 0;
        job->item.fn = job_ended;
        require(job->n_targets > 0 && job->n_targets <= READ_TARGETS);
        for (size_t i = 0; i < job->n_targets; i++) {
                job->targets[i]->in_flight = 0;
                job->targets[i]->died_item.fn = target_died;
                job->targets[i]->idle_item.fn = target_idle;
        }
        job->limit = reader->opts.concurrency;
        job->pace = NULL;
        struct engine *engine = &reader->engines[job->engine];
        pthread_mutex_lock(&reader->mutex);
        share_init(&job->share, job->weight > 0 ? job->weight : READER_WEIGHT, reader->virtual_time);
        list_append(&reader->jobs, &job->link);
        engine->jobs++;
        if (engine->ops->begin != NULL && engine->ops->begin(reader, job, &job->error) < 0)
                job->failed = job->stopped = true;
        job_settle(reader, job); /* a model without bytes */
        wake_engines(reader, true);
        pthread_mutex_unlock(&reader->mutex);
}

void reader_stop(struct reader *reader, struct read_job *job)
{
        pthread_mutex_lock(&reader->mutex);
        if (!job->over) {
                job->stopped = true;
                reader->engines[job->engine].ops->wake(reader, true);
                job_settle(reader, job);
        }
        pthread_mutex_unlock(&reader->mutex);
}

void reader_set_weight(struct reader *reader, struct read_job *job, unsigned weight)
{
        pthread_mutex_lock(&reader->mutex);
        job->share.weight = weight;
        pthread_cond_broadcast(&reader->work); /* somebody's share has grown */
        pthread_mutex_unlock(&reader->mutex);
}

/* ---- pieces ---- */

void reader_read_took(const struct ticket *ticket, uint64_t ns)
{
        __atomic_add_fetch(&ticket->job->read_ns, ns, __ATOMIC_RELAXED);
}

void reader_hash_begin(const struct ticket *ticket, struct hash_cursor *cursor)
{
        plan_pieces_begin(ticket->block, &cursor->pieces);
        cursor->have_piece = plan_pieces_next(ticket->job->plan, ticket->block, &cursor->pieces, &cursor->piece);
}

void reader_hash(const struct ticket *ticket, struct hash_cursor *cursor, const unsigned char *data, uint64_t have)
{
        const struct read_job *job = ticket->job;
        while (cursor->have_piece && cursor->piece.in_block + cursor->piece.len <= have) {
                hash_bytes(data + cursor->piece.in_block, cursor->piece.len, job->leaves[cursor->piece.leaf]);
                cursor->have_piece = plan_pieces_next(job->plan, ticket->block, &cursor->pieces, &cursor->piece);
        }
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

void reader_watch(struct reader *reader)
{
        struct engine *files = &reader->engines[READ_PREAD];
        pthread_mutex_lock(&reader->mutex);
        unsigned before = files->stuck;
        for (size_t i = 0; i < READ_ENGINES; i++)
                reader->engines[i].ops->watch(reader, now_ns());
        grow(reader, files);
        unsigned stuck = files->stuck, alive = files->alive;
        if (stuck != before)
                pthread_cond_broadcast(&reader->work);
        pthread_mutex_unlock(&reader->mutex);
        if (stuck > before)
                log_event(LOG_LEVEL_WARN, LOG_STORAGE_STALLED, NULL,
                          "reader: %u of %u threads hang in reads of storage that does not answer", stuck, alive);
}

bool reader_job_stalled(struct reader *reader, const struct read_job *job)
{
        pthread_mutex_lock(&reader->mutex);
        bool stalled = job->stalled > 0 || job->quiet;
        pthread_mutex_unlock(&reader->mutex);
        return stalled;
}

/* Before anything of the ring is touched, which is when memory gets its node. */
static void place(struct reader *reader)
{
        const struct numa_choice *numa = &reader->opts.numa;
        if (!numa_place_memory(numa, reader->staging.base, reader->staging.bytes))
                log_warn("ring: the kernel does not let memory be placed (%s): copies may cross NUMA nodes",
                         strerror(errno));
        reader->placed = numa_processors(numa, "", &reader->processors);
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

void reader_usage(struct reader *reader, struct reader_usage *usage)
{
        pthread_mutex_lock(&reader->mutex);
        *usage = (struct reader_usage){.slots = reader->staging.n_slots,
                                       .used_slots = reader->staging.n_slots - reader->staging.n_free,
                                       .ring_bytes = reader->staging.bytes};
        for (size_t i = 0; i < READ_ENGINES; i++) {
                usage->threads += reader->engines[i].alive;
                usage->stuck_threads += reader->engines[i].stuck;
                usage->blocks += reader->engines[i].busy;
        }
        /* Slots that are still to be touched are nobody's. */
        usage->used_slots -= reader->untouched < usage->used_slots ? reader->untouched : usage->used_slots;
        pthread_mutex_unlock(&reader->mutex);
}

int reader_init(struct reader *reader, const struct reader_opts *opts, struct wake *wake, struct error *error)
{
        *reader = (struct reader){.opts = *opts, .wake = wake};
        int r = staging_init(&reader->staging, opts->memory_limit, opts->block_size, error);
        if (r < 0)
                return r;
        place(reader);
        pthread_condattr_t attr;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_mutex_init(&reader->mutex, NULL);
        pthread_cond_init(&reader->work, NULL);
        pthread_cond_init(&reader->ended, &attr);
        pthread_condattr_destroy(&attr);
        list_init(&reader->jobs);
        reader->engines[READ_PREAD] = (struct engine){
                .ops = &reader_pread_ops, .base = opts->concurrency * THREADS_PER_CONCURRENCY, .places = 1};
        reader_http_init(reader);
        for (size_t i = 0; i < READ_ENGINES; i++)
                list_init(&reader->engines[i].threads);
        while (staging_get(&reader->staging) != NULL)
                reader->untouched++;
        pthread_mutex_lock(&reader->mutex);
        grow(reader, &reader->engines[READ_PREAD]);
        unsigned alive = reader->engines[READ_PREAD].alive;
        pthread_mutex_unlock(&reader->mutex);
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
        pthread_mutex_lock(&reader->mutex);
        reader->stopping = true;
        wake_engines(reader, true);
        while (alive_threads(reader) > 0 && pthread_cond_timedwait(&reader->ended, &reader->mutex, &until) == 0)
                ;
        bool all = alive_threads(reader) == 0;
        pthread_mutex_unlock(&reader->mutex);
        if (!all)
                return false;
        for (size_t i = 0; i < READ_ENGINES; i++)
                reader->engines[i].ops->join(reader);
        pthread_cond_destroy(&reader->work);
        pthread_cond_destroy(&reader->ended);
        pthread_mutex_destroy(&reader->mutex);
        staging_deinit(&reader->staging);
        return true;
}
