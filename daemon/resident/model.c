/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/model.h"

#include "daemon/base/util.h"
#include "daemon/base/log/log.h"
#include "daemon/io/disk/disk_writer.h"

#include <inttypes.h>
#include <string.h>

/* Generations that are reaped in one turn of the loop. */
#define REAP_TURN 64

void generation_set_state(struct generation *generation, enum generation_state state)
{
#define TO(state) (1u << GENERATION_##state)
        static const unsigned allowed[] = {
                [GENERATION_LOADING] = TO(READY) | TO(DRAINING) | TO(FAILED),
                [GENERATION_READY] = TO(CACHED) | TO(DRAINING),
                [GENERATION_CACHED] = TO(DRAINING),
                [GENERATION_DRAINING] = TO(REVOKED) | TO(UNLOADED),
                [GENERATION_REVOKED] = TO(UNLOADED),
                [GENERATION_FAILED] = TO(UNLOADED),
        };
#undef TO
        generation_index_leave_state(generation);
        change_state(generation->state, state, allowed);
        generation_index_enter_state(generation);
        idle_refresh(generation);
}

void generation_set_stored(struct generation *generation, enum stored_state stored)
{
#define TO(state) (1u << STORED_##state)
        static const unsigned allowed[] = {
                [STORED_NOT] = TO(BEGUN) | TO(WHOLE), /* at once: it was restored */
                [STORED_BEGUN] = TO(WHOLE) | TO(REMOVING) | TO(LEFT) | TO(ENDED),
                [STORED_WHOLE] = TO(REMOVING) | TO(LEFT),
                [STORED_REMOVING] = TO(ENDED),
        };
#undef TO
        require(generation->n_fallbacks == 0 || stored == STORED_LEFT);
        change_state(generation->stored, stored, allowed);
}

const char *model_origin_name(enum model_origin origin)
{
        static const char *const names[] = {[ORIGIN_UNKNOWN] = "",
                                            [ORIGIN_STORE] = "store",
                                            [ORIGIN_DISK] = "disk",
                                            [ORIGIN_RESIDENT] = "resident"};
        return names[origin];
}

struct manifest_view table_manifest(const struct table *table)
{
        struct manifest_view view;
        const char *why;
        require(manifest_open(&view, table->map, table->size, &why) == 0); /* the daemon made it */
        return view;
}

/* ---- resident ---- */

void resident_init(struct resident *resident, struct wake *wake, struct device **devices, size_t n_devices,
                   uint64_t failed_kept)
{
        *resident =
                (struct resident){.wake = wake, .devices = devices, .n_devices = n_devices, .failed_kept = failed_kept};
        list_init(&resident->generations);
        list_init(&resident->reap);
        list_init(&resident->unchecked);
        buckets_init(&resident->by_name);
        callers_init(&resident->callers);
        generation_index_init(resident);
        idle_init(resident);
}

/* ---- life ---- */

void resident_capacity_changed(struct resident *resident)
{
        if (resident->capacity_changed.run != NULL)
                wake_post(resident->wake, &resident->capacity_changed);
}

void generation_settings_changed(struct generation *generation)
{
        struct resident *resident = generation->resident;
        require(generation->magic == GENERATION_MAGIC);
        resident->n_changes++;
        idle_refresh(generation);
        if (resident->generation_due != NULL)
                resident->generation_due(resident->persist, generation);
}

void generation_set_number(struct generation *generation, uint64_t number)
{
        generation_index_set_number(generation, number);
        generation_settings_changed(generation);
}

void generation_assign_number(struct generation *generation)
{
        generation_set_number(generation, ++generation->resident->last_number);
}

static void name_due(const struct model_name *name)
{
        struct resident *resident = name->generation->resident;
        resident->n_changes++;
        if (resident->name_due != NULL)
                resident->name_due(resident->persist, name->text, name->generation->device);
}

void generation_name_changed(struct generation *generation, const char *name)
{
        struct resident *resident = generation->resident;
        if (resident->name_changed != NULL)
                resident->name_changed(resident, generation, name);
}

