/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of a load and of its targets, and its work in flight, which `pending` counts. The last piece of a load
 * that has ended frees it, on a worker, since freeing a large table takes time.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"
#include "daemon/io/http/http.h"
#include "daemon/resident/hostcache/host_cache.h"

/* ---- states ---- */

void load_set_state(struct load *load, enum load_state state)
{
#define TO(state) (1u << LOAD_##state)
        static const unsigned ended = TO(READY) | TO(FAILED) | TO(CANCELLED);
        static const unsigned allowed[] = {
                [LOAD_OPENING] = TO(PLANNING) | TO(QUEUED) | ended,
                [LOAD_PLANNING] = TO(QUEUED) | ended,
                [LOAD_QUEUED] = TO(ALLOCATING) | ended,
                [LOAD_ALLOCATING] = TO(QUEUED) | TO(READING) | ended,
                [LOAD_READING] = TO(CHECKING) | ended,
                [LOAD_CHECKING] = ended,
        };
#undef TO
        change_state(load->state, state, allowed);
}

void target_set_state(struct load_target *target, enum target_state state)
{
        require(target->state == TARGET_OPEN && state != TARGET_OPEN);
        target->state = state;
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
        if (!load_ended(load->state))
                return true;
        if (load->pending > 0)
                return false;
        /* The references end before the worker frees the tables: a model that a finished load still holds would not
         * begin to expire. */
        load_each_target (t, load) {
                target_put_generation(t);
                if (t->cached != NULL)
                        host_copy_unuse(t->cached);
        }
        work_submit(load->loads->pool, WORK_LANE_CPU, &load->step, teardown_run, teardown_done);
        return false;
}
