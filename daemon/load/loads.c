/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of loads, and how a load begins.
 */
#include "daemon/load/load_private.h"

#include "daemon/model/ranks.h"
#include "daemon/source/probe.h"

#include <string.h>

void loads_init(struct loads *loads)
{
        list_init(&loads->all);
        loads->n_running = 0;
}

bool loads_empty(const struct loads *loads)
{
        return list_empty(&loads->all);
}

void loads_cancel_all(struct loads *loads)
{
        loads->over = true; /* a watcher may ask for the next load at once */
        list_each_item (struct load, load, &loads->all, link)
                load_cancel(load);
        list_each_item (struct load, load, &loads->all, link)
                load_call_watchers(load);
}

/* ---- beginning ---- */

/* A request, resolved. */
struct resolved_request {
        char *name, *source;
        struct device *devices[LOAD_DEVICES];
        size_t n_devices;
};

static int resolve_device(struct resolved_request *resolved, struct resident *resident, const char *name,
                          struct error *error)
{
        struct device *device = resident_device(resident, name, error);
        if (device == NULL)
                return error != NULL ? error->code : STREAMER_EINVAL;
        for (size_t i = 0; i < resolved->n_devices; i++)
                if (resolved->devices[i] == device)
                        return error_set(error, STREAMER_EINVAL, "device: %s is named twice", device->name);
        if (resolved->n_devices == LOAD_DEVICES)
                return error_set(error, STREAMER_EINVAL, "device: more than %d", LOAD_DEVICES);
        resolved->devices[resolved->n_devices++] = device;
        return 0;
}

