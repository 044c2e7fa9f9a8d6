/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeps the store in step with what is resident: see persist.h.
 *
 * One thread sends each message, in the order in which the loop asked. A model's messages end with a barrier: only
 * once the manager has read them is the model's memory freed, or that of the one that it replaces. Messages about
 * processes need none.
 *
 * The process of a lease has a pidfd in the store, sent a few times a second. It may be missing when the daemon is
 * killed, and a process that is polled has none. Then the next run knows the lease by the snapshot alone, for as long
 * as a client may take to reclaim it.
 */
#include "daemon/resident/persist/persist.h"

#include "daemon/base/log/log.h"

#include <fcntl.h>

#define NAME_SIZE 32
/* How long a manager that has read all so far is waited for, and one that has not: a message, or those of a model. */
#define ANSWER_NS (UINT64_C(5) * 1000000000)
#define HUNG_NS (UINT64_C(100) * 1000000)
/* All that is sent before the loop runs. */
#define START_NS (UINT64_C(500) * 1000000)
/* Messages about processes in one piece of work. */
#define BATCH_MAX 256
/* The snapshots, one model of most segments, and some dozens of processes. */
#define MAX_SMALL 128

/* There is a store, and it may be changed. */
static bool is_on(const struct persist *persist)
{
        return persist->memory.fd >= 0 && !persist->frozen;
}

static void done(struct persist *persist, unsigned what)
{
        persist->due &= ~what;
}

/* ---- the snapshot ---- */

static bool is_named(const struct persisted *persisted)
{
        return persisted->generation != NULL && persisted->state != PERSIST_REMOVING;
}

/* Rows while they are packed. */
struct rows {
        struct items all, pinned;
};

static int add_row(void *context, const struct name_row *row)
{
        struct rows *rows = context;
        name_row_pack(row, &rows->all);
        if (row->settings.pinned || row->n_ranks > 0)
                name_row_pack(row, &rows->pinned);
        return rows->all.w.failed || rows->pinned.w.failed ? STREAMER_ENOMEM : 0;
}

static void add_model(struct name_row *row, const struct generation *g)
{
        if (g != NULL && g->persisted != NULL && is_named(g->persisted))
                row->models[row->n_models++] = g->persisted->id;
}

/* A name that serves, or that a pinned model which loads is to have: the older one is loaded again if the daemon ends
 * before that. */
static bool is_persisted(const struct model_name *name)
{
        const struct generation *g = name->generation;
        if (source_is_test(g->source))
                return false;
        if (g->state == GENERATION_LOADING)
                return g->settings.pinned && resident_on(g->resident, name->text, GENERATION_READY, g->device) == NULL;
        return g->state == GENERATION_READY;
}

/* Only what the store or a load can restore has a row. Ranks are loaded together if one of them is pinned. */
static int add_name(struct rows *rows, const struct model_name *name)
{
        struct name_row row;
        int r = name_row_of(&row, name);
        if (r < 0)
                return r;
        if (name->generation->state == GENERATION_READY) {
                add_model(&row, name->generation);
                add_model(&row, name->fallback);
        }
        if (row.n_models > 0 || row.settings.pinned || row.n_ranks > 0)
                r = add_row(rows, &row);
        free(row.source);
        return r;
}

static int add_names(struct rows *rows, const struct resident *resident)
{
        int r = 0;
        list_each_item (const struct generation, g, &resident->generations, link)
                list_each_item (const struct model_name, name, &g->names, link)
                        if (r == 0 && is_persisted(name))
                                r = add_name(rows, name);
        return r;
}

/* Without memory the last ones stay, and are due again. */
static int pack_rows(struct persist *persist)
{
        struct rows rows;
        items_init(&rows.all);
        items_init(&rows.pinned);
        int r = add_names(&rows, persist->resident) ?: persist->desired_rows(persist->desired, add_row, &rows);
        if (r < 0) {
                items_deinit(&rows.all);
                items_deinit(&rows.pinned);
                return r;
        }
        const struct packed_rows pinned = packed_rows(&rows.pinned);
        if (!packed_rows_equal(&pinned, &persist->pinned))
                persist->due |= DUE_FILE;
        msgpack_sbuffer_destroy(&persist->rows.bytes);
        msgpack_sbuffer_destroy(&persist->pinned.bytes);
        persist->rows = packed_rows(&rows.all);
        persist->pinned = pinned;
        done(persist, DUE_ROWS);
        return 0;
}

