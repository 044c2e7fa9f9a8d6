/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery: restores what an earlier run has left in the store.
 *
 *   the newest snapshot > sort descriptors, rows of names and leases by model and process
 *                       > each complete model, newest first > processes
 *
 * No descriptor is trusted for its name. A model is restored if its commit record is sealed and its checksum
 * matches, the store has exactly the segments that the record lists, sealed and of the right sizes, its device is
 * configured and has the capacity, and a name or the lease of a live process leads to it. Everything else is removed
 * from the store. Without a snapshot in the store nothing of it is restored.
 *
 * The newest model of a name gets it: an older one with the same name was being replaced.
 *
 * Runs once, before the loop, and may block. It reads manifests and no tensors: their bytes are compared later, in
 * the background (scrub.h).
 */
#include "daemon/resident/model.h"
#include "daemon/resident/persist/persist.h"

#include "daemon/base/fallback/peer.h"
#include "daemon/base/log/log.h"
#include "daemon/base/sys/systemd.h"
#include "daemon/base/thread/threads.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define CLAIM_NS (UINT64_C(60) * 1000000000)

/* ---- what an earlier run has left ---- */

enum inherited_kind { INHERITED_MODEL, INHERITED_PROCESS };

/* A descriptor of a model or a process, or a record of the snapshot that leads to it. */
struct inherited {
        enum inherited_kind kind;
        uint64_t id;
        /* A descriptor: 0 (a commit record or a pidfd), or one more than a segment's number. */
        unsigned part;
        int fd;             /* -1: a record, or taken */
        const void *record; /* the row of a name of the model; a lease of the process, which also leads to its model */
        size_t order;       /* of a record, in the snapshot */
};

static bool is_record(const struct inherited *one)
{
        return one->record != NULL;
}

/* Of records: they come after the descriptors. */
#define PART_NAME (GENERATION_SEGMENTS + 1)
#define PART_LEASE (GENERATION_SEGMENTS + 2)

struct inheritance {
        /* Sorted: models before processes, the newest first; of each the descriptors, then the records. */
        struct inherited *v;
        size_t n;
        int memory; /* of snapshots */
        unsigned memories;
};

static void inheritance_add(struct inheritance *all, struct inherited one)
{
        struct inherited *v = array_grow(all->v, all->n, sizeof(*v));
        require(v != NULL); /* at the start; some megabytes at most */
        all->v = v;
        v[all->n++] = one;
}

static int compare(const void *a, const void *b)
{
        const struct inherited *x = a, *y = b;
        int r = ORDER(x->kind, y->kind);
        if (r == 0)
                r = ORDER(y->id, x->id);
        if (r == 0)
                r = ORDER(x->part, y->part);
        return r != 0 ? r : ORDER(x->order, y->order);
}

/* Closes what was not taken out of it. */
static void inheritance_deinit(struct inheritance *all)
{
        close_p(&all->memory);
        for (size_t i = 0; i < all->n; i++)
                close_p(&all->v[i].fd);
        free(all->v);
}

/* Digits alone, and not 0. Returns what follows; NULL: it is no number. */
static const char *read_id(const char *text, uint64_t *id)
{
        char *end;
        errno = 0;
        *id = strtoull(text, &end, 10);
        return text[0] >= '1' && text[0] <= '9' && errno == 0 && *id < UINT64_MAX ? end : NULL;
}

/* sd-pID, sd-mID.r or sd-mID.SEGMENT. */
static bool read_name(struct inherited *one, const char *name)
{
        uint64_t segment;
        if (strncmp(name, PERSIST_PREFIX, strlen(PERSIST_PREFIX)) != 0)
                return false;
        name += strlen(PERSIST_PREFIX);
        one->kind = *name == 'p' ? INHERITED_PROCESS : INHERITED_MODEL;
        const char *rest = *name == 'p' || *name == 'm' ? read_id(name + 1, &one->id) : NULL;
        if (rest == NULL || one->kind == INHERITED_PROCESS)
                return rest != NULL && *rest == '\0';
        if (strcmp(rest, ".r") == 0)
                return true;
        if (strcmp(rest, ".0") == 0)
                segment = 0;
        else if (*rest != '.' || (rest = read_id(rest + 1, &segment)) == NULL || *rest != '\0')
                return false;
        one->part = (unsigned)segment + 1;
        return segment < GENERATION_SEGMENTS;
}

