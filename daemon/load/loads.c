/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of loads, and how a request becomes a load or joins one.
 */
#include "daemon/load/load_private.h"

#include "daemon/model/ranks.h"

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

static int resolve_device(struct resolved_request *resolved, struct resident *resident, const char *name,
                          struct error *error)
{
        struct device *device = resident_device(resident, name, error);
        if (device == NULL)
                return STREAMER_EINVAL;
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
                return error_no_memory(error);
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
                if (!load_ended(l->state) && !l->request.dry_run && (l->request.sha256 || !request->sha256) &&
                    !load_has(l, TARGET_FAILED) && strcmp(l->source, resolved->source) == 0 &&
                    strcmp(l->name, resolved->name) == 0 && same_text(l->pattern, request->pattern) &&
                    same_devices(l, resolved))
                        return l;
        return NULL;
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
                return error_no_memory(error);
        }
        (*out)->charge = charge;
        load_open(*out);
        return 0;
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