static int pack_lease(struct persist *persist, const struct persisted *persisted, const struct lease *lease)
{
        const struct generation *g = lease->generation;
        const struct process *process = lease->process;
        struct lease_record record = {.id = lease->id,
                                      .model = persisted->id,
                                      .process = process->persisted_id,
                                      .since_ns = lease->since_ns,
                                      .pid = (uint32_t)process->pid,
                                      .uid = process->uid};
        require(process->persisted_id != 0);
        memcpy(record.token, lease->token, sizeof(record.token));
        if (generation_drains(g))
                record.revoked_ns = g->state == GENERATION_REVOKED ? 1 : g->drained_by_ns;
        return snapshot_add_lease(&persist->bytes, &record);
}

static int pack_leases(struct persist *persist)
{
        int r = 0;
        for (size_t i = 0; i < persist->n_unverified && r == 0; i++)
                r = snapshot_add_lease(&persist->bytes, &persist->unverified[i]);
        list_each_item (const struct persisted, persisted, &persist->models, link) {
                if (!is_named(persisted))
                        continue;
                list_each_item (const struct lease, lease, &persisted->generation->leases, in_generation)
                        r = r ?: pack_lease(persist, persisted, lease);
        }
        return r;
}

static int pack(struct persist *persist)
{
        return (persist->due & DUE_ROWS ? pack_rows(persist) : 0)
                       ?: snapshot_begin(&persist->bytes, persist->counters)
                       ?: pack_leases(persist)
                       ?: snapshot_end(&persist->bytes, persist->resident->last_number, &persist->rows);
}

static void store_new(struct persist *persist);

void persist_sync(struct persist *persist)
{
        struct error error;
        if (!(persist->due & DUE_SNAPSHOT) || !is_on(persist))
                return;
        if (persist->due & DUE_ROWS)
                store_new(persist);
        done(persist, DUE_SNAPSHOT);
        persist->counters[SNAPSHOT_WRITES]++;
        persist->counters[SNAPSHOT_LEASE_IDS] = persist->leases->last_id;
        int r = pack(persist);
        r = r < 0 ? error_no_memory(&error)
                  : snapshot_memory_write(&persist->memory, persist->bytes.data, persist->bytes.size, &error);
        if (r < 0 && !persist->failure_logged)
                log_error("%s: the latest changes do not survive a restart", error.text);
        persist->failure_logged = r < 0;
        if (r < 0)
                persist->due |= DUE_RETRY;
}

/* Processes are numbered with their first lease. */
static void leases_changed(struct persist *persist, struct process *process)
{
        if (process->persisted_id == 0)
                process->persisted_id = ++persist->counters[SNAPSHOT_PROCESS_IDS];
        if (!process->stored)
                persist->due |= DUE_PROCESSES;
        persist->due |= DUE_SNAPSHOT;
}

/* ---- the state file ---- */

static void save_run(struct work *work)
{
        struct state_file *file = container_of(work, struct state_file, work);
        snapshot_save(file->folder, file->bytes.data, file->bytes.size, &file->error);
}

static void save_done(struct work *work);

/* The rows of pinned names, and of ranks. */
static void save(struct persist *persist)
{
        struct state_file *file = &persist->file;
        if (!(persist->due & DUE_FILE) || file->writing || file->folder == NULL)
                return;
        persist->counters[SNAPSHOT_WRITES]++;
        if (snapshot_begin(&file->bytes, persist->counters) < 0 ||
            snapshot_end(&file->bytes, persist->resident->last_number, &persist->pinned) < 0)
                return; /* tried again at the next tick */
        done(persist, DUE_FILE);
        file->writing = true;
        file->error = (struct error){0};
        work_submit(file->pool, WORK_LANE_STATE, &file->work, save_run, save_done);
}

