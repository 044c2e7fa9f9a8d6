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

/* Without a name: the only device. */
static int find_devices(struct device *devices[LOAD_DEVICES], size_t *n, struct resident *resident,
                        const struct load_request *request, struct error *error)
{
        *n = 0;
        do {
                const char *name = request->n_devices > 0 ? request->devices[*n] : NULL;
                struct device *device = resident_device(resident, name, error);
                if (device == NULL)
                        return STREAMER_EINVAL;
                for (size_t i = 0; i < *n; i++)
                        if (devices[i] == device)
                                return error_set(error, STREAMER_EINVAL, "device: %s is named twice", device->name);
                devices[(*n)++] = device; /* there are LOAD_DEVICES at most */
        } while (*n < request->n_devices);
        return 0;
}

static int check_name(const struct load_request *request, struct error *error)
{
        if (!request->probe && strncmp(request->name, PROBE_SCHEME, strlen(PROBE_SCHEME)) == 0)
                return error_set(error, STREAMER_EINVAL, "name: '%s' begins the names of the daemon's own models",
                                 PROBE_SCHEME);
        return request->name[0] != '\0' ? 0 : error_set(error, STREAMER_EINVAL, "name: empty");
}

static bool same_devices(const struct load *load, struct device *const *devices, size_t n)
{
        bool same = load->n_targets == n;
        for (size_t i = 0; same && i < n; i++)
                same = load->targets[i].device == devices[i];
        return same;
}

/* The load in progress that a request would repeat; a failed target would be missing for it. */
static struct load *find_same(struct loads *loads, const struct load_request *request, struct device *const *devices,
                              size_t n_devices)
{
        list_each_item (struct load, l, &loads->all, link)
                if (!load_ended(l->state) && !l->request.dry_run && !request->dry_run &&
                    (l->request.sha256 || !request->sha256) && !load_has(l, TARGET_FAILED) &&
                    source_same(l->source, request->source) && strcmp(l->name, request->name) == 0 &&
                    same_text(l->pattern, request->pattern) && same_devices(l, devices, n_devices))
                        return l;
        return NULL;
}

int loads_begin(struct loads *loads, const struct load_request *asked, struct load **out, struct error *error)
{
        struct load_request request = *asked;
        cleanup_free char *canonical = NULL;
        struct device *devices[LOAD_DEVICES];
        size_t n;
        struct quota_charge charge = {.user = NULL};
        if (loads->over)
                return error_set(error, STREAMER_ECANCELED, "the daemon is ending");
        if (!request.probe && source_canonical(request.source, &canonical, error) < 0)
                return error->code;
        if (canonical != NULL)
                request.source = canonical;
        if (find_devices(devices, &n, loads->resident, &request, error) < 0 || check_name(&request, error) < 0 ||
            (request.pattern != NULL && ranks_check_pattern(request.pattern, error) < 0))
                return error->code;
        *out = find_same(loads, &request, devices, n);
        if (*out != NULL) {
                load_set_retention(*out, &request);
                return 0;
        }
        if (loads->n_running >= loads->max_running)
                return error_set(error, STREAMER_ELIMIT, "%u loads are running or waiting: the limit (limits.loads)",
                                 loads->n_running);
        if (request.users != NULL &&
            quota_charge(request.users, request.caller->uid, &charge, QUOTA_LOADS, 1, request.limits, error) < 0)
                return error->code;
        *out = load_new(loads, &request, devices, n);
        if (*out == NULL) {
                quota_discharge(&charge);
                return error_no_memory(error);
        }
        (*out)->charge = charge;
        load_launch(*out);
        return 0;
}

struct load *loads_find(struct loads *loads, const char *name)
{
        struct load *found = NULL;
        list_each_item (struct load, l, &loads->all, link)
                load_each_target (t, l)
                        if (!load_ended(l->state) && t->generation != NULL && generation_has_name(t->generation, name))
                                found = l;
        return found;
}
