/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of a load and of its targets; its work in flight, which `pending` counts, and the last piece of which
 * frees it, in a later turn of the loop; and its end: which targets fail with a failed one, the outcome, and the
 * notification of watchers.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"
#include "daemon/resident/hostcache/host_cache.h"

/* ---- states ---- */

void load_set_state(struct load *load, enum load_state state)
{
#define TO(state) (1u << LOAD_##state)
        static const unsigned ended = TO(READY) | TO(FAILED) | TO(CANCELLED);
        static const unsigned allowed[] = {
                [LOAD_LOCATING] = TO(OPENING) | ended,
                [LOAD_OPENING] = TO(SAMPLING) | TO(AWAITING) | TO(PLANNING) | TO(QUEUED) | ended,
                [LOAD_SAMPLING] = TO(AWAITING) | TO(PLANNING) | TO(QUEUED) | ended,
                [LOAD_AWAITING] = TO(SAMPLING) | TO(AWAITING) | TO(PLANNING) | TO(QUEUED) | ended,
                [LOAD_PLANNING] = TO(QUEUED) | ended,
                [LOAD_QUEUED] = TO(ALLOCATING) | ended,
                [LOAD_ALLOCATING] = TO(RELEASING) | TO(COPYING) | TO(READING) | ended,
                [LOAD_RELEASING] = TO(QUEUED) | ended,
                [LOAD_COPYING] = TO(COMPARING) | ended,
                [LOAD_READING] = TO(CHECKING) | ended,
                [LOAD_CHECKING] = TO(COMPARING) | ended,
                [LOAD_COMPARING] = ended,
        };
#undef TO
        static const char *const names[] = {
                [LOAD_OPENING] = "opening",     [LOAD_SAMPLING] = "sampling",  [LOAD_AWAITING] = "awaiting",
                [LOAD_PLANNING] = "planning",   [LOAD_QUEUED] = "queued",      [LOAD_ALLOCATING] = "allocating",
                [LOAD_RELEASING] = "releasing", [LOAD_COPYING] = "copying",    [LOAD_READING] = "reading",
                [LOAD_CHECKING] = "checking",   [LOAD_COMPARING] = "comparing"};
        change_state(load->state, state, allowed);
        if (!load_ended(state))
                log_debug("%s: %s after %.3f ms", load->name, names[state],
                          (double)(now_ns() - load->started_ns) / 1e6);
}

void target_set_state(struct load_target *target, enum target_state state)
{
        require(target->state == TARGET_OPEN && state != TARGET_OPEN);
        target->state = state;
}

/* ---- work in flight ---- */

static void teardown_done(struct work *work)
{
        load_free(container_of(work, struct load, step));
}