static void save_done(struct work *work)
{
        struct state_file *file = container_of(work, struct state_file, work);
        struct persist *persist = container_of(file, struct persist, file);
        file->writing = false;
        if (file->error.code != 0 && file->failure.code == 0)
                log_error("%s: what is resident is not persisted", file->error.text);
        file->failure = file->error;
        if (file->error.code == 0)
                save(persist);
        else
                persist->due |= DUE_FILE; /* the disk may be full for now */
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
        if (persisted->generation != NULL) {
                persisted->generation->persisted = NULL;
                persisted->generation->in_store = false;
        }
        free(persisted);
}

/* The store no longer holds it, or the daemon ends and leaves it there. */
static void persisted_end(struct persisted *persisted)
{
        struct generation *generation = persisted->generation;
        bool left = persisted->persist->frozen && persisted->state != PERSIST_REMOVING && persisted->error.code == 0;
        persisted_free(persisted);
        if (generation == NULL)
                return;
        generation->left_in_store = left;
        generation_reap_later(generation);
}

/* ---- the thread's messages ---- */

static struct fdstore_limit limit_of(const struct persist *persist)
{
        uint64_t ns = persist->hangs ? HUNG_NS : ANSWER_NS;
        return (struct fdstore_limit){.until_ns = now_ns() + ns, .end_ns = &persist->end_ns};
}

struct fdstore_limit persist_limit_start(struct persist *persist)
{
        return (struct fdstore_limit){.until_ns = now_ns() + START_NS, .end_ns = &persist->end_ns};
}

/* 0, or the first error of a piece of work. */
static void note_answer(struct persist *persist, int r)
{
        if (r < 0 && !persist->hangs)
                log_warn("fd store: the service manager does not answer: %s", strerrordesc_np(-r));
        persist->hangs = r < 0;
}

/* Stores, or (fd -1) removes part 0 of a model, its commit record, or one of its segments, from 1 on. */
static int send_part(const struct persisted *persisted, unsigned part, int fd, const struct fdstore_limit *limit)
{
        char name[NAME_SIZE];
        if (part == 0)
                snprintf(name, sizeof(name), PERSIST_PREFIX "m%" PRIu64 ".r", persisted->id);
        else
                snprintf(name, sizeof(name), PERSIST_PREFIX "m%" PRIu64 ".%u", persisted->id, part - 1);
        return fd >= 0 ? fdstore_add(name, fd, limit) : fdstore_remove(name, limit);
}

/* The barrier after a model's messages, of which the first error is `r`. */
static void end_messages(struct persisted *persisted, int r, const struct fdstore_limit *limit)
{
        if (r == 0)
                r = fdstore_sync(limit);
        note_answer(persisted->persist, r);
        if (r < 0)
                error_errno(&persisted->error, STREAMER_EOS, -r, "the service manager does not answer");
}

static void remove_run(struct work *work)
{
        struct persisted *persisted = container_of(work, struct persisted, work);
        const struct fdstore_limit limit = limit_of(persisted->persist);
        int r = 0;
        for (unsigned part = 0; r == 0 && part < persisted->n_fds; part++)
                r = send_part(persisted, part, -1, &limit);
        end_messages(persisted, r, &limit);
}

static void remove_done(struct work *work)
{
        struct persisted *persisted = container_of(work, struct persisted, work);
        if (persisted->error.code != 0)
                log_warn("model %" PRIu64 " of the fd store: its memory may stay there: %s", persisted->id,
                         persisted->error.text);
        persisted_end(persisted);
}

void persisted_stored(struct persisted *persisted)
{
        require(persisted->state == PERSIST_STORING && !persisted->generation->in_store);
        persisted->state = PERSIST_STORED;
        persisted->generation->in_store = true;
}

