/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/reader/reader.h"

#include "daemon/base/log/log.h"
#include "daemon/io/reader/engine.h"

#include <errno.h>
#include <sys/sysinfo.h>

/* A new job has precedence for so many times what it may have in flight. */
#define HEAD_START 2u

void reader_wake_locked(struct reader *reader)
{
        for (size_t i = 0; i < READ_ENGINES; i++)
                reader->engines[i].ops->wake(reader);
}

void reader_add_busy(struct reader *reader, struct read_job *job, int n)
{
        job->busy += (unsigned)n;
        reader->engines[job->engine].busy += (unsigned)n;
}

/* ---- the end of blocks, targets and jobs ---- */

/* The last ticket to complete ends the job, on the loop. */
static void job_try_end(struct reader *reader, struct read_job *job)
{
        bool done = job->stopped || job->next == job->plan->n_blocks;
        if (!done || job->in_flight > 0 || job->held > 0 || job->over)
                return;
        struct engine *engine = &reader->engines[job->engine];
        job->over = true;
        __atomic_store_n(&job->over_ns, now_ns(), __ATOMIC_RELEASE);
        list_remove(&job->link);
        free(job->http);
        job->http = NULL;
        free(job->streams);
        job->streams = NULL;
        wake_post(reader->wake, &job->ended);
        engine->jobs--;
        reader_wake_locked(reader); /* the others' shares have grown */
}

static void job_failed(struct read_job *job, const struct error *error)
{
        if (job->failed)
                return;
        job->failed = true;
        store_relaxed(&job->stopped, true);
        job->error = *error;
}

void reader_run_end(struct reader *reader, struct read_run *run, const struct error *error)
{
        lock_scope(&reader->mutex);
        if (error != NULL)
                job_failed(run->job, error);
        require(run->next == run->end || run->job->stopped);
        run->job->held--;
        job_try_end(reader, run->job);
        if (error != NULL)
                reader_wake_locked(reader);
}

void reader_run_give_up(struct reader *reader, struct read_run *run)
{
        struct error error = {0};
        if (run->next < run->end) /* unless the job was stopped, in which case it has its outcome */
                error_set(&error, STREAMER_ECANCELED, "the daemon is ending");
        reader_run_end(reader, run, error.code != 0 && !load_relaxed(&run->job->stopped) ? &error : NULL);
        *run = (struct read_run){.job = NULL};
}

static void kill_target(struct reader *reader, struct read_job *job, struct read_target *target,
                        const struct error *error)
{
        bool lives = false;
        __atomic_store_n(&target->dead, true, __ATOMIC_RELEASE);
        for (size_t i = 0; i < job->n_targets; i++)
                lives = lives || !read_target_dead(job->targets[i]);
        if (!lives && !job->over) {
                job_failed(job, error);
                job_try_end(reader, job);   /* perhaps no ticket is in flight */
                reader_wake_locked(reader); /* a thread may wait for a slot for its run */
        }
}

void reader_fail_target(struct reader *reader, struct read_job *job, struct read_target *target,
                        const struct error *error)
{
        lock_scope(&reader->mutex);
        if (read_target_dead(target))
                return;
        target->error = *error;
        wake_post(reader->wake, &target->died);
        kill_target(reader, job, target, error);
}

/* The stream's next block may be taken. */
static void end_stream(struct ticket *ticket)
{
        if (ticket->stream == NULL)
                return;
        require(ticket->stream->busy);
        ticket->stream->busy = false;
        ticket->stream = NULL;
}

void reader_end_stream(struct reader_thread *thread, struct ticket *ticket)
{
        lock_scope(&thread->reader->mutex);
        if (ticket->stream == NULL)
                return;
        end_stream(ticket);
        reader_wake_locked(thread->reader);
}

void reader_return_ticket(struct reader_thread *thread, struct ticket *ticket, const struct error *error)
{
        struct reader *reader = thread->reader;
        struct read_job *job = ticket->job;
        lock_scope(&reader->mutex);
        if (error != NULL && !job->failed)
                job->failed_file = ticket->block->file;
        if (error != NULL)
                job_failed(job, error);
        for (size_t i = 0; i < job->n_targets; i++) {
                struct read_target *target = job->targets[i];
                if ((ticket->targets >> i & 1) == 0)
                        continue;
                target->in_flight--;
                if (target->in_flight == 0 && read_target_dead(target))
                        wake_post(reader->wake, &target->idle);
        }
        end_stream(ticket);
        if (ticket->slot != NULL) {
                staging_put(&reader->staging, ticket->slot);
                job->slots--;
        }
        job->in_flight--;
        if (ticket->copied) {
                job->copying--;
        } else {
                reader_thread_work_for(thread, NULL);
                reader_add_busy(reader, job, -1);
        }
        bool others = job->link.next != job->link.prev || ticket->slot != NULL || job->streams != NULL;
        job_try_end(reader, job);
        /* This thread takes the next block itself; what it freed may let another one in. */
        if (others || error != NULL)
                reader_wake_locked(reader);
}