/* By its name; its contents are not examined here. False: not a name of ours. */
static bool add_fd(struct inheritance *all, const char *name, int fd)
{
        struct inherited one = {.fd = fd};
        if (strcmp(name, PERSIST_SNAPSHOT) == 0) {
                close_p(&all->memory);
                all->memory = fd;
                all->memories++;
                return true;
        }
        if (!read_name(&one, name))
                return false;
        inheritance_add(all, one);
        return true;
}

/* Unknown descriptors are closed and removed. */
static void add_fds(struct inheritance *all, struct listen_fds *listen_fds, const struct fdstore_limit *limit)
{
        const char *name;
        int fd;
        while ((fd = listen_fds_take_named(listen_fds, PERSIST_PREFIX, &name)) >= 0) {
                if (add_fd(all, name, fd))
                        continue;
                log_warn("fd store: '%s' is nothing of this version's: dropped", name);
                close(fd);
                fdstore_remove(name, limit);
        }
}

static void add_records(struct inheritance *all, const struct snapshot *snapshot)
{
        for (size_t i = 0; i < snapshot->n_rows; i++) {
                const struct name_row *row = &snapshot->rows[i];
                for (size_t k = 0; k < row->n_models; k++)
                        inheritance_add(all,
                                        (struct inherited){INHERITED_MODEL, row->models[k], PART_NAME, -1, row, i});
        }
        for (size_t i = 0; i < snapshot->n_leases; i++) {
                const struct lease_record *lease = &snapshot->leases[i];
                inheritance_add(all, (struct inherited){INHERITED_MODEL, lease->model, PART_LEASE, -1, lease, i});
                inheritance_add(all, (struct inherited){INHERITED_PROCESS, lease->process, PART_LEASE, -1, lease, i});
        }
}

/* ---- the snapshot ---- */

/* The store's, which stays the place of the next ones. */
static void open_memory(struct persist *persist, struct inheritance *all, struct snapshot *snapshot,
                        const struct fdstore_limit *limit)
{
        struct error error = {0};
        int r = all->memories == 1
                        ? snapshot_memory_open_consume_fd(&persist->memory, take_fd(&all->memory), snapshot, &error)
                : all->memories > 1 ? error_set(&error, STREAMER_ECORRUPT, "the snapshots: there are %u", all->memories)
                                    : STREAMER_ENOENT;
        persist->used++;
        if (r == 0)
                return;
        if (all->memories > 0) {
                log_error("fd store: nothing can be restored: %s", error.text);
                fdstore_remove(PERSIST_SNAPSHOT, limit);
        }
        if (snapshot_memory_new(&persist->memory, &error) < 0) {
                log_error("fd store: nothing will be persisted: %s", error.text);
                return;
        }
        r = fdstore_add(PERSIST_SNAPSHOT, persist->memory.fd, limit);
        if (r < 0)
                log_error("fd store: the service manager does not answer: %s", strerror(-r));
}

/* ---- models ---- */

/* The descriptors of a model are its commit record, then its segments in order. */
static int check_parts(const struct inherited *e, size_t n, struct error *error)
{
        for (size_t i = 1; i < n; i++)
                if (!is_record(&e[i]) && e[i].part == e[i - 1].part)
                        return error_set(error, STREAMER_ECORRUPT, "two descriptors have one name");
        if (e[0].part != 0)
                return error_set(error, STREAMER_ECORRUPT, "it was not committed: it has no commit record");
        if (!is_record(&e[n - 1]))
                return error_set(error, STREAMER_ENOENT, "no name and no lease leads to it");
        return 0;
}

