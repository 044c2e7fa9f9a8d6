/* SPDX-License-Identifier: Apache-2.0
 *
 * Recovery: restores what an earlier run has left in the store.
 *
 *   sort descriptors by name > the journal, its rows by model and process > each complete model, newest first
 *   > processes
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

/* ---- descriptors of an earlier run ---- */

/* The descriptors of one model, or of one process (whose pidfd is in `record`), and its rows of the journal. */
struct inherited_set {
        struct list link, by_id;
        uint64_t id;
        int record;
        int segments[GENERATION_SEGMENTS];
        unsigned n_segments; /* one more than the highest number found */
        bool duplicate;      /* two have one name */
        bool leased;         /* a model: a lease leads to it */
        void **rows;         /* names of a model, leases of a process; in the order of the journal */
        size_t n_rows;
};

struct inherited_sets {
        struct list all; /* of struct inherited_set */
        struct buckets by_id;
};

struct inherited_fds {
        struct inherited_sets models, processes;
        int journal;
        unsigned journals;
};

static void inherited_sets_init(struct inherited_sets *sets)
{
        list_init(&sets->all);
        buckets_init(&sets->by_id);
}

static struct inherited_set *find_set(struct inherited_sets *sets, uint64_t id)
{
        list_each_item (struct inherited_set, set, bucket(&sets->by_id, id), by_id)
                if (set->id == id)
                        return set;
        return NULL;
}

static struct inherited_set *set_of(struct inherited_sets *sets, uint64_t id)
{
        struct inherited_set *set = find_set(sets, id);
        if (set != NULL)
                return set;
        set = calloc(1, sizeof(*set));
        require(set != NULL); /* at the start; a few hundred bytes */
        set->id = id;
        set->record = -1;
        for (size_t i = 0; i < GENERATION_SEGMENTS; i++)
                set->segments[i] = -1;
        list_append(&sets->all, &set->link);
        list_append(bucket(&sets->by_id, id), &set->by_id);
        return set;
}

/* Closes what was not taken out of it. */
static void inherited_set_free(struct inherited_set *set)
{
        close_p(&set->record);
        for (size_t i = 0; i < GENERATION_SEGMENTS; i++)
                close_p(&set->segments[i]);
        list_remove(&set->link);
        list_remove(&set->by_id);
        free(set->rows);
        free(set);
}

/* False: not a name of ours. */
static bool sort_one(struct inherited_fds *sets, const char *name, int fd)
{
        uint64_t id = 0;
        unsigned segment = 0;
        int process = 0, record = 0, part = 0; /* where the name ends, if it is of this kind */
        if (strcmp(name, PERSIST_JOURNAL) == 0) {
                close_p(&sets->journal);
                sets->journal = fd;
                sets->journals++;
                return true;
        }
        sscanf(name, PERSIST_PREFIX "p%" SCNu64 "%n", &id, &process);
        sscanf(name, PERSIST_PREFIX "m%" SCNu64 ".r%n", &id, &record);
        sscanf(name, PERSIST_PREFIX "m%" SCNu64 ".%u%n", &id, &segment, &part);
        if (name[process + record + part] != '\0' || id == 0 || (part > 0 && segment >= GENERATION_SEGMENTS))
                return false;
        struct inherited_set *set = set_of(process > 0 ? &sets->processes : &sets->models, id);
        int *place = part > 0 ? &set->segments[segment] : &set->record;
        set->duplicate |= *place >= 0;
        close_p(place);
        *place = fd;
        if (part > 0 && set->n_segments <= segment)
                set->n_segments = segment + 1;
        return true;
}

