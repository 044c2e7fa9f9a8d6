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
/* How long a manager that has read all so far is waited for, and one that has not, from when the loop asked for the
 * messages of a model, or about processes: what was asked for before takes its part of that. */
#define ANSWER_NS (UINT64_C(5) * 1000000000)
#define HUNG_NS (UINT64_C(100) * 1000000)
/* All that is sent before the loop runs. */
#define START_NS (UINT64_C(500) * 1000000)
/* Messages about processes in one piece of work. */
#define BATCH_MAX 256
/* Models that are examined again when the store has capacity. */
#define WAITING_TURN 16
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

/* ---- marks ---- */

void persist_mark(struct persist *persist, const char *name, const char *device)
{
        if (!persist->tracks)
                return;
        if (journal_mark(&persist->journal, name, device) < 0)
                persist->due |= DUE_NAMES;
        persist->due |= DUE_CHANGES;
}

/* resident->name_due */
static void name_due(struct persist *persist, const char *name, const struct device *device)
{
        persist_mark(persist, name, device->uuid);
}

/* resident->generation_due */
static void generation_due(struct persist *persist, struct generation *generation)
{
        if (!persist->tracks || persist->frozen)
                return;
        list_remove(&generation->in_persist);
        list_append(&persist->changed, &generation->in_persist);
        persist->due |= DUE_CHANGES;
}

static void lease_due(struct persist *persist, struct lease *lease)
{
        if (persist->memory.fd < 0 || persist->frozen)
                return;
        if (list_empty(&lease->in_persist))
                list_append(&persist->due_leases, &lease->in_persist);
        persist->due |= DUE_CHANGES;
}

/* Processes are numbered with their first lease. */
static void lease_made(struct persist *persist, struct lease *lease)
{
        if (lease->process->persisted_id == 0)
                lease->process->persisted_id = ++persist->counters[SNAPSHOT_PROCESS_IDS];
        lease_due(persist, lease);
}

static void forget_lease(struct persist *persist, uint64_t id)
{
        uint64_t *ended = array_grow(persist->ended, persist->n_ended, sizeof(*ended));
        persist->due |= DUE_CHANGES;
        if (ended == NULL) {
                persist->due |= DUE_WHOLE; /* which does not have it */
                return;
        }
        persist->ended = ended;
        ended[persist->n_ended++] = id;
}

static void lease_ended(struct persist *persist, struct lease *lease)
{
        list_remove(&lease->in_persist);
        if (lease->written && is_on(persist))
                forget_lease(persist, lease->id);
}

/* All rows, where there was no memory for a mark. */
static void mark_names(struct persist *persist)
{
        done(persist, DUE_NAMES);
        list_each_item (const struct generation, g, &persist->resident->generations, link)
                list_each_item (const struct model_name, name, &g->names, link)
                        persist_mark(persist, name->text, g->device->uuid);
        persist->mark_desired(persist->desired);
        journal_restart(&persist->journal, false, false);
}

/* ---- rows ---- */

static bool is_named(const struct persisted *persisted)
{
        return persisted->generation != NULL && persisted->generation->stored != STORED_REMOVING;
}

static uint64_t stored_id(const struct generation *g)
{
        return g != NULL && g->persisted != NULL && is_named(g->persisted) ? g->persisted->id : 0;
}

static void add_model(struct name_row *row, const struct generation *g)
{
        if (stored_id(g) != 0)
                row->models[row->n_models++] = stored_id(g);
}

/* What the name leads to on the device, of what is persisted; NULL: nothing. That is what serves, or a pinned model
 * that loads to serve: the older one is loaded again if the daemon ends before that. */
static const struct model_name *find_name(const struct persist *persist, const char *name, const char *device)
{
        const struct list *all = resident_bucket(persist->resident, name);
        const struct model_name *loading = NULL;
        list_each_item (const struct model_name, n, all, by_name) {
                const struct generation *g = n->generation;
                if (strcmp(g->device->uuid, device) != 0 || strcmp(n->text, name) != 0 || source_is_test(g->source))
                        continue;
                if (g->state == GENERATION_READY)
                        return n;
                if (g->state == GENERATION_LOADING && n->settings.pinned)
                        loading = n;
        }
        return loading;
}