/* Reports the removed name, or the last one where none is left, and those that may lead to something else now. */
static void report_names(struct generation *generation, const char *removed)
{
        bool known = generation_state_is_reported(generation);
        if (removed == NULL && list_empty(&generation->names))
                removed = generation_name(generation);
        if (removed != NULL)
                generation_name_changed(generation, removed);
        for (const struct list *pos = generation->names.prev; pos != &generation->names; pos = pos->prev) {
                const struct model_name *name = container_of(pos, struct model_name, link);
                if (known && name->sequence <= generation->reported_names)
                        break; /* the older ones, too */
                generation_name_changed(generation, name->text);
        }
}

static void report(struct generation *generation, const char *removed)
{
        struct resident *resident = generation->resident;
        generation_settings_changed(generation);
        if (resident->changed != NULL)
                resident->changed(resident, generation, removed);
        report_names(generation, removed);
        generation->reported = true;
        generation->reported_state = generation->state;
        generation->reported_names = resident->last_name;
        resident_capacity_changed(resident);
}

void generation_changed(struct generation *generation)
{
        report(generation, NULL);
}

const char *model_name_source(const struct model_name *name)
{
        return name->source != NULL ? name->source : name->generation->source;
}

const struct caller *model_name_caller(const struct model_name *name)
{
        return name->caller != NULL ? name->caller : name->generation->caller;
}

static void name_free(struct resident *resident, struct model_name *name)
{
        if (name == NULL)
                return;
        require(name->fallback == NULL && (name->generation == NULL || !tree_is_linked(&name->in_order)));
        free(name->source);
        callers_put(&resident->callers, name->caller);
        free(name);
}

int model_name_set_source(struct model_name *name, const char *source, const struct caller *caller)
{
        if (strcmp(model_name_source(name), source) == 0)
                return 0;
        struct tree *callers = &name->generation->resident->callers;
        char *own_source = strdup(source);
        const struct caller *own_caller = callers_get(callers, caller);
        if (own_source == NULL || own_caller == NULL) {
                free(own_source);
                callers_put(callers, own_caller);
                return STREAMER_ENOMEM;
        }
        free(name->source);
        callers_put(callers, name->caller);
        name->source = own_source;
        name->caller = own_caller;
        name_due(name);
        return 0;
}

/* ---- settings ---- */

/* No more than `most`: of many names mostly the first one has all of it. */
static struct model_settings combine_names(const struct generation *generation, const struct model_settings *most)
{
        struct model_settings all = {.priority = 0};
        bool any = false;
        generation_each_rank(g, generation)
        {
                list_each_item (const struct model_name, n, &g->names, link) {
                        all = settings_combine(any ? &all : &n->settings, &n->settings);
                        any = true;
                        if (settings_equal(&all, most))
                                return all;
                }
        }
        return all;
}

static void set_combined(struct generation *generation, const struct model_settings *all)
{
        struct model_settings now = *all;
        if (list_empty(&generation->names)) {
                now = generation->settings;
                now.pinned = false;
        }
        if (settings_equal(&now, &generation->settings))
                return;
        generation->settings = now;
        generation_settings_changed(generation);
}

/* Computes the combined settings of the generation and its ranks anew. `changed`: the name whose settings have changed;
 * NULL: one was removed. */
static void combine_settings(struct generation *generation, const struct model_name *changed)
{
        bool is_alone = generation->n_ranks < 2 && generation->names.next == generation->names.prev;
        if (changed != NULL && is_alone) { /* most have no other */
                struct model_settings own = changed->settings;
                own.drain_timeout_ns = 0;
                set_combined(generation, &own);
                return;
        }
        struct model_settings most = generation->settings;
        generation_each_rank(g, generation) most = settings_combine(&most, &g->settings);
        if (changed != NULL)
                most = settings_combine(&most, &changed->settings);
        const struct model_settings all = combine_names(generation, &most);
        generation_each_rank(g, generation) set_combined(g, &all);
}

static void name_settings_changed(struct model_name *name)
{
        require(name->generation->magic == GENERATION_MAGIC && name->generation->last_name != name);
        name_due(name);
        combine_settings(name->generation, name);
}