static int adopt_segments(struct generation *g, struct inherited *segments, size_t n,
                          const struct commit_record *record, struct error *error)
{
        if (n != record->n_segments)
                return error_set(error, STREAMER_ECORRUPT, "%zu of %zu segments are there", n, record->n_segments);
        if (generation_make_segments(g, n) < 0)
                return error_no_memory(error);
        for (unsigned i = 0; i < n; i++) {
                if (segments[i].part != i + 1)
                        return error_set(error, STREAMER_ECORRUPT, "segment %u is not there", i);
                int r = g->device->ops->adopt_consume_fd(g->device, take_fd(&segments[i].fd), record->segments[i].size,
                                                         record->segments[i].pages, &g->segments[i], error);
                if (r < 0)
                        return r;
                g->segments[i].small_bytes = record->segments[i].small_bytes;
                g->n_segments++;
        }
        return 0;
}

/* The row of a name that no newer model has; else NULL. */
static const struct name_row *find_name(const struct inherited *one, struct resident *resident,
                                        const struct device *device)
{
        const struct name_row *row = one->part == PART_NAME ? one->record : NULL;
        return row != NULL && resident_on(resident, row->name, GENERATION_READY, device) == NULL ? row : NULL;
}

static void restore_name(struct quotas *users, struct generation *g, const struct inherited *one,
                         const struct name_row *stands)
{
        const struct name_row *row = find_name(one, g->resident, g->device);
        struct name_charges charges = {.name = {.user = NULL}};
        if (row == NULL || generation_has_name(g, row->name) ||
            (users != NULL && row != stands && row->charged != 0 &&
             quota_hold(users, (uid_t)(row->charged - 1), &charges.name, QUOTA_MODELS, 1) < 0))
                return;
        int r = generation_add_name(g, row->name, row->source != NULL ? row->source : g->source,
                                    row->source != NULL ? &row->caller : NULL, row->owner, &charges);
        quota_discharge(&charges.name);
        if (r < 0)
                return;
        struct model_name *name = generation_find_name(g, row->name);
        model_name_set_settings(name, &row->settings, 0);
        g->stale = row->stale;
        if (row == stands)
                g->standing = name;
}

/* Of the rows of a model the one whose user is charged for it: the first that has no charge of its own, else the
 * oldest. NULL: no name leads to it. */
static const struct name_row *find_standing(const struct inherited *e, size_t n, struct resident *resident,
                                            const struct device *device)
{
        const struct name_row *oldest = NULL;
        for (size_t i = 0; i < n; i++) {
                const struct name_row *row = find_name(&e[i], resident, device);
                if (row != NULL && row->charged == 0)
                        return row;
                oldest = oldest ?: row;
        }
        return oldest;
}

/* Charges the device and the user. */
static int charge(struct persist *persist, struct generation *g, const struct commit_record *record,
                  const struct name_row *stands, struct error *error)
{
        struct quotas *users = persist->leases->users;
        uint64_t sizes[GENERATION_SEGMENTS];
        uid_t uid = g->caller->uid;
        if (stands != NULL && stands->charged != 0)
                uid = (uid_t)(stands->charged - 1);
        else if (stands != NULL && stands->source != NULL)
                uid = stands->caller.uid;
        for (size_t i = 0; i < record->n_segments; i++)
                sizes[i] = record->segments[i].size;
        uint64_t bytes = generation_needs(sizes, record->n_segments, g->manifest.size);
        int r = generation_charge(g, bytes, error);
        if (r == 0 && users != NULL &&
            (quota_hold(users, uid, &g->quota_charge, QUOTA_BYTES, bytes) < 0 ||
             quota_hold(users, uid, &g->model_charge, QUOTA_MODELS, 1) < 0))
                r = error_no_memory(error);
        return r;
}

