/* SPDX-License-Identifier: Apache-2.0
 *
 * Which loads there are, who watches them, how far they are.
 */
#include "daemon/load/load_steps.h"

#include <string.h>

const char *load_state_name(enum load_state state)
{
        static const char *const names[] = {
                [LOAD_OPENING] = "resolving", [LOAD_PLANNING] = "resolving",  [LOAD_ALLOCATING] = "loading",
                [LOAD_READING] = "loading",   [LOAD_CHECKING] = "loading",    [LOAD_READY] = "ready",
                [LOAD_FAILED] = "failed",     [LOAD_CANCELLED] = "cancelled",
        };
        return names[state];
}

bool load_ended(enum load_state state)
{
        return state >= LOAD_READY;
}

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
        list_each_safe (pos, &loads->all)
                load_cancel(container_of(pos, struct load, link));
}

/* ---- beginning ---- */

/* The load under way that a request would only repeat. */
static struct load *find_same(struct loads *loads, const char *name, const char *source, const struct device *device,
                              bool sha256)
{
        list_each (pos, &loads->all) {
                struct load *l = container_of(pos, struct load, link);
                if (!load_ended(l->state) && !l->dry_run && l->device == device && (l->sha256 || !sha256) &&
                    strcmp(l->source, source) == 0 && strcmp(l->name, name) == 0)
                        return l;
        }
        return NULL;
}

void load_free(struct load *load)
{
        list_remove(&load->link);
        free(load->name);
        free(load->source);
        free(load);
}

static struct load *load_new(struct loads *loads, const struct load_request *request, char *name, char *source,
                             struct device *device)
{
        struct load *load = calloc(1, sizeof(*load));
        if (load == NULL)
                return NULL;
        list_init(&load->link);
        list_init(&load->watchers);
        load->loads = loads;
        load->name = strdup(name);
        load->source = strdup(source);
        load->device = device;
        load->caller = *request->caller;
        load->sha256 = request->sha256;
        load->dry_run = request->dry_run;
        load->priority = request->priority > 0 ? request->priority : PROTO_PRIORITY_DEFAULT;
        load->started_ns = now_ns();
        bool ok = load->name != NULL && load->source != NULL;
        if (ok && !request->dry_run)
                ok = (load->generation = generation_new(loads->resident, name, source, device)) != NULL;
        if (load->generation != NULL)
                load->generation->priority = load->priority;
        if (!ok) {
                load_free(load);
                return NULL;
        }
        list_append(&loads->all, &load->link);
        return load;
}

int loads_begin(struct loads *loads, const struct load_request *request, struct load **out, struct error *error)
{
        cleanup_free char *source = NULL, *name = NULL;
        int r = source_canonical(request->source, &source, error);
        if (r < 0)
                return r;
        struct device *device = resident_device(loads->resident, request->device, error);
        if (device == NULL)
                return error != NULL ? error->code : STREAMER_EINVAL;
        name = request->name != NULL ? strdup(request->name) : source_default_name(source);
        if (name == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        if (name[0] == '\0')
                return error_set(error, STREAMER_EINVAL, "name: empty");
        *out = request->dry_run ? NULL : find_same(loads, name, source, device, request->sha256);
        if (*out != NULL)
                return 0;
        if (loads->n_running >= loads->max_running)
                return error_set(error, STREAMER_ELIMIT, "%u loads are under way, no more are taken", loads->n_running);
        *out = load_new(loads, request, name, source, device);
        if (*out == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        loads->n_running++;
        load_open(*out);
        return 0;
}

struct load *loads_find(struct loads *loads, const char *name)
{
        struct load *found = NULL;
        list_each (pos, &loads->all) {
                struct load *l = container_of(pos, struct load, link);
                if (!load_ended(l->state) && l->generation != NULL && generation_has_name(l->generation, name))
                        found = l;
        }
        return found;
}

void load_set_priority(struct load *load, unsigned priority)
{
        load->priority = priority;
        if (load->reading)
                reader_set_weight(load->loads->reader, &load->job, priority);
}

/* ---- watching ---- */

void load_watch(struct load *load, struct load_watch *watch, void (*ended)(struct load_watch *, struct load *))
{
        watch->load = load;
        watch->ended = ended;
        list_append(&load->watchers, &watch->link);
}

void load_unwatch(struct load_watch *watch)
{
        if (watch->load == NULL)
                return;
        list_remove(&watch->link);
        watch->load = NULL;
}

void load_tell_watchers(struct load *load)
{
        while (!list_empty(&load->watchers)) {
                struct load_watch *watch = container_of(load->watchers.next, struct load_watch, link);
                list_remove(&watch->link);
                watch->load = NULL;
                watch->ended(watch, load);
        }
}

void load_move_watchers(struct load *from, struct load *to)
{
        while (!list_empty(&from->watchers)) {
                struct load_watch *watch = container_of(from->watchers.next, struct load_watch, link);
                list_remove(&watch->link);
                watch->load = to;
                list_append(&to->watchers, &watch->link);
        }
}

void load_progress(struct load *load, struct load_progress *progress)
{
        const struct generation *g = load->generation;
        *progress = (struct load_progress){.state = load->state};
        progress->elapsed_ns = (load_ended(load->state) ? load->ended_ns : now_ns()) - load->started_ns;
        if (g != NULL) {
                progress->generation = g->number;
                progress->total = g->data_bytes;
                progress->tensors_total = g->n_tensors;
        }
        if (load->state == LOAD_READY && g != NULL) {
                progress->bytes = g->data_bytes;
                progress->tensors = g->n_tensors;
        } else if (load->job.plan != NULL) { /* it has begun to read; before, a worker makes the books */
                progress->bytes = __atomic_load_n(&load->publish.bytes, __ATOMIC_RELAXED);
                progress->tensors = publish_count(&load->publish);
        }
        if (load->reading)
                progress->stalled = reader_job_stalled(load->loads->reader, &load->job);
}