void model_name_set_settings(struct model_name *name, const struct model_settings *settings, unsigned asked)
{
        name->settings = *settings;
        name->asked = asked;
        name_settings_changed(name);
}

void model_name_change_settings(struct model_name *name, const struct settings_change *change)
{
        settings_apply(&name->settings, change);
        name->asked |= change->asks;
        name_settings_changed(name);
}

/* Copies the settings in `which` from the same name of another generation, but for those that have been asked for of
 * this one. */
static void inherit_settings(struct model_name *name, const struct model_name *from, unsigned which)
{
        const struct settings_change change = {which & SETTINGS_OF_NAME & ~name->asked, from->settings};
        require(strcmp(name->text, from->text) == 0 && name->generation->device == from->generation->device);
        settings_apply(&name->settings, &change);
        name_settings_changed(name);
}

/* ---- who is charged ----
 *
 * A model is charged to each user who gave it a name: its bytes once, and one model for each name. The generation has
 * the charges of the user who loaded it, for the name that stands for them, and until its memory is free; further names
 * have their own. So no user holds memory that is not charged to them, and no user is charged for what others keep. */

/* The oldest of its names that were given by this user; NULL: none. */
static struct model_name *name_of_user(const struct generation *g, const struct quota_user *user)
{
        if (user == NULL)
                return NULL;
        list_each_item (struct model_name, n, &g->names, link)
                if (n->charges.name.user == user)
                        return n;
        return NULL;
}

/* The name that stands for the charges of one that serves was removed: another one of the same user does, or the
 * oldest, whose charges become the generation's. */
static void pass_charges(struct generation *g)
{
        if (g->standing != NULL || list_empty(&g->names))
                return;
        struct model_name *same_user = name_of_user(g, g->model_charge.user);
        struct model_name *heir = same_user ?: container_of(g->names.next, struct model_name, link);
        quota_discharge(&g->model_charge);
        g->model_charge = quota_take(&heir->charges.name);
        if (same_user == NULL) {
                quota_discharge(&g->quota_charge);
                g->quota_charge = quota_take(&heir->charges.bytes);
        }
        require(heir->charges.bytes.user == NULL);
        g->standing = heir;
        name_due(heir);
}

/* A name's own charges end with it; the bytes stay with another name of its user. */
static void end_charges(struct generation *g, struct model_name *name)
{
        struct model_name *heir = name->charges.bytes.user != NULL ? name_of_user(g, name->charges.name.user) : NULL;
        require(name != g->standing || name->charges.name.user == NULL);
        if (heir != NULL)
                heir->charges.bytes = quota_take(&name->charges.bytes);
        quota_discharge(&name->charges.bytes);
        quota_discharge(&name->charges.name);
        if (name == g->standing)
                g->standing = NULL;
}

static void end_bytes_of_names(struct generation *g)
{
        list_each_item (struct model_name, n, &g->names, link)
                quota_discharge(&n->charges.bytes);
}

uint64_t generation_user_bytes(const struct generation *generation)
{
        return generation->quota_charge.user != NULL ? generation->quota_charge.amount : generation->charged;
}

static bool is_charged(const struct generation *g, uid_t uid)
{
        if (g->quota_charge.user != NULL && g->quota_charge.user->uid == uid)
                return true;
        list_each_item (const struct model_name, n, &g->names, link)
                if (n->charges.bytes.user != NULL && n->charges.bytes.user->uid == uid)
                        return true;
        return false;
}

int generation_charge_user(const struct generation *generation, struct quotas *users, uid_t uid,
                           const struct quota_limits *limits, struct quota_charge *charge, struct error *error)
{
        uint64_t bytes = generation_user_bytes(generation);
        return is_charged(generation, uid) ? 0 : quota_charge(users, uid, charge, QUOTA_BYTES, bytes, limits, error);
}

/* Of one that is ready: what was not known when the name was given, or was given to another load that this one has
 * joined or repeats. */
