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
        loads->n_running = loads->n_background = 0;
        loads->keyring = keyring_ref(&keyring_none);
}

bool loads_empty(const struct loads *loads)
{
        return list_empty(&loads->all);
}

bool loads_all_wait(const struct loads *loads)
{
        list_each_item (const struct load, load, &loads->all, link)
                if (load->state != LOAD_QUEUED)
                        return false;
        return true;
}

void loads_cancel_all(struct loads *loads)
{
        loads->over = true; /* a watcher may ask for the next load at once */
        list_each_item (struct load, load, &loads->all, link)
                load_cancel(load);
        list_each_item (struct load, load, &loads->all, link)
                load_call_watchers(load);
}

uint64_t loads_notify_arrivals(struct loads *loads)
{
        uint64_t now = now_ns(), next = UINT64_MAX;
        list_each_item (struct load, load, &loads->all, link)
                load_each_part (part, load) {
                        uint64_t at = part_notify_arrivals(part, now);
                        next = at < next ? at : next;
                }
        return next;
}

/* ---- beginning ---- */

/* Without a name: the only device. */
static int find_devices(struct device *devices[LOAD_DEVICES], size_t *n, struct resident *resident,
                        const struct load_args *args, struct error *error)
{
        *n = 0;
        do {
                const char *name = args->n_devices > 0 ? args->devices[*n] : NULL;
                struct device *device = resident_device(resident, name, error);
                if (device == NULL)
                        return STREAMER_EINVAL;
                for (size_t i = 0; i < *n; i++)
                        if (devices[i] == device)
                                return error_set(error, STREAMER_EINVAL, "device: %s is named twice", device->name);
                devices[(*n)++] = device; /* there are LOAD_DEVICES at most */
        } while (*n < args->n_devices);
        return 0;
}

static int check_name(const struct load_args *args, struct error *error)
{
        if (!args->probe && strncmp(args->name, PROBE_SCHEME, strlen(PROBE_SCHEME)) == 0)
                return error_set(error, STREAMER_EINVAL, "name: '%s' begins the names of the daemon's own models",
                                 PROBE_SCHEME);
        return args->name[0] != '\0' ? 0 : error_set(error, STREAMER_EINVAL, "name: empty");
}

static bool same_devices(const struct load *load, struct device *const *devices, size_t n)
{
        bool same = load->n_targets == n;
        for (size_t i = 0; same && i < n; i++)
                same = load->targets[i].device == devices[i];
        return same;
}

/* The load in progress that a request would repeat; a failed target would be missing for it, and other roots decide
 * whether its file may be loaded. */
static struct load *find_same(struct loads *loads, const struct load_args *args, struct device *const *devices,
                              size_t n_devices)
{
        list_each_item (struct load, l, &loads->all, link)
                if (!load_ended(l->state) && !l->dry_run && !args->dry_run && (l->sha256 || !args->sha256) &&
                    (l->encrypted_only != NULL || args->encrypted_only == NULL) && l->roots == args->roots &&
                    !load_has(l, TARGET_FAILED) && source_same(l->source, args->source) &&
                    strcmp(l->name, args->name) == 0 && same_text(l->pattern, args->pattern) &&
                    same_devices(l, devices, n_devices))
                        return l;
        return NULL;
}

/* A load of its own for the request. */
static int begin_new(struct loads *loads, const struct load_args *args, struct device *const *devices, size_t n,
                     struct load_request **out, struct error *error)
{
        struct quota_charge charge = {.user = NULL};
        if (loads->n_running >= loads->max_running)
                return error_set(error, STREAMER_ELIMIT, "%u loads are running or waiting: the limit (limits.loads)",
                                 loads->n_running);
        if (args->users != NULL &&
            quota_charge(args->users, args->caller->uid, &charge, QUOTA_LOADS, 1, args->limits, error) < 0)
                return error->code;
        struct load *load = load_new(loads, args, devices, n);
        if (load == NULL) {
                quota_discharge(&charge);
                return error_no_memory(error);
        }
        load->charge = charge;
        struct load_request *request = load_request_add(load, args, error);
        if (request == NULL) {
                quota_discharge(&load->charge);
                load_discard(load);
                return error->code;
        }
        load_launch(load);
        *out = request;
        return 0;
}

int loads_begin(struct loads *loads, const struct load_args *asked, struct load_request **out, struct error *error)
{
        struct load_args args = *asked;
        cleanup_free char *canonical = NULL;
        struct device *devices[LOAD_DEVICES];
        size_t n;
        if (loads->over)
                return error_set(error, STREAMER_ECANCELED, "the daemon is ending");
        if (!args.probe && source_canonical(args.source, &canonical, error) < 0)
                return error->code;
        if (canonical != NULL)
                args.source = canonical;
        if (args.roots == NULL)
                args.roots = loads->sources->roots;
        if (loads->keyring->require_encrypted && !args.probe)
                args.encrypted_only = "encryption.require is true";
        if (find_devices(devices, &n, loads->resident, &args, error) < 0 || check_name(&args, error) < 0 ||
            (args.pattern != NULL && ranks_check_pattern(args.pattern, error) < 0))
                return error->code;
        struct load *load = find_same(loads, &args, devices, n);
        if (load == NULL)
                return begin_new(loads, &args, devices, n, out, error);
        struct load_request *request = load_request_add(load, &args, error);
        if (request == NULL)
                return error->code;
        load_relax(load, args.wait, args.no_evict);
        *out = request;
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
