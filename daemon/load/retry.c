/* SPDX-License-Identifier: Apache-2.0
 *
 * What a device that is shared with others refuses although it was granted: the load gives back what
 * it has allocated and asks again.
 *
 *   allocating > (a device is out of memory) > released > planned anew > queued > allocating
 *
 * Where the device has the bytes but not in one piece, segments of half the size are planned for it;
 * a tensor is never cut, and no plan has more than PLAN_MAX_SEGMENTS. Where others have taken the
 * bytes meanwhile, the room is asked again, which knows that by now: it may evict, or wait, or refuse.
 *
 * How it fails: where no smaller segments can be planned, or after so many rounds, the device's own
 * words are the answer. Planning anew that fails itself fails all that do not serve yet.
 */
#include "daemon/load/load_steps.h"

#include "daemon/base/log.h"

#include <inttypes.h>

#define ROUNDS 12

bool target_may_retry(const struct load_target *target)
{
        return target->step_error.code == STREAMER_ENOMEM && target->device->ops->ceiling != NULL &&
               target->load->retries < ROUNDS;
}

/* ---- planning anew ---- */

static uint64_t largest_segment(const struct plan *plan)
{
        uint64_t largest = 0;
        for (size_t i = 0; i < plan->n_segments; i++)
                if (plan->segments[i] > largest)
                        largest = plan->segments[i];
        return largest;
}

/* On a worker. */
static int cut_smaller(struct load_part *part, struct error *error)
{
        struct device_layout layout = part->targets[0]->device->layout;
        uint64_t before = largest_segment(&part->resolved.plan);
        layout.max_segment = round_up(before / 2, layout.granularity);
        int r = part_replan(part, &layout, error);
        part->cut = r == 0 && largest_segment(&part->resolved.plan) < before;
        part->max_segment = layout.max_segment;
        return r;
}

static void replan_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        for (size_t i = 0; i < load->n_parts && load->step_error.code == 0; i++)
                if (load->parts[i].in_pieces && part_lives(&load->parts[i]))
                        cut_smaller(&load->parts[i], &load->step_error);
}

/* What cannot be cut is out; the rest asks for its room again. */
static void replan_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_home(load) || load_step_failed(load, &load->step_error))
                return;
        for (size_t i = 0; i < load->n_targets && !load_ended(load->state); i++) {
                struct load_target *t = &load->targets[i];
                if (t->short_of_memory && target_lives(t) && t->part->in_pieces && !t->part->cut)
                        target_failed(t, &t->step_error);
                t->short_of_memory = false;
        }
        if (!load_ended(load->state))
                load_admit(load);
}

/* ---- giving back ---- */

static void release_run(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct generation *g = target->generation;
        for (unsigned i = 0; i < g->n_segments; i++)
                g->device->ops->release(&g->segments[i]);
        g->n_segments = 0;
}

/* The device has what was charged, to all who were: then what it lacks is one piece. */
static void note_pieces(struct load_target *target)
{
        struct device *device = target->device;
        device->ceiling = target->ceiling;
        if (target->short_of_memory && target->ceiling >= device->used)
                target->part->in_pieces = true;
}

static void all_released(struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++)
                if (target_lives(&load->targets[i]) && load->targets[i].short_of_memory)
                        note_pieces(&load->targets[i]);
        for (size_t i = 0; i < load->n_targets; i++)
                if (target_lives(&load->targets[i]))
                        generation_uncharge(load->targets[i].generation);
        if (load_is_cached(load)) { /* the copy has the pieces it has */
                log_info("%s: does not come from the host cache: the memory is not there in pieces of that size",
                         load->name);
                load_forget_cached(load);
                load_plan(load);
                return;
        }
        load->pending++;
        load->step_error = (struct error){0};
        work_submit(load->loads->pool, WORK_LANE_CPU, &load->step, replan_run, replan_done);
}

static void release_done(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct load *load = target->load;
        if (!load_step_home(load))
                return;
        if (--load->allocating == 0)
                all_released(load);
}

void load_retry(struct load *load)
{
        load->state = LOAD_PLANNING;
        load->retries++;
        load_join_rounds(load);
        for (size_t i = 0; i < load->n_parts; i++)
                load->parts[i].in_pieces = load->parts[i].cut = load->parts[i].planned = false;
        for (size_t i = 0; i < load->n_targets; i++) {
                struct load_target *t = &load->targets[i];
                if (!target_lives(t))
                        continue;
                if (t->short_of_memory)
                        log_info("%s: %s: refused %" PRIu64 " bytes it had room for: asking again", load->name,
                                 t->device->name, t->generation->charged);
                load->pending++;
                load->allocating++;
                work_submit(t->device->thread, WORK_LANE_CPU, &t->step, release_run, release_done);
        }
}