/* ---- threads ---- */

int reader_set_affinity(struct reader *reader, pthread_attr_t *attr)
{
        if (reader->n_nodes == 0)
                return NUMA_ANYWHERE;
        const struct reader_node *node = &reader->nodes[reader->next_node++ % reader->n_nodes];
        pthread_attr_setaffinity_np(attr, sizeof(node->processors), &node->processors);
        return node->node;
}

static bool start_thread(struct reader *reader, enum read_engine kind)
{
        struct engine *engine = &reader->engines[kind];
        struct reader_thread *thread = aligned_alloc(_Alignof(struct hash), engine->ops->thread_size);
        pthread_attr_t attr;
        if (thread == NULL)
                return false;
        memset(thread, 0, engine->ops->thread_size);
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, READER_STACK);
        thread->reader = reader;
        thread->engine = kind;
        thread->node = reader_set_affinity(reader, &attr);
        bool started = engine->ops->thread_init(thread) &&
                       thread_start(&thread->thread, &attr, engine->ops->thread_main, thread) == 0;
        pthread_attr_destroy(&attr);
        if (started)
                list_append(&engine->threads, &thread->link);
        else
                engine->ops->thread_free(thread);
        engine->alive += started;
        engine->starting += started;
        return started;
}

bool reader_add_thread_locked(struct reader *reader, enum read_engine kind)
{
        const struct engine *engine = &reader->engines[kind];
        return !reader->stopping && engine->alive - engine->stuck < engine->base &&
               engine->alive < engine->base * READER_THREADS_CAP && start_thread(reader, kind);
}

void reader_thread_work_for(struct reader_thread *thread, struct read_job *job)
{
        struct reader *reader = thread->reader;
        if (thread->stuck) { /* its read has returned */
                thread->stuck = false;
                sub_relaxed(&thread->job->stuck, 1);
                reader->engines[thread->engine].stuck--;
                reader_add_busy(reader, thread->job, 1);
                pthread_cond_broadcast(&reader->work); /* one thread is to end */
                reader_wake_locked(reader);            /* jobs that had yielded while it was stuck */
        }
        thread->job = job;
        store_relaxed(&thread->moved_ns, now_ns());
}

/* ---- jobs ---- */

void reader_announce(struct reader *reader, struct announced_load *announced, uint64_t storage)
{
        announced->storage = storage;
        announced->since_ns = now_ns();
        lock_scope(&reader->mutex);
        list_append(&reader->announced, &announced->link);
}

void reader_announce_end(struct reader *reader, struct announced_load *announced)
{
        lock_scope(&reader->mutex);
        if (list_empty(&announced->link))
                return;
        list_remove(&announced->link);
        reader_wake_locked(reader);
}

/* A slot near one of several nodes is no nearer to the others. A dead target has no memory. */
static int node_of(const struct read_job *job)
{
        int node = NUMA_ANYWHERE;
        bool first = true;
        for (size_t i = 0; i < job->n_targets && job->plan->n_blocks > 0; i++) {
                const struct read_target *target = job->targets[i];
                if (read_target_dead(target))
                        continue;
                int its = target->segments[0].device->numa_node;
                if (!first && its != node)
                        return NUMA_ANYWHERE;
                node = its;
                first = false;
        }
        return node;
}

void reader_start(struct reader *reader, struct read_job *job)
{
        require(job->n_targets > 0 && job->n_targets <= READ_TARGETS && job->begun_ns == 0);
        job->begun_ns = now_ns();
        job->failed_file = UINT32_MAX;
        job->run_blocks = 1;
        job->node = node_of(job);
        job->limit = reader->opts.concurrency;
        struct engine *engine = &reader->engines[job->engine];
        lock_scope(&reader->mutex);
        uint64_t in_flight_bytes = job->storage != 0 ? reader->opts.concurrency * reader->opts.block_size : 0;
        fair_share_init(&job->share, job->weight > 0 ? job->weight : READER_WEIGHT, reader->virtual_time,
                        HEAD_START * in_flight_bytes);
        list_append(&reader->jobs, &job->link);
        engine->jobs++;
        while (job->engine == READ_HTTP && reader_add_thread_locked(reader, READ_HTTP))
                ;
        if (engine->ops->begin != NULL && engine->ops->begin(reader, job, &job->error) < 0)
                job->failed = job->stopped = true;
        job_try_end(reader, job); /* a model without bytes */
        reader_wake_locked(reader);
}