static void charge_name(struct generation *g, struct name_charges *charges)
{
        struct quota_charge bytes = quota_take(&charges->bytes);
        require(g->state == GENERATION_READY || generation_drains(g));
        if (charges->name.user == NULL || is_charged(g, charges->name.user->uid)) {
                quota_discharge(&bytes);
                return;
        }
        if (bytes.user == NULL)
                quota_hold_same(&charges->name, &bytes, QUOTA_BYTES, 0);
        quota_adjust(&bytes, generation_user_bytes(g));
        charges->bytes = quota_take(&bytes);
}

/* ---- names ---- */

int generation_add_name(struct generation *generation, const char *name, const char *source,
                        const struct caller *caller, uid_t owner, struct name_charges *charges)
{
        struct resident *resident = generation->resident;
        struct model_name *n = calloc(1, sizeof(*n) + strlen(name) + 1);
        bool own_source = strcmp(source, generation->source) != 0;
        if (n == NULL || (own_source && (n->source = strdup(source)) == NULL) ||
            (caller != NULL && (n->caller = callers_get(&resident->callers, caller)) == NULL)) {
                name_free(resident, n);
                return STREAMER_ENOMEM;
        }
        strcpy(n->text, name);
        n->owner = owner;
        resident_name_owner(generation->resident, name, &n->owner);
        if (charges != NULL) {
                n->charges = *charges;
                *charges = (struct name_charges){.name = {.user = NULL}};
        }
        require(n->charges.bytes.user == NULL || n->charges.bytes.user == n->charges.name.user);
        if (generation->last_name != NULL) /* it does not count beside a name */
                tree_remove(&generation->resident->names, &generation->last_name->in_order);
        n->generation = generation;
        tree_node_init(&n->in_order);
        tree_insert(&generation->resident->names, &n->in_order);
        n->sequence = ++generation->resident->last_name;
        list_append(&generation->names, &n->link);
        list_append(resident_bucket(generation->resident, name), &n->by_name);
        if (generation->state == GENERATION_READY)
                charge_name(generation, &n->charges);
        name_due(n);
        return 0;
}

/* ---- what the store still has ---- */

/* In place of another fallback, which may be reaped then. */
static void set_fallback(struct model_name *name, struct generation *fallback)
{
        struct generation *before = name->fallback;
        require(fallback == NULL || (fallback->stored == STORED_WHOLE && name->generation->stored != STORED_WHOLE));
        if (fallback != NULL)
                fallback->n_fallbacks++;
        name->fallback = fallback;
        if (before != fallback)
                name_due(name);
        if (before == NULL)
                return;
        require(before->n_fallbacks > 0);
        before->n_fallbacks--;
        generation_reap_later(before);
}

void model_name_settle(struct model_name *name)
{
        set_fallback(name, NULL);
}

void end_reason_set(struct end_reason *reason, enum end end, const char *format, ...)
{
        char text[2048];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        char escaped[ENDED_TEXT];
        error_escape(escaped, sizeof(escaped), text);
        free(reason->text);
        *reason = (struct end_reason){.end = end, .text = escaped[0] != '\0' ? strdup(escaped) : NULL};
}

static void add_ended(const struct generation *g, const struct model_name *name)
{
        struct ended_ring *ring = &g->resident->ended;
        if (source_is_test(g->source))
                return;
        struct ended *e = &ring->entries[ring->n++ % ENDED_MAX];
        end_reason_set(&e->reason, g->end.end, "%s", g->end.text ?: "");
        e->generation = g->number;
        e->at_ns = now_ns();
        e->device = g->device->name;
        snprintf(e->name, sizeof(e->name), "%s", name->text);
}

static void forget_last_name(struct generation *generation)
{
        if (generation->last_name != NULL)
                tree_remove(&generation->resident->names, &generation->last_name->in_order);
        name_free(generation->resident, generation->last_name);
        generation->last_name = NULL;
}

/* The one place where a generation loses a name; it stores the last one, for messages. Each removal is one event: that
 * of a name beside others is a change of its own, that of the last one ends what serves, or lets a failure be freed. */
