/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery: restores what an earlier run has left in the store.
 *
 *   sort descriptors and the journal's rows by model and process > each complete model, newest first > processes
 *
 * No descriptor is trusted for its name. A model is restored if its commit record is sealed and its checksum
 * matches, the store has exactly the segments that the record lists, sealed and of the right sizes, its device is
 * configured and has the capacity, and a name or the lease of a live process leads to it. Everything else is removed
 * from the store. Without the journal nothing is restored.
 *
 * The newest model of a name gets it: an older one with the same name was being replaced.
 *
 * Runs once, before the loop, and may block. It reads manifests and no tensors: their bytes are compared later, in
 * the background (scrub.h).
 */
#include "daemon/resident/model.h"
#include "daemon/resident/persist/persist.h"

#include "daemon/base/log/log.h"
#include "daemon/base/sys/systemd.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

#define CLAIM_NS (UINT64_C(60) * 1000000000)

/* ---- what an earlier run has left ---- */

enum inherited_kind { INHERITED_MODEL, INHERITED_PROCESS };

/* A descriptor of a model or a process, or a row of the journal that leads to it. */
struct inherited {
        enum inherited_kind kind;
        uint64_t id;
        /* A descriptor: 0 (a commit record or a pidfd), or one more than a segment's number. */
        unsigned part;
        int fd;    /* -1: a row, or taken */
        void *row; /* a name of the model, or a lease of the process; of a model, also a lease that leads to it */
};

#define PART_ROW (GENERATION_SEGMENTS + 1)
#define PART_LEASE (GENERATION_SEGMENTS + 2)

struct inheritance {
        struct inherited *v; /* sorted: models before processes, the newest first; of each the descriptors, then rows */
        size_t n;
        int journal;
        unsigned journals;
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
        return r != 0 ? r : ORDER((uintptr_t)x->row, (uintptr_t)y->row);
}

/* Closes what was not taken out of it. */
static void inheritance_deinit(struct inheritance *all)
{
        close_p(&all->journal);
        for (size_t i = 0; i < all->n; i++)
                close_p(&all->v[i].fd);
        free(all->v);
}

/* By its name; its contents are not examined here. False: not a name of ours. */
static bool add_fd(struct inheritance *all, const char *name, int fd)
{
        struct inherited one = {.fd = fd};
        unsigned segment = 0;
        int process = 0, record = 0, part = 0; /* where the name ends, if it is of this kind */
        if (strcmp(name, PERSIST_JOURNAL) == 0) {
                close_p(&all->journal);
                all->journal = fd;
                all->journals++;
                return true;
        }
        sscanf(name, PERSIST_PREFIX "p%" SCNu64 "%n", &one.id, &process);
        sscanf(name, PERSIST_PREFIX "m%" SCNu64 ".r%n", &one.id, &record);
        sscanf(name, PERSIST_PREFIX "m%" SCNu64 ".%u%n", &one.id, &segment, &part);
        if (name[process + record + part] != '\0' || one.id == 0 || (part > 0 && segment >= GENERATION_SEGMENTS))
                return false;
        one.kind = process > 0 ? INHERITED_PROCESS : INHERITED_MODEL;
        one.part = part > 0 ? segment + 1 : 0;
        inheritance_add(all, one);
        return true;
}

/* Unknown descriptors are closed and removed. */
static void add_fds(struct inheritance *all, struct listen_fds *listen_fds)
{
        const char *name;
        int fd;
        while ((fd = listen_fds_take_named(listen_fds, PERSIST_PREFIX, &name)) >= 0) {
                if (add_fd(all, name, fd))
                        continue;
                log_warn("fd store: '%s' is nothing of this version's: dropped", name);
                close(fd);
                fdstore_remove(name);
        }
}

static void add_rows(struct inheritance *all, const struct journal *journal)
{
        for (struct journal_name *row = NULL; (row = journal_each(&journal->names, row)) != NULL;)
                inheritance_add(all, (struct inherited){INHERITED_MODEL, row->model, PART_ROW, -1, row});
        for (struct journal_lease *row = NULL; (row = journal_each(&journal->leases, row)) != NULL;) {
                inheritance_add(all, (struct inherited){INHERITED_MODEL, row->model, PART_LEASE, -1, row});
                inheritance_add(all, (struct inherited){INHERITED_PROCESS, row->process, PART_ROW, -1, row});
        }
}

/* ---- the journal ---- */

