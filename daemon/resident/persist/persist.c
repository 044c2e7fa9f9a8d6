/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the store in step with what is resident: see persist.h.
 *
 * One thread sends each message, in the order in which the loop asked. A model's messages end with a barrier: only
 * once the manager has read them is the model named in the journal, or its memory freed. Messages about processes
 * need none.
 *
 * A lease has a row in the journal, written when it is granted, and its process a pidfd in the store, sent a few times
 * a second. A row is complete up to the last store before a kill -9; a pidfd may be missing, and a process that is
 * polled has none. Then the next run knows the lease by its row alone, for as long as a client may take to reclaim it.
 */
#include "daemon/resident/persist/persist.h"

#include "daemon/base/log/log.h"

#include <fcntl.h>

#define NAME_SIZE 32
#define JOBS_MAX 4096
#define SYNC_NS (UINT64_C(5) * 1000000000)
/* The journal, one model of most segments, and some dozens of processes. */
#define MAX_SMALL 128

/* There is a store, and it may be changed. */
static bool is_on(const struct persist *persist)
{
        return persist->journal != NULL && !persist->frozen;
}

/* Logs it, once. */
static void log_full(struct persist *persist, const char *what)
{
        if (!persist->full_logged)
                log_warn("fd store: full: further %s do not survive a restart", what);
        persist->full_logged = true;
}

/* ---- rows of names ---- */

static void drop_name(struct persisted *persisted, struct journal_name *row)
{
        journal_drop(&persisted->persist->journal->names, row);
        if (--persisted->n_names == 0 && persisted->state == PERSIST_STORED)
                generation_reap(persisted->generation);
}

/* The name has switched to a generation that is being stored. */
static bool awaited(const struct persisted *persisted, const char *text)
{
        const struct generation *mine = persisted->generation;
        const struct generation *g = resident_on(mine->resident, text, GENERATION_READY, mine->device);
        return g != NULL && g != mine && g->persisted != NULL && g->persisted->state == PERSIST_STORING;
}

/* A few times a second, and at each change. */
static void write_names(struct persisted *persisted)
{
        const struct generation *g = persisted->generation;
        list_each_item (struct model_name, name, &g->names, link) {
                struct journal_name row = {.model = persisted->id,
                                           .settings = g->settings,
                                           .owner = name->owner,
                                           .charged = name->charge.user != NULL ? name->charge.user->uid + 1 : 0};
                if (name->row != NULL) {
                        name->row->settings = g->settings;
                        continue;
                }
                if (g->state != GENERATION_READY)
                        continue;
                snprintf(row.text, sizeof(row.text), "%s", name->text);
                name->row = journal_add(&persisted->persist->journal->names, &row);
                persisted->n_names += name->row != NULL;
                if (name->row == NULL)
                        log_full(persisted->persist, "names");
        }
}

static void clear_names(struct persisted *persisted)
{
        const struct generation *g = persisted->generation;
        const struct journal_table *names = &persisted->persist->journal->names;
        bool ready = g->state == GENERATION_READY, awaits = false;
        if (persisted->n_names == 0 || (ready && persisted->names_lost == g->names_lost))
                return;
        for (struct journal_name *row = NULL; (row = journal_each(names, row)) != NULL;) {
                if (row->model != persisted->id)
                        continue;
                const struct model_name *name = ready ? generation_find_name(g, row->text) : NULL;
                if (name == NULL && awaited(persisted, row->text))
                        awaits = true;
                else if (name == NULL || name->row != row) /* it was removed, and perhaps added again since */
                        drop_name(persisted, row);
        }
        if (!awaits)
                persisted->names_lost = g->names_lost;
}

/* It is not in the store. */
static void drop_names(struct persisted *persisted)
{
        const struct journal_table *names = &persisted->persist->journal->names;
        for (struct journal_name *row = NULL; (row = journal_each(names, row)) != NULL;)
                if (row->model == persisted->id)
                        drop_name(persisted, row);
        list_each_item (struct model_name, name, &persisted->generation->names, link)
                name->row = NULL;
}

/* ---- rows of leases ---- */

/* leases->granted: a lease of a model that is stored gets its row. */
static void lease_granted(struct persist *persist, struct lease *lease)
{
        struct persisted *persisted = lease->generation->persisted;
        struct process *process = lease->process;
        if (!is_on(persist) || persisted == NULL || lease->row != NULL)
                return;
        if (process->persisted_id == 0)
                process->persisted_id = ++persist->journal->counters[JOURNAL_PROCESS];
        struct journal_lease row = {.id = lease->id,
                                    .model = persisted->id,
                                    .process = process->persisted_id,
                                    .since_ns = lease->since_ns,
                                    .pid = (uint32_t)process->pid,
                                    .uid = process->uid};
        memcpy(row.token, lease->token, sizeof(row.token));
        journal_raise(persist->journal, JOURNAL_LEASE, lease->id);
        lease->row = journal_add(&persist->journal->leases, &row);
        if (lease->row == NULL)
                log_full(persist, "leases");
        persist->processes_due |= !process->stored;
}