void persisted_remove(struct persisted *persisted)
{
        struct generation *generation = persisted->generation;
        require(persisted->state != PERSIST_REMOVING && (generation == NULL || generation->n_fallbacks == 0));
        if (generation != NULL)
                generation->in_store = false;
        persisted->state = PERSIST_REMOVING;
        persisted->error = (struct error){0};
        work_submit(persisted->persist->thread, WORK_LANE_CPU, &persisted->work, remove_run, remove_done);
}

/* resident->remove_stored. The names whose fallback it is, or the messages, hold it up: what ends them reaps the
 * generation. First the next run must not be led to it any more. */
static void remove_stored(struct generation *generation)
{
        struct persisted *persisted = generation->persisted;
        if (persisted->state != PERSIST_STORED || generation->n_fallbacks > 0)
                return;
        persist_sync(persisted->persist);
        persisted_remove(persisted);
}

/* ---- storing ---- */

/* None of its names leads to a fallback any more. */
static void settle_names(const struct generation *generation)
{
        list_each_item (struct model_name, name, &generation->names, link)
                model_name_settle(name);
}

static void store_run(struct work *work)
{
        struct persisted *persisted = container_of(work, struct persisted, work);
        cleanup_close int fd = -1;
        int r = 0;
        if (commit_record_write(&persisted->details, &persisted->generation->manifest, &fd, &persisted->error) < 0)
                return;
        const struct fdstore_limit limit = limit_of(persisted->persist);
        for (unsigned part = 1; r == 0 && part < persisted->n_fds; part++)
                r = send_part(persisted, part, persisted->generation->segments[part - 1].fd, &limit);
        end_messages(persisted, r ?: send_part(persisted, 0, fd, &limit), &limit);
}

static void store_done(struct work *work)
{
        struct persisted *persisted = container_of(work, struct persisted, work);
        struct persist *persist = persisted->persist;
        struct generation *generation = persisted->generation;
        msgpack_sbuffer_destroy(&persisted->details);
        msgpack_sbuffer_init(&persisted->details);
        if (persist->frozen) {
                persisted_end(persisted);
                return;
        }
        if (persisted->error.code == 0) {
                persisted_stored(persisted);
        } else {
                log_warn("%s: will not survive a restart: %s", generation_name(generation), persisted->error.text);
                generation->not_stored = true;
                persisted_remove(persisted); /* some of it may have been stored */
        }
        settle_names(generation);
        persist_changed(persist);
        generation_reap_later(generation);
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
        struct persisted *persisted =
                persisted_new(persist, g, ++persist->counters[SNAPSHOT_MODEL_IDS], g->n_segments + 1);
        if (persisted != NULL && commit_record_pack(&persisted->details, g, persisted->id) < 0)
                persisted_free(persisted);
        else if (persisted != NULL)
                work_submit(persist->thread, WORK_LANE_CPU, &persisted->work, store_run, store_done);
        persist->due |= DUE_PROCESSES; /* those that attached while it loaded */
}

/* Stores what serves and is not stored. What cannot be stored has no fallback either: its names have left that. */
static void store_new(struct persist *persist)
{
        list_each_item (struct generation, g, &persist->resident->generations, link) {
                if (g->state != GENERATION_READY || g->persisted != NULL)
                        continue;
                if (!g->not_stored && can_be_stored(g) && has_capacity(persist, g))
                        store(persist, g);
                else
                        settle_names(g);
        }
}

void persist_changed(struct persist *persist)
{
        persist->due |= DUE_ROWS | DUE_SNAPSHOT;
}

/* ---- processes ---- */

struct job {
        uint64_t id;
        int fd; /* a pidfd to store; -1: it is removed */
};

/* One is in flight, so a manager that does not read holds up no more than this, and the store's capacity limits the
 * processes that wait to be removed. */
struct batch {
        struct work work;
        struct persist *persist;
        struct job jobs[BATCH_MAX];
        size_t n;
};