static void remove_name(struct generation *generation, struct model_name *name)
{
        bool serves = generation->state == GENERATION_READY || generation->state == GENERATION_CACHED;
        require(name->generation == generation && !list_empty(&generation->names));
        if (serves)
                add_ended(generation, name);
        model_name_settle(name);
        name_due(name);
        list_remove(&name->link);
        list_remove(&name->by_name);
        end_charges(generation, name);
        if (serves)
                pass_charges(generation);
        forget_last_name(generation);
        generation->last_name = name;
        combine_settings(generation, NULL);
        idle_refresh(generation); /* of its ranks that without a name does not count */
        if (!list_empty(&generation->names)) {
                tree_remove(&generation->resident->names, &name->in_order);
                if (generation->reported)
                        report(generation, name->text);
                return;
        }
        if (generation->state == GENERATION_CACHED)
                generation->resident->drop_copy(generation);
        if (serves) {
                generation_set_state(generation, GENERATION_DRAINING);
                generation->dropped_ns = now_ns();
                generation_changed(generation);
        }
        generation_reap_later(generation);
}

static const struct caller root;

int generation_set_caller(struct generation *generation, const struct caller *caller)
{
        const struct caller *known = callers_get(&generation->resident->callers, caller);
        if (known == NULL)
                return STREAMER_ENOMEM;
        if (generation->caller != &root)
                callers_put(&generation->resident->callers, generation->caller);
        generation->caller = known;
        return 0;
}

static struct generation *generation_free(struct generation *generation)
{
        require(generation->n_fallbacks == 0 && generation->persisted == NULL && list_empty(&generation->names));
        forget_last_name(generation);
        generation_index_remove(generation);
        idle_remove(generation);
        list_remove(&generation->link);
        list_remove(&generation->reap);
        list_remove(&generation->change.in_changes);
        list_remove(&generation->in_persist);
        list_remove(&generation->in_unchecked);
        generation->magic = 0;
        quota_discharge(&generation->quota_charge);
        quota_discharge(&generation->model_charge);
        published_free(generation->published);
        source_files_free(generation->files);
        source_notes_free(generation->notes);
        encryption_free(generation->encryption);
        disk_write_unref(generation->write);
        free(generation->pattern);
        free(generation->source);
        free(generation->segments);
        free(generation->error);
        free(generation->end.text);
        if (generation->caller != &root)
                callers_put(&generation->resident->callers, generation->caller);
        free(generation);
        return NULL;
}

struct generation *generation_new(struct resident *resident, const char *name, const char *source,
                                  struct device *device, uid_t owner)
{
        struct generation *g = calloc(1, sizeof(*g));
        if (g == NULL)
                return NULL;
        g->magic = GENERATION_MAGIC;
        g->resident = resident;
        g->sequence = ++resident->last_sequence;
        g->state = GENERATION_LOADING;
        g->device = device;
        g->caller = &root;
        g->source = strdup(source);
        g->manifest.fd = g->arrival.fd = -1;
        g->refs = 1;
        list_init(&g->link);
        list_init(&g->reap);
        list_init(&g->change.in_changes);
        list_init(&g->in_persist);
        list_init(&g->in_unchecked);
        generation_index_add(g);
        idle_add(g);
        list_init(&g->names);
        list_init(&g->leases);
        if (g->source == NULL || generation_add_name(g, name, source, NULL, owner, NULL) < 0)
                return generation_free(g);
        g->standing = container_of(g->names.next, struct model_name, link);
        list_append(&resident->generations, &g->link);
        return g;
}

int resident_charge_model(struct resident *resident, const char *name, const struct device *device,
                          struct quotas *users, uid_t uid, const struct quota_limits *limits,
                          struct quota_charge *charge, struct error *error)
{
        const struct generation *g = resident_on(resident, name, GENERATION_READY, device)
                                             ?: resident_on(resident, name, GENERATION_CACHED, device);
        const struct quota_user *payer = g != NULL ? g->model_charge.user : NULL;
        const struct quota_user *named = g != NULL ? generation_find_name(g, name)->charges.name.user : NULL;
        bool replaces_own = (payer != NULL && payer->uid == uid) || (named != NULL && named->uid == uid);
        return quota_charge(users, uid, charge, QUOTA_MODELS, replaces_own ? 0 : 1, limits, error);
}