/* Only what the store or a load can restore has a row. Ranks are loaded together if one of them is pinned. 1: there is
 * one, with the source of its own in *source; 0: none; or STREAMER_ENOMEM. */
static int make_row(const struct persist *persist, const struct journal_row *due, struct name_row *row, char **source)
{
        const struct model_name *name = find_name(persist, due->name, due->device);
        if (name == NULL)
                return persist->desired_row(persist->desired, due->name, due->device, row);
        int r = name_row_of(row, name);
        if (r < 0)
                return r;
        *source = row->source;
        if (name->generation->state == GENERATION_READY) {
                add_model(row, name->generation);
                add_model(row, name->fallback);
        }
        return name_row_counts(row);
}

static void append_row(struct items *rows, const struct items *row)
{
        rows->n++;
        if (msgpack_sbuffer_write(&rows->w.buf, row->w.buf.data, row->w.buf.size) != 0)
                rows->w.failed = true;
}

/* In the place to which `rows` will be written; NULL: there is none. */
static bool put_row(struct items *rows, bool written, bool same, bool wanted, const struct journal_row *due,
                    const struct items *row)
{
        if (rows == NULL)
                return false;
        if (wanted && !(written && same))
                append_row(rows, row);
        else if (!wanted && written)
                name_row_pack_removed(due->name, due->device, rows);
        return wanted;
}

static int pack_row(struct persist *persist, struct journal_row *due, struct items *rows)
{
        cleanup_with(items_deinit) struct items packed;
        cleanup_free char *source = NULL;
        unsigned char digest[DIGEST_SIZE] = {0};
        struct items *filed = persist->file.folder != NULL ? &persist->file.rows : NULL;
        struct name_row row;
        items_init(&packed);
        int r = make_row(persist, due, &row, &source);
        if (r < 0)
                return r;
        bool exists = r > 0;
        if (exists) {
                name_row_pack(&row, &packed);
                if (packed.w.failed)
                        return STREAMER_ENOMEM;
                hash_bytes(packed.w.buf.data, packed.w.buf.size, digest);
        }
        bool same = memcmp(digest, due->digest, sizeof(digest)) == 0;
        bool survives = exists && (row.settings.pinned || row.n_ranks > 0);
        size_t n = persist->file.rows.n;
        due->stored = put_row(rows, due->stored, same, exists, due, &packed);
        due->filed = put_row(filed, due->filed, same, survives, due, &packed);
        if (persist->file.rows.n > n)
                persist->due |= DUE_FILE;
        memcpy(due->digest, digest, sizeof(digest));
        journal_settle(&persist->journal, due);
        return 0;
}

static void restart_file(struct persist *persist);

/* Those that are due, for the memory (NULL: there is none), and for the file. */
static int pack_rows(struct persist *persist, struct items *rows)
{
        struct state_file *file = &persist->file;
        int r = 0;
        list_each_item_safe (struct journal_row, due, &persist->journal.due, in_due)
                r = r ?: pack_row(persist, due, rows);
        if (file->rows.w.failed || file->rows.w.buf.size > SNAPSHOT_MAX / 4) /* it is not written for long */
                restart_file(persist);
        return r ?: rows != NULL && rows->w.failed ? STREAMER_ENOMEM : 0;
}

/* ---- leases ---- */

static int pack_lease(struct persist *persist, uint64_t model, struct lease *lease)
{
        const struct generation *g = lease->generation;
        struct process *process = lease->process;
        struct lease_record record = {.id = lease->id,
                                      .model = model,
                                      .process = process->persisted_id,
                                      .since_ns = lease->since_ns,
                                      .pid = (uint32_t)process->pid,
                                      .uid = process->uid};
        require(process->persisted_id != 0 && model != 0);
        memcpy(record.token, lease->token, sizeof(record.token));
        if (generation_drains(g))
                record.revoked_ns = g->state == GENERATION_REVOKED ? 1 : g->drained_by_ns;
        lease->written = true;
        if (!process->stored && list_empty(&process->in_due))
                list_append(&persist->due_processes, &process->in_due);
        return snapshot_add_lease(&persist->bytes, &record);
}