int persist_send_process(uint64_t id, int fd, const struct fdstore_limit *limit)
{
        char name[NAME_SIZE];
        snprintf(name, sizeof(name), PERSIST_PREFIX "p%" PRIu64, id);
        return fd >= 0 ? fdstore_add(name, fd, limit) : fdstore_remove(name, limit);
}

static void batch_run(struct work *work)
{
        struct batch *batch = container_of(work, struct batch, work);
        const struct fdstore_limit limit = limit_of(batch->persist);
        int r = 0;
        for (size_t i = 0; i < batch->n && r == 0; i++)
                r = persist_send_process(batch->jobs[i].id, batch->jobs[i].fd, &limit);
        if (r < 0) /* else they fit the queue, and may not have been read */
                note_answer(batch->persist, r);
}

static void send_batch(struct persist *persist);

static void batch_done(struct work *work)
{
        struct batch *batch = container_of(work, struct batch, work);
        struct persist *persist = batch->persist;
        for (size_t i = 0; i < batch->n; i++) {
                if (batch->jobs[i].fd < 0)
                        persist->used--;
                close_p(&batch->jobs[i].fd);
        }
        persist->batch = NULL;
        free(batch);
        send_batch(persist);
}

/* Its leases are in the snapshot. */
static bool holds_stored(const struct process *process)
{
        list_each_item (const struct lease, lease, &process->held, in_process)
                if (lease->generation->persisted != NULL)
                        return true;
        return false;
}

