/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of a load in the order of its life: one function begins each step, one takes its result. See load.h.
 *
 * How it fails: a step, or the last target that fails, sets an error, and load_end() decides the outcome at once.
 * Steps that finish later only count `pending` down; the last one frees the load, on a worker, since freeing a large
 * table takes time.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"
#include "daemon/io/http/http.h"

#include <string.h>

/* How often devices may refuse memory that was granted (retry.c). */
#define RETRIES_MAX 12

/* ---- states ---- */

void load_set_state(struct load *load, enum load_state state)
{
#define TO(state) (1u << LOAD_##state)
        static const unsigned ended = TO(READY) | TO(FAILED) | TO(CANCELLED);
        static const unsigned allowed[LOAD_STATES] = {
                [LOAD_OPENING] = TO(PLANNING) | TO(QUEUED),
                [LOAD_PLANNING] = TO(PLANNING) | TO(QUEUED) | TO(ALLOCATING) | TO(ROUND_ENDING),
                [LOAD_QUEUED] = TO(PLANNING) | TO(ALLOCATING) | TO(ROUND_ENDING),
                [LOAD_ALLOCATING] = TO(PLANNING) | TO(READING) | TO(ROUND_ENDING),
                [LOAD_READING] = TO(CHECKING) | TO(ROUND_ENDING),
                [LOAD_CHECKING] = TO(ROUND_ENDING),
                [LOAD_ROUND_ENDING] = TO(ROUND_ENDING) | TO(ROUND_DONE),
                [LOAD_ROUND_DONE] = TO(QUEUED),
        };
#undef TO
        require(!load_ended(load->state) && (allowed[load->state] | ended) & 1u << state);
        load->state = state;
}

/* ---- steps in flight ---- */

static void step_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        http_reuse_begin(&load->abandoned);
        load->step_run(load);
        http_reuse_end();
}

static void step_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (load_step_done(load))
                load->step_done(load);
}

void load_step_start(struct load *load, uint64_t lane, void (*run)(struct load *), void (*done)(struct load *))
{
        load->pending++;
        load->step_error = (struct error){0};
        load->step_run = run;
        load->step_done = done;
        work_submit(load->loads->pool, lane, &load->step, step_run, step_done);
}

static void target_step_run(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        target->load->target_run(target);
}

static void target_step_done(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct load *load = target->load;
        if (!load_step_done(load))
                return;
        load->n_steps--;
        if (load->target_done != NULL)
                load->target_done(target);
        if (load->n_steps == 0 && !load_ended(load->state))
                load->targets_done(load);
}

void load_start_targets(struct load *load, void (*run)(struct load_target *), void (*done)(struct load_target *),
                        void (*all_done)(struct load *))
{
        load->target_run = run;
        load->target_done = done;
        load->targets_done = all_done;
        load_each_target (t, load) {
                if (!target_lives(t))
                        continue;
                load->pending++;
                load->n_steps++;
                work_submit(t->device->thread, WORK_LANE_CPU, &t->step, target_step_run, target_step_done);
        }
}

static void teardown_done(struct work *work)
{
        load_free(container_of(work, struct load, step));
}

static void teardown_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        load_each_part (part, load)
                part_deinit(part);
        resolve_deinit(&load->opened);
}

void load_log_stage(const struct load *load, const char *stage)
{
        log_debug("%s: %s after %.3f ms", load->name, stage, (double)(now_ns() - load->started_ns) / 1e6);
}

bool load_step_done(struct load *load)
{
        require(load->magic == LOAD_MAGIC && load->pending > 0);
        load->pending--;
        if (!load_ended(load->state)) {
                load_finish_round(load);
                return true;
        }
        if (load->pending > 0)
                return false;
        /* The references end before the worker frees the tables: a model that a finished load still holds would not
         * begin to expire. */
        load_each_target (t, load)
                target_put_generation(t);
        load_put_cached(load);
        work_submit(load->loads->pool, WORK_LANE_CPU, &load->step, teardown_run, teardown_done);
        return false;
}

bool load_step_failed(struct load *load, const struct error *error)
{
        if (error->code == 0)
                return false;
        if (load->served)
                load_fail_targets(load, NULL, error);
        else
                load_end(load, LOAD_FAILED, error);
        return true;
}

/* ---- opening ---- */