/* Those that have ended, then those that are due: one that has ended may have been restored under its number. */
static int pack_due_leases(struct persist *persist)
{
        int r = 0;
        for (size_t i = 0; i < persist->n_ended && r == 0; i++)
                r = snapshot_add_lease(&persist->bytes, &(struct lease_record){.id = persist->ended[i]});
        persist->n_ended = 0;
        list_each_item_safe (struct lease, lease, &persist->due_leases, in_persist) {
                uint64_t model = stored_id(lease->generation);
                list_remove(&lease->in_persist);
                if (model != 0)
                        r = r ?: pack_lease(persist, model, lease);
                else if (lease->written)
                        r = r ?: snapshot_add_lease(&persist->bytes, &(struct lease_record){.id = lease->id});
                lease->written = model != 0;
        }
        return r;
}

static int pack_all_leases(struct persist *persist)
{
        int r = 0;
        persist->n_ended = 0;
        list_each_item_safe (struct lease, lease, &persist->due_leases, in_persist)
                list_remove(&lease->in_persist);
        for (size_t i = 0; i < persist->n_unverified && r == 0; i++)
                r = snapshot_add_lease(&persist->bytes, &persist->unverified[i]);
        tree_each_item(const struct persisted, persisted, &persist->models, by_id)
        {
                if (!is_named(persisted))
                        continue;
                list_each_item (struct lease, lease, &persisted->generation->leases, in_generation)
                        r = r ?: pack_lease(persist, persisted->id, lease);
        }
        return r;
}

/* ---- changes ---- */

static uint64_t hash_facts(const void *facts, size_t size)
{
        unsigned char digest[DIGEST_SIZE];
        uint64_t hash;
        hash_bytes(facts, size, digest);
        memcpy(&hash, digest, sizeof(hash));
        return hash;
}

static void store_new(struct persist *persist, struct generation *g);

/* Marks its names, and its leases, if what their rows have of it has changed. */
static void examine(struct persist *persist, struct generation *g)
{
        const uint64_t of_rows[] = {g->state, g->number, stored_id(g), g->verified, g->stale};
        const uint64_t of_leases[] = {g->state, stored_id(g), g->drained_by_ns};
        uint64_t rows = hash_facts(of_rows, sizeof(of_rows)), leases = hash_facts(of_leases, sizeof(of_leases));
        if (rows != g->row_facts)
                list_each_item (const struct model_name, name, &g->names, link)
                        name_due(persist, name->text, g->device);
        if (leases != g->lease_facts)
                list_each_item (struct lease, lease, &g->leases, in_generation)
                        lease_due(persist, lease);
        g->row_facts = rows;
        g->lease_facts = leases;
}

static void examine_changed(struct persist *persist)
{
        if (persist->due & DUE_NAMES)
                mark_names(persist);
        while (!list_empty(&persist->changed)) {
                struct generation *g = container_of(persist->changed.next, struct generation, in_persist);
                list_remove(&g->in_persist);
                if (is_on(persist))
                        store_new(persist, g);
                examine(persist, g);
        }
        if (persist->due & DUE_NAMES) /* there was no memory again, or not for one of these */
                persist->due |= DUE_RETRY;
}

/* ---- the snapshot in memory ---- */

static bool has_grown(struct persist *persist)
{
        uint64_t now[SNAPSHOT_COUNTERS + 1];
        persist->counters[SNAPSHOT_LEASE_IDS] = persist->leases->last_id;
        memcpy(now, persist->counters, sizeof(persist->counters));
        now[SNAPSHOT_COUNTERS] = persist->resident->last_number;
        now[SNAPSHOT_WRITES] = 0; /* each write is one */
        bool grown = memcmp(now, persist->written, sizeof(now)) != 0;
        memcpy(persist->written, now, sizeof(now));
        return grown;
}

