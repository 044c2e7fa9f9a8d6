/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory of a load: how it is granted, and how it is filled from the host cache, which takes the place of planning
 * and reading.
 *
 * A load requests memory on all its devices at once and is "queued" until it is granted, everywhere or nowhere. So a
 * load that waits holds nothing, and two that wait for each other's devices cannot deadlock.
 *
 * One copy in the host cache serves all replicas of a load. Either all targets are copied or all are read: ranks are of
 * one load, and reading files for one replica costs as much as for all.
 *
 * How it fails: a refusal fails the target whose device refuses, and the replicas that are left ask again; it fails all
 * ranks. Granted memory is freed with the load's generations. A copy fails its target alone.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"
#include "daemon/resident/hostcache/host_cache.h"

#include <string.h>

/* One transfer from the host cache: long enough to be fast, short enough to see a failing device. */
#define CHUNK (64 * MiB)

/* ---- admission ---- */

size_t target_segments(const struct load_target *target, const uint64_t **sizes)
{
        const struct host_copy *cached = target->cached;
        *sizes = cached != NULL ? cached->sizes : target->part->resolved.plan.segments;
        return cached != NULL ? cached->n_segments : target->part->resolved.plan.n_segments;
}

uint64_t target_needs(const struct load_target *target)
{
        const uint64_t *sizes;
        size_t n = target_segments(target, &sizes);
        const struct host_copy *cached = target->cached;
        return generation_needs(sizes, n, cached != NULL ? cached->manifest.size : target->part->manifest_size);
}

/* `target`: NULL: all. False: the load has ended. */
static bool refuse(struct load *load, struct load_target *target, const struct error *error)
{
        if (load->pattern == NULL)
                return target != NULL ? target_fail(target, error) : load_fail_targets(load, NULL, error);
        load_end(load, LOAD_FAILED, error);
        return false;
}

static void ask(struct load *load);

/* Without memory for it, the log alone has it. */
static void on_evict(struct admission_request *request, const struct generation *victim)
{
        struct load *load = container_of(request, struct load, admission);
        require(load->state == LOAD_QUEUED && victim->state == GENERATION_READY);
        if (load->n_evictions == LOAD_EVICTIONS_MAX)
                return;
        cleanup_free char *name = strdup(generation_name(victim));
        struct load_eviction *v = array_grow(load->evictions, load->n_evictions, sizeof(*v));
        if (v != NULL)
                load->evictions = v;
        if (v == NULL || name == NULL)
                return;
        v[load->n_evictions++] = (struct load_eviction){name, victim->device, victim->number, victim->charged};
        name = NULL;
}

static void on_answer(struct admission_request *request, const struct error *error)
{
        struct load *load = container_of(request, struct load, admission);
        struct load_target *refused = NULL;
        if (!load_step_done(load))
                return;
        require(load->state == LOAD_QUEUED && !load->granted);
        if (error->code == 0) {
                load->granted = true;
                load_advance_later(load);
                return;
        }
        load_each_target (t, load)
                if (t->device == request->refused)
                        refused = t;
        if (refuse(load, refused, error))
                ask(load);
}

static void ask(struct load *load)
{
        size_t n = 0;
        load_each_open (t, load)
                load->demands[n++] = (struct admission_part){t->device, target_needs(t), t->generation};
        load->admission =
                (struct admission_request){.parts = load->demands,
                                           .n_parts = n,
                                           .priority = load->priority,
                                           .evict = load_may_evict(load),
                                           .wait = load->wait,
                                           .asks_none = load->is_small && load->retries == 0,
                                           .query = load->dry_run,
                                           .shares = load->users != NULL && load->limits.max[QUOTA_LOADS] != UINT64_MAX,
                                           .uid = load->caller.uid,
                                           .evicts = on_evict,
                                           .answered = on_answer};
        list_init(&load->admission.link);
        load->pending++;
        admission_submit(load->loads->resident->admission, &load->admission);
}

int load_charge_model(const struct load *load, const char *name, const struct device *device,
                      struct quota_charge *charge, struct error *error)
{
        if (load->users == NULL)
                return 0;
        return resident_charge_model(load->loads->resident, name, device, load->users, load->caller.uid, &load->limits,
                                     charge, error);
}

