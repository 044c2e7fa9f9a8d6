/* SPDX-License-Identifier: Apache-2.0
 *
 * Between planning and allocating: a load asks for room on each of its devices, and is visible as
 * "queued" until it has it. Ranks ask together, all or none. Replicas ask each on its own, and where the
 * load wants to wait none of them waits for another (round.c).
 *
 * How it fails: a refusal is the target's failure (all of them, for ranks). A load that ends
 * meanwhile withdraws; what was granted is given back with its generations.
 */
#include "daemon/load/load_steps.h"

#include "daemon/resident/host_cache.h"

static bool asks_together(const struct load *load)
{
        return load->pattern != NULL;
}

size_t target_segments(const struct load_target *target, const uint64_t **sizes)
{
        const struct host_copy *kept = target->kept;
        *sizes = kept != NULL ? kept->sizes : target->part->resolved.plan.segments;
        return kept != NULL ? kept->n_segments : target->part->resolved.plan.n_segments;
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
                target_failed(target, error);
                return;
        }
        load_end(load, LOAD_FAILED, error);
}

static void note_granted(struct load_target *target)
{
        struct load *load = target->load;
        for (size_t i = 0; i < load->n_targets; i++)
                if (asks_together(load) || &load->targets[i] == target)
                        load->targets[i].granted = true;
}

static void on_answer(struct room_request *request, const struct error *error)
{
        struct load_target *target = container_of(request, struct load_target, room);
        struct load *load = target->load;
        load->queued--;
        if (!load_step_home(load))
                return;
        if (error->code != 0)
                refuse(target, error);
        else
                note_granted(target);
        load_look_on(load);
}

static void on_blocked(struct room_request *request)
{
        load_look_on(container_of(request, struct load_target, room)->load);
}

static void ask(struct load_target *target, const struct room_part *parts, size_t n)
{
        struct load *load = target->load;
        target->room =
                (struct room_request){.parts = parts,
                                      .n_parts = n,
                                      .priority = load->priority,
                                      .evict = !load->no_evict && !target->generation->probe,
                                      .wait = load->wait,
                                      .shares = load->users != NULL && load->limits.max[USER_LOADS] != UINT64_MAX,
                                      .uid = load->caller.uid,
                                      .owner = load,
                                      .waits = on_blocked,
                                      .answered = on_answer};
        list_init(&target->room.link);
        load->queued++;
        load->pending++;
        room_ask(load->loads->resident->room, &target->room);
}

/* Of a load that waits what serves already is not held: who waits for it in turn may have it. */
static void let_go_of_shared(struct load *load)
{
        for (size_t i = 0; load->wait && i < load->n_targets; i++) {
                struct generation *g = load->targets[i].generation;
                if (!load->targets[i].shared || g == NULL)
                        continue;
                load->targets[i].generation = NULL;
                generation_unpin(g);
        }
}

int load_charge_user(const struct load *load, struct user_charge *charge, enum user_slot slot, uint64_t amount,
                     struct error *error)
{
        if (load->users == NULL)
                return 0;
        return user_charge(load->users, load->caller.uid, charge, slot, amount, &load->limits, error);
}

/* What its name leads to on the device is a model of its caller's, and what it brings takes that one's place. */
static bool replaces_own(const struct load *load, const struct device *device)
{
        static const enum generation_state states[] = {GENERATION_READY, GENERATION_CACHED};
        for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
                const struct generation *g = resident_on(load->loads->resident, load->name, states[i], device);
                const struct user *payer = g != NULL ? g->model_charge.user : NULL;
                const struct user *named = g != NULL ? generation_find_name(g, load->name)->charge.user : NULL;
                if ((payer != NULL && payer->uid == load->caller.uid) ||
                    (named != NULL && named->uid == load->caller.uid))
                        return true;
        }
        return false;
}

int load_charge_model(const struct load *load, const struct device *device, struct user_charge *charge,
                      struct error *error)
{
        if (load->users != NULL && replaces_own(load, device))
                return user_reserve(load->users, load->caller.uid, charge, USER_MODELS, &load->limits, error);
        return load_charge_user(load, charge, USER_MODELS, 1, error);
}

/* A model, until it is gone, and its device memory, until that is free again, are charged to who asked for
 * them; the next generation of a model of theirs from when it serves. A load that asks once more has the first
 * already. */
static int charge_user(struct load_target *target, struct error *error)
{
        struct generation *g = target->generation;
        int r = 0;
        if (g->model_charge.user == NULL)
                r = load_charge_model(target->load, target->device, &g->model_charge, error);
        if (r == 0)
                r = load_charge_user(target->load, &g->user_charge, USER_BYTES, target_needs(target), error);
        return r;
}

void load_admit(struct load *load)
{
        struct load_target *first = NULL;
        size_t n = 0;
        load->state = LOAD_QUEUED;
        load_log_stage(load, "planned");
        let_go_of_shared(load);
        for (size_t i = 0; i < load->n_parts; i++)
                load->parts[i].planned = part_lives(&load->parts[i]) && !load_is_cached(load);
        for (size_t i = 0; i < load->n_targets && !load_ended(load->state); i++) {
                struct load_target *t = &load->targets[i];
                const struct plan *plan = &t->part->resolved.plan;
                struct error error = {0};
                if (!target_lives(t))
                        continue;
                if (charge_user(t, &error) < 0) {
                        refuse(t, &error);
                        continue;
                }
                if (!load_is_cached(load)) {
                        t->generation->data_bytes = plan->bytes;
                        t->generation->n_tensors = plan->n_tensors;
                }
                load->rooms[i] = (struct room_part){t->generation, target_needs(t)};
                first = first != NULL ? first : t;
                t->granted = false;
                n++;
                if (!asks_together(load))
                        ask(t, &load->rooms[i], 1);
        }
        if (asks_together(load) && !load_ended(load->state))
                ask(first, load->rooms, n);
}

void load_widen(struct load *load, bool wait, bool no_evict)
{
        load->wait = load->wait || wait;
        load->no_evict = load->no_evict && no_evict;
        if (load->state >= LOAD_QUEUED) /* before, its admission does */
                let_go_of_shared(load);
        for (size_t i = 0; i < load->n_targets; i++)
                room_widen(&load->targets[i].room, !load->no_evict && !load->probe, load->wait);
}

void load_withdraw(struct load *load)
{
        for (size_t i = 0; i < load->n_targets && load->queued > 0; i++)
                if (room_withdraw(&load->targets[i].room)) {
                        load->queued--;
                        load->pending--;
                }
}