void generation_uncharge(struct generation *generation)
{
        require(generation->n_segments == 0);
        generation->device->used -= generation->charged;
        generation->charged = 0;
        idle_refresh(generation);
        quota_discharge(&generation->quota_charge);
        if (generation->state != GENERATION_LOADING) /* which may ask again */
                end_bytes_of_names(generation);
        resident_capacity_changed(generation->resident);
}

void generation_used(struct generation *generation)
{
        generation->last_used_ns = now_ns();
        generation_each_rank(g, generation) g->last_used_ns = generation->last_used_ns;
        idle_refresh(generation);
}

int generation_make_segments(struct generation *generation, size_t n)
{
        require(n >= generation->n_segments && n <= GENERATION_SEGMENTS);
        size_t room = n ?: 1; /* tensors without bytes are in a segment, too */
        struct segment *segments = reallocarray(generation->segments, room, sizeof(*segments));
        if (segments == NULL)
                return STREAMER_ENOMEM;
        memset(&segments[generation->n_segments], 0, (room - generation->n_segments) * sizeof(*segments));
        generation->segments = segments;
        return 0;
}

const struct error *generation_error(const struct generation *generation)
{
        static const struct error none = {.code = 0}, no_memory = {.code = STREAMER_ENOMEM,
                                                                   .text = "no memory for the reason of a failure"};
        if (generation->state != GENERATION_FAILED && generation->error == NULL)
                return &none;
        return generation->error ?: &no_memory;
}

void generation_release_segments(struct generation *generation)
{
        if (generation->write != NULL)
                disk_write_revoke(generation->write);
        for (unsigned i = 0; i < generation->n_segments; i++)
                generation->device->ops->release(&generation->segments[i]);
}

static void vacate_run(struct work *work)
{
        generation_release_segments(container_of(work, struct generation, work));
}

static void release_run(struct work *work)
{
        struct generation *g = container_of(work, struct generation, work);
        generation_release_segments(g);
        table_drop(&g->manifest);
        table_drop(&g->arrival);
}

static void release_done(struct work *work)
{
        struct generation *g = container_of(work, struct generation, work);
        g->releasing = false;
        g->n_segments = 0;
        if (g->state == GENERATION_REVOKED)
                g->device->quarantined -= g->charged;
        generation_uncharge(g);
        if (g->manifest.fd < 0 && g->stored == STORED_LEFT)
                log_info("%s: generation %" PRIu64 " stays in the fd store", generation_name(g), g->number);
        else if (g->manifest.fd < 0)
                log_event(source_is_test(g->source) ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO, LOG_MODEL_FREED,
                          LOG_FIELDS(LOG_TEXT("model", generation_name(g)), LOG_NUMBER("generation", g->number),
                                     LOG_TEXT("device", g->device->name)),
                          "%s: generation %" PRIu64 " has freed its memory", generation_name(g), g->number);
        generation_reap_later(g);
}

static void release(struct generation *g, void (*run)(struct work *))
{
        g->releasing = true;
        work_submit(g->device->thread, WORK_LANE_CPU, &g->work, run, release_done);
}

void generation_vacate(struct generation *generation)
{
        release(generation, vacate_run);
}

static bool holds_memory(const struct generation *g)
{
        return g->n_segments > 0 || g->charged > 0 || g->manifest.fd >= 0 || g->arrival.fd >= 0;
}

/* Dropped, and used by nothing. */
static bool is_unused(const struct generation *g)
{
        bool dropped = generation_drains(g) || g->state == GENERATION_FAILED;
        return dropped && g->n_leases == 0 && g->refs == 0 && !g->releasing;
}

static bool has_all_names(const struct generation *generation, const struct generation *of)
{
        list_each_item (const struct model_name, n, &of->names, link)
                if (!generation_has_name(generation, n->text))
                        return false;
        return true;
}

