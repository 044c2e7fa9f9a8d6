/* SPDX-License-Identifier: Apache-2.0
 *
 * A load as an object: its targets and parts, made from a resolved request.
 */
#include "daemon/load/load_private.h"

#include <string.h>

void load_drop_tables(struct load *load)
{
        load_each_part (part, load) {
                for (size_t i = 0; part->sha_steps != NULL && i < part->resolved.set.n_objects; i++)
                        sha_check_free(part->sha_steps[i].check);
                part_drop_disk(part);
                arrivals_deinit(&part->arrivals);
                resolve_deinit(&part->resolved);
                source_files_free(part->files);
                source_notes_free(part->notes);
                free(part->sha_steps);
        }
        load_each_target (t, load) {
                table_drop(&t->manifest);
                table_drop(&t->arrival);
        }
        source_set_deinit(&load->opened);
        free(load->ranked);
}

void load_free(struct load *load)
{
        require(load->pending == 0 && list_empty(&load->awaiting) && load->awaits == NULL);
        list_each_item_safe (struct load_request, r, &load->requests, link)
                load_request_free(r);
        list_each_item_safe (struct load_request, r, &load->answers, link)
                load_request_free(r);
        list_remove(&load->link);
        quota_discharge(&load->budget.charge); /* of tables that are gone */
        load->magic = 0;
        for (size_t i = 0; i < load->n_evictions; i++)
                free(load->evictions[i].name);
        free(load->evictions);
        free(load->targets);
        free(load->parts);
        source_roots_free(load->roots);
        keyring_free(load->keyring);
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
        part->resolved.borrowed = true;
        return part;
}

/* False: no memory. */
static bool add_target(struct load *load, struct device *device, size_t n_devices)
{
        struct load_target *t = &load->targets[load->n_targets++];
        t->load = load;
        t->device = device;
        t->manifest.fd = t->arrival.fd = -1;
        t->part = part_for(load, device);
        t->part->targets[t->part->n_targets] = t;
        t->part->job.targets[t->part->n_targets++] = &t->copy;
        if (load->dry_run)
                return true;
        struct generation *g = generation_new(load->loads->resident, load->name, load->source, device, load->owner);
        t->generation = g;
        if (g == NULL)
                return false;
        const struct model_settings settings = load_name_settings(load->loads, load->name, device);
        model_name_set_settings(g->standing, &settings, 0);
        if (generation_set_caller(g, &load->caller) < 0)
                return false;
        if (load->pattern == NULL)
                return true;
        g->rank = (unsigned)load->n_targets - 1;
        g->n_ranks = (unsigned)n_devices;
        g->pattern = strdup(load->pattern);
        return g->pattern != NULL;
}

void load_discard(struct load *load)
{
        require(load->state == LOAD_LOCATING && !load->stepping);
        load_each_target (t, load)
                if (t->generation != NULL) {
                        generation_discard(t->generation);
                        target_put_generation(t);
                }
        load_free(load);
}

struct load *load_new(struct loads *loads, const struct load_args *args, struct device *const *devices, size_t n)
{
        struct load *load = calloc(1, sizeof(*load));
        if (load == NULL)
                return NULL;
        load->magic = LOAD_MAGIC;
        list_init(&load->link);
        list_init(&load->announced.link);
        list_init(&load->in_awaiting);
        list_init(&load->awaiting);
        list_init(&load->requests);
        list_init(&load->answers);
        load->loads = loads;
        load->name = strdup(args->name);
        load->source = strdup(args->source);
        load->pattern = args->pattern != NULL ? strdup(args->pattern) : NULL;
        load->sha256 = args->sha256;
        load->dry_run = args->dry_run;
        load->probe = args->probe;
        load->keyring = keyring_ref(loads->keyring);
        load->encrypted_only = args->encrypted_only;
        load->wait = args->wait;
        load->no_evict = args->no_evict;
        load->background = args->background;
        load->caller = *args->caller;
        load->owner = args->owner != NULL ? *args->owner : args->caller->uid;
        load->roots = source_roots_ref(args->roots);
        load->users = args->users;
        if (args->users != NULL)
                load->limits = *args->limits;
        if (args->users != NULL && !args->limits->unlimited)
                load->step.user = work_user(args->caller->uid);
        load->priority = args->retention.priority > 0 ? args->retention.priority : PROTO_PRIORITY_DEFAULT;
        load->started_ns = now_ns();
        load->targets = calloc(n, sizeof(*load->targets));
        load->parts = calloc(n, sizeof(*load->parts));
        bool charged = args->users == NULL ||
                       quota_hold(args->users, args->caller->uid, &load->budget.charge, QUOTA_TABLES, 0) == 0;
        load->budget.user_max = load->limits.tables;
        bool ok = charged && load->name != NULL && load->source != NULL && !load->pattern == !args->pattern &&
                  load->targets != NULL && load->parts != NULL;
        for (size_t i = 0; ok && i < n; i++)
                ok = add_target(load, devices[i], n);
        if (!ok) {
                load_discard(load);
                return NULL;
        }
        return load;
}
