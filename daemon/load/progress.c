/* SPDX-License-Identifier: Apache-2.0
 *
 * The progress of a load, in all and on each device.
 */
#include "daemon/load/load_private.h"

const char *load_state_name(enum load_state state)
{
        static const char *const names[] = {
                [LOAD_OPENING] = "resolving",  [LOAD_PLANNING] = "resolving", [LOAD_QUEUED] = "queued",
                [LOAD_ALLOCATING] = "loading", [LOAD_READING] = "loading",    [LOAD_CHECKING] = "loading",
                [LOAD_READY] = "ready",        [LOAD_FAILED] = "failed",      [LOAD_CANCELLED] = "cancelled",
        };
        return names[state];
}

/* Resident already: the figures of its generations. */
static void add_shared(const struct load *load, struct load_progress *progress)
{
        for (size_t i = 0; i < load->n_targets && (i == 0 || load->pattern != NULL); i++) {
                const struct generation *g = load->targets[i].generation;
                if (g == NULL)
                        continue;
                progress->bytes = progress->total += g->data_bytes;
                progress->tensors = progress->tensors_total += g->n_tensors;
        }
}

/* What parts have read. Replicas that are read twice, for devices of different layouts, count tensors that are
 * complete on all; ranks add up. */
static void add_part(struct load_part *part, struct load_progress *progress, bool first)
{
        const struct load *load = part->load;
        uint64_t tensors = 0, total = part->resolved.plan.n_tensors;
        progress->total += part->resolved.plan.bytes;
        if (load->state == LOAD_READY) {
                progress->bytes += part->resolved.plan.bytes;
                tensors = total;
        } else if (part->job.plan != NULL) { /* it has begun to read; before, a worker prepares publishing */
                progress->bytes += __atomic_load_n(&part->publish.bytes, __ATOMIC_RELAXED);
                tensors = publish_count(&part->publish);
        }
        if (load->pattern != NULL || first) {
                progress->tensors += tensors;
                progress->tensors_total += total;
        } else if (tensors < progress->tensors) {
                progress->tensors = tensors;
        }
        if (part->state == PART_READING)
                progress->stalled = progress->stalled || reader_job_stalled(&part->job);
}

void load_progress(struct load *load, struct load_progress *progress)
{
        *progress =
                (struct load_progress){.state = load->state, .generation = load->number, .restarts = load->restarts};
        progress->load_ns = (load_ended(load->state) ? load->ended_ns : now_ns()) - load->started_ns;
        if (load->state == LOAD_OPENING || load->state == LOAD_PLANNING)
                return;
        bool first = true;
        load_each_part (part, load) {
                if (part->state == PART_IDLE || part->state == PART_FAILED)
                        continue;
                add_part(part, progress, first);
                first = false;
        }
        if (first && load->state == LOAD_READY)
                add_shared(load, progress);
}

const char *load_target_state(const struct load_target *target, uint64_t now, uint64_t *waits_ns)
{
        const struct load *load = target->load;
        bool waits = target_lives(target) && load->state == LOAD_QUEUED;
        *waits_ns = waits && now > load->admission.since_ns ? now - load->admission.since_ns : 0;
        if (target->state == TARGET_FAILED)
                return load_state_name(LOAD_FAILED);
        return load_state_name(target->state == TARGET_SERVES ? LOAD_READY : load->state);
}