bool resident_holds(const struct resident *resident, uint64_t number, const struct device *device,
                    const struct generation *successor)
{
        resident_each_numbered(g, resident, number)
        {
                bool ended = is_unused(g) && g->persisted == NULL && !holds_memory(g) && list_empty(&g->names);
                bool restored = g->state == GENERATION_CACHED && successor != NULL && has_all_names(successor, g);
                if (g->device == device && !ended && !restored)
                        return true;
        }
        return false;
}

/* One step; see model.h. */
static void reap(struct generation *generation)
{
        require(generation->magic == GENERATION_MAGIC);
        if (!is_unused(generation))
                return;
        if (generation->persisted != NULL) {
                generation->resident->remove_stored(generation);
                return;
        }
        if (holds_memory(generation)) {
                release(generation, release_run);
                return;
        }
        if (!list_empty(&generation->names))
                return;
        generation_set_state(generation, GENERATION_UNLOADED);
        if (generation->reported)
                generation_changed(generation);
        generation_free(generation);
}

/* A few in each turn of the loop. */
static void on_reap(struct callback *callback)
{
        struct resident *resident = container_of(callback, struct resident, reap_later);
        for (int i = 0; i < REAP_TURN && !list_empty(&resident->reap); i++) {
                struct generation *g = container_of(resident->reap.next, struct generation, reap);
                list_remove(&g->reap);
                reap(g);
        }
        if (!list_empty(&resident->reap))
                wake_post(resident->wake, &resident->reap_later);
}

void generation_reap_later(struct generation *generation)
{
        struct resident *resident = generation->resident;
        require(generation->magic == GENERATION_MAGIC);
        resident_capacity_changed(resident);
        if (!is_unused(generation) || !list_empty(&generation->reap))
                return;
        list_append(&resident->reap, &generation->reap);
        resident->reap_later.run = on_reap;
        wake_post(resident->wake, &resident->reap_later);
}

void generation_get(struct generation *generation)
{
        require(!generation->releasing);
        generation->refs++;
        idle_refresh(generation);
}

void generation_put(struct generation *generation)
{
        require(generation->refs > 0);
        generation->refs--;
        idle_refresh(generation);
        generation_reap_later(generation);
}

void generation_drop_name(struct generation *generation, const char *text)
{
        struct model_name *name = generation_find_name(generation, text);
        require(name != NULL);
        remove_name(generation, name);
        if (!list_empty(&generation->names))
                end_reason_set(&generation->end, END_UNLOADED, "%s", ""); /* the reason was this name's */
}

void generation_drop_all(struct generation *generation)
{
        list_each_item_safe (struct model_name, name, &generation->names, link)
                remove_name(generation, name);
}

void generation_revoke(struct generation *generation)
{
        generation_set_state(generation, GENERATION_REVOKED);
        generation->device->quarantined += generation->charged;
        char size[SIZE_TEXT];
        log_warn("%s: generation %" PRIu64
                 " is revoked from %u lease%s: %s stays in quarantine until no process maps it",
                 generation_name(generation), generation->number, generation->n_leases,
                 generation->n_leases == 1 ? "" : "s", size_text(size, generation->charged));
        generation_changed(generation);
}

void generation_drain_for(struct generation *generation, uint64_t timeout_ns)
{
        generation_drain_until(generation, timeout_ns > 0 ? ns_after(now_ns(), timeout_ns) : 0);
}

void generation_drain_until(struct generation *generation, uint64_t at_ns)
{
        generation->drained_by_ns = at_ns;
        generation_settings_changed(generation);
}

