/* SPDX-License-Identifier: Apache-2.0
 *
 * Keeping the store in step with what is resident: see keep.h.
 *
 * Each message is sent by the one thread, in the order in which the loop asked. A model's messages end
 * with a barrier: only when the manager has read them is the model named in the book, or its memory
 * given back. Messages about processes need none; what is lost with them is a pidfd, without which a
 * lease is known by its row in the book alone.
 */
#include "daemon/resident/keep.h"

#include "daemon/base/fdstore.h"
#include "daemon/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>

#define SYNC_NS (UINT64_C(5) * 1000000000)
/* The book, one model of most segments, and some dozens of processes. */
#define MAX_SMALL 128

struct kept_name {
        struct list link;
        struct book_name *row;
};

bool keep_is_on(const struct keep *keep)
{
        return keep != NULL && keep->book != NULL && !keep->frozen;
}

void keep_segment_name(char name[KEEP_NAME_MAX], uint64_t id, unsigned segment)
{
        snprintf(name, KEEP_NAME_MAX, KEEP_PREFIX "m%" PRIu64 ".%u", id, segment);
}

void keep_record_name(char name[KEEP_NAME_MAX], uint64_t id)
{
        snprintf(name, KEEP_NAME_MAX, KEEP_PREFIX "m%" PRIu64 ".r", id);
}

void keep_process_name(char name[KEEP_NAME_MAX], uint64_t id)
{
        snprintf(name, KEEP_NAME_MAX, KEEP_PREFIX "p%" PRIu64, id);
}

/* ---- names ---- */

int kept_add_name(struct kept *kept, struct book_name *row)
{
        struct kept_name *name = malloc(sizeof(*name));
        if (name == NULL)
                return STREAMER_ENOMEM;
        name->row = row;
        list_append(&kept->names, &name->link);
        return 0;
}

static void drop_name(struct kept *kept, struct kept_name *name)
{
        list_remove(&name->link);
        book_drop_name(kept->keep->book, name->row);
        free(name);
}

static struct book_name *row_of(const struct kept *kept, const char *text)
{
        list_each (pos, &kept->names) {
                struct book_name *row = container_of(pos, struct kept_name, link)->row;
                if (strcmp(row->text, text) == 0)
                        return row;
        }
        return NULL;
}

/* The name went over to a generation that is on its way to the store. */
static bool awaited(const struct kept *kept, const char *text)
{
        const struct generation *mine = kept->generation;
        const struct generation *g = resident_on(mine->resident, text, GENERATION_READY, mine->device);
        return g != NULL && g != mine && g->kept != NULL && g->kept->state == KEPT_STORING;
}

static uint32_t charged_of(const struct model_name *name)
{
        return name->charge.user != NULL ? name->charge.user->uid + 1 : 0;
}

static struct book_wish wish_of(const struct generation *g, uint32_t owner, uint32_t charged)
{
        return (struct book_wish){.keep_alive_ns = g->keep_alive_ns,
                                  .drain_timeout_ns = g->drain_timeout_ns,
                                  .priority = g->priority,
                                  .pinned = g->pinned,
                                  .owner = owner,
                                  .charged = charged};
}

void keep_full(struct keep *keep, const char *what)
{
        if (!keep->full_told)
                log_warn("fd store: no room for more %s: those that come now do not survive a restart", what);
        keep->full_told = true;
}

static bool book_name_of(struct kept *kept, const struct model_name *name)
{
        const struct book_wish wish = wish_of(kept->generation, name->owner, charged_of(name));
        struct book_name *row = row_of(kept, name->text);
        if (row != NULL) { /* it was taken away and given again since */
                row->wish = wish;
                return true;
        }
        row = book_add_name(kept->keep->book, kept->id, name->text, &wish);
        if (row == NULL)
                keep_full(kept->keep, "names");
        else if (kept_add_name(kept, row) == 0)
                return true;
        else
                book_drop_name(kept->keep->book, row);
        return false;
}

/* A few times a second, and at each change: a name that has its row is not looked for again. */
static void write_names(struct kept *kept)
{
        list_each (pos, &kept->names) {
                struct book_name *row = container_of(pos, struct kept_name, link)->row;
                row->wish = wish_of(kept->generation, row->wish.owner, row->wish.charged);
        }
        list_each (pos, &kept->generation->names) {
                struct model_name *name = container_of(pos, struct model_name, link);
                if (kept->generation->state == GENERATION_READY && !name->booked)
                        name->booked = book_name_of(kept, name);
        }
}

