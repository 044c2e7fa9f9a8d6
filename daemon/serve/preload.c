/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/preload_item.h"

#include "daemon/base/log.h"
#include "daemon/model/ranks.h"
#include "proto/codes.h"
#include "proto/hub.h"

#include <inttypes.h>
#include <string.h>

#define RETRY_CAP_NS (UINT64_C(300) * 1000000000)
#define LANE_HUB UINT64_MAX /* of work: the cache's file system is not known before */

/* ---- entries ---- */

static void entry_deinit(struct preload_entry *entry)
{
        for (size_t i = 0; i < entry->n_devices; i++)
                free(entry->devices[i]);
        free(entry->devices);
        free(entry->source);
        free(entry->name);
        free(entry->pattern);
}

void preload_list_deinit(struct preload_list *list)
{
        for (size_t i = 0; i < list->n; i++)
                entry_deinit(&list->v[i]);
        free(list->v);
        *list = (struct preload_list){0};
}

static bool same_text(const char *a, const char *b)
{
        return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

bool preload_entry_equal(const struct preload_entry *a, const struct preload_entry *b)
{
        bool same = same_text(a->source, b->source) && same_text(a->name, b->name) &&
                    same_text(a->pattern, b->pattern) && a->rank == b->rank && a->sha256 == b->sha256 &&
                    a->pin == b->pin && a->priority == b->priority && a->keep_alive_ns == b->keep_alive_ns &&
                    a->n_devices == b->n_devices;
        for (size_t i = 0; same && i < a->n_devices; i++)
                same = strcmp(a->devices[i], b->devices[i]) == 0;
        return same;
}

/* ---- items ---- */

static void item_free(struct item *item)
{
        list_remove(&item->link);
        load_unwatch(&item->watch);
        entry_deinit(&item->entry);
        free(item->name);
        free(item->path);
        free(item);
}

/* A look-up that is under way has to come home first. */
static void item_drop(struct item *item)
{
        list_remove(&item->link);
        if (item->state != ITEM_LOOKING)
                item_free(item);
}

static void count(struct preload *preload)
{
        preload->n_unready = 0;
        list_each (pos, &preload->items)
                preload->n_unready += container_of(pos, struct item, link)->state != ITEM_READY;
}

/* Behind those of the same priority: the settings' order holds among these. */
static void insert(struct preload *preload, struct item *item)
{
        struct list *before = preload->items.next;
        while (before != &preload->items && container_of(before, struct item, link)->priority >= item->priority)
                before = before->next;
        list_append(before, &item->link);
        item->place = ++preload->last_place;
}

/* ---- its devices ---- */

static bool is_gone(const struct item *item, const struct device *device)
{
        for (size_t i = 0; i < item->n_gone; i++)
                if (item->gone[i] == device)
                        return true;
        return false;
}

/* Where the next try is to load it; none: nowhere, or (with none that is gone) on the only device there is. */
static size_t devices_of(const struct item *item, const char *devices[LOAD_DEVICES])
{
        struct resident *resident = item->preload->loads->resident;
        const struct preload_entry *e = &item->entry;
        size_t n = item->n_left > 0 ? item->n_left : e->n_devices, n_wanted = 0;
        for (size_t i = 0; i < n; i++) {
                const char *name = item->n_left > 0 ? item->left[i] : e->devices[i];
                if (!is_gone(item, resident_device(resident, name, NULL)))
                        devices[n_wanted++] = name;
        }
        return n_wanted;
}

/* Ranks are of use together alone. */
static bool has_devices(const struct item *item)
{
        const char *devices[LOAD_DEVICES];
        return item->n_gone == 0 || (!item->entry.rank && devices_of(item, devices) > 0);
}

static bool is_for(const struct item *item, const struct device *device)
{
        struct resident *resident = item->preload->loads->resident;
        const char *devices[LOAD_DEVICES];
        size_t n = devices_of(item, devices);
        if (n == 0)
                return item->n_gone == 0 && device == resident_device(resident, NULL, NULL);
        for (size_t i = 0; i < n; i++)
                if (resident_device(resident, devices[i], NULL) == device)
                        return true;
        return false;
}

/* ---- one try ---- */

static bool is_hopeless(int code)
{
        return code == STREAMER_EINVAL || code == STREAMER_EUNSUPPORTED;
}

static void item_failed(struct item *item, const struct error *error)
{
        struct preload *preload = item->preload;
        uint64_t wait = preload->opts.retry_ns;
        char shown[SHOWN_SOURCE];
        item_title(shown, item);
        for (unsigned i = 1; i < item->tries && wait < RETRY_CAP_NS; i++)
                wait *= 2;
        wait = wait < RETRY_CAP_NS ? wait : RETRY_CAP_NS;
        item->state = ITEM_FAILED;
        item->error = *error;
        item->hopeless = is_hopeless(error->code);
        item->due_ns = now_ns() + wait;
        if (preload->changed != NULL)
                preload->changed(preload);
        if (item->hopeless)
                log_event(LOG_LEVEL_ERROR, LOG_NO_ID,
                          LOG_FIELDS(LOG_TEXT("model", shown), LOG_TEXT("code", code_wire(error->code))),
                          "preload: %s: %s (not tried again)", shown, error->text);
        else
                log_event(LOG_LEVEL_WARN, LOG_NO_ID,
                          LOG_FIELDS(LOG_TEXT("model", shown), LOG_TEXT("code", code_wire(error->code))),
                          "preload: %s: %s (try %u, the next in %.1f s)", shown, error->text, item->tries,
                          (double)wait / 1e9);
}

/* Replicas fail on their own: those devices are left, unless nobody wants it there. Why the first of them was; NULL:
 * none is. */
static const struct error *note_left(struct item *item, const struct load *load)
{
        const struct error *error = NULL;
        item->n_left = 0;
        for (size_t i = 0; i < load->n_targets; i++) {
                if (!load->targets[i].failed || is_gone(item, load->targets[i].device))
                        continue;
                error = error != NULL ? error : &load->targets[i].error;
                item->left[item->n_left++] = load->targets[i].device->name;
        }
        return error;
}

/* Somebody's wish: it comes back at the next start or reload. */
static void give_up(struct item *item)
{
        item->tries = 0;
        item->state = ITEM_FAILED;
        item->hopeless = true;
        error_set(&item->error, STREAMER_ECANCELED, "cancelled");
}

static void load_is_over(struct load_watch *watch, struct load *load)
{
        struct item *item = container_of(watch, struct item, watch);
        const struct error *error = load->state == LOAD_READY ? note_left(item, load) : &load->error;
        if (error == NULL) {
                item->state = ITEM_READY;
                item->error = (struct error){0};
        } else if (load->state == LOAD_CANCELLED || !has_devices(item)) {
                give_up(item);
        } else {
                item_failed(item, error);
        }
        count(item->preload);
}

static bool is_idle(const struct item *item)
{
        return item->state == ITEM_WAITING || item->state == ITEM_FAILED;
}

bool preload_give_up(struct preload *preload, const char *name)
{
        bool found = false;
        list_each (pos, &preload->items) {
                struct item *item = container_of(pos, struct item, link);
                if (!is_idle(item) || strcmp(item->name, name) != 0)
                        continue;
                give_up(item);
                found = true;
        }
        return found;
}

/* Where all the others have it, nothing is left to be done. */
static void leave_out(struct item *item, const struct device *device)
{
        item->gone[item->n_gone++] = device;
        if (has_devices(item) || !is_idle(item))
                return;
        if (item->n_left > 0)
                item->state = ITEM_READY;
        else
                give_up(item);
}

bool preload_give_up_on(struct preload *preload, const char *name, const struct device *device)
{
        bool found = false;
        list_each (pos, &preload->items) {
                struct item *item = container_of(pos, struct item, link);
                if (item->state == ITEM_READY || strcmp(item->name, name) != 0 || !is_for(item, device))
                        continue;
                leave_out(item, device);
                found = true;
        }
        count(preload);
        return found;
}

bool preload_set_priority(struct preload *preload, const char *name, unsigned priority)
{
        bool found = false;
        list_each_safe (pos, &preload->items) {
                struct item *item = container_of(pos, struct item, link);
                if (item->state == ITEM_READY || strcmp(item->name, name) != 0)
                        continue;
                item->priority = priority;
                list_remove(&item->link);
                insert(preload, item);
                found = true;
        }
        return found;
}

static void item_load(struct item *item, const char *source)
{
        const struct preload_entry *e = &item->entry;
        const struct caller own = {.uid = geteuid(), .gid = getegid()};
        const char *devices[LOAD_DEVICES];
        const struct load_request request = {
                .source = source,
                .name = e->name,
                .devices = devices,
                .n_devices = devices_of(item, devices),
                .pattern = e->pattern != NULL ? e->pattern
                           : e->rank          ? RANKS_PATTERN
                                              : NULL,
                .sha256 = e->sha256,
                .pin = item->pin,
                .no_evict = true,
                .keep_alive_ns = e->keep_alive_ns,
                .priority = item->priority,
                .caller = &own,
                .admin = true,
        };
        struct error error = {0};
        struct load *load;
        if (!has_devices(item)) { /* while its name was looked up */
                give_up(item);
                return;
        }
        if (loads_begin(item->preload->loads, &request, &load, &error) < 0) {
                item_failed(item, &error);
                return;
        }
        item->state = ITEM_LOADING;
        load_watch(load, &item->watch, load_is_over);
}

static void look_up_run(struct work *work)
{
        struct item *item = container_of(work, struct item, work);
        char text[sizeof(item->error.text)];
        int r = hub_resolve(item->entry.source, &item->path, text, sizeof(text));
        if (r < 0)
                error_set(&item->error, r, "%s", text);
}

static void look_up_done(struct work *work)
{
        struct item *item = container_of(work, struct item, work);
        if (list_empty(&item->link)) {
                item_free(item);
                return;
        }
        item->state = ITEM_WAITING;
        if (item->error.code != 0) {
                struct error error = item->error;
                item_failed(item, &error);
        } else if (!item->preload->closing) {
                item_load(item, item->path);
        }
}

static void item_begin(struct item *item)
{
        item->tries++;
        item->error = (struct error){0};
        free(item->path);
        item->path = NULL;
        if (!hub_is_id(item->entry.source)) {
                item_load(item, item->entry.source);
                return;
        }
        item->state = ITEM_LOOKING;
        work_submit(item->preload->pool, LANE_HUB, &item->work, look_up_run, look_up_done);
}

/* ---- all ---- */

void preload_init(struct preload *preload, struct loads *loads, struct work_pool *pool)
{
        *preload = (struct preload){.loads = loads, .pool = pool, .opts = {.at_once = 1}};
        list_init(&preload->items);
}

void preload_deinit(struct preload *preload)
{
        list_each_safe (pos, &preload->items)
                item_free(container_of(pos, struct item, link));
}

static bool busy(const struct item *item)
{
        return item->state == ITEM_LOADING || item->state == ITEM_LOOKING;
}

static bool is_due(const struct item *item, uint64_t now)
{
        return item->state == ITEM_WAITING || (item->state == ITEM_FAILED && !item->hopeless && now >= item->due_ns);
}

void preload_tick(struct preload *preload, uint64_t now)
{
        unsigned n = 0;
        if (preload->n_unready == 0 || preload->closing)
                return;
        list_each (pos, &preload->items)
                n += busy(container_of(pos, struct item, link));
        list_each (pos, &preload->items) {
                struct item *item = container_of(pos, struct item, link);
                if (n >= preload->opts.at_once)
                        return;
                if (!is_due(item, now))
                        continue;
                item_begin(item);
                n += busy(item);
        }
}

void preload_close(struct preload *preload)
{
        preload->closing = true;
}

/* ---- the settings change ---- */

static struct item *take_equal(struct list *items, const struct preload_entry *entry)
{
        list_each (pos, items) {
                struct item *item = container_of(pos, struct item, link);
                if (!preload_entry_equal(&item->entry, entry))
                        continue;
                list_remove(&item->link);
                return item;
        }
        return NULL;
}

/* As the load will call it; of the Hub's ids without the revision. */
static char *name_of(const struct preload_entry *entry)
{
        cleanup_free char *canonical = NULL;
        struct error error;
        if (entry->name != NULL)
                return strdup(entry->name);
        if (hub_is_id(entry->source))
                return strndup(entry->source, strcspn(entry->source, "@"));
        if (source_canonical(entry->source, &canonical, &error) < 0)
                return strdup(entry->source);
        return source_default_name(canonical);
}

static struct item *item_new_consume(struct preload *preload, struct preload_entry *entry)
{
        struct item *item = calloc(1, sizeof(*item));
        if (item == NULL)
                return NULL;
        list_init(&item->link);
        item->preload = preload;
        item->name = name_of(entry);
        if (item->name == NULL) {
                free(item);
                return NULL;
        }
        item->pin = entry->pin;
        item->priority = entry->priority > 0 ? entry->priority : PROTO_PRIORITY_DEFAULT;
        item->entry = *entry;
        *entry = (struct preload_entry){.source = NULL};
        return item;
}

/* What somebody cancelled, or did not want on each of its devices, is wanted again. */
static void want_again(struct item *item)
{
        if (item->state == ITEM_READY)
                return;
        item->n_gone = 0;
        if (!item->hopeless)
                return;
        item->state = ITEM_WAITING;
        item->hopeless = false;
        item->tries = 0;
        item->n_left = 0;
}

int preload_set_consume(struct preload *preload, struct preload_list *list, const struct preload_opts *opts,
                        struct error *error)
{
        struct list before;
        int r = 0;
        preload->opts = *opts;
        list_init(&before);
        list_each_safe (pos, &preload->items) {
                list_remove(pos);
                list_append(&before, pos);
        }
        for (size_t i = 0; i < list->n; i++) {
                struct item *item = take_equal(&before, &list->v[i]);
                if (item == NULL)
                        item = item_new_consume(preload, &list->v[i]);
                else
                        want_again(item);
                if (item == NULL)
                        r = error_set(error, STREAMER_ENOMEM, "no memory");
                else
                        insert(preload, item);
        }
        list_each_safe (pos, &before)
                item_drop(container_of(pos, struct item, link));
        preload_list_deinit(list);
        count(preload);
        if (preload->changed != NULL)
                preload->changed(preload);
        return r;
}