/* A whole, or what differs from the last one. */
static int write_snapshot(struct persist *persist, bool whole, struct error *error)
{
        cleanup_with(items_deinit) struct items rows;
        items_init(&rows);
        if (whole)
                journal_restart(&persist->journal, true, false);
        int r = snapshot_begin(&persist->bytes, persist->counters)
                        ?: (whole ? pack_all_leases(persist) : pack_due_leases(persist))
                        ?: pack_rows(persist, &rows);
        bool any = persist->bytes.size > sizeof(persist->counters) || rows.n > 0;
        if (r == 0 && !has_grown(persist) && !any && !whole)
                return 0;
        persist->counters[SNAPSHOT_WRITES]++;
        if (r == 0)
                memcpy(persist->bytes.data, persist->counters, sizeof(persist->counters));
        if ((r ?: snapshot_end(&persist->bytes, persist->resident->last_number, &rows)) < 0)
                return error_no_memory(error);
        return whole ? snapshot_memory_write(&persist->memory, persist->bytes.data, persist->bytes.size, error)
                     : snapshot_memory_append(&persist->memory, persist->bytes.data, persist->bytes.size, error);
}

static void compact_run(struct work *work)
{
        struct compaction *c = container_of(work, struct compaction, work);
        snapshot_memory_compact(&c->from, &c->whole, &c->error);
}

static void compact_done(struct work *work)
{
        struct compaction *c = container_of(work, struct compaction, work);
        struct persist *persist = container_of(c, struct persist, compaction);
        c->runs = false;
        if (persist->frozen)
                return;
        if (c->error.code == 0)
                snapshot_memory_switch(&persist->memory, &c->from, c->whole, &c->error);
        if (c->error.code != 0)
                persist->due |= DUE_WHOLE | DUE_CHANGES;
}

static void compact(struct persist *persist)
{
        struct compaction *c = &persist->compaction;
        if (c->runs || !snapshot_outgrown(&persist->memory.extent))
                return;
        c->runs = true;
        c->from = persist->memory;
        c->error = (struct error){0};
        work_submit(persist->file.pool, WORK_LANE_CPU, &c->work, compact_run, compact_done);
}

void persist_sync(struct persist *persist)
{
        struct error error;
        if (!(persist->due & DUE_CHANGES) || !is_on(persist))
                return;
        bool whole = persist->due & DUE_WHOLE;
        if (whole && persist->compaction.runs) /* the other buffer is in use */
                return;
        examine_changed(persist);
        done(persist, DUE_CHANGES | DUE_WHOLE);
        int r = write_snapshot(persist, whole, &error);
        if (r < 0 && !persist->failure_logged)
                log_error("%s: the latest changes do not survive a restart", error.text);
        persist->failure_logged = r < 0;
        if (r < 0) /* what was packed may not have been written */
                persist->due |= DUE_WHOLE | DUE_RETRY;
        else
                compact(persist);
}

bool persist_is_writing(const struct persist *persist)
{
        return persist->file.writing || persist->compaction.runs;
}

/* ---- the state file ---- */

static void save_run(struct work *work)
{
        struct state_file *file = container_of(work, struct state_file, work);
        const msgpack_sbuffer *bytes = &file->bytes;
        int r = file->whole ? snapshot_save(file->folder, bytes->data, bytes->size, &file->extent, &file->error)
                            : snapshot_save_change(file->folder, bytes->data, bytes->size, &file->extent, &file->error);
        file->lost = r == SNAPSHOT_LOST;
}

static void save_done(struct work *work);

/* What is written next is a whole, of rows that are packed again. */
static void restart_file(struct persist *persist)
{
        items_deinit(&persist->file.rows);
        items_init(&persist->file.rows);
        persist->file.begun = persist->file.fresh = false;
        persist->due |= DUE_FILE;
}

/* Before rows are packed: all are for a whole. */
static void begin_file(struct persist *persist)
{
        struct state_file *file = &persist->file;
        if (!(persist->due & DUE_FILE) || file->begun || file->folder == NULL)
                return;
        restart_file(persist);
        journal_restart(&persist->journal, false, true);
        file->begun = file->fresh = true;
        persist->due |= DUE_CHANGES;
}

