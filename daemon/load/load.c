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

#include <inttypes.h>
#include <string.h>

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

void load_step_start(struct load *load, struct work_pool *pool, uint64_t lane, void (*run)(struct work *),
                     void (*done)(struct work *))
{
        load->pending++;
        load->step_error = (struct error){0};
        work_submit(pool, lane, &load->step, run, done);
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
        require(load->pending > 0);
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
                load_fail_targets(load, error);
        else
                load_end(load, LOAD_FAILED, error);
        return true;
}

/* ---- opening ---- */

static void open_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        struct error *error = &load->step_error;
        struct sources sources = *load->loads->sources;
        if (load->roots != NULL)
                sources.roots = load->roots;
        http_reuse_begin(&load->abandoned);
        int r = resolve_open(&load->opened, &sources, load->source, &load->caller, load->sha256, error);
        http_reuse_end();
        if (r == 0 && load->pattern != NULL)
                r = load_split_ranks(load, error);
        for (size_t i = 0; r == 0 && load->pattern == NULL && i < load->n_parts; i++)
                r = resolve_view(&load->parts[i].resolved, &load->opened.set, NULL, 0, error);
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                r = source_identity(&load->parts[i].resolved.set, &load->parts[i].identity, error);
        if (r == 0 && load->pattern != NULL)
                load_identify_ranks(load);
}

static void open_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_done(load) || load_step_failed(load, &load->step_error))
                return;
        load_each_target (t, load) {
                struct generation *g = t->generation;
                if (g == NULL)
                        continue;
                g->identity = t->part->identity;
                g->has_identity = true;
        }
        load_coalesce(load);
}

static void place_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        load->lane = source_lane(load->source);
}

static void place_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_done(load))
                return;
        if (source_is_local(load->source) && !load->dry_run && load->expect == NULL)
                load->expect = reader_expect(load->loads->reader, load->lane);
        load_step_start(load, load->loads->pool, load->lane, open_run, open_done);
}

/* The file system of the source is looked up in the mount table first, which is a file as well. */
void load_open(struct load *load)
{
        loads_stop_prefault(load->loads);
        load_step_start(load, load->loads->pool, WORK_LANE_CPU, place_run, place_done);
}

/* ---- planning ---- */

static void plan_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        http_reuse_begin(&load->abandoned);
        for (size_t i = 0; i < load->n_parts && load->step_error.code == 0; i++)
                if (part_lives(&load->parts[i]))
                        part_plan(&load->parts[i], &load->step_error);
        http_reuse_end();
}

static void estimate(struct load_target *target)
{
        const struct plan *plan = &target->part->resolved.plan;
        const struct device *device = target->device;
        struct load_estimate *e = &target->estimate;
        e->files = target->part->resolved.set.n_objects;
        e->tensors = plan->n_tensors;
        e->bytes = plan->bytes;
        e->segments = plan->n_segments;
        e->blocks = plan->n_blocks;
        e->copied = plan->copied_bytes;
        e->needed = target_needs(target);
        e->budget = device_budget(device);
        e->unused = device_unused(device);
        e->fits = e->resident || e->needed <= e->unused;
}

static void plan_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_done(load) || load_step_failed(load, &load->step_error))
                return;
        if (load->dry_run) {
                load_each_target (t, load)
                        estimate(t);
                load_end(load, LOAD_READY, NULL);
                return;
        }
        load_reserve(load);
}

void load_plan(struct load *load)
{
        load_set_state(load, LOAD_PLANNING);
        load_log_stage(load, "opened");
        load_step_start(load, load->loads->pool, load->lane, plan_run, plan_done);
}

/* ---- allocating ---- */

static void alloc_run(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
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

/* Every device has answered. */
static void allocated(struct load *load)
{
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
        load->expect = reader_expect_over(load->loads->reader, load->expect);
}

static void alloc_done(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct load *load = target->load;
        if (!load_step_done(load))
                return;
        load->allocating--;
        if (target_may_retry(target))
                target_set_state(target, TARGET_OUT_OF_MEMORY);
        else if (target->step_error.code != 0)
                target_fail(target, &target->step_error);
        if (load->allocating == 0 && load->state == LOAD_ALLOCATING)
                allocated(load);
}

void load_allocate(struct load *load)
{
        load_set_state(load, LOAD_ALLOCATING);
        loads_stop_prefault(load->loads);
        load_log_stage(load, "admitted");
        load_each_target (t, load) {
                if (!target_lives(t))
                        continue;
                t->copy.segments = t->generation->segments;
                t->step_error = (struct error){0};
                load->pending++;
                load->allocating++;
                work_submit(t->device->thread, WORK_LANE_CPU, &t->step, alloc_run, alloc_done);
        }
}

/* ---- checking ---- */

static void check_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        http_reuse_begin(&load->abandoned);
        int r = source_check(&load->opened.set, &load->step_error);
        http_reuse_end();
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                if (load->parts[i].checking)
                        r = publish_finish(&load->parts[i].publish, load->parts[i].digest, &load->step_error);
}

static void check_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_done(load) || load_step_failed(load, &load->step_error))
                return;
        load_each_target (t, load) {
                if (!target_lives(t))
                        continue;
                t->generation->verified = load->sha256;
                memcpy(t->generation->digest, t->part->digest, DIGEST_SIZE);
        }
        load_serve_round(load);
}

static bool part_complete(const struct load_part *part)
{
        size_t files = part->load->sha256 ? part->resolved.set.n_objects : 0;
        return part->state == PART_READ && part->built && part->files_checked >= files;
}

void load_maybe_check(struct load *load)
{
        if (load->state != LOAD_READING)
                return;
        load_each_part (part, load) {
                part->checking = part_lives(part);
                if (part->checking && !part_complete(part))
                        return;
        }
        load_set_state(load, LOAD_CHECKING);
        load_log_stage(load, "read");
        load_step_start(load, load->loads->pool, load->lane, check_run, check_done);
}

/* ---- the end ---- */

void load_end(struct load *load, enum load_state state, const struct error *error)
{
        require(load_ended(state));
        load_set_state(load, state);
        __atomic_store_n(&load->abandoned, true, __ATOMIC_RELAXED);
        load->ended_ns = now_ns();
        load->loads->n_running--;
        load->expect = reader_expect_over(load->loads->reader, load->expect);
        load_unwatch(&load->awaited);
        load_withdraw(load);
        quota_discharge(&load->charge);
        if (error != NULL)
                load->error = *error;
        load_each_target (t, load)
                target_end(t);
        load->pending++; /* a watcher that is freed meanwhile counts down */
        load_report(load);
        load_notify_watchers(load);
        load_each_part (part, load)
                if (part->state == PART_READING)
                        reader_stop(load->loads->reader, &part->job);
        load_step_done(load);
}

void load_cancel(struct load *load)
{
        struct error error = {0};
        if (load_ended(load->state))
                return;
        error_set(&error, STREAMER_ECANCELED, "cancelled");
        load_end(load, LOAD_CANCELLED, &error);
}