void reader_stop(struct reader *reader, struct read_job *job)
{
        lock_scope(&reader->mutex);
        if (!job->over) {
                store_relaxed(&job->stopped, true);
                reader->engines[job->engine].ops->wake(reader);
                job_try_end(reader, job);
        }
}

void reader_set_weight(struct reader *reader, struct read_job *job, unsigned weight)
{
        lock_scope(&reader->mutex);
        job->share.weight = weight;
        reader_wake_locked(reader); /* another job's share has grown */
}

bool reader_drop_target(struct reader *reader, struct read_job *job, struct read_target *target,
                        const struct error *error)
{
        lock_scope(&reader->mutex);
        bool was_dead = read_target_dead(target);
        if (!was_dead)
                kill_target(reader, job, target, error);
        return was_dead || target->in_flight > 0;
}

/* ---- the watch ---- */

static bool moves_no_byte(const struct reader *reader, const uint64_t *moved_ns, uint64_t now)
{
        uint64_t moved = load_relaxed(moved_ns);
        return now >= moved && now - moved >= reader->opts.stall_ns;
}

bool reader_watch(struct reader *reader)
{
        struct engine *files = &reader->engines[READ_PREAD];
        uint64_t now = now_ns();
        pthread_mutex_lock(&reader->mutex);
        unsigned before = files->stuck;
        list_each_item (struct reader_thread, t, &files->threads, link) {
                if (t->job == NULL || t->stuck || !moves_no_byte(reader, &t->moved_ns, now))
                        continue;
                t->stuck = true;
                add_relaxed(&t->job->stuck, 1);
                files->stuck++;
                reader_add_busy(reader, t->job, -1);
        }
        list_each_item (struct read_job, job, &reader->jobs, link)
                store_relaxed(&job->no_bytes,
                              load_relaxed(&job->moved_ns) > 0 && moves_no_byte(reader, &job->moved_ns, now));
        /* The others' shares of the slots have grown, an announcement has expired, or no thread could be started. */
        if (!list_empty(&reader->jobs))
                reader_wake_locked(reader);
        unsigned stuck = files->stuck, alive = files->alive;
        bool works = !list_empty(&reader->jobs) || stuck > 0 || files->busy > 0;
        pthread_mutex_unlock(&reader->mutex);
        if (stuck > before)
                log_event(LOG_LEVEL_WARN, LOG_STORAGE_STALLED, NULL,
                          "reader: %u of %u threads hang in reads of storage that does not answer", stuck, alive);
        return works;
}

bool reader_job_stalled(const struct read_job *job)
{
        return load_relaxed(&job->stuck) > 0 || load_relaxed(&job->no_bytes);
}

void reader_job_reads(const struct read_job *job, uint64_t *took_ns, uint64_t *max_ns)
{
        size_t n = job->plan != NULL ? job->plan->n_blocks : 0;
        uint64_t depth = n < job->limit ? n : job->limit;
        uint64_t took = job->stages.ns[STAGE_storage] + job->stages.ns[STAGE_read];
        *max_ns = depth * (job->over_ns - job->begun_ns);
        *took_ns = took < *max_ns ? took : *max_ns;
}

bool reader_reads_storage(struct reader *reader, uint64_t storage)
{
        lock_scope(&reader->mutex);
        list_each_item (const struct read_job, job, &reader->jobs, link)
                if (job->storage == storage)
                        return true;
        return false;
}

void reader_usage(struct reader *reader, struct reader_usage *usage)
{
        lock_scope(&reader->mutex);
        *usage = (struct reader_usage){.slots = reader->staging.n_slots,
                                       .used_slots = reader->staging.n_slots - reader->staging.n_free,
                                       .ring_bytes = reader->staging.bytes};
        for (size_t i = 0; i < READ_ENGINES; i++) {
                const struct engine *engine = &reader->engines[i];
                bool started = engine->alive > 0; /* threads for files start one by one, as blocks need them */
                usage->threads += started && engine->alive < engine->base ? engine->base : engine->alive;
                usage->stuck_threads += engine->stuck;
        }
        list_each_item (const struct read_job, job, &reader->jobs, link)
                usage->blocks += job->in_flight;
}