/* False: it is to be tried again. */
static bool store_process(struct persist *persist, struct batch *batch, struct process *process)
{
        if (process->stored || process->exited || process->pidfd < 0 || !holds_stored(process))
                return true;
        bool full = persist->used >= persist->max;
        if (full && !persist->full_logged)
                log_warn("fd store: full: further processes do not survive a restart (FileDescriptorStoreMax=)");
        persist->full_logged |= full;
        int fd = full || batch->n == BATCH_MAX ? -1 : fcntl(process->pidfd, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return false;
        batch->jobs[batch->n++] = (struct job){process->persisted_id, fd};
        process->stored = true;
        persist->used++;
        return true;
}

/* Removals first: they make room. */
static void send_batch(struct persist *persist)
{
        if (!is_on(persist) || !(persist->due & DUE_PROCESSES) || persist->batch != NULL)
                return;
        struct batch *batch = calloc(1, sizeof(*batch));
        if (batch == NULL)
                return; /* tried again at the next tick */
        batch->persist = persist;
        while (persist->n_exited > 0 && batch->n < BATCH_MAX)
                batch->jobs[batch->n++] = (struct job){persist->exited[--persist->n_exited], -1};
        bool all = persist->n_exited == 0;
        list_each_item (struct process, process, &persist->leases->processes, link)
                all = store_process(persist, batch, process) && all;
        if (all)
                done(persist, DUE_PROCESSES);
        if (batch->n == 0) {
                free(batch);
                return;
        }
        persist->batch = batch;
        work_submit(persist->thread, WORK_LANE_CPU, &batch->work, batch_run, batch_done);
}

/* Without memory its descriptor stays in the store until the next run. */
static void process_freed(struct persist *persist, struct process *process)
{
        if (!is_on(persist) || !process->stored)
                return;
        uint64_t *exited = array_grow(persist->exited, persist->n_exited, sizeof(*exited));
        if (exited == NULL)
                return;
        require(persist->n_exited < persist->used);
        persist->exited = exited;
        exited[persist->n_exited++] = process->persisted_id;
        persist->due |= DUE_PROCESSES;
}

/* ---- restored leases ---- */

/* It holds its model no longer. */
static void end_unverified(struct persist *persist, size_t i)
{
        struct generation *generation = persist_generation(persist, persist->unverified[i].model);
        require(generation != NULL); /* what is held stays in the store */
        persist->unverified[i] = persist->unverified[--persist->n_unverified];
        generation_put(generation);
}

static void end_all_unverified(struct persist *persist)
{
        while (persist->n_unverified > 0)
                end_unverified(persist, persist->n_unverified - 1);
}

struct lease *persist_lease_restore(struct persist *persist, struct process *process, struct generation *generation,
                                    const struct lease_record *record)
{
        if (process->persisted_id == 0)
                process->persisted_id = record->process;
        struct lease *lease = lease_restore(persist->leases, process, generation, record->id, record->token);
        if (lease == NULL)
                return NULL;
        lease->since_ns = record->since_ns;
        if (record >= persist->unverified && record < persist->unverified + persist->n_unverified)
                end_unverified(persist, (size_t)(record - persist->unverified));
        return lease;
}

const struct lease_record *persist_unverified(const struct persist *persist, const unsigned char token[LEASE_TOKEN])
{
        for (size_t i = 0; i < persist->n_unverified; i++)
                if (memcmp(persist->unverified[i].token, token, LEASE_TOKEN) == 0)
                        return &persist->unverified[i];
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

uint64_t persist_tick(struct persist *persist, uint64_t now)
{
        if (persist->frozen)
                return UINT64_MAX;
        if (persist->claim_until_ns != 0 && now >= persist->claim_until_ns) {
                persist->claim_until_ns = 0;
                end_all_unverified(persist);
                persist->due |= DUE_SNAPSHOT;
        }
        if (persist->due & DUE_RETRY)
                persist->due |= DUE_SNAPSHOT;
        done(persist, DUE_RETRY);
        persist_sync(persist);
        if ((persist->due & DUE_ROWS) && persist->file.folder != NULL) /* without a store, or memory */
                pack_rows(persist);
        save(persist);
        send_batch(persist);
        /* What waits for the store or for a worker is due again when that has answered. */
        bool file_due =
                (persist->due & (DUE_ROWS | DUE_FILE)) && persist->file.folder != NULL && !persist->file.writing;
        if (file_due || (persist->due & DUE_RETRY))
                return now;
        return persist->claim_until_ns != 0 ? persist->claim_until_ns : UINT64_MAX;
}

int persist_init(struct persist *persist, struct resident *resident, struct leases *leases, struct wake *wake,
                 uint64_t max, struct error *error)
{
        *persist =
                (struct persist){.resident = resident, .leases = leases, .memory.fd = -1, .max = max, .frozen = true};
        persist->end_ns = UINT64_MAX;
        list_init(&persist->models);
        resident->remove_stored = remove_stored;
        leases->persist = persist;
        leases->changed = leases_changed;
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

void persist_start(struct persist *persist, struct work_pool *pool, const char *folder, persist_desired desired_rows,
                   const struct desired *desired)
{
        persist->file.pool = pool;
        persist->file.folder = persist->file.unread ? NULL : folder;
        persist->desired_rows = desired_rows;
        persist->desired = desired;
        persist->frozen = false;
        persist->due |= DUE_FILE; /* so that a folder that cannot be written is reported */
        persist_changed(persist);
}

void persist_freeze(struct persist *persist)
{
        persist->due |= DUE_FILE; /* the newest, also where a run without the store follows */
        persist_tick(persist, now_ns());
        persist->frozen = true;
        end_all_unverified(persist);
        list_each_item (const struct generation, g, &persist->resident->generations, link)
                settle_names(g);
        list_each_item_safe (struct persisted, persisted, &persist->models, link)
                if (persisted->state == PERSIST_STORED)
                        persisted_end(persisted);
}

bool persist_stop(struct persist *persist, uint64_t deadline_ns)
{
        store_relaxed(&persist->end_ns, now_ns()); /* no message is waited for any more */
        return persist->thread == NULL || work_pool_stop(persist->thread, deadline_ns);
}

void persist_deinit(struct persist *persist)
{
        persist->thread = work_pool_free(persist->thread);
        close_p(&persist->memory.fd);
        msgpack_sbuffer_destroy(&persist->file.bytes);
        msgpack_sbuffer_destroy(&persist->bytes);
        msgpack_sbuffer_destroy(&persist->rows.bytes);
        msgpack_sbuffer_destroy(&persist->pinned.bytes);
        free(persist->unverified);
        free(persist->exited);
}