static void lease_ended(struct persist *persist, struct lease *lease)
{
        if (is_on(persist) && lease->row != NULL)
                journal_drop(&persist->journal->leases, lease->row);
        lease->row = NULL;
}

/* When its leases are revoked; 1: already. */
static void write_revocations(const struct persisted *persisted)
{
        const struct generation *g = persisted->generation;
        if (!generation_drains(g))
                return;
        list_each_item (const struct lease, lease, &g->leases, in_generation)
                if (lease->row != NULL)
                        __atomic_store_n(&lease->row->revoked_ns, g->state == GENERATION_REVOKED ? 1 : g->drained_by_ns,
                                         __ATOMIC_RELEASE);
}

/* New rows first: a name that switches is in the journal at every moment. */
static void sync_rows(struct persist *persist)
{
        list_each_item (struct persisted, persisted, &persist->models, link) {
                if (persisted->state == PERSIST_REMOVING)
                        continue;
                write_names(persisted);
                write_revocations(persisted);
        }
        list_each_item (struct persisted, persisted, &persist->models, link)
                if (persisted->state != PERSIST_REMOVING)
                        clear_names(persisted);
}

/* ---- a model in the store ---- */

struct persisted *persisted_new(struct persist *persist, struct generation *generation, uint64_t id, unsigned n_fds)
{
        struct persisted *persisted = calloc(1, sizeof(*persisted));
        if (persisted == NULL)
                return NULL;
        *persisted = (struct persisted){.persist = persist, .generation = generation, .id = id, .n_fds = n_fds};
        list_append(&persist->models, &persisted->link);
        persist->used += n_fds;
        if (generation != NULL)
                generation->persisted = persisted;
        return persisted;
}

static void persisted_free(struct persisted *persisted)
{
        persisted->persist->used -= persisted->n_fds;
        list_remove(&persisted->link);
        msgpack_sbuffer_destroy(&persisted->details);
        if (persisted->generation != NULL)
                persisted->generation->persisted = NULL;
        free(persisted);
}

/* The store no longer holds it, or the daemon ends and leaves it there. */
static void persisted_end(struct persisted *persisted)
{
        struct generation *generation = persisted->generation;
        persisted_free(persisted);
        if (generation != NULL)
                generation_reap(generation);
}

/* Stores, or (fd -1) removes part 0 of a model, its commit record, or one of its segments, from 1 on. */
static int send_part(const struct persisted *persisted, unsigned part, int fd)
{
        char name[NAME_SIZE];
        if (part == 0)
                snprintf(name, sizeof(name), PERSIST_PREFIX "m%" PRIu64 ".r", persisted->id);
        else
                snprintf(name, sizeof(name), PERSIST_PREFIX "m%" PRIu64 ".%u", persisted->id, part - 1);
        return fd >= 0 ? fdstore_add(name, fd) : fdstore_remove(name);
}

/* The barrier after a model's messages, of which the first error is `r`. */
static void end_messages(struct persisted *persisted, int r)
{
        if (r == 0)
                r = fdstore_sync(SYNC_NS);
        if (r < 0)
                error_errno(&persisted->error, STREAMER_EOS, -r, "the service manager does not answer");
}

static void remove_run(struct work *work)
{
        struct persisted *persisted = container_of(work, struct persisted, work);
        int r = 0;
        for (unsigned part = 0; r == 0 && part < persisted->n_fds; part++)
                r = send_part(persisted, part, -1);
        end_messages(persisted, r);
}

static void remove_done(struct work *work)
{
        struct persisted *persisted = container_of(work, struct persisted, work);
        if (persisted->error.code != 0)
                log_warn("model %" PRIu64 " of the fd store: its memory may stay there: %s", persisted->id,
                         persisted->error.text);
        persisted_end(persisted);
}

void persisted_remove(struct persisted *persisted)
{
        persisted->state = PERSIST_REMOVING;
        persisted->error = (struct error){0};
        work_submit(persisted->persist->thread, WORK_LANE_CPU, &persisted->work, remove_run, remove_done);
}

/* resident->remove_stored. A name that awaits a newer generation, or the messages, hold it up: what ends them reaps
 * the generation. */
static void remove_stored(struct generation *generation)
{
        struct persisted *persisted = generation->persisted;
        if (persisted->state == PERSIST_STORED && persisted->n_names == 0)
                persisted_remove(persisted);
}

