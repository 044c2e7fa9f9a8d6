/* SPDX-License-Identifier: Apache-2.0
 *
 * A target: one device of a load, and the effect of its failure on the others.
 *
 *   open > granted ---------------> serves
 *      \      | \---> out of memory: asks again, open
 *       \     |  \--> failed alone
 *        > deferred > deferred, granted: of the next round (round.c)
 *
 * Replicas fail each on its own, ranks all together; the load fails with the last open one, unless others serve.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"

void target_set_state(struct load_target *target, enum target_state state)
{
#define TO(state) (1u << TARGET_##state)
        static const unsigned allowed[TARGET_STATES] = {
                [TARGET_OPEN] = TO(OPEN) | TO(GRANTED) | TO(DEFERRED) | TO(SERVES) | TO(FAILED),
                [TARGET_GRANTED] = TO(OPEN) | TO(GRANTED) | TO(OUT_OF_MEMORY) | TO(SERVES) | TO(FAILED),
                [TARGET_OUT_OF_MEMORY] = TO(OPEN) | TO(FAILED),
                [TARGET_DEFERRED] = TO(OPEN) | TO(DEFERRED) | TO(DEFERRED_GRANTED) | TO(FAILED),
                [TARGET_DEFERRED_GRANTED] = TO(GRANTED) | TO(DEFERRED_GRANTED) | TO(FAILED),
        };
#undef TO
        require(allowed[target->state] & 1u << state);
        target->state = state;
}

void target_put_generation(struct load_target *target)
{
        struct generation *g = target->generation;
        target->generation = NULL;
        if (g != NULL)
                generation_put(g);
}

void target_release(struct load_target *target)
{
        /* A worker may be looking at the bytes of a file. */
        if (!target->load->sha256)
                target_put_generation(target);
}

void target_fail(struct load_target *target, const struct error *error)
{
        struct load *load = target->load;
        struct load_part *part = target->part;
        if (load->n_targets == 1) {
                load_end(load, LOAD_FAILED, error);
                return;
        }
        struct error named;
        if (load->pattern != NULL)
                error_set(&named, error->code, "rank %zu: %s: %s", (size_t)(target - load->targets),
                          target->device->name, error->text);
        else
                error_set(&named, error->code, "%s: %s", target->device->name, error->text);
        named.outside = error->outside;
        if (load->pattern != NULL) {
                load_end(load, LOAD_FAILED, &named);
                return;
        }
        target_set_state(target, TARGET_FAILED);
        target->error = *error;
        if (part->state == PART_READING)
                reader_drop_target(load->loads->reader, &part->job, &target->copy, error);
        else
                __atomic_store_n(&target->copy.dead, true, __ATOMIC_RELEASE);
        log_warn("%s: %s: %s", load->name, target->device->name, error->text);
        generation_fail(target->generation, error);
        if (part->state != PART_READING)
                target_release(target);
        if (load_has(load, TARGETS_LIVE))
                load_maybe_check(load);
        else if (load_has(load, TARGETS_DEFERRED))
                load_end_round(load);
        else if (load_has(load, TARGETS_SERVING))
                load_end(load, LOAD_READY, NULL);
        else
                load_end(load, LOAD_FAILED, &named);
}

void load_fail_targets(struct load *load, const struct load_part *part, const struct error *error)
{
        struct error why = *error;
        for (size_t i = 0; i < load->n_targets && !load_ended(load->state); i++) {
                struct load_target *t = &load->targets[i];
                if (target_lives(t) && (part == NULL || t->part == part))
                        target_fail(t, &why);
        }
}

void target_stages(const struct load_target *target, struct stages *stages)
{
        const struct load *load = target->load;
        const struct read_job *job = &target->part->job;
        *stages = (struct stages){{0}};
        uint64_t over_ns = __atomic_load_n(&job->over_ns, __ATOMIC_ACQUIRE); /* a thread may just end the job */
        if (load_is_cached(load) || over_ns == 0)
                return;
        for (enum stage of = 0; of < STAGE_COUNT; of++)
                stages->ns[of] = load_relaxed(&job->stages.ns[of]);
        stages->ns[STAGE_begin] = job->begun_ns - load->started_ns;
        stages->ns[STAGE_end] = (load_ended(load->state) ? load->ended_ns : now_ns()) - over_ns;
}
