/* SPDX-License-Identifier: Apache-2.0
 *
 * Rounds: replicas wait for memory independently. As soon as some targets are granted and all others are blocked, the
 * load continues with the granted ones in a round; the others are deferred.
 *
 *   queued (all ask) > a round: allocating > reading > checking > its targets serve
 *      ^                                                              |
 *      +---- with the deferred ones: planned again, from the same open files, once one is granted; or copied
 *            from the host cache, as the others were
 *
 * So a blocked load holds nothing: granted memory is being used, and generations that serve are not referenced. Two
 * loads that wait for each other's devices cannot deadlock.
 *
 * How it fails: a round whose targets all fail is over like one that serves; the deferred ones follow. The load ends
 * with its last target. Nothing of a round may be in flight when the next begins, since that frees the parts; so a
 * round that is over lasts until only requests for memory are pending.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/text/secret.h"

/* An open target is left to a later round, or belongs to the one that begins. */
static void set_deferred(struct load_target *target, bool deferred)
{
        bool granted = target->state == TARGET_GRANTED || target->state == TARGET_DEFERRED_GRANTED;
        target_set_state(target, deferred ? TARGET_DEFERRED : granted ? TARGET_GRANTED : TARGET_OPEN);
        __atomic_store_n(&target->copy.dead, deferred, __ATOMIC_RELEASE);
}

void load_restart_rounds(struct load *load)
{
        load_each_target (t, load)
                if (target_is(t, TARGETS_DEFERRED)) {
                        set_deferred(t, false);
                        target_withdraw(t);
                }
}

/* ---- a further round ---- */

static void restore_run(struct load *load)
{
        for (size_t i = 0; i < load->n_parts && load->step_error.code == 0; i++)
                if (part_lives(&load->parts[i]))
                        part_reopen(&load->parts[i], &load->step_error);
}

static void restore_done(struct load *load)
{
        char shown[REDACTED_SOURCE];
        redact_source(shown, load->source);
        for (size_t i = 0; i < load->n_targets && load->step_error.code == 0; i++)
                if (target_lives(&load->targets[i]) &&
                    target_needs(&load->targets[i]) != load->targets[i].generation->charged)
                        error_set(&load->step_error, STREAMER_EFAILED, "changed while it waited (%s)", shown);
        if (load->step_error.code != 0) {
                load_fail_targets(load, NULL, &load->step_error);
                return;
        }
        load_each_part (part, load)
                part_set_state(part, part_lives(part) ? PART_PLANNED : PART_IDLE);
        load_allocate(load);
}

void load_try_round(struct load *load)
{
        size_t n_granted = 0;
        if (load->state != LOAD_QUEUED)
                return;
        load_each_target (t, load) {
                if (t->state == TARGET_OPEN && !t->admission.blocked)
                        return; /* its answer is due */
                n_granted += t->state == TARGET_GRANTED;
        }
        if (n_granted == 0)
                return;
        load_each_target (t, load)
                if (target_is(t, TARGETS_OPEN))
                        set_deferred(t, t->state == TARGET_OPEN);
        load->rounds++;
        if (!load->stale) {
                load_allocate(load);
                return;
        }
        load_set_state(load, LOAD_PLANNING);
        load->stale = false;
        load_each_part (part, load) {
                part->built = part->checking = false;
                part->files_checked = 0;
        }
        load_step_start(load, load->lane, restore_run, restore_done);
}

/* ---- the end of one ---- */

static void on_round_done(struct callback *item)
{
        struct load *load = container_of(item, struct load, resume);
        if (!load_step_done(load))
                return;
        load_set_state(load, LOAD_QUEUED);
        load_each_target (t, load)
                if (target_is(t, TARGETS_OPEN))
                        set_deferred(t, false);
                else if (t->state == TARGET_FAILED)
                        target_put_generation(t);
        load_try_round(load);
}

void load_finish_round(struct load *load)
{
        if (load->state != LOAD_ROUND_ENDING || load->pending > load->queued)
                return;
        load_set_state(load, LOAD_ROUND_DONE);
        load->pending++;
        load->resume.run = on_round_done;
        wake_post(load->loads->reader->wake, &load->resume);
}

void load_end_round(struct load *load)
{
        load->stale = !load_is_cached(load);
        if (load->state == LOAD_ROUND_DONE) /* a deferred target has failed meanwhile */
                return;
        load_set_state(load, LOAD_ROUND_ENDING);
        load_each_part (part, load)
                if (part->state != PART_READING)
                        part_set_state(part, PART_IDLE);
        load_finish_round(load);
}

void load_serve_round(struct load *load)
{
        if (!load_has(load, TARGETS_DEFERRED)) {
                load_end(load, LOAD_READY, NULL);
                return;
        }
        load_report_round(load);
        load->served = true;
        load_each_target (t, load) {
                struct generation *g = t->generation;
                if (!target_lives(t))
                        continue;
                g->load_ns = now_ns() - load->started_ns;
                target_stages(t, &g->stages);
                t->generation = NULL;
                target_set_state(t, TARGET_SERVES);
                t->copy.dead = true;
                generation_ready(g);
                generation_put(g);
        }
        load_end_round(load);
}