/* ---- storing ---- */

static void store_run(struct work *work)
{
        struct persisted *persisted = container_of(work, struct persisted, work);
        cleanup_close int fd = -1;
        int r = 0;
        if (commit_record_write(&persisted->details, &persisted->generation->manifest, &fd, &persisted->error) < 0)
                return;
        for (unsigned part = 1; r == 0 && part < persisted->n_fds; part++)
                r = send_part(persisted, part, persisted->generation->segments[part - 1].fd);
        end_messages(persisted, r ?: send_part(persisted, 0, fd));
}

static void store_done(struct work *work)
{
        struct persisted *persisted = container_of(work, struct persisted, work);
        struct persist *persist = persisted->persist;
        struct generation *generation = persisted->generation;
        persisted->state = PERSIST_STORED;
        msgpack_sbuffer_destroy(&persisted->details);
        msgpack_sbuffer_init(&persisted->details);
        if (persist->frozen) {
                persisted_end(persisted);
                return;
        }
        if (persisted->error.code != 0) {
                log_warn("%s: will not survive a restart: %s", generation_name(generation), persisted->error.text);
                generation->not_stored = true;
                drop_names(persisted);
                persisted_remove(persisted); /* some of it may have been stored */
        }
        sync_rows(persist);
        generation_reap(generation);
}

static bool can_be_stored(const struct generation *g)
{
        /* Ranks are one model on several devices, which is restored as a whole or not at all. */
        if (!(g->device->caps & DEVICE_PERSISTENT) || source_is_test(g->source) || g->n_ranks > 1)
                return false;
        for (unsigned i = 0; i < g->n_segments; i++)
                if (g->segments[i].fd < 0)
                        return false;
        return true;
}

static bool has_capacity(struct persist *persist, struct generation *g)
{
        if (persist->used + g->n_segments + 1 <= persist->max)
                return true;
        if (!g->full_logged)
                log_warn("%s: will not survive a restart: the fd store holds %" PRIu64 " of %" PRIu64
                         " descriptors, and it takes %u (FileDescriptorStoreMax=)",
                         generation_name(g), persist->used, persist->max, g->n_segments + 1);
        g->full_logged = true;
        return false;
}

static void store(struct persist *persist, struct generation *g)
{
        uint64_t id = ++persist->journal->counters[JOURNAL_MODEL];
        struct persisted *persisted = persisted_new(persist, g, id, g->n_segments + 1);
        if (persisted == NULL)
                return;
        if (commit_record_pack(&persisted->details, g, id) < 0) {
                persisted_free(persisted);
                return;
        }
        list_each_item (struct lease, lease, &g->leases, in_generation)
                lease_granted(persist, lease);
        work_submit(persist->thread, WORK_LANE_CPU, &persisted->work, store_run, store_done);
}

void persist_changed(struct persist *persist)
{
        if (!is_on(persist))
                return;
        journal_raise(persist->journal, JOURNAL_GENERATION, persist->resident->last_number);
        list_each_item (struct generation, g, &persist->resident->generations, link)
                if (g->state == GENERATION_READY && g->persisted == NULL && !g->not_stored && can_be_stored(g) &&
                    has_capacity(persist, g))
                        store(persist, g);
        sync_rows(persist);
}

/* ---- processes ---- */

/* One message: a pidfd to store, or (-1) one to remove. */
struct job {
        struct work work;
        struct persist *persist;
        uint64_t id;
        int fd;
};

int persist_send_process(uint64_t id, int fd)
{
        char name[NAME_SIZE];
        snprintf(name, sizeof(name), PERSIST_PREFIX "p%" PRIu64, id);
        return fd >= 0 ? fdstore_add(name, fd) : fdstore_remove(name);
}

static void job_run(struct work *work)
{
        struct job *job = container_of(work, struct job, work);
        int r = persist_send_process(job->id, job->fd);
        if (r < 0)
                log_debug("process %" PRIu64 " of the fd store: %s", job->id, strerrordesc_np(-r));
}

static void job_done(struct work *work)
{
        struct job *job = container_of(work, struct job, work);
        job->persist->jobs--;
        close_p(&job->fd);
        free(job);
}

/* Takes over fd. */
static bool submit(struct persist *persist, uint64_t id, int fd)
{
        struct job *job = calloc(1, sizeof(*job));
        if (job == NULL) {
                close_p(&fd);
                return false;
        }
        *job = (struct job){.persist = persist, .id = id, .fd = fd};
        persist->jobs++;
        work_submit(persist->thread, WORK_LANE_CPU, &job->work, job_run, job_done);
        return true;
}