void load_reserve(struct load *load)
{
        require(load->state == LOAD_QUEUED);
        load->granted = false;
        load_put_served(load);
        load_each_open (t, load) {
                struct generation *g = t->generation;
                struct error error = {0};
                int r = 0;
                if (load->dry_run)
                        break;
                /* The caller is charged for a model until it is freed, and for its device memory until that is freed;
                 * for the next generation of its own model from when it serves. A load that asks again has been charged
                 * for the model. */
                if (g->model_charge.user == NULL)
                        r = load_charge_model(load, load->name, t->device, &g->model_charge, &error);
                if (r == 0 && load->users != NULL)
                        r = quota_charge(load->users, load->caller.uid, &g->quota_charge, QUOTA_BYTES, target_needs(t),
                                         &load->limits, &error);
                if (r < 0 && !refuse(load, t, &error))
                        return;
        }
        ask(load);
}

/* ---- segments, on the device's thread ---- */

void target_allocate(struct load_target *target)
{
        struct generation *g = target->generation;
        const uint64_t *sizes;
        size_t n = target_segments(target, &sizes);
        require(g->n_segments == 0 && n <= GENERATION_SEGMENTS);
        if (generation_make_segments(g, n) < 0) {
                error_no_memory(&target->step_error);
                return;
        }
        target->copy.segments = g->segments;
        for (size_t i = 0; i < n; i++) {
                if (g->device->ops->alloc(g->device, sizes[i], &g->segments[i], &target->step_error) < 0)
                        break;
                g->n_segments++;
        }
}

void target_deallocate(struct load_target *target)
{
        generation_release_segments(target->generation);
        target->generation->n_segments = 0;
}

/* ---- the host cache ---- */

void load_find_cached(struct load *load)
{
        load->cached = !load->dry_run;
        load_each_open (t, load) {
                t->cached = host_cache_find(load->loads->resident->cache, &t->part->identity, t->device,
                                            load->sha256 ? t->part->files->sums : NULL);
                if (t->cached != NULL && load->encrypted_only != NULL && t->cached->encryption == NULL)
                        t->cached = NULL;
                load->cached = load->cached && t->cached != NULL;
        }
        load_each_open (t, load) {
                if (!load->cached) {
                        t->cached = NULL;
                        continue;
                }
                host_copy_use(t->cached);
                t->generation->data_bytes = t->cached->data_bytes;
                t->generation->n_tensors = t->cached->n_tensors;
        }
}

/* Stops early if the load has ended. */
static int put_segment(struct load_target *target, struct segment *segment, const unsigned char *from)
{
        int r = 0;
        for (uint64_t at = 0; r == 0 && at < segment->size;) {
                uint64_t n = segment->size - at < CHUNK ? segment->size - at : CHUNK;
                if (__atomic_load_n(&target->load->abandoned, __ATOMIC_RELAXED))
                        return error_set(&target->step_error, STREAMER_ECANCELED, "cancelled");
                r = segment->device->ops->put(segment, at, from + at, n, &target->step_error);
                at += n;
        }
        return r;
}

void target_copy(struct load_target *target)
{
        struct generation *g = target->generation;
        const struct host_copy *cached = target->cached;
        int r = host_table_new(&target->manifest, "streamerd-manifest", cached->manifest.size, &target->step_error);
        if (r == 0) {
                struct manifest_header *header = target->manifest.map;
                memcpy(header, cached->manifest.map, cached->manifest.size);
                header->generation = g->number;
        }
        for (unsigned i = 0; r == 0 && i < g->n_segments; i++)
                r = put_segment(target, &g->segments[i], cached->bases[i]);
}

void target_take_copy(struct load_target *target)
{
        struct generation *g = target->generation;
        require(target->load->state == LOAD_COPYING && g->manifest.fd < 0);
        g->manifest = target->manifest;
        target->manifest.fd = -1;
        g->verified = target->cached->verified;
        g->encryption = encryption_ref(target->cached->encryption);
        memcpy(g->sums, target->cached->sums, DIGEST_SIZE);
        memcpy(g->digest, target->cached->digest, DIGEST_SIZE);
}