static void clear_names(struct kept *kept)
{
        const struct generation *g = kept->generation;
        bool ready = g->state == GENERATION_READY;
        if (ready && !kept->awaits && kept->names_lost == g->names_lost)
                return;
        kept->names_lost = g->names_lost;
        kept->awaits = false;
        list_each_safe (pos, &kept->names) {
                struct kept_name *name = container_of(pos, struct kept_name, link);
                if (ready && generation_has_name(g, name->row->text))
                        continue;
                if (awaited(kept, name->row->text))
                        kept->awaits = true;
                else
                        drop_name(kept, name);
        }
}

/* New rows first: a name that switches is in the book at every moment. */
static void sync_rows(struct keep *keep)
{
        list_each (pos, &keep->models) {
                struct kept *kept = container_of(pos, struct kept, link);
                if (kept->state == KEPT_LEAVING)
                        continue;
                write_names(kept);
                kept_write_leases(kept);
        }
        list_each_safe (pos, &keep->models) {
                struct kept *kept = container_of(pos, struct kept, link);
                if (kept->state == KEPT_LEAVING)
                        continue;
                clear_names(kept);
                if (kept->state == KEPT_STORED && kept->let_go && list_empty(&kept->names))
                        kept_leave(kept);
        }
}

/* ---- a model's place ---- */

struct kept *kept_new(struct keep *keep, struct generation *generation, uint64_t id, unsigned n_fds)
{
        struct kept *kept = calloc(1, sizeof(*kept));
        if (kept == NULL)
                return NULL;
        kept->keep = keep;
        kept->generation = generation;
        kept->id = id;
        kept->n_fds = n_fds;
        list_init(&kept->names);
        list_append(&keep->models, &kept->link);
        keep->used += n_fds;
        if (generation != NULL)
                generation->kept = kept;
        return kept;
}

/* The generation may go now, too. */
static void kept_free(struct kept *kept)
{
        struct generation *generation = kept->generation;
        while (!list_empty(&kept->names)) {
                struct kept_name *name = container_of(kept->names.next, struct kept_name, link);
                list_remove(&name->link);
                free(name);
        }
        kept->keep->used -= kept->n_fds;
        list_remove(&kept->link);
        record_deinit(&kept->record);
        free(kept);
        if (generation != NULL) {
                generation->kept = NULL;
                generation_settle(generation);
        }
}

static int remove_all(const struct kept *kept)
{
        char name[KEEP_NAME_MAX];
        keep_record_name(name, kept->id);
        int r = fdstore_remove(name);
        for (unsigned i = 0; r == 0 && i + 1 < kept->n_fds; i++) {
                keep_segment_name(name, kept->id, i);
                r = fdstore_remove(name);
        }
        return r == 0 ? fdstore_sync(SYNC_NS) : r;
}

static void leave_run(struct work *work)
{
        struct kept *kept = container_of(work, struct kept, work);
        int r = remove_all(kept);
        if (r < 0)
                error_errno(&kept->error, STREAMER_EOS, -r, "the service manager does not answer");
}

static void leave_done(struct work *work)
{
        struct kept *kept = container_of(work, struct kept, work);
        if (kept->error.code != 0)
                log_warn("model %" PRIu64 " of the fd store: its memory may stay there: %s", kept->id,
                         kept->error.text);
        kept_free(kept);
}

void kept_leave(struct kept *kept)
{
        list_each_safe (pos, &kept->names)
                drop_name(kept, container_of(pos, struct kept_name, link));
        kept->state = KEPT_LEAVING;
        kept->error = (struct error){0};
        work_submit(kept->keep->thread, WORK_LANE_CPU, &kept->work, leave_run, leave_done);
}

void kept_let_go(struct kept *kept)
{
        kept->let_go = true;
        if (kept->keep->frozen && kept->state == KEPT_STORED)
                kept_free(kept);
        else if (kept->state == KEPT_STORED && list_empty(&kept->names))
                kept_leave(kept);
}

/* ---- storing ---- */

static int add_segments(const struct kept *kept)
{
        char name[KEEP_NAME_MAX];
        int r = 0;
        for (unsigned i = 0; r == 0 && i < kept->record.n_segments; i++) {
                keep_segment_name(name, kept->id, i);
                r = fdstore_add(name, kept->generation->segments[i].fd);
        }
        return r;
}

static int add_record(const struct kept *kept, int fd)
{
        char name[KEEP_NAME_MAX];
        keep_record_name(name, kept->id);
        int r = fdstore_add(name, fd);
        return r == 0 ? fdstore_sync(SYNC_NS) : r;
}

static void store_run(struct work *work)
{
        struct kept *kept = container_of(work, struct kept, work);
        cleanup_close int fd = -1;
        if (record_write(&kept->record, &kept->generation->manifest, &fd, &kept->error) < 0)
                return;
        int r = add_segments(kept);
        if (r == 0)
                r = add_record(kept, fd);
        if (r < 0)
                error_errno(&kept->error, STREAMER_EOS, -r, "the service manager does not answer");
}

