/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of a load, one function for each step and one for its end; the happy path first. See
 * load.h for the picture, part.c for the reading, round.c for replicas that wait for room.
 *
 * How it fails: any step, or the last target that fails, sets an error, and load_end() settles the
 * outcome at once. From then on steps that come home find the load ended and only count down
 * `pending`; the last one takes it apart, in a worker, since giving back a large table takes time.
 */
#include "daemon/load/load_steps.h"

#include "daemon/base/log.h"
#include "daemon/io/http.h"
#include "daemon/load/report.h"
#include "daemon/source/probe.h"

#include <inttypes.h>
#include <string.h>

/* ---- steps in flight ---- */

void load_step_start(struct load *load, struct work_pool *pool, uint64_t lane, void (*run)(struct work *),
                     void (*done)(struct work *))
{
        load->pending++;
        load->step_error = (struct error){0};
        work_submit(pool, lane, &load->step, run, done);
}

static void taken_apart(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        for (size_t i = 0; i < load->n_targets; i++)
                if (load->targets[i].generation != NULL)
                        generation_unpin(load->targets[i].generation);
        load_forget_cached(load);
        load_free(load);
}

static void take_apart(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        for (size_t i = 0; i < load->n_parts; i++)
                part_deinit(&load->parts[i]);
        resolve_deinit(&load->opened);
}

void load_log_stage(const struct load *load, const char *stage)
{
        log_debug("%s: %s after %.3f ms", load->name, stage, (double)(now_ns() - load->started_ns) / 1e6);
}

bool load_step_home(struct load *load)
{
        require(load->pending > 0);
        load->pending--;
        if (!load_ended(load->state)) {
                load_settle_round(load);
                return true;
        }
        if (load->pending == 0)
                work_submit(load->loads->pool, WORK_LANE_CPU, &load->step, take_apart, taken_apart);
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

/* ---- checking ---- */

static void check_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        http_work_begin(&load->given_up);
        int r = source_check(&load->opened.set, &load->step_error);
        http_work_end();
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                if (load->parts[i].checking)
                        r = publish_finish(&load->parts[i].publish, load->parts[i].digest, &load->step_error);
}

static void check_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_home(load) || load_step_failed(load, &load->step_error))
                return;
        for (size_t i = 0; i < load->n_targets; i++) {
                struct load_target *t = &load->targets[i];
                if (!target_lives(t))
                        continue;
                t->generation->verified = load->sha256;
                memcpy(t->generation->digest, t->part->digest, DIGEST_SIZE);
        }
        if (load_has_late(load))
                load_serve_round(load);
        else
                load_end(load, LOAD_READY, NULL);
}

static bool part_complete(const struct load_part *part)
{
        size_t files = part->load->sha256 ? part->resolved.set.n_objects : 0;
        return part->read && part->built && part->files_checked >= files;
}

void load_maybe_check(struct load *load)
{
        if (load->state != LOAD_READING)
                return;
        for (size_t i = 0; i < load->n_parts; i++) {
                struct load_part *part = &load->parts[i];
                part->checking = part_lives(part);
                if (part->checking && !part_complete(part))
                        return;
        }
        load->state = LOAD_CHECKING;
        load_log_stage(load, "read");
        load_step_start(load, load->loads->pool, load->lane, check_run, check_done);
}

/* ---- allocating ---- */

static void start_reading(struct load *load)
{
        load->state = LOAD_READING;
        load_log_stage(load, "allocated");
        for (size_t i = 0; i < load->n_parts; i++)
                if (part_lives(&load->parts[i]))
                        part_read(&load->parts[i]);
        load->expect = reader_expect_over(load->loads->reader, load->expect);
}

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

/* All have tried. */
static void allocated(struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++)
                if (target_lives(&load->targets[i]) && load->targets[i].short_of_memory) {
                        load_retry(load);
                        return;
                }
        if (load_is_cached(load))
                load_copy_back(load);
        else
                start_reading(load);
}

static void alloc_done(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct load *load = target->load;
        if (!load_step_home(load))
                return;
        load->allocating--;
        if (target_may_retry(target))
                target->short_of_memory = true;
        else if (target->step_error.code != 0)
                target_failed(target, &target->step_error);
        if (load->allocating == 0 && load->state == LOAD_ALLOCATING)
                allocated(load);
}

void load_allocate(struct load *load)
{
        load->state = LOAD_ALLOCATING;
        loads_leave_spare(load->loads);
        load_log_stage(load, "admitted");
        for (size_t i = 0; i < load->n_targets; i++) {
                struct load_target *t = &load->targets[i];
                if (!target_lives(t))
                        continue;
                t->copy.segments = t->generation->segments;
                t->step_error = (struct error){0};
                load->pending++;
                load->allocating++;
                work_submit(t->device->thread, WORK_LANE_CPU, &t->step, alloc_run, alloc_done);
        }
}