static void open_run(struct load *load)
{
        struct error *error = &load->step_error;
        struct sources sources = *load->loads->sources;
        if (load->roots != NULL)
                sources.roots = load->roots;
        if (resolve_open(&load->opened, &sources, load->source, &load->caller, load->sha256, error) == 0)
                load_open_parts(load, error);
}

static void open_done(struct load *load)
{
        if (load_step_failed(load, &load->step_error))
                return;
        load_each_target (t, load) {
                struct generation *g = t->generation;
                if (g == NULL)
                        continue;
                g->identity = t->part->identity;
                g->files = source_files_ref(t->part->files);
                g->has_identity = true;
        }
        load_coalesce(load);
}

static void find_lane_run(struct load *load)
{
        load->lane = source_lane(load->source);
}

static void find_lane_done(struct load *load)
{
        if (source_is_local(load->source) && !load->dry_run && load->announced == NULL)
                load->announced = reader_announce(load->loads->reader, load->lane);
        load_step_start(load, load->lane, open_run, open_done);
}

/* The file system of the source is looked up in the mount table first, which is a file as well. */
void load_open(struct load *load)
{
        loads_check_prefault(load->loads);
        load_step_start(load, WORK_LANE_CPU, find_lane_run, find_lane_done);
}

/* ---- planning ---- */

static void plan_run(struct load *load)
{
        for (size_t i = 0; i < load->n_parts && load->step_error.code == 0; i++)
                if (part_lives(&load->parts[i]))
                        part_plan(&load->parts[i], &load->step_error);
}

static void estimate(struct load_target *target)
{
        const struct plan *plan = &target->part->resolved.plan;
        bool resident = target->estimate.resident;
        uint64_t needed = target_needs(target), unused = device_unused(target->device);
        target->estimate = (struct load_estimate){.files = target->part->resolved.set.n_objects,
                                                  .tensors = plan->n_tensors,
                                                  .bytes = plan->bytes,
                                                  .segments = plan->n_segments,
                                                  .blocks = plan->n_blocks,
                                                  .copied = plan->copied_bytes,
                                                  .needed = needed,
                                                  .budget = device_budget(target->device),
                                                  .unused = unused,
                                                  .resident = resident,
                                                  .fits = resident || needed <= unused};
}

static void plan_done(struct load *load)
{
        if (load_step_failed(load, &load->step_error))
                return;
        if (!load->dry_run) {
                load_reserve(load);
                return;
        }
        load_each_target (t, load)
                estimate(t);
        load_end(load, LOAD_READY, NULL);
}

void load_plan(struct load *load)
{
        load_set_state(load, LOAD_PLANNING);
        load_log_stage(load, "opened");
        load_step_start(load, load->lane, plan_run, plan_done);
}

/* ---- allocating ---- */

static void alloc_run(struct load_target *target)
{
        struct generation *g = target->generation;
        const uint64_t *sizes;
        size_t n = target_segments(target, &sizes);
        for (size_t i = 0; i < n; i++) {
                if (g->device->ops->alloc(g->device, sizes[i], &g->segments[i], &target->step_error) < 0)
                        break;
                g->n_segments++;
        }
        if (g->n_segments < n && g->device->ops->ceiling != NULL)
                target->ceiling = g->device->ops->ceiling(g->device);
}

static void alloc_done(struct load_target *target)
{
        bool may_retry = target->device->ops->ceiling != NULL && target->load->retries < RETRIES_MAX;
        if (target->step_error.code == STREAMER_ENOMEM && may_retry)
                target_set_state(target, TARGET_OUT_OF_MEMORY);
        else if (target->step_error.code != 0)
                target_fail(target, &target->step_error);
}

static void all_allocated(struct load *load)
{
        if (load->state != LOAD_ALLOCATING)
                return;
        load_each_target (t, load)
                if (t->state == TARGET_OUT_OF_MEMORY) {
                        load_retry(load);
                        return;
                }
        if (load_is_cached(load)) {
                load_copy_cached(load);
                return;
        }
        load_set_state(load, LOAD_READING);
        load_log_stage(load, "allocated");
        load_each_part (part, load)
                if (part_lives(part))
                        part_read(part);
        load->announced = reader_announce_end(load->loads->reader, load->announced);
}

