/* SPDX-License-Identifier: Apache-2.0
 *
 * The requests of a load. Each has a name, rights and an answer of its own, and asks for settings of its name: pin,
 * keep-alive, drain timeout, priority. These are applied once, in the order of the requests, on every device of the
 * load: at the request, if its caller may change them, and again in a resident generation that the load turns out to
 * share (coalesce.c). Until that is known (load_is_settled), requests keep what they asked for, those of verbs that
 * change settings included.
 *
 * A client may repeat requests without limit, but watched ones are charged to it. So of those that nothing watches, the
 * load keeps no more than it needs (fold).
 *
 * Requests share the terms of admission: the load waits for memory if any asks for that, and evicts unless all ask not
 * to.
 *
 * How it fails: what a caller may not ask for is STREAMER_EPERM, at the request or, where the owner of a shared model
 * turns out to be another, for this request alone.
 */
#include "daemon/load/load_private.h"

#include <string.h>

/* ---- settings ---- */

static struct settings_change change_of(const struct model_settings *asked)
{
        struct settings_change change = {.to = *asked};
        if (asked->pinned)
                change.asks |= SETTING_PINNED;
        if (asked->keep_alive_ns > 0)
                change.asks |= SETTING_KEEP_ALIVE;
        if (asked->drain_timeout_ns > 0)
                change.asks |= SETTING_DRAIN_TIMEOUT;
        if (asked->priority > 0)
                change.asks |= SETTING_PRIORITY;
        return change;
}

bool retention_allowed(const struct model_settings *asked, uid_t owner, uid_t uid, bool admin)
{
        return change_of(asked).asks == 0 || admin || owner == uid;
}

struct model_settings load_name_settings(const struct loads *loads, const char *name, const struct device *device)
{
        struct model_settings settings = loads->defaults;
        settings.priority = PROTO_PRIORITY_DEFAULT;
        if (loads->desired_settings != NULL)
                loads->desired_settings(loads, name, device, &settings);
        return settings;
}

/* ---- a request ---- */

static bool is_watched(const struct load_request *request)
{
        return !list_empty(&request->watchers) || !list_empty(&request->subscribers);
}

struct load_request *load_request_free(struct load_request *request)
{
        if (request == NULL)
                return NULL;
        require(request->magic == LOAD_REQUEST_MAGIC && !is_watched(request));
        request->magic = 0;
        list_remove(&request->link);
        free(request->name);
        free(request->rule);
        free(request);
        return NULL;
}

static struct load_request *request_new(struct load *load, const char *name, uid_t uid, bool admin, const char *rule,
                                        const struct settings_change *change)
{
        struct load_request *r = calloc(1, sizeof(*r));
        if (r == NULL)
                return NULL;
        r->magic = LOAD_REQUEST_MAGIC;
        r->load = load;
        r->uid = uid;
        r->admin = admin;
        r->change = *change;
        list_init(&r->link);
        list_init(&r->watchers);
        list_init(&r->subscribers);
        r->name = strdup(name);
        r->rule = rule != NULL ? strdup(rule) : NULL;
        return r->name != NULL && !r->rule == !rule ? r : load_request_free(r);
}

int load_request_check(const struct load_request *request, const struct generation *generation, struct error *error)
{
        uid_t owner = generation_owner(generation);
        if (request->change.asks == 0 || request->admin || owner == request->uid)
                return 0;
        return error_set(error, STREAMER_EPERM,
                         "%s: uid %u loaded it: pin, keep-alive, drain-timeout and priority are for that user or an "
                         "admin, and not for uid %u%s%s%s",
                         generation_name(generation), (unsigned)owner, (unsigned)request->uid,
                         request->rule != NULL ? " (" : "", request->rule != NULL ? request->rule : "",
                         request->rule != NULL ? ")" : "");
}

void load_request_apply(const struct load_request *request, struct generation *generation)
{
        struct model_name *name = generation_find_name(generation, request->name);
        require(request->end_number == 0 && load_request_check(request, generation, NULL) == 0);
        generation_used(generation);
        if (name != NULL)
                model_name_change_settings(name, &request->change);
}

/* ---- what the load keeps ---- */

/* Whether an earlier request that nothing watches says the same of its name. */
static bool is_repeated(const struct load_request *request)
{
        list_each_item (const struct load_request, r, &request->load->requests, link) {
                if (r == request)
                        return false;
                if (r->change.asks == 0 && !is_watched(r) && strcmp(r->name, request->name) == 0)
                        return true;
        }
        return false;
}

/* The last request before this one that asks for settings of the same name. */
static struct load_request *asks_before(const struct load_request *request)
{
        struct load_request *before = NULL;
        list_each_item (struct load_request, r, &request->load->requests, link) {
                if (r == request)
                        break;
                if (r->change.asks != 0 && strcmp(r->name, request->name) == 0)
                        before = r;
        }
        return before;
}

/* Of two consecutive requests of one caller for settings of a name, the first one asks for both, with the later values.
 */
static bool is_merged_into_earlier(struct load_request *request)
{
        struct load_request *before = asks_before(request);
        if (before == NULL || is_watched(before) || before->uid != request->uid || before->admin != request->admin)
                return false;
        settings_apply(&before->change.to, &request->change);
        before->change.asks |= request->change.asks;
        before->by_verb = before->by_verb && request->by_verb;
        return true;
}

