/* SPDX-License-Identifier: Apache-2.0
 *
 * One device of a load: whether it is still wanted, and what its failure does to the others.
 *
 *   open: lives in this round > [late: sits one out, round.c] > served, or failed alone, or with the load
 *
 * Replicas fail each on its own, ranks all together; the load fails with the last that was open, unless
 * others serve already.
 */
#include "daemon/load/load_steps.h"

#include "daemon/base/log.h"

bool target_open(const struct load_target *target)
{
        return !target->shared && !target->failed;
}

bool target_lives(const struct load_target *target)
{
        return target_open(target) && !target->late;
}

bool load_lives(const struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++)
                if (target_open(&load->targets[i]))
                        return true;
        return false;
}

static bool round_lives(const struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++)
                if (target_lives(&load->targets[i]))
                        return true;
        return false;
}

static bool any_shared(const struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++)
                if (load->targets[i].shared)
                        return true;
        return false;
}

/* Which of several it was. */
static void tell_target(const struct load_target *target, const struct error *error, struct error *told)
{
        const struct load *load = target->load;
        size_t rank = (size_t)(target - load->targets);
        if (load->pattern != NULL)
                error_set(told, error->code, "rank %zu: %s: %s", rank, target->device->name, error->text);
        else
                error_set(told, error->code, "%s: %s", target->device->name, error->text);
}

void target_let_go(struct load_target *target)
{
        struct generation *g = target->generation;
        target->generation = NULL;
        if (g != NULL)
                generation_unpin(g);
}

void target_give_up(struct load_target *target)
{
        /* A worker may be looking at the bytes of a file. */
        if (!target->load->sha256)
                target_let_go(target);
}

/* Alone: with the load. */
static void target_fall(struct load_target *target, const struct error *error)
{
        struct load *load = target->load;
        struct load_part *part = target->part;
        target->failed = true;
        target->error = *error;
        if (part->reading)
                reader_drop(load->loads->reader, &part->job, &target->copy, error);
        else
                __atomic_store_n(&target->copy.dead, true, __ATOMIC_RELEASE);
        log_warn("%s: %s: %s", load->name, target->device->name, error->text);
        generation_fail(target->generation, error);
        if (!part->reading)
                target_give_up(target);
}

void target_failed(struct load_target *target, const struct error *error)
{
        struct load *load = target->load;
        struct error told;
        tell_target(target, error, &told);
        if (load->n_targets == 1 || load->pattern != NULL) {
                load_end(load, LOAD_FAILED, load->n_targets == 1 ? error : &told);
                return;
        }
        target_fall(target, error);
        if (round_lives(load))
                load_maybe_check(load);
        else if (load_lives(load))
                load_round_over(load);
        else if (any_shared(load))
                load_end(load, LOAD_READY, NULL);
        else
                load_end(load, LOAD_FAILED, &told);
}

void load_fail_targets(struct load *load, const struct error *error)
{
        struct error why = *error;
        for (size_t i = 0; i < load->n_targets && !load_ended(load->state); i++)
                if (target_lives(&load->targets[i]))
                        target_failed(&load->targets[i], &why);
}

void target_end(struct load_target *target)
{
        const struct load *load = target->load;
        struct generation *g = target->generation;
        if (g == NULL || !target_open(target))
                return;
        g->load_ns = load->ended_ns - load->started_ns;
        if (load->state == LOAD_READY)
                generation_ready(g);
        else
                generation_fail(g, &load->error);
}