static int restore(struct persist *persist, struct inherited *e, size_t n, struct commit_record *record,
                   struct error *error)
{
        struct device *device = resident_device(persist->resident, record->device, NULL);
        size_t n_fds = 1;
        while (n_fds < n && !is_record(&e[n_fds]))
                n_fds++;
        if (record->id != e->id)
                return error_set(error, STREAMER_ECORRUPT, "the record is another's");
        if (device == NULL || !(device->caps & DEVICE_PERSISTENT))
                return error_set(error, STREAMER_ENOENT, "its device (%s) is not configured", record->device);
        /* Provisional, and removed below: where no name leads to it, messages use the last one. */
        const struct name_row *stands = find_standing(e, n, persist->resident, device);
        const char *name = stands != NULL ? "" : record->name;
        struct generation *g = generation_new(persist->resident, name, record->source, device, record->caller.uid);
        if (g == NULL)
                return error_no_memory(error);
        list_append(&persist->resident->unchecked, &g->in_unchecked);
        int r = commit_record_restore(record, g, error)
                        ?: charge(persist, g, record, stands, error)
                        ?: adopt_segments(g, e + 1, n_fds - 1, record, error);
        struct persisted *persisted = r == 0 ? persisted_new(persist, g, e->id, (unsigned)n_fds) : NULL;
        if (r == 0 && persisted == NULL)
                r = error_no_memory(error);
        if (r < 0) { /* undone at once and without an event: no client has seen it */
                generation_release_segments(g);
                g->n_segments = 0;
                table_drop(&g->manifest);
                generation_uncharge(g);
                generation_discard(g);
                generation_put(g);
                return r;
        }
        persisted_stored(persisted);
        for (size_t i = 0; i < n; i++)
                restore_name(persist->leases->users, g, &e[i], stands);
        generation_drop_name(g, name);
        generation_used(g);
        generation_ready(g);
        return 0; /* its reference stays until leases are restored */
}

/* A model whose descriptors are in the store, and its commit record, if it has one. */
struct opened {
        struct inherited *e;
        size_t n;
        struct commit_record record;
        int r;
        struct error error;
};

/* Several threads open records: each is hashed, checked and copied. */
struct openings {
        struct opened *v;
        size_t n, next; /* next: atomic */
};

static void open_records(void *arg)
{
        struct openings *all = arg;
        for (size_t i; (i = __atomic_fetch_add(&all->next, 1, __ATOMIC_RELAXED)) < all->n;) {
                struct opened *model = &all->v[i];
                model->record = (struct commit_record){.file.fd = -1, .manifest.fd = -1};
                model->r =
                        check_parts(model->e, model->n, &model->error)
                                ?: commit_record_open_consume_fd(&model->record, take_fd(&model->e->fd), &model->error);
        }
}

static void restore_model(struct persist *persist, struct opened *model)
{
        const struct inherited *e = model->e;
        struct commit_record *record = &model->record;
        int r = model->r ?: restore(persist, model->e, model->n, record, &model->error);
        if (r < 0) {
                unsigned n_fds = 0;
                for (size_t i = 0; i < model->n && !is_record(&e[i]); i++)
                        n_fds = e[i].part + 1;
                log_warn("fd store: model %" PRIu64 "%s%s is dropped: %s", e->id, record->name != NULL ? ", " : "",
                         record->name != NULL ? record->name : "", model->error.text);
                /* The messages are sent once the threads run. */
                struct persisted *persisted = persisted_new(persist, NULL, e->id, n_fds);
                if (persisted != NULL)
                        persisted_remove(persisted);
        }
        commit_record_deinit(record);
}

/* ---- processes and their leases ---- */

/* A process without a descriptor in the store, of which this is a lease: the one of its number, if that had begun by
 * then. NULL: it has exited, or it is not known. */