/* Frees the requests that nothing watches and that others stand for. Each name keeps a request. */
static void fold(struct load *load)
{
        list_each_item_safe (struct load_request, r, &load->requests, link)
                if (!is_watched(r) && (r->change.asks == 0 ? is_repeated(r) : is_merged_into_earlier(r)))
                        load_request_free(r);
}

/* In what the load makes; NULL: nothing that it makes has the name. */
static const struct model_name *find_name(const struct load *load, const char *text)
{
        load_each_open (t, load) {
                const struct model_name *name =
                        t->generation != NULL ? generation_find_name(t->generation, text) : NULL;
                if (name != NULL)
                        return name;
        }
        return NULL;
}

void load_settle_requests(struct load *load)
{
        list_each_item (struct load_request, r, &load->requests, link) {
                r->settled |= r->change.asks;
                r->change.asks = 0;
        }
}

void load_unsettle_requests(struct load *load)
{
        list_each_item (struct load_request, r, &load->requests, link) {
                const struct model_name *name = find_name(load, r->name);
                r->change.asks |= r->settled;
                r->settled = 0;
                if (name != NULL)
                        r->change.to = name->settings;
                else
                        r->change.asks = 0; /* it was removed, with its settings */
        }
}

/* ---- the load's share of its requests ---- */

void load_put_served(struct load *load)
{
        for (size_t i = 0; load->wait && i < load->n_targets; i++)
                if (load->targets[i].state == TARGET_SERVES)
                        target_put_generation(&load->targets[i]);
}

void load_relax(struct load *load, bool wait, bool no_evict)
{
        load->wait = load->wait || wait;
        load->no_evict = load->no_evict && no_evict;
        if (load->state >= LOAD_QUEUED) /* before, load_reserve() does it */
                load_put_served(load);
        admission_relax(&load->admission, load_may_evict(load), load->wait);
}

void load_refresh_priority(struct load *load)
{
        unsigned priority = 0;
        require(!load_ended(load->state));
        load_each_open (t, load)
                if (t->generation != NULL && t->generation->settings.priority > priority)
                        priority = t->generation->settings.priority;
        if (priority == 0 || priority == load->priority) /* 0: a dry run */
                return;
        load->priority = priority;
        load_each_part (part, load)
                if (part->state == PART_READING)
                        reader_set_weight(load->loads->reader, part_reading(part), priority);
        admission_set_priority(&load->admission, priority);
}

struct generation *target_generation(const struct load_target *target)
{
        if (target->generation != NULL || target->state != TARGET_SERVES)
                return target->generation;
        resident_each_numbered(g, target->load->loads->resident,
                               target->served_number) if (g->sequence == target->served) return g->state ==
                        GENERATION_READY
                ? g
                : NULL;
        return NULL;
}

/* ---- beginning ---- */

struct load_request *load_request_add(struct load *load, const struct load_args *args, struct error *error)
{
        const struct settings_change change = change_of(&args->retention);
        require(!load_ended(load->state));
        struct load_request *r = request_new(load, args->name, args->caller->uid, args->admin,
                                             args->users != NULL ? args->limits->rule : NULL, &change);
        if (r == NULL) {
                error_no_memory(error);
                return NULL;
        }
        load_each_target (t, load) {
                const struct generation *g = target_generation(t);
                if (g != NULL && load_request_check(r, g, error) < 0)
                        return load_request_free(r);
        }
        fold(load);
        list_append(&load->requests, &r->link);
        load_each_target (t, load) {
                struct generation *g = target_generation(t);
                if (g != NULL)
                        load_request_apply(r, g);
        }
        load_refresh_priority(load);
        if (load_is_settled(load)) {
                r->settled = r->change.asks;
                r->change.asks = 0;
        }
        return r;
}

static bool has_name(const struct load *load, const char *name)
{
        load_each_target (t, load)
                if (t->generation != NULL && generation_has_name(t->generation, name))
                        return true;
        return false;
}

static bool change_names(struct resident *resident, const char *name, bool failures,
                         const struct settings_change *change)
{
        bool found = false;
        resident_each_named(n, resident, name)
        {
                bool removed = list_empty(&n->generation->names); /* the last name of one that drains */
                if (removed || (n->generation->state == GENERATION_FAILED && !failures))
                        continue;
                found = true;
                model_name_change_settings(n, change);
                if (change->asks & SETTING_KEEP_ALIVE)
                        generation_used(n->generation); /* the time without a lease begins anew */
                if (!failures)
                        generation_changed(n->generation);
        }
        return found;
}

int loads_change_settings(struct loads *loads, const char *name, bool failures, uid_t uid, bool admin,
                          const struct settings_change *change, struct error *error)
{
        bool found = change_names(loads->resident, name, failures, change);
        list_each_item (struct load, load, &loads->all, link) {
                if (load_ended(load->state) || !has_name(load, name))
                        continue;
                load_refresh_priority(load);
                if (load_is_settled(load))
                        continue;
                struct load_request *r = request_new(load, name, uid, admin, NULL, change);
                if (r == NULL)
                        return error_no_memory(error);
                r->by_verb = true;
                fold(load);
                list_append(&load->requests, &r->link);
        }
        return found ? 1 : 0;
}