static void teardown_run(struct work *work)
{
        load_drop_tables(container_of(work, struct load, step));
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

void load_advance_later(struct load *load)
{
        require(load->magic == LOAD_MAGIC && load->advance.run != NULL);
        if (load_ended(load->state) || load_relaxed(&load->advance.posted))
                return;
        load->pending++;
        wake_post(load->loads->reader->wake, &load->advance);
}

/* ---- watchers and subscribers ---- */

void load_watch(struct load *load, struct load_watch *watch, void (*ended)(struct load_watch *, struct load *))
{
        watch->load = load;
        watch->ended = ended;
        list_append(ended != NULL ? &load->watchers : &load->subscribers, &watch->link);
        if (ended == NULL)
                load->pending++;
}

/* The load, and with it generations, are freed in a later turn of the loop: the caller may use one of these. */
void load_unwatch(struct load_watch *watch)
{
        struct load *load = watch->load;
        if (load == NULL)
                return;
        require(load->magic == LOAD_MAGIC);
        list_remove(&watch->link);
        watch->load = NULL;
        if (watch->ended == NULL)
                load_step_done(load);
}

static struct load_watch *first_of(const struct list *watches)
{
        return list_item(watches->next, watches, struct load_watch, link);
}

void load_call_watchers(struct load *load)
{
        for (struct load_watch *watch; (watch = first_of(&load->watchers)) != NULL;) {
                load_unwatch(watch);
                watch->ended(watch, load);
        }
        if (!list_empty(&load->subscribers) && load->loads->ended != NULL)
                load->loads->ended(load->loads);
}

void load_await(struct load *load, struct load *other)
{
        require(load->awaits == NULL && !load_ended(other->state));
        load->awaits = other;
        list_append(&other->awaiting, &load->in_awaiting);
}

static void end_awaiting(struct load *load)
{
        list_remove(&load->in_awaiting);
        load->awaits = NULL;
}

static void on_end(struct callback *item)
{
        struct load *load = container_of(item, struct load, end);
        load_call_watchers(load);
        list_each_item_safe (struct load, other, &load->awaiting, in_awaiting) {
                end_awaiting(other);
                load_advance_later(other);
        }
        load_step_done(load);
}

void load_move_watchers(struct load *from, struct load *to)
{
        for (struct load_watch *watch; (watch = first_of(&from->watchers) ?: first_of(&from->subscribers)) != NULL;) {
                load_unwatch(watch);
                load_watch(to, watch, watch->ended);
        }
        list_each_item_safe (struct load, other, &from->awaiting, in_awaiting) {
                end_awaiting(other);
                load_await(other, to);
        }
}

/* ---- the outcome ---- */

/* Where the time of its load went; zeroes where it was not read to the end. */
static void get_stages(const struct load_target *target, struct stages *stages)
{
        const struct load *load = target->load;
        const struct read_job *job = &target->part->job;
        *stages = (struct stages){{0}};
        uint64_t over_ns = __atomic_load_n(&job->over_ns, __ATOMIC_ACQUIRE); /* a thread may just end the job */
        if (over_ns == 0 || over_ns > load->ended_ns)
                return;
        for (enum stage of = 0; of < STAGE_COUNT; of++)
                stages->ns[of] = load_relaxed(&job->stages.ns[of]);
        stages->ns[STAGE_begin] = job->begun_ns - load->started_ns;
        stages->ns[STAGE_end] = load->ended_ns - over_ns;
}

void load_end(struct load *load, enum load_state state, const struct error *error)
{
        require(load->magic == LOAD_MAGIC && load_ended(state));
        load_set_state(load, state);
        __atomic_store_n(&load->abandoned, true, __ATOMIC_RELAXED);
        load->ended_ns = now_ns();
        load->loads->n_running--;
        reader_announce_end(load->loads->reader, &load->announced);
        end_awaiting(load);
        if (admission_withdraw(&load->admission))
                load->pending--;
        quota_discharge(&load->charge);
        if (error != NULL)
                load->error = *error;
        load_each_open (t, load) {
                struct generation *g = t->generation;
                if (g == NULL)
                        continue;
                g->load_ns = load->ended_ns - load->started_ns;
                get_stages(t, &g->stages);
                if (state == LOAD_READY)
                        generation_ready(g);
                else if (load->superseded)
                        generation_abort(g, &load->error);
                else
                        generation_fail(g, &load->error);
        }
        load_report(load);
        load->end_number = ++load->loads->n_ended;
        load->pending++;
        load->end.run = on_end;
        wake_post(load->loads->reader->wake, &load->end);
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

/* ---- failures of targets ---- */

void target_release(struct load_target *target)
{
        /* A worker may be looking at the bytes of a file. */
        if (!target->load->request.sha256)
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
        bool in_flight = part->state == PART_READING &&
                         reader_drop_target(load->loads->reader, &part->job, &target->copy, error);
        __atomic_store_n(&target->copy.dead, true, __ATOMIC_RELEASE);
        log_warn("%s: %s: %s", load->name, target->device->name, error->text);
        generation_fail(target->generation, error);
        if (!in_flight)
                target_release(target);
        if (load_has(load, TARGET_OPEN))
                return;
        if (load_has(load, TARGET_SERVES))
                load_end(load, LOAD_READY, NULL);
        else
                load_end(load, LOAD_FAILED, &named);
}

void load_fail_targets(struct load *load, const struct load_part *part, const struct error *error)
{
        struct error why = *error;
        load_each_open (t, load)
                if (!load_ended(load->state) && (part == NULL || t->part == part))
                        target_fail(t, &why);
}