static void store_done(struct work *work)
{
        struct kept *kept = container_of(work, struct kept, work);
        struct keep *keep = kept->keep;
        kept->state = KEPT_STORED;
        record_deinit(&kept->record);
        if (keep->frozen) {
                kept_free(kept);
                return;
        }
        if (kept->error.code != 0) {
                log_warn("%s: will not survive a restart: %s", generation_name(kept->generation), kept->error.text);
                kept->generation->unkept = true;
                kept_leave(kept); /* whatever of it did arrive */
        }
        sync_rows(keep);
}

static bool can_be_kept(const struct generation *g)
{
        /* Ranks are one model on several devices, which comes back whole or not at all. */
        if (!(g->device->caps & DEVICE_KEPT) || g->probe || g->n_ranks > 1)
                return false;
        for (unsigned i = 0; i < g->n_segments; i++)
                if (g->segments[i].fd < 0)
                        return false;
        return true;
}

static bool has_room(struct keep *keep, struct generation *g)
{
        if (keep->used + g->n_segments + 1 <= keep->max)
                return true;
        if (!g->keep_told)
                log_warn("%s: will not survive a restart: the fd store holds %" PRIu64 " of %" PRIu64
                         " descriptors, and it takes %u (FileDescriptorStoreMax=)",
                         generation_name(g), keep->used, keep->max, g->n_segments + 1);
        g->keep_told = true;
        return false;
}

static void store(struct keep *keep, struct generation *g)
{
        uint64_t id = book_next(keep->book, BOOK_MODEL);
        struct record record;
        if (record_of(&record, g, id) < 0)
                return;
        struct kept *kept = kept_new(keep, g, id, g->n_segments + 1);
        if (kept == NULL) {
                record_deinit(&record);
                return;
        }
        kept->record = record;
        write_names(kept);
        list_each (pos, &g->leases)
                keep_lease(keep, container_of(pos, struct lease, in_generation));
        work_submit(keep->thread, WORK_LANE_CPU, &kept->work, store_run, store_done);
}

void keep_changed(struct keep *keep)
{
        if (!keep_is_on(keep))
                return;
        book_raise(keep->book, BOOK_GENERATION, keep->resident->last_number);
        list_each (pos, &keep->resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (g->state == GENERATION_READY && g->kept == NULL && !g->unkept && can_be_kept(g) &&
                    has_room(keep, g))
                        store(keep, g);
        }
        sync_rows(keep);
}

/* Nobody tells that a model was pinned. */
void keep_tick(struct keep *keep, uint64_t now)
{
        if (!keep_is_on(keep))
                return;
        list_each (pos, &keep->models) {
                struct kept *kept = container_of(pos, struct kept, link);
                if (kept->state != KEPT_LEAVING)
                        write_names(kept);
        }
        keep_leases_tick(keep, now);
}

struct generation *keep_generation(struct keep *keep, uint64_t id)
{
        list_each (pos, &keep->models) {
                struct kept *kept = container_of(pos, struct kept, link);
                if (kept->id == id)
                        return kept->generation;
        }
        return NULL;
}

/* ---- life ---- */

static bool any_kept(const struct resident *resident)
{
        for (size_t i = 0; i < resident->n_devices; i++)
                if (resident->devices[i]->caps & DEVICE_KEPT)
                        return true;
        return false;
}

int keep_init(struct keep *keep, struct resident *resident, struct leases *leases, struct wake *wake, uint64_t max,
              struct error *error)
{
        *keep = (struct keep){.resident = resident, .leases = leases, .max = max};
        list_init(&keep->models);
        if (max == 0) {
                if (fdstore_possible() && any_kept(resident))
                        log_warn("fd store: none, or its size is not known: models in host memory do not survive a "
                                 "restart (FileDescriptorStoreMax= is 0, unless the unit sets it)");
                return 0;
        }
        if (max < MAX_SMALL)
                log_warn("fd store: room for %" PRIu64 " descriptors; a model takes one and its segments (up to %u), a "
                         "process that has some attached one: raise FileDescriptorStoreMax=",
                         max, GENERATION_SEGMENTS);
        keep->thread = work_pool_new(wake, "store", 1, 1);
        return keep->thread != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

void keep_freeze(struct keep *keep)
{
        if (!keep_is_on(keep))
                return;
        keep->frozen = true;
        list_each_safe (pos, &keep->models) {
                struct kept *kept = container_of(pos, struct kept, link);
                if (kept->state == KEPT_STORED)
                        kept_free(kept);
        }
}

bool keep_stop(struct keep *keep, uint64_t deadline_ns)
{
        return keep->thread == NULL || work_pool_stop(keep->thread, deadline_ns);
}

void keep_deinit(struct keep *keep)
{
        keep->thread = keep->thread != NULL ? work_pool_free(keep->thread) : NULL;
        keep->book = book_free(keep->book);
}