static int resolve_request(struct resolved_request *resolved, struct loads *loads, const struct load_request *request,
                           struct error *error)
{
        *resolved = (struct resolved_request){0};
        int r = 0;
        if (request->probe)
                resolved->source = strdup(request->source);
        else
                r = source_canonical(request->source, &resolved->source, error);
        if (r == 0 && request->n_devices == 0)
                r = resolve_device(resolved, loads->resident, NULL, error);
        for (size_t i = 0; r == 0 && i < request->n_devices; i++)
                r = resolve_device(resolved, loads->resident, request->devices[i], error);
        if (r < 0)
                return r;
        if (request->pattern != NULL && ranks_check_pattern(request->pattern, error) < 0)
                return error->code;
        if (request->name == NULL)
                r = loads_default_name(loads, resolved->source, request->named_after, &resolved->name, error);
        else
                resolved->name = strdup(request->name);
        if (r < 0)
                return r;
        if (resolved->name == NULL || resolved->source == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        if (!request->probe && strncmp(resolved->name, PROBE_SCHEME, strlen(PROBE_SCHEME)) == 0)
                return error_set(error, STREAMER_EINVAL, "name: '%s' begins the names of the daemon's own models",
                                 PROBE_SCHEME);
        return resolved->name[0] != '\0' ? 0 : error_set(error, STREAMER_EINVAL, "name: empty");
}

static bool same_devices(const struct load *load, const struct resolved_request *resolved)
{
        if (load->n_targets != resolved->n_devices)
                return false;
        for (size_t i = 0; i < load->n_targets; i++)
                if (load->targets[i].device != resolved->devices[i])
                        return false;
        return true;
}

/* The load in progress that a request would repeat; a failed target would be missing for it. */
static struct load *find_same(struct loads *loads, const struct resolved_request *resolved,
                              const struct load_request *request)
{
        list_each_item (struct load, l, &loads->all, link)
                if (!load_ended(l->state) && !l->dry_run && (l->sha256 || !request->sha256) &&
                    !load_has(l, TARGETS_FAILED) && strcmp(l->source, resolved->source) == 0 &&
                    strcmp(l->name, resolved->name) == 0 && same_text(l->pattern, request->pattern) &&
                    same_devices(l, resolved))
                        return l;
        return NULL;
}

void load_free(struct load *load)
{
        list_remove(&load->link);
        load->magic = 0;
        free(load->targets);
        free(load->demands);
        free(load->parts);
        source_roots_free(load->roots);
        free(load->name);
        free(load->source);
        free(load->pattern);
        free(load);
}

/* Devices of one layout are copied the same blocks from slots; a device that is read in place has a part of its own. */
static struct load_part *part_for(struct load *load, const struct device *device)
{
        for (size_t i = 0; load->pattern == NULL && i < load->n_parts; i++) {
                const struct plan_layout *layout = &load->parts[i].targets[0]->device->layout;
                if (layout->page == 0 && memcmp(layout, &device->layout, sizeof(*layout)) == 0)
                        return &load->parts[i];
        }
        struct load_part *part = &load->parts[load->n_parts++];
        part->load = load;
        return part;
}

static int add_target(struct load *load, struct device *device, size_t n_devices)
{
        struct load_target *t = &load->targets[load->n_targets++];
        t->load = load;
        t->device = device;
        t->manifest.fd = t->arrival.fd = -1;
        t->part = part_for(load, device);
        t->part->targets[t->part->n_targets] = t;
        t->part->copies[t->part->n_targets++] = &t->copy;
        if (load->dry_run)
                return 0;
        struct generation *g = generation_new(load->loads->resident, load->name, load->source, device, load->owner);
        t->generation = g;
        if (g == NULL)
                return STREAMER_ENOMEM;
        g->settings.priority = load->priority;
        g->settings.keep_alive_ns = load->loads->keep_alive_ns;
        g->settings.drain_timeout_ns = load->loads->drain_timeout_ns;
        g->caller = load->caller;
        if (load->pattern == NULL)
                return 0;
        g->rank = (unsigned)load->n_targets - 1;
        g->n_ranks = (unsigned)n_devices;
        g->pattern = strdup(load->pattern);
        return g->pattern != NULL ? 0 : STREAMER_ENOMEM;
}

static int add_targets(struct load *load, const struct resolved_request *resolved)
{
        load->targets = calloc(resolved->n_devices, sizeof(*load->targets));
        load->parts = calloc(resolved->n_devices, sizeof(*load->parts));
        load->demands = calloc(resolved->n_devices, sizeof(*load->demands));
        if (load->targets == NULL || load->parts == NULL || load->demands == NULL)
                return STREAMER_ENOMEM;
        int r = 0;
        for (size_t i = 0; r == 0 && i < resolved->n_devices; i++)
                r = add_target(load, resolved->devices[i], resolved->n_devices);
        return r;
}

/* Sets the retention of its generations; a repeated request adds to the earlier ones. */
static void load_set_retention(struct load *load, const struct load_request *request)
{
        load->pin = load->pin || request->pin;
        load_relax(load, request->wait, request->no_evict);
        if (request->keep_alive_ns > 0)
                load->keep_alive_ns = request->keep_alive_ns;
        if (request->drain_timeout_ns > 0)
                load->drain_timeout_ns = request->drain_timeout_ns;
        if (request->priority > 0) {
                load->has_priority = true;
                load_set_priority(load, request->priority);
        }
        load_each_target (t, load) {
                struct generation *g = t->generation;
                bool released = g == NULL && t->state == TARGET_SERVES; /* a load that waits holds no reference */
                if (released)
                        g = resident_on(load->loads->resident, load->name, GENERATION_READY, t->device);
                if (g != NULL && (!released || g->number == load->number))
                        load_apply_retention(load, g);
        }
}

int load_may_retain(const struct load *load, const struct generation *generation, struct error *error)
{
        bool asks = load->pin || load->has_priority || load->keep_alive_ns > 0 || load->drain_timeout_ns > 0;
        uid_t owner = generation_owner(generation);
        if (!asks || load->admin || owner == load->caller.uid)
                return 0;
        return error_set(error, STREAMER_EPERM,
                         "%s: uid %u loaded it: pin, keep-alive, drain-timeout and priority are for that user or an "
                         "admin, and not for uid %u%s%s%s",
                         generation_name(generation), (unsigned)owner, (unsigned)load->caller.uid,
                         load->users != NULL ? " (" : "", load->limits.rule, load->users != NULL ? ")" : "");
}

void load_apply_retention(const struct load *load, struct generation *generation)
{
        struct error error;
        generation_used(generation);
        if (load_may_retain(load, generation, &error) < 0)
                return;
        generation->settings.pinned = generation->settings.pinned || load->pin;
        if (load->keep_alive_ns > 0)
                generation->settings.keep_alive_ns = load->keep_alive_ns;
        if (load->drain_timeout_ns > 0)
                generation->settings.drain_timeout_ns = load->drain_timeout_ns;
        if (load->has_priority)
                generation->settings.priority = load->priority;
}

static struct load *load_new(struct loads *loads, const struct load_request *request,
                             const struct resolved_request *resolved)
{
        struct load *load = calloc(1, sizeof(*load));
        if (load == NULL)
                return NULL;
        load->magic = LOAD_MAGIC;
        list_init(&load->link);
        list_init(&load->watchers);
        list_init(&load->subscribers);
        load->loads = loads;
        load->name = strdup(resolved->name);
        load->source = strdup(resolved->source);
        load->pattern = request->pattern != NULL ? strdup(request->pattern) : NULL;
        load->caller = *request->caller;
        load->owner = request->owner != NULL ? *request->owner : request->caller->uid;
        load->sha256 = request->sha256;
        load->dry_run = request->dry_run;
        load->wait = request->wait;
        load->no_evict = request->no_evict;
        load->admin = request->admin;
        load->roots = source_roots_ref(request->roots);
        load->users = request->users;
        if (request->users != NULL)
                load->limits = *request->limits;
        if (request->users != NULL && !request->limits->unlimited)
                load->step.user = work_user(request->caller->uid);
        load->priority = request->priority > 0 ? request->priority : PROTO_PRIORITY_DEFAULT;
        load->started_ns = now_ns();
        bool ok = load->name != NULL && load->source != NULL && !load->pattern == !request->pattern;
        if (!ok || add_targets(load, resolved) < 0) {
                load_each_target (t, load)
                        if (t->generation != NULL) {
                                generation_discard(t->generation);
                                target_put_generation(t);
                        }
                load_free(load);
                return NULL;
        }
        load_set_retention(load, request);
        load->id = ++loads->last_id;
        list_append(&loads->all, &load->link);
        return load;
}

static int begin(struct loads *loads, const struct load_request *request, const struct resolved_request *resolved,
                 struct load **out, struct error *error)
{
        *out = request->dry_run ? NULL : find_same(loads, resolved, request);
        if (*out != NULL) {
                load_set_retention(*out, request);
                return 0;
        }
        if (loads->n_running >= loads->max_running)
                return error_set(error, STREAMER_ELIMIT, "%u loads are running or waiting: the limit (limits.loads)",
                                 loads->n_running);
        struct quota_charge charge = {.user = NULL};
        int r = request->users == NULL ? 0
                                       : quota_charge(request->users, request->caller->uid, &charge, QUOTA_LOADS, 1,
                                                      request->limits, error);
        if (r < 0)
                return r;
        *out = load_new(loads, request, resolved);
        if (*out == NULL) {
                quota_discharge(&charge);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        (*out)->charge = charge;
        loads->n_running++;
        load_open(*out);
        return 0;
}

bool load_begin_again(struct load *load)
{
        struct loads *loads = load->loads;
        struct resolved_request resolved = {.name = load->name, .source = load->source, .n_devices = load->n_targets};
        const struct load_request request = {.source = load->source,
                                             .name = load->name,
                                             .pattern = load->pattern,
                                             .sha256 = load->sha256,
                                             .wait = load->wait,
                                             .no_evict = load->no_evict,
                                             .pin = load->pin,
                                             .keep_alive_ns = load->keep_alive_ns,
                                             .drain_timeout_ns = load->drain_timeout_ns,
                                             .priority = load->has_priority ? load->priority : 0,
                                             .admin = load->admin,
                                             .caller = &load->caller,
                                             .owner = &load->owner,
                                             .roots = load->roots,
                                             .users = load->users,
                                             .limits = &load->limits};
        if (loads->over || load->served || load->restarts == LOAD_RESTARTS)
                return false;
        for (size_t i = 0; i < load->n_targets; i++)
                resolved.devices[i] = load->targets[i].device;
        struct load *next = load_new(loads, &request, &resolved);
        if (next == NULL)
                return false;
        next->restarts = load->restarts + 1;
        next->started_ns = load->started_ns;
        next->charge = load->charge;
        load->charge = (struct quota_charge){.user = NULL};
        load->superseded = true;
        loads->n_running++;
        load_move_watchers(load, next);
        load_open(next);
        return true;
}

int loads_begin(struct loads *loads, const struct load_request *request, struct load **out, struct error *error)
{
        struct resolved_request resolved;
        if (loads->over)
                return error_set(error, STREAMER_ECANCELED, "the daemon is ending");
        int r = resolve_request(&resolved, loads, request, error);
        if (r == 0)
                r = begin(loads, request, &resolved, out, error);
        free(resolved.name);
        free(resolved.source);
        return r;
}

struct load *loads_find(struct loads *loads, const char *name)
{
        struct load *found = NULL;
        list_each_item (struct load, l, &loads->all, link)
                for (size_t i = 0; !load_ended(l->state) && i < l->n_targets; i++) {
                        const struct generation *g = l->targets[i].generation;
                        if (g != NULL && generation_has_name(g, name))
                                found = l;
                }
        return found;
}

void load_set_priority(struct load *load, unsigned priority)
{
        load->priority = priority;
        load_each_part (part, load)
                if (part->state == PART_READING)
                        reader_set_weight(load->loads->reader, &part->job, priority);
        load_each_target (t, load)
                admission_set_priority(&t->admission, priority);
}

/* ---- prefaulting ----
 *
 * Devices prefault memory only while no load is in progress, since that takes processor time and memory bandwidth. A
 * load stops it at once; about a second after the last one it resumes, so that consecutive loads are not disturbed. A
 * load that waits for memory does not stop it. */

void loads_check_prefault(struct loads *loads)
{
        bool fill = !loads->over;
        list_each_item (const struct load, load, &loads->all, link)
                fill = fill && (load_ended(load->state) || load->state == LOAD_QUEUED);
        for (size_t i = 0; i < loads->resident->n_devices; i++)
                prefault_fill(loads->resident->devices[i]->prefault, fill);
}
