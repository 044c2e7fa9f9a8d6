/* SPDX-License-Identifier: Apache-2.0
 *
 * Taking back what an earlier run has left in the store:
 *
 *   sort descriptors by name > the book > each model whose set is whole, newest first > processes
 *
 * Nothing that was passed is trusted for its name. A model comes back if its record is sealed and its
 * checksum fits, exactly the segments that the record lists are there, in size and sealed, its device
 * is one of ours and has the room, and a name or the lease of a process that lives leads to it. What
 * does not come back leaves the store. Without the book nothing does.
 *
 * The newest model under a name gets it: an older one that has it too was on its way out.
 *
 * Runs once, before the loop does, and may block. It reads the manifests and not the tensors: whether
 * their bytes are what they were is checked later, in the background.
 */
#include "daemon/resident/expiry.h"
#include "daemon/resident/keep.h"
#include "daemon/resident/keep_rows.h"
#include "daemon/resident/keep_sets.h"

#include "daemon/base/fdstore.h"
#include "daemon/base/log.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

#define CLAIM_NS (UINT64_C(60) * 1000000000)

/* ---- the book ---- */

static void take_book(struct keep *keep, struct sets *sets)
{
        struct error error = {0};
        if (sets->books == 1) {
                keep->book = book_open_consume_fd(sets->book, &error);
                sets->book = -1;
        } else if (sets->books > 1) {
                error_set(&error, STREAMER_ECORRUPT, "the book of leases: there are %u", sets->books);
        }
        if (keep->book != NULL) {
                keep->used++;
                return;
        }
        if (sets->books > 0) {
                log_error("fd store: nothing can be taken back: %s", error.text);
                fdstore_remove(KEEP_BOOK);
        }
        keep->book = book_new(&error);
        if (keep->book == NULL) {
                log_error("fd store: nothing will be kept: %s", error.text);
                return;
        }
        int r = fdstore_add(KEEP_BOOK, book_fd(keep->book));
        if (r < 0)
                log_error("fd store: the service manager does not answer: %s", strerror(-r));
        keep->used++;
}

/* ---- models ---- */

static struct device *device_of(const struct resident *resident, const char *uuid)
{
        for (size_t i = 0; i < resident->n_devices; i++)
                if (strcmp(resident->devices[i]->uuid, uuid) == 0 && (resident->devices[i]->caps & DEVICE_KEPT))
                        return resident->devices[i];
        return NULL;
}

/* A process that lives and has a row for this model, or one of which nobody knows. */
static bool is_leased(const struct keep *keep, uint64_t id)
{
        size_t at = 0;
        return rows_next_lease(&keep->rows->leases, id, &at) != NULL;
}

static bool has_name(const struct keep *keep, uint64_t id)
{
        size_t at = 0;
        return rows_next_name(&keep->rows->names, id, &at) != NULL;
}

static int check_set(struct keep *keep, const struct set *set, struct error *error)
{
        if (set->twice)
                return error_set(error, STREAMER_ECORRUPT, "two descriptors have one name");
        if (set->record < 0)
                return error_set(error, STREAMER_ECORRUPT, "it was not committed: there is no record");
        if (!has_name(keep, set->id) && !is_leased(keep, set->id))
                return error_set(error, STREAMER_ENOENT, "no name and no lease leads to it");
        return 0;
}

static int adopt_segments(struct generation *g, struct set *set, const struct record *record, struct error *error)
{
        if (set->n_segments != record->n_segments)
                return error_set(error, STREAMER_ECORRUPT, "%u of %u segments are there", set->n_segments,
                                 record->n_segments);
        for (unsigned i = 0; i < record->n_segments; i++) {
                if (set->segments[i] < 0)
                        return error_set(error, STREAMER_ECORRUPT, "segment %u is not there", i);
                int r = g->device->ops->adopt_consume_fd(g->device, take_fd(&set->segments[i]), record->sizes[i],
                                                         record->pages[i], &g->segments[i], error);
                if (r < 0)
                        return r;
                g->n_segments++;
        }
        return 0;
}

static void fill_generation(struct generation *g, struct record *record, struct table *table)
{
        g->origin = record->origin;
        record->origin = (struct origin){0};
        g->loaded_by = g->origin.uid;
        g->unchecked = true;
        g->number = record->number;
        g->identity = record->identity;
        g->has_identity = record->has_identity;
        g->verified = record->verified;
        g->data_bytes = record->data_bytes;
        g->n_tensors = record->n_tensors;
        g->load_ns = record->load_ns;
        g->manifest = *table;
        *table = (struct table){.fd = -1};
        memcpy(g->digest, record->digest, DIGEST_SIZE);
}

static void take_wish(struct generation *g, const struct book_wish *wish)
{
        g->keep_alive_ns = wish->keep_alive_ns;
        g->drain_timeout_ns = wish->drain_timeout_ns;
        g->priority = wish->priority <= PROTO_PRIORITY_MAX ? wish->priority : PROTO_PRIORITY_DEFAULT;
        g->pinned = g->pinned || wish->pinned != 0;
        generation_used(g);
}