static void open_journal(struct persist *persist, struct inheritance *all)
{
        struct error error = {0};
        if (all->journals == 1)
                persist->journal = journal_open_consume_fd(take_fd(&all->journal), &error);
        else if (all->journals > 1)
                error_set(&error, STREAMER_ECORRUPT, "the journal of leases: there are %u", all->journals);
        if (persist->journal != NULL) {
                persist->used++;
                return;
        }
        if (all->journals > 0) {
                log_error("fd store: nothing can be restored: %s", error.text);
                fdstore_remove(PERSIST_JOURNAL);
        }
        persist->journal = journal_new(&error);
        if (persist->journal == NULL) {
                log_error("fd store: nothing will be persisted: %s", error.text);
                return;
        }
        int r = fdstore_add(PERSIST_JOURNAL, persist->journal->fd);
        if (r < 0)
                log_error("fd store: the service manager does not answer: %s", strerror(-r));
        persist->used++;
}

/* ---- models ---- */

/* The descriptors of a model are its commit record, then its segments in order. */
static int check_parts(const struct inherited *e, size_t n, struct error *error)
{
        for (size_t i = 1; i < n; i++)
                if (e[i].row == NULL && e[i].part == e[i - 1].part)
                        return error_set(error, STREAMER_ECORRUPT, "two descriptors have one name");
        if (e[0].part != 0)
                return error_set(error, STREAMER_ECORRUPT, "it was not committed: it has no commit record");
        if (e[n - 1].row == NULL)
                return error_set(error, STREAMER_ENOENT, "no name and no lease leads to it");
        return 0;
}

