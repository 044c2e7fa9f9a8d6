/* SPDX-License-Identifier: Apache-2.0
 *
 * Retries after a shared device has refused memory that was granted: the load frees what it has allocated and asks
 * again.
 *
 *   allocating > (a device is out of memory) > released > planned again > queued > allocating
 *
 * If the device has enough memory but not contiguous, segments of half the size are planned; a tensor is never split,
 * and no plan has more than PLAN_MAX_SEGMENTS. If other software has taken the memory, admission knows the new ceiling:
 * it may evict, queue, or refuse.
 *
 * How it fails: if no smaller segments can be planned, or after RETRIES_MAX retries (load.c), with the device's own
 * message. A failed planning fails all targets that do not serve yet.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"

#include <inttypes.h>

/* ---- planning again ---- */

static uint64_t largest_segment(const struct plan *plan)
{
        uint64_t largest = 0;
        for (size_t i = 0; i < plan->n_segments; i++)
                if (plan->segments[i] > largest)
                        largest = plan->segments[i];
        return largest;
}

static void replan_run(struct load *load)
{
        for (size_t i = 0; i < load->n_parts && load->step_error.code == 0; i++) {
                struct load_part *part = &load->parts[i];
                if (!part->fragmented || !part_lives(part))
                        continue;
                struct plan_layout layout = part->targets[0]->device->layout;
                uint64_t before = largest_segment(&part->resolved.plan);
                layout.max_segment = round_up(before / 2, layout.granularity);
                int r = part_replan(part, &layout, &load->step_error);
                part->replanned = r == 0 && largest_segment(&part->resolved.plan) < before;
                part->max_segment = layout.max_segment;
        }
}

/* Targets whose segments cannot be smaller fail; the others ask again. */
static void replan_done(struct load *load)
{
        if (load_step_failed(load, &load->step_error))
                return;
        for (size_t i = 0; i < load->n_targets && !load_ended(load->state); i++) {
                struct load_target *t = &load->targets[i];
                if (t->state == TARGET_OUT_OF_MEMORY && t->part->fragmented && !t->part->replanned)
                        target_fail(t, &t->step_error);
        }
        if (!load_ended(load->state))
                load_reserve(load);
}

/* ---- releasing ---- */

static void release_run(struct load_target *target)
{
        generation_release_segments(target->generation);
        target->generation->n_segments = 0;
}

static void all_released(struct load *load)
{
        load_each_target (t, load) {
                if (t->state != TARGET_OUT_OF_MEMORY)
                        continue;
                t->device->ceiling = t->ceiling;
                t->part->fragmented |= t->ceiling >= t->device->used; /* it covers all that is charged: fragmented */
        }
        load_each_target (t, load)
                if (target_lives(t))
                        generation_uncharge(t->generation);
        if (load_is_cached(load)) { /* a copy's segments cannot be smaller */
                log_info("%s: is not loaded from the host cache: the device has no free memory in pieces of that size",
                         load->name);
                load_put_cached(load);
                load_plan(load);
                return;
        }
        load_step_start(load, WORK_LANE_CPU, replan_run, replan_done);
}

void load_retry(struct load *load)
{
        load_set_state(load, LOAD_PLANNING);
        load->retries++;
        load_restart_rounds(load);
        load_each_part (part, load)
                part->fragmented = part->replanned = false;
        load_each_target (t, load)
                if (t->state == TARGET_OUT_OF_MEMORY)
                        log_info("%s: %s: refused %" PRIu64 " bytes that fit its budget: retrying", load->name,
                                 t->device->name, t->generation->charged);
        load_start_targets(load, release_run, NULL, all_released);
}