void generation_take_over(struct generation *generation, const char *name)
{
        const struct list *all = resident_bucket(generation->resident, name);
        struct model_name *taken = generation_find_name(generation, name);
        require(taken != NULL);
        list_each_item_safe (const struct model_name, n, all, by_name) {
                struct generation *old = n->generation;
                if (old->state == GENERATION_LOADING || old == generation || old->device != generation->device ||
                    strcmp(n->text, name) != 0)
                        continue;
                if (old->state != GENERATION_FAILED)
                        inherit_settings(taken, n, SETTINGS_OF_NAME);
                /* The drain timeout starts only if it drains, not while it serves under another name. */
                if (old->names.next == old->names.prev)
                        generation_drain_for(old, taken->settings.drain_timeout_ns);
                end_reason_set(&old->end, END_REPLACED, "by generation %" PRIu64, generation->number);
                struct generation *fallback = old->stored == STORED_WHOLE ? old : n->fallback;
                if (generation->stored != STORED_WHOLE && fallback != NULL)
                        set_fallback(taken, fallback);
                generation_drop_name(old, name);
        }
}

void generation_ready(struct generation *generation)
{
        require(generation->state == GENERATION_LOADING);
        /* A name that a newer generation serves already stays with that one, as it was asked for. */
        list_each_item_safe (struct model_name, n, &generation->names, link) {
                const struct generation *other =
                        resident_on(generation->resident, n->text, GENERATION_READY, generation->device);
                if (other == NULL || other->number <= generation->number)
                        continue;
                inherit_settings(generation_find_name(other, n->text), n, n->asked);
                remove_name(generation, n);
        }
        generation_set_state(generation, list_empty(&generation->names) ? GENERATION_DRAINING : GENERATION_READY);
        generation->dropped_ns = generation->last_used_ns = now_ns();
        quota_commit(&generation->model_charge);
        list_each_item (struct model_name, n, &generation->names, link)
                charge_name(generation, &n->charges);
        pass_charges(generation);
        list_each_item (const struct model_name, n, &generation->names, link)
                generation_take_over(generation, n->text);
        generation_changed(generation);
        generation_reap_later(generation);
}

/* At most `failed_kept` failures stay listed, the newest. */
static void forget_failures(const struct resident *resident)
{
        const struct list *failed = &resident->in_state[GENERATION_FAILED];
        uint64_t n = 0;
        for (struct list *pos = failed->prev; pos != failed; pos = pos->prev) {
                struct generation *g = container_of(pos, struct generation, in_state);
                if (!list_empty(&g->names) && ++n > resident->failed_kept)
                        generation_drop_all(g);
        }
}

static void fail(struct generation *generation, const struct error *error, bool listed)
{
        require(generation->state == GENERATION_LOADING);
        struct resident *resident = generation->resident;
        /* Often a mistyped path: no load of it was planned. */
        bool has_no_source = error->code == STREAMER_ENOENT && generation->number == 0;
        end_reason_set(&generation->end, END_FAILED, "%s", error->text);
        list_each_item (struct model_name, n, &generation->names, link) {
                quota_discharge(&n->charges.bytes);
                quota_discharge(&n->charges.name); /* failed_kept limits failures instead */
                if (listed)
                        add_ended(generation, n);
                struct generation *before = resident_on(resident, n->text, GENERATION_FAILED, generation->device);
                if (before != NULL)
                        generation_drop_name(before, n->text);
        }
        generation_set_state(generation, GENERATION_FAILED);
        generation->dropped_ns = now_ns();
        generation->error = malloc(sizeof(*error));
        if (generation->error != NULL)
                *generation->error = *error;
        quota_discharge(&generation->model_charge);
        if (generation->charged == 0) /* it was granted no memory, or returned it */
                quota_discharge(&generation->quota_charge);
        generation_changed(generation);
        if (!listed || has_no_source)
                generation_drop_all(generation);
        generation_reap_later(generation);
        forget_failures(resident);
}

void generation_fail(struct generation *generation, const struct error *error)
{
        bool denied = error->outside || (error->code == STREAMER_EPERM && generation->charged == 0);
        fail(generation, error, !denied);
}

void generation_fail_unlisted(struct generation *generation, const struct error *error)
{
        fail(generation, error, false);
}

void generation_discard(struct generation *generation)
{
        require(generation->state == GENERATION_LOADING && !holds_memory(generation));
        generation_set_state(generation, GENERATION_FAILED);
        generation_drop_all(generation);
        generation_reap_later(generation);
}