void load_allocate(struct load *load)
{
        load_set_state(load, LOAD_ALLOCATING);
        loads_check_prefault(load->loads);
        load_log_stage(load, "admitted");
        load_each_target (t, load) {
                if (!target_lives(t))
                        continue;
                t->copy.segments = t->generation->segments;
                t->step_error = (struct error){0};
        }
        load_start_targets(load, alloc_run, alloc_done, all_allocated);
}

/* ---- checking ---- */

/* Whether the source's paths lead to other files than those that were opened. */
static bool is_replaced(struct load *load)
{
        struct error error;
        struct resolved now = {.planned = false};
        struct sources sources = *load->loads->sources;
        if (!source_is_local(load->source))
                return false;
        if (load->roots != NULL)
                sources.roots = load->roots;
        int r = resolve_open(&now, &sources, load->source, &load->caller, load->sha256, &error);
        bool replaced = r == 0 && now.set.n_objects != load->opened.set.n_objects;
        for (size_t i = 0; r == 0 && !replaced && i < now.set.n_objects; i++) {
                const struct object_version *a = &now.set.objects[i].version, *b = &load->opened.set.objects[i].version;
                replaced = a->dev != b->dev || a->ino != b->ino;
        }
        resolve_deinit(&now);
        return replaced;
}

static void check_run(struct load *load)
{
        int r = source_check(&load->opened.set, &load->step_error);
        if (r < 0)
                load->replaced = is_replaced(load);
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                if (load->parts[i].checking)
                        r = publish_finish(&load->parts[i].publish, load->parts[i].digest, &load->step_error);
}

/* What was read is of the old file, complete or not. Clients that attached early are notified of the failure. */
static bool begin_again(struct load *load)
{
        if (!load->replaced || !load_begin_again(load))
                return false;
        log_info("%s: its files were replaced while they were read: the load begins again (%u of %d): %s", load->name,
                 load->restarts + 1, LOAD_RESTARTS, load->step_error.text);
        load_end(load, LOAD_FAILED, &load->step_error);
        return true;
}

static void check_done(struct load *load)
{
        if (load->step_error.code != 0 && begin_again(load))
                return;
        if (load_step_failed(load, &load->step_error))
                return;
        load_each_target (t, load) {
                if (!target_lives(t))
                        continue;
                t->generation->verified = load->sha256;
                memcpy(t->generation->digest, t->part->digest, DIGEST_SIZE);
        }
        load_serve_round(load);
}

void load_maybe_check(struct load *load)
{
        if (load->state != LOAD_READING)
                return;
        load_each_part (part, load) {
                size_t files = load->sha256 ? part->resolved.set.n_objects : 0;
                bool complete = part->state == PART_READ && part->built && part->files_checked >= files;
                part->checking = part_lives(part);
                if (part->checking && !complete)
                        return;
        }
        load_set_state(load, LOAD_CHECKING);
        load_log_stage(load, "read");
        load_step_start(load, load->lane, check_run, check_done);
}

/* ---- the end ---- */

void load_end(struct load *load, enum load_state state, const struct error *error)
{
        require(load->magic == LOAD_MAGIC && load_ended(state));
        load_set_state(load, state);
        __atomic_store_n(&load->abandoned, true, __ATOMIC_RELAXED);
        load->ended_ns = now_ns();
        load->loads->n_running--;
        load->announced = reader_announce_end(load->loads->reader, load->announced);
        load_unwatch(&load->awaited);
        load_each_target (t, load)
                target_withdraw(t);
        quota_discharge(&load->charge);
        if (error != NULL)
                load->error = *error;
        load_each_target (t, load) {
                struct generation *g = t->generation;
                if (g == NULL || !target_is(t, TARGETS_OPEN))
                        continue;
                g->load_ns = load->ended_ns - load->started_ns;
                target_stages(t, &g->stages);
                if (state == LOAD_READY)
                        generation_ready(g);
                else if (load->superseded)
                        generation_abort(g, &load->error);
                else
                        generation_fail(g, &load->error);
        }
        load_report(load);
        load_post_end(load);
        load_each_part (part, load)
                if (part->state == PART_READING)
                        reader_stop(load->loads->reader, &part->job);
}

void load_cancel(struct load *load)
{
        struct error error = {0};
        if (load_ended(load->state))
                return;
        error_set(&error, STREAMER_ECANCELED, "cancelled");
        load_end(load, LOAD_CANCELLED, &error);
}
