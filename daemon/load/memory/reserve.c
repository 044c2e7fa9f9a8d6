/* SPDX-License-Identifier: Apache-2.0
 *
 * From planning to allocating: a load requests memory on all its devices at once and is "queued" until it is granted,
 * everywhere or nowhere. So a load that waits holds nothing, and two that wait for each other's devices cannot
 * deadlock.
 *
 * How it fails: a refusal fails the target whose device refuses, and the replicas that are left ask again; it fails all
 * ranks. A load that ends meanwhile withdraws its request; granted memory is freed with its generations.
 */
#include "daemon/load/load_private.h"

#include "daemon/resident/hostcache/host_cache.h"

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
        uint64_t sum = 0;
        for (size_t i = 0; i < n; i++)
                sum += sizes[i];
        return sum;
}

/* `target`: NULL: all. */
static void refuse(struct load *load, struct load_target *target, const struct error *error)
{
        if (load->pattern != NULL)
                load_end(load, LOAD_FAILED, error);
        else if (target != NULL)
                target_fail(target, error);
        else
                load_fail_targets(load, NULL, error);
}

static void ask(struct load *load);

static void on_answer(struct admission_request *request, const struct error *error)
{
        struct load *load = container_of(request, struct load, admission);
        struct load_target *refused = NULL;
        if (!load_step_done(load))
                return;
        if (error->code == 0) {
                load->proceed(load);
                return;
        }
        load_each_target (t, load)
                if (t->device == request->refused)
                        refused = t;
        refuse(load, refused, error);
        if (!load_ended(load->state))
                ask(load);
}

static void ask(struct load *load)
{
        size_t n = 0;
        load_each_target (t, load)
                if (target_lives(t))
                        load->demands[n++] = (struct admission_part){t->device, target_needs(t), t->generation};
        load->admission = (struct admission_request){.parts = load->demands,
                                                     .n_parts = n,
                                                     .priority = load->priority,
                                                     .evict = !load->request.no_evict && !source_is_test(load->source),
                                                     .wait = load->request.wait,
                                                     .shares = load->request.users != NULL &&
                                                               load->limits.max[QUOTA_LOADS] != UINT64_MAX,
                                                     .uid = load->caller.uid,
                                                     .answered = on_answer};
        list_init(&load->admission.link);
        load->pending++;
        admission_submit(load->loads->resident->admission, &load->admission);
}

int load_charge_model(const struct load *load, const struct device *device, struct quota_charge *charge,
                      struct error *error)
{
        if (load->request.users == NULL)
                return 0;
        return resident_charge_model(load->loads->resident, load->name, device, load->request.users, load->caller.uid,
                                     &load->limits, charge, error);
}

void load_reserve(struct load *load, void (*granted)(struct load *))
{
        load->proceed = granted;
        load_put_served(load);
        for (size_t i = 0; i < load->n_targets && !load_ended(load->state); i++) {
                struct load_target *t = &load->targets[i];
                const struct plan *plan = &t->part->resolved.plan;
                struct generation *g = t->generation;
                struct error error = {0};
                int r = 0;
                if (!target_lives(t))
                        continue;
                /* The caller is charged for a model until it is freed, and for its device memory until that is freed;
                 * for the next generation of its own model from when it serves. A load that asks again has been charged
                 * for the model. */
                if (g->model_charge.user == NULL)
                        r = load_charge_model(load, t->device, &g->model_charge, &error);
                if (r == 0 && load->request.users != NULL)
                        r = quota_charge(load->request.users, load->caller.uid, &g->quota_charge, QUOTA_BYTES,
                                         target_needs(t), &load->limits, &error);
                if (r < 0) {
                        refuse(load, t, &error);
                        continue;
                }
                if (!load_is_cached(load)) {
                        g->data_bytes = plan->bytes;
                        g->n_tensors = plan->n_tensors;
                }
        }
        if (!load_ended(load->state))
                ask(load);
}