/* The one that it is called by until its own are known turns out to be one of these. */
static void own_name(struct generation *g, const struct book_name *row, struct user_charge *charge)
{
        list_each (pos, &g->names) {
                struct model_name *name = container_of(pos, struct model_name, link);
                if (strcmp(name->text, row->text) != 0)
                        continue;
                name->owner = row->wish.owner;
                name->charge = *charge;
                *charge = (struct user_charge){.user = NULL};
        }
}

/* A further name, with whoever was charged with it. */
static bool take_name(struct users *users, struct generation *g, const struct book_name *row)
{
        struct user_charge charge = {.user = NULL};
        bool taken = true;
        if (users != NULL && row->wish.charged != 0 &&
            user_charge_again(users, row->wish.charged - 1, &charge, USER_MODELS, 1) < 0)
                return false;
        if (generation_has_name(g, row->text))
                own_name(g, row, &charge);
        else
                taken = generation_add_name(g, row->text, row->wish.owner, &charge) == 0;
        user_discharge(&charge);
        return taken;
}

/* Its names from the book; one that a newer model has is that one's. */
static void take_names(struct kept *kept)
{
        struct generation *g = kept->generation;
        size_t at = 0;
        for (struct book_name *row; (row = rows_next_name(&kept->keep->rows->names, kept->id, &at)) != NULL;) {
                const struct generation *other = resident_on(g->resident, row->text, GENERATION_READY, g->device);
                bool mine = other == NULL && take_name(kept->keep->leases->users, g, row);
                if (mine)
                        take_wish(g, &row->wish);
                if (!mine || kept_add_name(kept, row) < 0)
                        book_drop_name(kept->keep->book, row);
        }
}

/* The first name of a new generation is only what it is called until its own are known. If it is none of them it goes
 * before the generation serves: it may lead to another by now, that is older by number and was stored later, from
 * which it would be taken. */
static void settle_names(struct kept *kept, const char *called)
{
        struct generation *g = kept->generation;
        bool real = false;
        size_t at = 0;
        for (struct book_name *row; (row = rows_next_name(&kept->keep->rows->names, kept->id, &at)) != NULL;)
                real |= strcmp(row->text, called) == 0;
        if (!real)
                generation_drop_name(g, called);
        generation_ready(g);
}

/* At once, and without a trace: nobody has seen it. */
static void undo(struct generation *g)
{
        for (unsigned i = 0; i < g->n_segments; i++)
                g->device->ops->release(&g->segments[i]);
        g->n_segments = 0;
        table_drop(&g->manifest);
        g->device->used -= g->charged;
        g->charged = 0;
        generation_discard(g);
        generation_unpin(g);
}

/* The device, and whoever had it loaded. */
static int charge(struct keep *keep, struct generation *g, uint64_t bytes, struct error *error)
{
        struct users *users = keep->leases->users;
        int r = generation_charge(g, bytes, error);
        if (r == 0 && users != NULL &&
            (user_charge_again(users, g->loaded_by, &g->user_charge, USER_BYTES, bytes) < 0 ||
             user_charge_again(users, g->loaded_by, &g->model_charge, USER_MODELS, 1) < 0))
                r = error_set(error, STREAMER_ENOMEM, "no memory");
        return r;
}