/* The rows of pinned names, and of ranks. */
static void save(struct persist *persist)
{
        struct state_file *file = &persist->file;
        bool packed = !(persist->due & DUE_CHANGES) && list_empty(&persist->journal.due);
        if (!(persist->due & DUE_FILE) || file->writing || file->folder == NULL || !file->begun || !packed)
                return;
        persist->counters[SNAPSHOT_WRITES]++;
        if (snapshot_begin(&file->bytes, persist->counters) < 0 ||
            snapshot_end(&file->bytes, persist->resident->last_number, &file->rows) < 0) {
                restart_file(persist); /* tried again at the next tick */
                return;
        }
        items_deinit(&file->rows);
        items_init(&file->rows);
        done(persist, DUE_FILE);
        file->whole = file->fresh;
        file->fresh = false;
        file->writing = true;
        file->error = (struct error){0};
        work_submit(file->pool, WORK_LANE_STATE, &file->work, save_run, save_done);
}

static void save_done(struct work *work)
{
        struct state_file *file = container_of(work, struct state_file, work);
        struct persist *persist = container_of(file, struct persist, file);
        bool failed = file->error.code != 0 || file->lost;
        file->writing = false;
        if (file->error.code != 0 && file->failure.code == 0)
                log_error("%s: what is resident is not persisted", file->error.text);
        file->failure = file->error;
        if (file->lost)
                log_warn("state: another process has removed or changed the file: it is written again (%s)",
                         file->folder);
        if (failed && !file->fresh)
                restart_file(persist); /* at the next tick: the disk may be full for now */
        if (!failed || persist->frozen)
                save(persist);
}

/* ---- a model in the store ---- */

struct persisted *persisted_new(struct persist *persist, struct generation *generation, uint64_t id, unsigned n_fds)
{
        struct persisted *persisted = calloc(1, sizeof(*persisted));
        if (persisted == NULL)
                return NULL;
        *persisted = (struct persisted){.persist = persist, .generation = generation, .id = id, .n_fds = n_fds};
        tree_node_init(&persisted->by_id);
        tree_insert(&persist->models, &persisted->by_id);
        persist->used += n_fds;
        if (generation != NULL)
                generation->persisted = persisted;
        return persisted;
}

/* Generations of which a few may fit the store now. */
static void admit_waiting(struct persist *persist)
{
        for (int i = 0; i < WAITING_TURN && !list_empty(&persist->waiting); i++)
                generation_due(persist, container_of(persist->waiting.next, struct generation, in_persist));
}

static void persisted_free(struct persisted *persisted)
{
        persisted->persist->used -= persisted->n_fds;
        tree_remove(&persisted->persist->models, &persisted->by_id);
        msgpack_sbuffer_destroy(&persisted->details);
        if (persisted->generation != NULL)
                persisted->generation->persisted = NULL;
        free(persisted);
}

/* The store no longer holds it, or the daemon ends and leaves it there. */
static void persisted_end(struct persisted *persisted)
{
        struct generation *generation = persisted->generation;
        struct persist *persist = persisted->persist;
        bool failed = persisted->error.code != 0;
        persisted_free(persisted);
        admit_waiting(persist);
        if (generation == NULL)
                return;
        bool left = persist->frozen && generation->stored != STORED_REMOVING && !failed;
        generation_set_stored(generation, left ? STORED_LEFT : STORED_ENDED);
        generation_reap_later(generation);
}

/* ---- the thread's messages ---- */

static struct fdstore_limit limit_of(const struct persist *persist, uint64_t asked_ns)
{
        uint64_t ns = persist->hangs ? HUNG_NS : ANSWER_NS;
        require(asked_ns > 0 && asked_ns <= now_ns());
        return (struct fdstore_limit){.until_ns = asked_ns + ns, .end_ns = &persist->end_ns};
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
        const struct fdstore_limit limit = limit_of(persisted->persist, persisted->removed_ns);
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
        generation_set_stored(persisted->generation, STORED_WHOLE);
}

/* What holds it up from now on is a part of what the manager may take. */
static void want_removal(struct persisted *persisted)
{
        if (persisted->removed_ns == 0)
                persisted->removed_ns = now_ns();
}