static struct process *find_process(struct persist *persist, const struct lease_record *record)
{
        uint64_t began, since_boot = record->since_ns + (read_clock_ns(CLOCK_BOOTTIME) - now_ns());
        int fd = pidfd_of_process((pid_t)record->pid, since_boot, &began);
        if (fd < 0 && began == 0)
                return NULL;
        return leases_process_consume_fd(persist->leases, (pid_t)record->pid, record->uid, fd, began);
}

/* A lease of a process in another PID namespace whose descriptor is missing: whether it lives is not known, so it holds
 * the model until the time to claim it is over. */
static void hold_unverified(struct persist *persist, struct generation *g, const struct lease_record *record)
{
        struct lease_record *all = array_grow(persist->unverified, persist->n_unverified, sizeof(*all));
        require(all != NULL); /* at the start */
        persist->unverified = all;
        all[persist->n_unverified++] = *record;
        generation_get(g);
}

static void restore_lease(struct persist *persist, struct process *process, struct generation *g,
                          const struct lease_record *record)
{
        struct lease *lease = persist_lease_restore(persist, process, g, record);
        if (lease == NULL)
                return;
        lease->claim_until_ns = persist->claim_until_ns;
        if (g->state == GENERATION_DRAINING)
                generation_drain_until(g, record->revoked_ns);
}

/* Its descriptor in the store, or (-1) none that is to be believed. */
static struct process *restore_leases(struct persist *persist, struct inherited *records, size_t n, int pidfd)
{
        cleanup_close int fd = pidfd;
        struct process *process = NULL;
        for (size_t i = 0; i < n; i++) {
                const struct lease_record *record = records[i].record;
                struct generation *g = persist_generation(persist, record->model);
                if (g == NULL)
                        continue;
                if (process == NULL && fd >= 0)
                        process = leases_process_consume_fd(persist->leases, (pid_t)record->pid, record->uid,
                                                            take_fd(&fd), 0);
                else if (process == NULL && record->pid > 0)
                        process = find_process(persist, record);
                if (process != NULL)
                        restore_lease(persist, process, g, record);
                else if (record->pid == 0)
                        hold_unverified(persist, g, record);
        }
        return process;
}

/* Of two descriptors neither is believed; one that was stored late may be missing. */
static void restore_process(struct persist *persist, struct inherited *e, size_t n, const struct fdstore_limit *limit)
{
        size_t n_fds = 0;
        while (n_fds < n && !is_record(&e[n_fds]))
                n_fds++;
        struct pollfd pidfd = {.fd = n_fds == 1 ? e->fd : -1, .events = POLLIN};
        bool exited = n_fds == 1 && poll(&pidfd, 1, 0) != 0;
        struct process *process =
                exited ? NULL : restore_leases(persist, e + n_fds, n - n_fds, n_fds == 1 ? take_fd(&e->fd) : -1);
        if (process != NULL && n_fds == 1) {
                process->stored = true;
                persist->used++;
        } else if (n_fds > 0) {
                persist_send_process(e->id, -1, limit);
        }
}

/* ---- all of it ---- */

/* What is sorted from i on of one model or process. */
static size_t count_of(const struct inheritance *all, size_t i)
{
        const struct inherited *e = &all->v[i];
        size_t n = 1;
        while (i + n < all->n && e[n].kind == e->kind && e[n].id == e->id)
                n++;
        return n;
}