void reader_ring_unpinned(struct reader *reader)
{
        lock_scope(&reader->mutex);
        staging_unpinned(&reader->staging);
        pthread_cond_broadcast(&reader->work); /* the last thread waits without end until then */
}

unsigned char *reader_slot_get_locked(struct reader *reader, int node)
{
        bool in_memory = staging_in_memory(&reader->staging);
        unsigned char *slot = staging_get(&reader->staging, node);
        if (!in_memory && slot != NULL)
                pthread_cond_signal(&reader->work); /* a thread that waits without end is to give it back */
        return slot;
}

unsigned char *reader_slot_get(struct reader *reader)
{
        lock_scope(&reader->mutex);
        return reader_slot_get_locked(reader, NUMA_ANYWHERE);
}

void reader_slot_put(struct reader *reader, unsigned char *slot)
{
        lock_scope(&reader->mutex);
        staging_put(&reader->staging, slot);
        reader_wake_locked(reader);
}

/* Slots are placed before they are first touched; threads are bound to the nodes in turn. */
static void bind_numa(struct reader *reader)
{
        const struct numa_choice *numa = &reader->opts.numa;
        if (!staging_place(&reader->staging, numa))
                log_warn("ring: the kernel does not let memory be placed (%s): copies may cross NUMA nodes",
                         strerror(errno));
        for (int node = 0; node < NUMA_NODES; node++) {
                struct reader_node *next = &reader->nodes[reader->n_nodes];
                next->node = node;
                reader->n_nodes += (numa->nodes >> node & 1) != 0 && numa_processors(node, &next->processors);
        }
}

int reader_init(struct reader *reader, const struct reader_opts *opts, struct wake *wake, struct error *error)
{
        *reader = (struct reader){.opts = *opts, .wake = wake, .processors = (unsigned)get_nprocs()};
        int r = staging_init(&reader->staging, opts->memory_limit, opts->block_size, error);
        if (r < 0)
                return r;
        bind_numa(reader);
        pthread_mutex_init(&reader->mutex, NULL);
        pthread_cond_init(&reader->work, NULL);
        pthread_cond_init(&reader->runs, NULL);
        pthread_cond_init(&reader->ended, NULL);
        list_init(&reader->jobs);
        list_init(&reader->announced);
        /* A load at full concurrency leaves as much capacity free as it takes. */
        unsigned capacity = opts->concurrency * READER_THREADS_PER_BLOCK;
        const unsigned threads[READ_ENGINES] = {[READ_PREAD] = capacity, [READ_HTTP] = opts->network_threads};
        for (size_t i = 0; i < READ_ENGINES; i++) {
                const struct engine_ops *ops = opts->engines[i];
                unsigned even = threads[i] > 0 ? (capacity + threads[i] - 1) / threads[i] : 0;
                reader->engines[i] = (struct engine){.ops = ops,
                                                     .base = threads[i],
                                                     .capacity = even > ops->capacity_min ? even : ops->capacity_min};
                list_init(&reader->engines[i].threads);
        }
        lock_scope(&reader->mutex);
        if (!reader_add_thread_locked(reader, READ_PREAD))
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
        store_relaxed(&reader->stopping, true);
        pthread_cond_broadcast(&reader->work);
        pthread_cond_broadcast(&reader->runs);
        reader_wake_locked(reader);
        while (alive_threads(reader) > 0 &&
               pthread_cond_clockwait(&reader->ended, &reader->mutex, CLOCK_MONOTONIC, &until) == 0)
                ;
        bool all = alive_threads(reader) == 0;
        for (size_t i = 0; !all && i < READ_ENGINES; i++)
                list_each_item (struct reader_thread, thread, &reader->engines[i].threads, link)
                        pthread_detach(thread->thread);
        pthread_mutex_unlock(&reader->mutex);
        if (!all)
                return false;
        for (size_t i = 0; i < READ_ENGINES; i++)
                list_each_item_safe (struct reader_thread, thread, &reader->engines[i].threads, link) {
                        list_remove(&thread->link);
                        pthread_join(thread->thread, NULL);
                        reader->engines[i].ops->thread_free(thread);
                }
        pthread_cond_destroy(&reader->work);
        pthread_cond_destroy(&reader->runs);
        pthread_cond_destroy(&reader->ended);
        pthread_mutex_destroy(&reader->mutex);
        staging_deinit(&reader->staging);
        return true;
}