void persisted_remove(struct persisted *persisted)
{
        if (persisted->generation != NULL)
                generation_set_stored(persisted->generation, STORED_REMOVING);
        persisted->error = (struct error){0};
        want_removal(persisted);
        work_submit(persisted->persist->thread, WORK_LANE_CPU, &persisted->work, remove_run, remove_done);
}

/* resident->remove_stored. The names whose fallback it is, or the messages, hold it up: what ends them reaps the
 * generation. First the next run must not be led to it any more. */
static void remove_stored(struct generation *generation)
{
        want_removal(generation->persisted);
        if (generation->stored != STORED_WHOLE || generation->n_fallbacks > 0)
                return;
        persist_sync(generation->persisted->persist);
        persisted_remove(generation->persisted);
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
        const struct fdstore_limit limit = limit_of(persisted->persist, persisted->stored_ns);
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
                persisted_remove(persisted); /* some of it may have been stored */
        }
        settle_names(generation);
        generation_due(persist, generation);
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

/* False: no memory. */
static bool store(struct persist *persist, struct generation *g)
{
        struct persisted *persisted =
                persisted_new(persist, g, ++persist->counters[SNAPSHOT_MODEL_IDS], g->n_segments + 1);
        if (persisted == NULL)
                return false;
        if (commit_record_pack(&persisted->details, g, persisted->id) < 0) {
                persisted_free(persisted);
                return false;
        }
        generation_set_stored(g, STORED_BEGUN);
        persisted->stored_ns = now_ns();
        work_submit(persist->thread, WORK_LANE_CPU, &persisted->work, store_run, store_done);
        return true;
}

/* Stores it if it serves and is not stored. What cannot be stored has no fallback either: its names have left that. */
static void store_new(struct persist *persist, struct generation *g)
{
        if (g->state != GENERATION_READY || g->persisted != NULL)
                return;
        bool fits = g->stored == STORED_NOT && can_be_stored(g);
        if (fits && has_capacity(persist, g) && store(persist, g))
                return;
        if (fits)
                list_append(&persist->waiting, &g->in_persist);
        if (fits && has_capacity(persist, g)) /* there was no memory */
                persist->due |= DUE_RETRY;
        settle_names(g);
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
        uint64_t asked_ns;
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
        const struct fdstore_limit limit = limit_of(batch->persist, batch->asked_ns);
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
        admit_waiting(persist);
        send_batch(persist);
}

/* False: it is to be tried again. */
static bool store_process(struct persist *persist, struct batch *batch, struct process *process)
{
        if (process->stored || process->exited || process->pidfd < 0)
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
        bool due = persist->n_exited > 0 || !list_empty(&persist->due_processes);
        if (!is_on(persist) || !due || persist->batch != NULL)
                return;
        struct batch *batch = calloc(1, sizeof(*batch));
        if (batch == NULL)
                return; /* tried again at the next tick */
        batch->persist = persist;
        while (persist->n_exited > 0 && batch->n < BATCH_MAX)
                batch->jobs[batch->n++] = (struct job){persist->exited[--persist->n_exited], -1};
        list_each_item_safe (struct process, process, &persist->due_processes, in_due) {
                if (!store_process(persist, batch, process))
                        break;
                list_remove(&process->in_due);
        }
        if (batch->n == 0) {
                free(batch);
                return;
        }
        persist->batch = batch;
        batch->asked_ns = now_ns();
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
}

/* ---- restored leases ---- */

/* It holds its model no longer; `ended`: no lease has its number. */
static void end_unverified(struct persist *persist, size_t i, bool ended)
{
        struct generation *generation = persist_generation(persist, persist->unverified[i].model);
        if (ended && is_on(persist))
                forget_lease(persist, persist->unverified[i].id);
        require(generation != NULL); /* what is held stays in the store */
        persist->unverified[i] = persist->unverified[--persist->n_unverified];
        generation_put(generation);
}

static void end_all_unverified(struct persist *persist)
{
        while (persist->n_unverified > 0)
                end_unverified(persist, persist->n_unverified - 1, true);
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
                end_unverified(persist, (size_t)(record - persist->unverified), false);
        return lease;
}