static int adopt_segments(struct generation *g, struct inherited *segments, size_t n,
                          const struct commit_record *record, struct error *error)
{
        if (n != record->n_segments)
                return error_set(error, STREAMER_ECORRUPT, "%zu of %zu segments are there", n, record->n_segments);
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

/* A name, with its charge; NULL where it has another row already, and without memory. */
static struct model_name *restore_name(struct quotas *users, struct generation *g, const struct journal_name *row)
{
        struct quota_charge charge = {.user = NULL};
        struct model_name *name = generation_find_name(g, row->text);
        if ((name != NULL && name->row != NULL) ||
            (users != NULL && row->charged != 0 &&
             quota_charge_restored(users, row->charged - 1, &charge, QUOTA_MODELS, 1) < 0))
                return NULL;
        if (name != NULL) { /* the provisional name is one of its own */
                name->owner = row->owner;
                name->charge = charge;
                return name;
        }
        generation_add_name(g, row->text, g->source, row->owner, &charge);
        quota_discharge(&charge);
        return generation_find_name(g, row->text);
}

/* Its names from the journal, without those that a newer model has.
 *
 * A new generation has a provisional name until its own are known. If it is none of them it is removed before the
 * generation serves: it may belong to another one, with a lower number but stored later, which would lose it. */
static void restore_names(struct persisted *persisted, const struct inherited *e, size_t n, const char *provisional)
{
        struct generation *g = persisted->generation;
        for (size_t i = 0; i < n; i++) {
                struct journal_name *row = e[i].part == PART_ROW ? e[i].row : NULL;
                struct model_name *name = NULL;
                if (row == NULL)
                        continue;
                if (resident_on(g->resident, row->text, GENERATION_READY, g->device) == NULL)
                        name = restore_name(persisted->persist->leases->users, g, row);
                if (name == NULL) {
                        journal_drop(&persisted->persist->journal->names, row);
                        continue;
                }
                name->row = row;
                persisted->n_names++;
                bool pinned = g->settings.pinned || row->settings.pinned;
                g->settings = row->settings;
                g->settings.pinned = pinned;
                generation_used(g);
        }
        if (generation_find_name(g, provisional)->row == NULL)
                generation_drop_name(g, provisional);
        generation_ready(g);
}

/* Charges the device and the user. */
static int charge(struct persist *persist, struct generation *g, uint64_t bytes, struct error *error)
{
        struct quotas *users = persist->leases->users;
        int r = generation_charge(g, bytes, error);
        if (r == 0 && users != NULL &&
            (quota_charge_restored(users, g->caller.uid, &g->quota_charge, QUOTA_BYTES, bytes) < 0 ||
             quota_charge_restored(users, g->caller.uid, &g->model_charge, QUOTA_MODELS, 1) < 0))
                r = error_no_memory(error);
        return r;
}

static int restore(struct persist *persist, struct inherited *e, size_t n, struct commit_record *record,
                   struct error *error)
{
        struct device *device = resident_device(persist->resident, record->device, NULL);
        size_t n_fds = 1;
        while (n_fds < n && e[n_fds].row == NULL)
                n_fds++;
        if (record->id != e->id)
                return error_set(error, STREAMER_ECORRUPT, "the record is another's");
        if (device == NULL || !(device->caps & DEVICE_PERSISTENT))
                return error_set(error, STREAMER_ENOENT, "its device (%s) is not configured", record->device);
        struct generation *g =
                generation_new(persist->resident, record->name, record->source, device, record->caller.uid);
        if (g == NULL)
                return error_no_memory(error);
        g->unchecked = true;
        int r = commit_record_restore(record, g, error)
                        ?: charge(persist, g, record->charged, error)
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
        persisted->state = PERSIST_STORED;
        restore_names(persisted, e, n, record->name);
        return 0; /* its reference stays until leases are restored */
}

/* Of a model that is not restored: its clients get an error when they reclaim. */
static void drop_rows(struct journal *journal, const struct inherited *e, size_t n)
{
        for (size_t i = 0; i < n; i++)
                if (e[i].row != NULL)
                        journal_drop(e[i].part == PART_ROW ? &journal->names : &journal->leases, e[i].row);
}

static void restore_model(struct persist *persist, struct inherited *e, size_t n)
{
        struct commit_record record = {.manifest.fd = -1};
        struct error error = {0};
        int r = check_parts(e, n, &error)
                        ?: commit_record_open_consume_fd(&record, take_fd(&e->fd), &error)
                        ?: restore(persist, e, n, &record, &error);
        if (r < 0) {
                unsigned n_fds = 0;
                for (size_t i = 0; i < n && e[i].row == NULL; i++)
                        n_fds = e[i].part + 1;
                log_warn("fd store: model %" PRIu64 "%s%s is dropped: %s", e->id, record.name != NULL ? ", " : "",
                         record.name != NULL ? record.name : "", error.text);
                drop_rows(persist->journal, e, n);
                /* The messages are sent once the threads run. */
                struct persisted *persisted = persisted_new(persist, NULL, e->id, n_fds);
                if (persisted != NULL)
                        persisted_remove(persisted);
        }
        commit_record_deinit(&record);
}

/* ---- processes and their leases ---- */

static void restore_process(struct persist *persist, struct inherited *e, size_t n)
{
        struct pollfd pidfd = {.fd = e->fd, .events = POLLIN};
        bool duplicate = n > 1 && e[1].row == NULL, alive = !duplicate && poll(&pidfd, 1, 0) <= 0;
        struct process *process = NULL;
        for (size_t i = 0; i < n; i++) {
                struct journal_lease *row = e[i].row;
                if (row == NULL)
                        continue;
                struct generation *g = alive ? persist_generation(persist, row->model) : NULL;
                if (g != NULL && process == NULL)
                        process = leases_process_consume_fd(persist->leases, (pid_t)row->pid, row->uid, take_fd(&e->fd),
                                                            0);
                struct lease *lease =
                        g != NULL && process != NULL ? persist_lease_restore(persist, process, g, row) : NULL;
                if (lease == NULL) {
                        journal_drop(&persist->journal->leases, row);
                        continue;
                }
                lease->claim_until_ns = persist->claim_until_ns;
                if (g->state == GENERATION_DRAINING)
                        g->drained_by_ns = row->revoked_ns;
                else
                        __atomic_store_n(&row->revoked_ns, 0, __ATOMIC_RELEASE); /* it was restored with its name */
        }
        if (process == NULL) {
                persist_send_process(e->id, -1);
                return;
        }
        process->stored = true;
        persist->used++;
}

/* ---- all of it ---- */

/* One model or process after the other. A process without a descriptor may still reclaim its leases. */
static void restore_all(struct persist *persist, struct inheritance *all)
{
        if (all->n > 0)
                qsort(all->v, all->n, sizeof(*all->v), compare);
        for (size_t i = 0, n; i < all->n; i += n) {
                struct inherited *e = &all->v[i];
                for (n = 1; i + n < all->n && e[n].kind == e->kind && e[n].id == e->id;)
                        n++;
                bool is_model = e->kind == INHERITED_MODEL;
                if (e->row != NULL) {
                        if (is_model)
                                drop_rows(persist->journal, e, n);
                        continue;
                }
                journal_raise(persist->journal, is_model ? JOURNAL_MODEL : JOURNAL_PROCESS, e->id);
                if (is_model)
                        restore_model(persist, e, n);
                else
                        restore_process(persist, e, n);
        }
}

void persist_recover(struct persist *persist, struct listen_fds *listen_fds)
{
        cleanup_with(inheritance_deinit) struct inheritance all = {.journal = -1};
        if (persist->max == 0)
                return;
        add_fds(&all, listen_fds);
        open_journal(persist, &all);
        if (persist->journal == NULL)
                return;
        persist->frozen = true; /* restoring raises events that must not be written again */
        persist->resident->last_number = persist->journal->counters[JOURNAL_GENERATION];
        persist->leases->last_id = persist->journal->counters[JOURNAL_LEASE];
        persist->claim_until_ns = now_ns() + CLAIM_NS;
        add_rows(&all, persist->journal);
        restore_all(persist, &all);
        persist->frozen = false;
        size_t n_restored = 0, n_dropped = 0;
        list_each_item (const struct persisted, persisted, &persist->models, link) {
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