/* By their names; their contents are not examined here. Unknown ones are closed and removed. */
static void inherited_fds_sort(struct inherited_fds *sets, struct listen_fds *listen_fds)
{
        const char *name;
        int fd;
        sets->journal = -1;
        sets->journals = 0;
        inherited_sets_init(&sets->models);
        inherited_sets_init(&sets->processes);
        while ((fd = listen_fds_take_named(listen_fds, PERSIST_PREFIX, &name)) >= 0) {
                if (sort_one(sets, name, fd))
                        continue;
                log_warn("fd store: '%s' is nothing of this version's: dropped", name);
                close(fd);
                fdstore_remove(name);
        }
}

/* ---- the journal ---- */

static void open_journal(struct persist *persist, struct inherited_fds *sets)
{
        struct error error = {0};
        if (sets->journals == 1) {
                persist->journal = journal_open_consume_fd(sets->journal, &error);
                sets->journal = -1;
        } else if (sets->journals > 1) {
                error_set(&error, STREAMER_ECORRUPT, "the journal of leases: there are %u", sets->journals);
                close_p(&(int){take_fd(&sets->journal)});
        }
        if (persist->journal != NULL) {
                persist->used++;
                return;
        }
        if (sets->journals > 0) {
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

static void add_row(struct inherited_sets *sets, uint64_t id, void *row)
{
        struct inherited_set *set = find_set(sets, id);
        if (set == NULL)
                return;
        void **rows = array_grow(set->rows, set->n_rows, sizeof(void *));
        require(rows != NULL); /* at the start; some megabytes at most */
        set->rows = rows;
        rows[set->n_rows++] = row;
}

static void sort_rows(const struct journal *journal, struct inherited_fds *sets)
{
        for (struct journal_name *row = NULL; (row = journal_each(&journal->names, row)) != NULL;)
                add_row(&sets->models, row->model, row);
        for (struct journal_lease *row = NULL; (row = journal_each(&journal->leases, row)) != NULL;) {
                struct inherited_set *model = find_set(&sets->models, row->model);
                if (model != NULL)
                        model->leased = true;
                add_row(&sets->processes, row->process, row);
        }
}

/* ---- models ---- */

static int check_set(const struct inherited_set *set, struct error *error)
{
        if (set->duplicate)
                return error_set(error, STREAMER_ECORRUPT, "two descriptors have one name");
        if (set->record < 0)
                return error_set(error, STREAMER_ECORRUPT, "it was not committed: it has no commit record");
        if (set->n_rows == 0 && !set->leased)
                return error_set(error, STREAMER_ENOENT, "no name and no lease leads to it");
        return 0;
}

static int adopt_segments(struct generation *g, struct inherited_set *set, const struct model_record *record,
                          struct error *error)
{
        if (set->n_segments != record->n_segments)
                return error_set(error, STREAMER_ECORRUPT, "%u of %zu segments are there", set->n_segments,
                                 record->n_segments);
        for (unsigned i = 0; i < record->n_segments; i++) {
                if (set->segments[i] < 0)
                        return error_set(error, STREAMER_ECORRUPT, "segment %u is not there", i);
                int r = g->device->ops->adopt_consume_fd(g->device, take_fd(&set->segments[i]),
                                                         record->segments[i].size, record->segments[i].pages,
                                                         &g->segments[i], error);
                if (r < 0)
                        return r;
                g->segments[i].small_bytes = record->segments[i].small_bytes;
                g->n_segments++;
        }
        return 0;
}

/* A name, with its charge. */
static bool restore_name(struct quotas *users, struct generation *g, const struct journal_name *row)
{
        struct quota_charge charge = {.user = NULL};
        if (users != NULL && row->charged != 0 &&
            quota_charge_restored(users, row->charged - 1, &charge, QUOTA_MODELS, 1) < 0)
                return false;
        struct model_name *name = generation_find_name(g, row->text);
        if (name != NULL) { /* the provisional name is one of its own */
                name->owner = row->owner;
                name->charge = charge;
                return true;
        }
        bool added = generation_add_name(g, row->text, g->source, row->owner, &charge) == 0;
        quota_discharge(&charge);
        return added;
}

/* Its names from the journal, without those that a newer model has.
 *
 * A new generation has a provisional name until its own are known. If it is none of them it is removed before the
 * generation serves: it may belong to another one, with a lower number but stored later, which would lose it. */
static void restore_names(struct persisted *persisted, const struct inherited_set *set, const char *provisional)
{
        struct generation *g = persisted->generation;
        bool is_own = false;
        for (size_t i = 0; i < set->n_rows; i++) {
                struct journal_name *row = set->rows[i];
                bool mine = resident_on(g->resident, row->text, GENERATION_READY, g->device) == NULL &&
                            restore_name(persisted->persist->leases->users, g, row);
                if (mine) {
                        bool pinned = g->settings.pinned || row->settings.pinned;
                        g->settings = row->settings;
                        g->settings.pinned = pinned;
                        generation_used(g);
                }
                if (mine && persisted_add_name(persisted, row) == 0)
                        is_own |= strcmp(row->text, provisional) == 0;
                else
                        journal_drop(&persisted->persist->journal->names, row);
        }
        if (!is_own)
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

static int restore(struct persist *persist, struct inherited_set *set, struct model_record *record, struct table *table,
                   struct error *error)
{
        struct device *device = resident_device(persist->resident, record->device, NULL);
        if (record->id != set->id)
                return error_set(error, STREAMER_ECORRUPT, "the record is another's");
        if (device == NULL || !(device->caps & DEVICE_PERSISTENT))
                return error_set(error, STREAMER_ENOENT, "its device (%s) is not configured", record->device);
        struct generation *g =
                generation_new(persist->resident, record->name, record->source, device, record->caller.uid);
        if (g == NULL)
                return error_no_memory(error);
        model_record_move(record, g);
        g->unchecked = true;
        g->manifest = *table;
        *table = (struct table){.fd = -1};
        const struct manifest_view manifest = table_manifest(&g->manifest);
        int r = 0;
        if (strncmp(g->source, PUBLISHED_SOURCE, strlen(PUBLISHED_SOURCE)) == 0)
                r = published_read(&g->published, &manifest, error);
        if (r == 0)
                r = charge(persist, g, record->charged, error);
        if (r == 0)
                r = adopt_segments(g, set, record, error);
        struct persisted *persisted = r == 0 ? persisted_new(persist, g, set->id, g->n_segments + 1) : NULL;
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
        restore_names(persisted, set, record->name);
        return 0; /* its reference stays until leases are restored */
}

static void restore_model_set(struct persist *persist, struct inherited_set *set)
{
        struct model_record record = {.name = NULL};
        struct table table = {.fd = -1};
        struct error error = {0};
        int r = check_set(set, &error);
        if (r == 0)
                r = commit_record_read_consume_fd(&record, take_fd(&set->record), &table, &error);
        if (r == 0)
                r = restore(persist, set, &record, &table, &error);
        if (r == 0) {
                persist->recovered.models++;
        } else {
                persist->recovered.dropped++;
                log_warn("fd store: model %" PRIu64 "%s%s is dropped: %s", set->id, record.name != NULL ? ", " : "",
                         record.name != NULL ? record.name : "", error.text);
                table_drop(&table);
                /* The messages are sent once the threads run; clear_rows() drops its rows. */
                struct persisted *persisted = persisted_new(persist, NULL, set->id, set->n_segments + 1);
                if (persisted != NULL)
                        persisted_remove(persisted);
        }
        model_record_deinit(&record);
}

/* Newest first, by their ids. */
static void restore_models(struct persist *persist, struct inherited_fds *sets)
{
        struct list *models = &sets->models.all;
        while (!list_empty(models)) {
                struct inherited_set *newest = container_of(models->next, struct inherited_set, link);
                list_each_item (struct inherited_set, set, models, link)
                        if (set->id > newest->id)
                                newest = set;
                journal_raise(persist->journal, JOURNAL_MODEL, newest->id);
                restore_model_set(persist, newest);
                inherited_set_free(newest);
        }
}

/* ---- processes and their leases ---- */

static void restore_process(struct persist *persist, struct inherited_set *set)
{
        struct pollfd pidfd = {.fd = set->record, .events = POLLIN};
        bool alive = !set->duplicate && poll(&pidfd, 1, 0) <= 0;
        struct process *process = NULL;
        for (size_t i = 0; i < set->n_rows; i++) {
                struct journal_lease *row = set->rows[i];
                struct generation *g = alive ? persist_generation(persist, row->model) : NULL;
                struct lease *lease = NULL;
                if (g != NULL && process == NULL) {
                        process = leases_process_consume_fd(persist->leases, (pid_t)row->pid, row->uid,
                                                            take_fd(&set->record), 0);
                        if (process != NULL) {
                                process->persisted_id = set->id;
                                process->stored = true;
                                persist->used++;
                        }
                }
                if (g != NULL && process != NULL)
                        lease = persist_lease_restore(persist, process, g, row);
                if (lease == NULL) {
                        journal_drop(&persist->journal->leases, row);
                        continue;
                }
                lease->claim_until_ns = persist->claim_until_ns;
                if (g->state == GENERATION_DRAINING)
                        g->drained_by_ns = row->revoked_ns;
                else
                        __atomic_store_n(&row->revoked_ns, 0, __ATOMIC_RELEASE); /* it was restored with its name */
                persist->recovered.leases++;
        }
        if (process == NULL) {
                char name[PERSIST_NAME_MAX];
                persist_process_name(name, set->id);
                fdstore_remove(name);
        }
}

static void restore_processes(struct persist *persist, struct inherited_fds *sets)
{
        persist->claim_until_ns = now_ns() + CLAIM_NS;
        list_each_item_safe (struct inherited_set, set, &sets->processes.all, link) {
                journal_raise(persist->journal, JOURNAL_PROCESS, set->id);
                restore_process(persist, set);
                inherited_set_free(set);
        }
}

/* Rows of models that were not restored: their clients get an error when they reclaim. */
static void clear_rows(struct persist *persist)
{
        for (struct journal_name *row = NULL; (row = journal_each(&persist->journal->names, row)) != NULL;)
                if (persist_generation(persist, row->model) == NULL)
                        journal_drop(&persist->journal->names, row);
        for (struct journal_lease *row = NULL; (row = journal_each(&persist->journal->leases, row)) != NULL;)
                if (persist_generation(persist, row->model) == NULL)
                        journal_drop(&persist->journal->leases, row);
}

void persist_recover(struct persist *persist, struct listen_fds *listen_fds)
{
        struct inherited_fds sets;
        if (persist->max == 0)
                return;
        inherited_fds_sort(&sets, listen_fds);
        open_journal(persist, &sets);
        if (persist->journal == NULL)
                return;
        persist->frozen = true; /* restoring raises events that must not be written again */
        persist->resident->last_number = persist->journal->counters[JOURNAL_GENERATION];
        persist->leases->last_id = persist->journal->counters[JOURNAL_LEASE];
        sort_rows(persist->journal, &sets);
        restore_models(persist, &sets);
        restore_processes(persist, &sets);
        clear_rows(persist);
        persist->frozen = false;
        /* From now on a generation without names is freed with its last lease. */
        list_each_item_safe (struct persisted, persisted, &persist->models, link)
                if (persisted->generation != NULL)
                        generation_put(persisted->generation);
        resident_expire(persist->resident, now_ns()); /* revocations from before still hold */
        if (persist->recovered.models + persist->recovered.dropped > 0)
                log_info("fd store: %" PRIu64 " models and %" PRIu64 " leases restored, %" PRIu64 " models dropped",
                         persist->recovered.models, persist->recovered.leases, persist->recovered.dropped);
}
