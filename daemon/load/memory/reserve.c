/* SPDX-License-Identifier: Apache-2.0
 *
 * From planning to allocating: a load requests memory on each of its devices and is "queued" until it is granted.
 * Ranks request together, all or none. Replicas request each on its own, and where the load may wait none waits for
 * another (round.c).
 *
 * How it fails: a refusal fails the target (all of them, for ranks). A load that ends meanwhile withdraws its
 * requests; granted memory is freed with its generations.
 */
#include "daemon/load/load_private.h"

#include "daemon/resident/hostcache/host_cache.h"

static bool asks_together(const struct load *load)
{
        return load->pattern != NULL;
}

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

static void refuse(struct load_target *target, const struct error *error)
{
        struct load *load = target->load;
        if (!asks_together(load)) {
                target_fail(target, error);
                return;
        }
        load_end(load, LOAD_FAILED, error);
}

static void on_answer(struct admission_request *request, const struct error *error)
{
        struct load_target *target = container_of(request, struct load_target, admission);
        struct load *load = target->load;
        load->queued--;
        if (!load_step_done(load))
                return;
        enum target_state granted = target_is(target, TARGETS_DEFERRED) ? TARGET_DEFERRED_GRANTED : TARGET_GRANTED;
        if (error->code != 0)
                refuse(target, error);
        else
                load_each_target (t, load)
                        if (t == target || (asks_together(load) && target_lives(t)))
                                target_set_state(t, granted);
        load_try_round(load);
}

static void on_blocked(struct admission_request *request)
{
        load_try_round(container_of(request, struct load_target, admission)->load);
}

static void ask(struct load_target *target, const struct admission_part *parts, size_t n)
{
        struct load *load = target->load;
        target->admission =
                (struct admission_request){.parts = parts,
                                           .n_parts = n,
                                           .priority = load->priority,
                                           .evict = !load->no_evict && !source_is_test(load->source),
                                           .wait = load->wait,
                                           .shares = load->users != NULL && load->limits.max[QUOTA_LOADS] != UINT64_MAX,
                                           .uid = load->caller.uid,
                                           .owner = load,
                                           .waits = on_blocked,
                                           .answered = on_answer};
        list_init(&target->admission.link);
        load->queued++;
        load->pending++;
        admission_submit(load->loads->resident->admission, &target->admission);
}

/* A load that waits does not reference generations that serve: other loads may evict them. */
static void put_served(struct load *load)
{
        for (size_t i = 0; load->wait && i < load->n_targets; i++)
                if (load->targets[i].state == TARGET_SERVES)
                        target_put_generation(&load->targets[i]);
}

/* Charges the caller; nothing without quotas. STREAMER_ELIMIT, STREAMER_ENOMEM. */
static int charge_caller(const struct load *load, struct quota_charge *charge, enum quota_slot slot, uint64_t amount,
                         struct error *error)
{
        if (load->users == NULL)
                return 0;
        return quota_charge(load->users, load->caller.uid, charge, slot, amount, &load->limits, error);
}

/* The load replaces a model of its caller on this device. */
static bool replaces_own(const struct load *load, const struct device *device)
{
        static const enum generation_state states[] = {GENERATION_READY, GENERATION_CACHED};
        for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
                const struct generation *g = resident_on(load->loads->resident, load->name, states[i], device);
                const struct quota_user *payer = g != NULL ? g->model_charge.user : NULL;
                const struct quota_user *named = g != NULL ? generation_find_name(g, load->name)->charge.user : NULL;
                if ((payer != NULL && payer->uid == load->caller.uid) ||
                    (named != NULL && named->uid == load->caller.uid))
                        return true;
        }
        return false;
}

int load_charge_model(const struct load *load, const struct device *device, struct quota_charge *charge,
                      struct error *error)
{
        if (load->users != NULL && replaces_own(load, device))
                return quota_reserve(load->users, load->caller.uid, charge, QUOTA_MODELS, &load->limits, error);
        return charge_caller(load, charge, QUOTA_MODELS, 1, error);
}

void load_reserve(struct load *load)
{
        struct load_target *first = NULL;
        size_t n = 0;
        load_set_state(load, LOAD_QUEUED);
        load_log_stage(load, "planned");
        put_served(load);
        load_each_part (part, load) {
                bool planned = part_lives(part) && !load_is_cached(load);
                part_set_state(part, planned ? PART_PLANNED : PART_IDLE);
        }
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
                if (r == 0)
                        r = charge_caller(load, &g->quota_charge, QUOTA_BYTES, target_needs(t), &error);
                if (r < 0) {
                        refuse(t, &error);
                        continue;
                }
                if (!load_is_cached(load)) {
                        g->data_bytes = plan->bytes;
                        g->n_tensors = plan->n_tensors;
                }
                load->demands[i] = (struct admission_part){g, target_needs(t)};
                first = first != NULL ? first : t;
                target_set_state(t, TARGET_OPEN);
                n++;
                if (!asks_together(load))
                        ask(t, &load->demands[i], 1);
        }
        if (asks_together(load) && !load_ended(load->state))
                ask(first, load->demands, n);
}

void load_relax(struct load *load, bool wait, bool no_evict)
{
        load->wait = load->wait || wait;
        load->no_evict = load->no_evict && no_evict;
        if (load->state >= LOAD_QUEUED) /* before, load_reserve() does it */
                put_served(load);
        load_each_target (t, load)
                admission_relax(&t->admission, !load->no_evict && !source_is_test(load->source), load->wait);
}

void target_withdraw(struct load_target *target)
{
        if (target->load->queued == 0 || !admission_withdraw(&target->admission))
                return;
        target->load->queued--;
        target->load->pending--;
}