static void store_process(struct persist *persist, struct process *process)
{
        if (persist->used >= persist->max)
                log_full(persist, "processes (FileDescriptorStoreMax=)");
        if (persist->used >= persist->max || persist->jobs >= JOBS_MAX) {
                persist->processes_due = true; /* tried again */
                return;
        }
        int fd = fcntl(process->pidfd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0 || !submit(persist, process->persisted_id, fd))
                return;
        process->stored = true;
        persist->used++;
}

static void process_freed(struct persist *persist, struct process *process)
{
        if (!is_on(persist) || !process->stored)
                return;
        persist->used--;
        submit(persist, process->persisted_id, -1);
}

/* ---- restored leases ---- */

struct lease *persist_lease_restore(struct persist *persist, struct process *process, struct generation *generation,
                                    struct journal_lease *row)
{
        struct lease *lease = lease_restore(persist->leases, process, generation, row->id, row->token);
        if (lease == NULL)
                return NULL;
        lease->since_ns = row->since_ns;
        lease->row = row;
        if (process->persisted_id == 0)
                process->persisted_id = row->process;
        else
                row->process = process->persisted_id;
        persist->processes_due |= !process->stored;
        return lease;
}

struct journal_lease *persist_lease_row(struct persist *persist, const unsigned char token[LEASE_TOKEN])
{
        if (!is_on(persist) || persist->claim_until_ns == 0)
                return NULL;
        for (struct journal_lease *row = NULL; (row = journal_each(&persist->journal->leases, row)) != NULL;)
                if (memcmp(row->token, token, LEASE_TOKEN) == 0)
                        return row;
        return NULL;
}

struct generation *persist_generation(struct persist *persist, uint64_t id)
{
        list_each_item (struct persisted, persisted, &persist->models, link)
                if (persisted->id == id)
                        return persisted->generation;
        return NULL;
}

/* ---- life ---- */

/* A change of a priority raises no event. */
void persist_tick(struct persist *persist, uint64_t now)
{
        if (!is_on(persist))
                return;
        sync_rows(persist);
        if (persist->claim_until_ns != 0 && now >= persist->claim_until_ns) {
                struct journal_table *rows = &persist->journal->leases;
                persist->claim_until_ns = 0;
                /* Of processes that have not reclaimed their leases and have no pidfd in the store. */
                for (struct journal_lease *row = NULL; (row = journal_each(rows, row)) != NULL;) {
                        const struct lease *lease = leases_by_token(persist->leases, row->token);
                        if (lease == NULL || lease->row != row)
                                journal_drop(rows, row);
                }
        }
        if (!persist->processes_due)
                return;
        persist->processes_due = false;
        list_each_item (struct process, process, &persist->leases->processes, link)
                if (!process->stored && !process->exited && process->pidfd >= 0 && process->persisted_id != 0)
                        store_process(persist, process);
}

int persist_init(struct persist *persist, struct resident *resident, struct leases *leases, struct wake *wake,
                 uint64_t max, struct error *error)
{
        *persist = (struct persist){.resident = resident, .leases = leases, .max = max};
        list_init(&persist->models);
        resident->remove_stored = remove_stored;
        leases->persist = persist;
        leases->granted = lease_granted;
        leases->ended = lease_ended;
        leases->process_freed = process_freed;
        if (max == 0) {
                bool any = false;
                for (size_t i = 0; i < resident->n_devices; i++)
                        any |= (resident->devices[i]->caps & DEVICE_PERSISTENT) != 0;
                if (fdstore_possible() && any)
                        log_warn("fd store: none, or its size is not known: models in host memory do not survive a "
                                 "restart (FileDescriptorStoreMax= is 0, unless the unit sets it)");
                return 0;
        }
        if (max < MAX_SMALL)
                log_warn("fd store: room for %" PRIu64 " descriptors; a model takes one and its segments (up to %u), a "
                         "process that has some attached one: raise FileDescriptorStoreMax=",
                         max, GENERATION_SEGMENTS);
        persist->thread = work_pool_new(wake, "store", 1, 1);
        return persist->thread != NULL ? 0 : error_no_memory(error);
}

void persist_freeze(struct persist *persist)
{
        if (!is_on(persist))
                return;
        persist->frozen = true;
        list_each_item_safe (struct persisted, persisted, &persist->models, link)
                if (persisted->state == PERSIST_STORED)
                        persisted_end(persisted);
}

bool persist_stop(struct persist *persist, uint64_t deadline_ns)
{
        return persist->thread == NULL || work_pool_stop(persist->thread, deadline_ns);
}

void persist_deinit(struct persist *persist)
{
        persist->thread = work_pool_free(persist->thread);
        persist->journal = journal_free(persist->journal);
}
