/* SPDX-License-Identifier: Apache-2.0
 *
 * Replicas that wait for room, each on its own. As soon as some targets have room and all others are
 * blocked, the load goes on with those that have it, in a round; the others are late.
 *
 *   queued (all ask) > a round: allocating > reading > checking > its targets serve
 *      ^                                                              |
 *      +---- again, with who was late: planned anew, from the same open files, once one has room; or
 *            copied from the host cache, as the others were
 *
 * So a load that is blocked holds nothing: room that it was granted is being used, and what serves is
 * not held by it. Two loads that wait for each other's devices cannot wait for ever.
 *
 * How it fails: a round whose targets all fail is over as one that serves; whoever is late goes on. A
 * load ends with its last target. Nothing of a round may be in flight when the next one begins, since
 * it takes the parts apart; so one that is over waits until only requests for room are out.
 */
#include "daemon/base/shown.h"
#include "daemon/load/load_steps.h"

#include "daemon/base/log.h"
#include "daemon/load/report.h"

#include <inttypes.h>

bool load_has_late(const struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++)
                if (target_open(&load->targets[i]) && load->targets[i].late)
                        return true;
        return false;
}

static void set_late(struct load_target *target, bool late)
{
        target->late = late;
        __atomic_store_n(&target->copy.dead, late, __ATOMIC_RELEASE);
}

void load_join_rounds(struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++) {
                struct load_target *t = &load->targets[i];
                if (!target_open(t) || !t->late)
                        continue;
                set_late(t, false);
                if (!room_withdraw(&t->room))
                        continue;
                load->queued--;
                load->pending--;
        }
}

/* ---- a further round ---- */

static void again_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        for (size_t i = 0; i < load->n_parts && load->step_error.code == 0; i++)
                if (part_lives(&load->parts[i]))
                        part_again(&load->parts[i], &load->step_error);
}

static void again_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        char shown[SHOWN_SOURCE];
        if (!load_step_home(load))
                return;
        shown_source(shown, load->source);
        for (size_t i = 0; i < load->n_targets && load->step_error.code == 0; i++)
                if (target_lives(&load->targets[i]) &&
                    target_needs(&load->targets[i]) != load->targets[i].generation->charged)
                        error_set(&load->step_error, STREAMER_EFAILED, "changed while it waited (%s)", shown);
        if (load->step_error.code != 0) {
                load_fail_targets(load, &load->step_error);
                return;
        }
        for (size_t i = 0; i < load->n_parts; i++)
                load->parts[i].planned = part_lives(&load->parts[i]);
        load_allocate(load);
}

static void plan_again(struct load *load)
{
        load->state = LOAD_PLANNING;
        load->stale = false;
        for (size_t i = 0; i < load->n_parts; i++) {
                struct load_part *part = &load->parts[i];
                part->read = part->built = part->checking = false;
                part->files_checked = 0;
        }
        load_step_start(load, load->loads->pool, load->lane, again_run, again_done);
}

void load_look_on(struct load *load)
{
        size_t n_granted = 0;
        if (load->state != LOAD_QUEUED || load->over)
                return;
        for (size_t i = 0; i < load->n_targets; i++) {
                const struct load_target *t = &load->targets[i];
                if (target_open(t) && !t->granted && !t->room.blocked)
                        return; /* its room is on its way */
                n_granted += target_open(t) && t->granted;
        }
        if (n_granted == 0)
                return;
        for (size_t i = 0; i < load->n_targets; i++)
                if (target_open(&load->targets[i]))
                        set_late(&load->targets[i], !load->targets[i].granted);
        load->rounds++;
        if (load->stale)
                plan_again(load);
        else
                load_allocate(load);
}

/* ---- the end of one ---- */

static void on_settled(struct errand *item)
{
        struct load *load = container_of(item, struct load, resume);
        if (!load_step_home(load))
                return;
        load->over = load->settling = false;
        for (size_t i = 0; i < load->n_targets; i++) {
                struct load_target *t = &load->targets[i];
                if (target_open(t))
                        set_late(t, false);
                else if (t->failed)
                        target_let_go(t);
        }
        load_look_on(load);
}

void load_settle_round(struct load *load)
{
        if (!load->over || load->settling || load->pending > load->queued)
                return;
        load->settling = true;
        load->pending++;
        load->resume.run = on_settled;
        wake_post(load->loads->reader->wake, &load->resume);
}

void load_round_over(struct load *load)
{
        load->state = LOAD_QUEUED;
        load->over = true;
        load->stale = !load_is_cached(load);
        for (size_t i = 0; i < load->n_parts; i++)
                load->parts[i].planned = false;
        load_settle_round(load);
}

static void serve(struct load_target *target)
{
        struct generation *g = target->generation;
        g->load_ns = now_ns() - target->load->started_ns;
        target->generation = NULL;
        target->shared = target->copy.dead = true;
        generation_ready(g);
        generation_unpin(g);
}

void load_serve_round(struct load *load)
{
        load_report_round(load);
        load->served = true;
        for (size_t i = 0; i < load->n_targets; i++)
                if (target_lives(&load->targets[i]))
                        serve(&load->targets[i]);
        load_round_over(load);
}