/* One model or process after the other. */
static void restore_all(struct persist *persist, struct inheritance *all, const struct fdstore_limit *limit)
{
        struct openings models = {.n = 0};
        if (all->n > 0)
                qsort(all->v, all->n, sizeof(*all->v), compare);
        for (size_t i = 0, n; i < all->n; i += n) {
                struct inherited *e = &all->v[i];
                n = count_of(all, i);
                uint64_t *last =
                        &persist->counters[e->kind == INHERITED_MODEL ? SNAPSHOT_MODEL_IDS : SNAPSHOT_PROCESS_IDS];
                if (!is_record(e) && *last < e->id)
                        *last = e->id;
                if (e->kind != INHERITED_MODEL || is_record(e))
                        continue;
                models.v = array_grow(models.v, models.n, sizeof(*models.v));
                require(models.v != NULL); /* at the start */
                models.v[models.n++] = (struct opened){.e = e, .n = n};
        }
        size_t beside = models.n > THREADS_BESIDE ? THREADS_BESIDE : models.n > 0 ? models.n - 1 : 0;
        threads_run((unsigned)beside, "recover", open_records, &models);
        for (size_t i = 0; i < models.n; i++) /* before the leases of processes */
                restore_model(persist, &models.v[i]);
        free(models.v);
        for (size_t i = 0, n; i < all->n; i += n) {
                n = count_of(all, i);
                if (all->v[i].kind == INHERITED_PROCESS)
                        restore_process(persist, &all->v[i], n, limit);
        }
}

static void restore_store(struct persist *persist, struct inheritance *all, const struct snapshot *snapshot,
                          const struct fdstore_limit *limit)
{
        size_t n_restored = 0, n_dropped = 0;
        memcpy(persist->counters, snapshot->counters, sizeof(persist->counters));
        persist->leases->last_id = snapshot->counters[SNAPSHOT_LEASE_IDS];
        persist->claim_until_ns = now_ns() + CLAIM_NS;
        add_records(all, snapshot);
        restore_all(persist, all, limit);
        tree_each_item(const struct persisted, persisted, &persist->models, by_id)
        {
                n_restored += persisted->generation != NULL;
                n_dropped += persisted->generation == NULL;
                /* From now on a generation without names is freed with its last lease. */
                if (persisted->generation != NULL)
                        generation_put(persisted->generation);
        }
        resident_expire(persist->resident, now_ns()); /* revocations from before still hold */
        if (n_restored + n_dropped > 0)
                log_info("fd store: %zu models and %zu leases restored, %zu models dropped", n_restored,
                         persist->leases->n, n_dropped);
}

void persist_recover(struct persist *persist, struct listen_fds *listen_fds, const char *folder,
                     struct snapshot *newest)
{
        cleanup_with(inheritance_deinit) struct inheritance all = {.memory = -1};
        cleanup_with(snapshot_deinit) struct snapshot stored = {0};
        const struct fdstore_limit limit = persist_limit_start(persist);
        uint64_t *last = &persist->resident->last_number;
        struct error error;
        *newest = (struct snapshot){0};
        int r = folder != NULL ? snapshot_load(newest, folder, &error) : STREAMER_ENOENT;
        persist->file.unread = r == STREAMER_EOS;
        if (r == STREAMER_ECORRUPT)
                log_error("%s; what it alone had is lost (%s)", error.text, folder);
        else if (r == STREAMER_EOS)
                log_error("%s; it is left as it is, and no pin is persisted before a restart reads it (%s)", error.text,
                          folder);
        else if (r < 0 && r != STREAMER_ENOENT)
                log_error("%s", error.text);
        if (persist->max > 0) {
                add_fds(&all, listen_fds, &limit);
                open_memory(persist, &all, &stored, &limit);
        }
        *last = newest->last_number > stored.last_number ? newest->last_number : stored.last_number;
        if (persist->memory.fd >= 0)
                restore_store(persist, &all, &stored, &limit);
        /* The file may be older, or be that of a run without a store. */
        if (persist->counters[SNAPSHOT_WRITES] < newest->counters[SNAPSHOT_WRITES])
                persist->counters[SNAPSHOT_WRITES] = newest->counters[SNAPSHOT_WRITES];
        if (newest->counters[SNAPSHOT_WRITES] < stored.counters[SNAPSHOT_WRITES]) {
                snapshot_deinit(newest);
                *newest = stored;
                stored = (struct snapshot){0};
        }
}