const struct lease_record *persist_unverified(const struct persist *persist, const unsigned char token[LEASE_TOKEN])
{
        for (size_t i = 0; i < persist->n_unverified; i++)
                if (memcmp(persist->unverified[i].token, token, LEASE_TOKEN) == 0)
                        return &persist->unverified[i];
        return NULL;
}

static struct persisted *persisted_of(const struct tree_node *node)
{
        return container_of(node, struct persisted, by_id);
}

static int compare_models(const struct tree_node *a, const struct tree_node *b)
{
        return ORDER(persisted_of(a)->id, persisted_of(b)->id);
}

static int compare_id(const void *id, const struct tree_node *node)
{
        return ORDER(*(const uint64_t *)id, persisted_of(node)->id);
}

struct generation *persist_generation(struct persist *persist, uint64_t id)
{
        const struct tree_node *node = tree_from(&persist->models, &id, compare_id);
        return node != NULL && persisted_of(node)->id == id ? persisted_of(node)->generation : NULL;
}

/* ---- life ---- */

/* Without a store. */
static void pack_for_file(struct persist *persist)
{
        if (!(persist->due & DUE_CHANGES) || persist->file.folder == NULL)
                return;
        examine_changed(persist);
        done(persist, DUE_CHANGES);
        if (pack_rows(persist, NULL) < 0)
                persist->due |= DUE_RETRY; /* those that were not packed are still due */
}

uint64_t persist_tick(struct persist *persist, uint64_t now)
{
        if (persist->frozen)
                return UINT64_MAX;
        if (persist->claim_until_ns != 0 && now >= persist->claim_until_ns) {
                persist->claim_until_ns = 0;
                end_all_unverified(persist);
        }
        if (persist->due & DUE_RETRY) {
                persist->due |= DUE_CHANGES;
                admit_waiting(persist);
        }
        done(persist, DUE_RETRY);
        begin_file(persist);
        if (is_on(persist))
                persist_sync(persist);
        else
                pack_for_file(persist);
        save(persist);
        send_batch(persist);
        /* What waits for the store or for a worker is due again when that has answered. */
        bool file_due = (persist->due & DUE_FILE) && persist->file.folder != NULL && !persist->file.writing;
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
        tree_init(&persist->models, compare_models);
        journal_init(&persist->journal);
        list_init(&persist->changed);
        list_init(&persist->waiting);
        list_init(&persist->due_leases);
        list_init(&persist->due_processes);
        items_init(&persist->file.rows);
        resident->persist = leases->persist = persist;
        resident->remove_stored = remove_stored;
        resident->generation_due = generation_due;
        resident->name_due = name_due;
        leases->lease_made = lease_made;
        leases->lease_ended = lease_ended;
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

void persist_start(struct persist *persist, struct work_pool *pool, const char *folder,
                   persist_mark_desired mark_desired, persist_desired desired_row, const struct desired *desired)
{
        persist->file.pool = pool;
        persist->file.folder = persist->file.unread ? NULL : folder;
        persist->mark_desired = mark_desired;
        persist->desired_row = desired_row;
        persist->desired = desired;
        persist->frozen = false;
        persist->tracks = persist->memory.fd >= 0 || persist->file.folder != NULL;
        if (!persist->tracks)
                return;
        list_each_item (struct generation, g, &persist->resident->generations, link)
                generation_due(persist, g);
        /* The file, so that a folder that cannot be written is reported. */
        persist->due |= DUE_CHANGES | DUE_WHOLE | DUE_NAMES | DUE_FILE;
}

void persist_freeze(struct persist *persist)
{
        restart_file(persist); /* the newest, also where a run without the store follows */
        persist_tick(persist, now_ns());
        persist->frozen = true;
        persist->tracks = false;
        end_all_unverified(persist);
        list_each_item (const struct generation, g, &persist->resident->generations, link)
                settle_names(g);
        tree_each_item_safe(struct persisted, persisted, &persist->models, by_id)
        {
                if (persisted->generation != NULL && persisted->generation->stored == STORED_WHOLE)
                        persisted_end(persisted);
        }
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
        items_deinit(&persist->file.rows);
        journal_deinit(&persist->journal);
        free(persist->ended);
        free(persist->unverified);
        free(persist->exited);
}