/* ---- planning ---- */

static void plan_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        http_work_begin(&load->given_up);
        for (size_t i = 0; i < load->n_parts && load->step_error.code == 0; i++)
                if (part_lives(&load->parts[i]))
                        part_plan(&load->parts[i], &load->step_error);
        http_work_end();
}

static uint64_t needed_bytes(const struct plan *plan)
{
        uint64_t sum = 0;
        for (size_t i = 0; i < plan->n_segments; i++)
                sum += plan->segments[i];
        return sum;
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
        e->needed = needed_bytes(plan);
        e->budget = device_budget(device);
        e->unused = device_unused(device);
        e->fits = e->resident || e->needed <= e->unused;
        e->streamed = source_set_streamed(&target->part->resolved.set);
}

static void plan_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_home(load) || load_step_failed(load, &load->step_error))
                return;
        if (load->dry_run) {
                for (size_t i = 0; i < load->n_targets; i++)
                        estimate(&load->targets[i]);
                load_end(load, LOAD_READY, NULL);
                return;
        }
        load_admit(load);
}

void load_plan(struct load *load)
{
        load->state = LOAD_PLANNING;
        load_log_stage(load, "opened");
        load_step_start(load, load->loads->pool, load->lane, plan_run, plan_done);
}

/* ---- opening ---- */

static void open_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        struct error *error = &load->step_error;
        struct sources sources = *load->loads->sources;
        if (load->roots != NULL)
                sources.roots = load->roots;
        http_work_begin(&load->given_up);
        int r = load->probe ? source_open_probe(load->probe_seed, &load->opened.set, error)
                            : resolve_open(&load->opened, &sources, load->source, &load->caller, load->sha256, error);
        http_work_end();
        if (r == 0 && load->pattern != NULL)
                r = load_split_ranks(load, error);
        for (size_t i = 0; r == 0 && load->pattern == NULL && i < load->n_parts; i++)
                r = resolve_view(&load->parts[i].resolved, &load->opened.set, NULL, 0, error);
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                r = source_identity(&load->parts[i].resolved.set, &load->parts[i].identity, error);
        if (r == 0 && load->pattern != NULL)
                load_tell_ranks(load);
}

static void open_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_home(load) || load_step_failed(load, &load->step_error))
                return;
        for (size_t i = 0; i < load->n_targets; i++) {
                struct generation *g = load->targets[i].generation;
                if (g == NULL)
                        continue;
                g->identity = load->targets[i].part->identity;
                g->has_identity = true;
        }
        load_meet(load);
}

static void place_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        load->lane = source_lane(load->source);
}

static void place_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!load_step_home(load))
                return;
        if (source_is_local(load->source) && !load->probe && !load->dry_run && load->expect == NULL)
                load->expect = reader_expect(load->loads->reader, load->lane);
        load_step_start(load, load->loads->pool, load->lane, open_run, open_done);
}

/* Which file system it is on is asked of the mount table first, and that is a file, too. */
void load_open(struct load *load)
{
        load->state = LOAD_OPENING;
        loads_leave_spare(load->loads);
        load_step_start(load, load->loads->pool, WORK_LANE_CPU, place_run, place_done);
}

/* ---- the end ---- */

void load_end(struct load *load, enum load_state state, const struct error *error)
{
        require(!load_ended(load->state) && load_ended(state));
        load->state = state;
        __atomic_store_n(&load->given_up, true, __ATOMIC_RELAXED);
        load->ended_ns = now_ns();
        load->loads->n_running--;
        load->expect = reader_expect_over(load->loads->reader, load->expect);
        load_unwatch(&load->behind);
        load_withdraw(load);
        user_discharge(&load->charge);
        if (error != NULL)
                load->error = *error;
        for (size_t i = 0; i < load->n_targets; i++)
                target_end(&load->targets[i]);
        load_report(load);
        load_tell_watchers(load);
        for (size_t i = 0; i < load->n_parts; i++)
                if (load->parts[i].reading)
                        reader_stop(load->loads->reader, &load->parts[i].job);
        if (load->pending == 0)
                work_submit(load->loads->pool, WORK_LANE_CPU, &load->step, take_apart, taken_apart);
}

void load_cancel(struct load *load)
{
        struct error error = {0};
        if (load_ended(load->state))
                return;
        error_set(&error, STREAMER_ECANCELED, "cancelled");
        load_end(load, LOAD_CANCELLED, &error);
}