static int restore(struct keep *keep, struct set *set, struct record *record, struct table *table, struct error *error)
{
        struct device *device = device_of(keep->resident, record->device);
        if (record->id != set->id)
                return error_set(error, STREAMER_ECORRUPT, "the record is another's");
        if (device == NULL)
                return error_set(error, STREAMER_ENOENT, "its device (%s) is not configured", record->device);
        struct generation *g = generation_new(keep->resident, record->name, record->source, device, record->origin.uid);
        if (g == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        fill_generation(g, record, table);
        int r = charge(keep, g, record->charged, error);
        if (r == 0)
                r = adopt_segments(g, set, record, error);
        struct kept *kept = r == 0 ? kept_new(keep, g, set->id, record->n_segments + 1) : NULL;
        if (r == 0 && kept == NULL)
                r = error_set(error, STREAMER_ENOMEM, "no memory");
        if (r < 0) {
                undo(g);
                return r;
        }
        kept->state = KEPT_STORED;
        take_names(kept);
        settle_names(kept, record->name);
        return 0; /* its pin stays until leases have been taken back */
}

/* Its messages go out when the loop's threads run. */
static void drop_set(struct keep *keep, const struct set *set)
{
        struct kept *kept = kept_new(keep, NULL, set->id, (set->n_segments > 0 ? set->n_segments : 0) + 1);
        if (kept != NULL)
                kept_leave(kept);
        size_t at = 0;
        for (struct book_name *row; (row = rows_next_name(&keep->rows->names, set->id, &at)) != NULL;)
                book_drop_name(keep->book, row);
        at = 0;
        for (struct book_lease *row; (row = rows_next_lease(&keep->rows->leases, set->id, &at)) != NULL;)
                book_drop_lease(keep->book, row);
}

static void take_model(struct keep *keep, struct set *set)
{
        struct record record = {0};
        struct table table = {.fd = -1};
        struct error error = {0};
        int r = check_set(keep, set, &error);
        if (r == 0)
                r = record_read_consume_fd(&record, take_fd(&set->record), &table, &error);
        if (r == 0)
                r = restore(keep, set, &record, &table, &error);
        if (r == 0) {
                keep->taken.models++;
        } else {
                keep->taken.dropped++;
                log_warn("fd store: model %" PRIu64 "%s%s is dropped: %s", set->id, record.name != NULL ? ", " : "",
                         record.name != NULL ? record.name : "", error.text);
                table_drop(&table);
                drop_set(keep, set);
        }
        record_deinit(&record);
}

/* Newest first, by their numbers in the store. */
static void take_models(struct keep *keep, struct sets *sets)
{
        while (!list_empty(&sets->models)) {
                struct set *newest = container_of(sets->models.next, struct set, link);
                list_each (pos, &sets->models) {
                        struct set *set = container_of(pos, struct set, link);
                        if (set->id > newest->id)
                                newest = set;
                }
                book_raise(keep->book, BOOK_MODEL, newest->id);
                take_model(keep, newest);
                set_free(newest);
        }
}

/* ---- processes and their leases ---- */

static bool has_exited(int pidfd)
{
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        return poll(&p, 1, 0) > 0;
}

static struct process *make_process(struct keep *keep, struct set *set, const struct book_lease *row)
{
        struct process *process =
                leases_process_consume_fd(keep->leases, (pid_t)row->pid, row->uid, take_fd(&set->record), 0);
        if (process == NULL)
                return NULL;
        process->kept_id = set->id;
        process->stored = true;
        keep->used++;
        return process;
}

static void take_process(struct keep *keep, struct set *set)
{
        struct process *process = NULL;
        bool alive = !set->twice && !has_exited(set->record);
        size_t at = 0;
        for (struct book_lease *row; (row = rows_next_lease(&keep->rows->held, set->id, &at)) != NULL;) {
                struct generation *g = keep_generation(keep, row->model);
                if (alive && g != NULL && process == NULL)
                        process = make_process(keep, set, row);
                struct lease *lease = NULL;
                if (alive && g != NULL && process != NULL)
                        lease = lease_restore(keep->leases, process, g, row);
                if (lease == NULL) {
                        book_drop_lease(keep->book, row);
                        continue;
                }
                lease->claim_until_ns = keep->claim_until_ns;
                kept_read_lease(lease);
                keep->taken.leases++;
        }
        if (process == NULL) {
                char name[KEEP_NAME_MAX];
                keep_process_name(name, set->id);
                fdstore_remove(name);
        }
}

static void take_processes(struct keep *keep, struct sets *sets)
{
        keep->claim_until_ns = now_ns() + CLAIM_NS;
        while (!list_empty(&sets->processes)) {
                struct set *set = container_of(sets->processes.next, struct set, link);
                book_raise(keep->book, BOOK_PROCESS, set->id);
                take_process(keep, set);
                set_free(set);
        }
}

/* Rows of models that are not there any more: their clients will hear so. */
static void clear_rows(struct keep *keep)
{
        for (struct book_name *row = NULL; (row = book_each_name(keep->book, row)) != NULL;)
                if (keep_generation(keep, row->model) == NULL)
                        book_drop_name(keep->book, row);
        for (struct book_lease *row = NULL; (row = book_each_lease(keep->book, row)) != NULL;)
                if (keep_generation(keep, row->model) == NULL)
                        book_drop_lease(keep->book, row);
}

/* From now on a generation without names goes with its last lease. */
static void unpin_all(struct keep *keep)
{
        list_each_safe (pos, &keep->models) {
                struct generation *g = container_of(pos, struct kept, link)->generation;
                if (g != NULL)
                        generation_unpin(g);
        }
}

void keep_take_back(struct keep *keep, struct inherit *inherit)
{
        struct sets sets;
        struct keep_rows rows;
        if (keep->max == 0)
                return;
        sets_sort(&sets, inherit);
        take_book(keep, &sets);
        if (keep->book == NULL)
                return;
        keep->frozen = true; /* what the making of generations tells of is not to be written again */
        keep->resident->last_number = book_last(keep->book, BOOK_GENERATION);
        keep->leases->last_id = book_last(keep->book, BOOK_LEASE);
        keep_rows_init(&rows, keep->book);
        keep->rows = &rows;
        take_models(keep, &sets);
        take_processes(keep, &sets);
        keep->rows = NULL;
        keep_rows_deinit(&rows);
        clear_rows(keep);
        keep->frozen = false;
        unpin_all(keep);
        resident_expire(keep->resident, now_ns()); /* what had been taken by force still is */
        if (keep->taken.models + keep->taken.dropped > 0)
                log_info("fd store: %" PRIu64 " models and %" PRIu64 " leases taken back, %" PRIu64 " models dropped",
                         keep->taken.models, keep->taken.leases, keep->taken.dropped);
}
