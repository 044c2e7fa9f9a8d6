/* SPDX-License-Identifier: Apache-2.0
 *
 * Watchers and subscribers of a load, and its progress, in all and on each device.
 */
#include "daemon/load/load_private.h"

const char *load_state_name(enum load_state state)
{
        static const char *const names[] = {
                [LOAD_OPENING] = "resolving",   [LOAD_PLANNING] = "resolving",  [LOAD_QUEUED] = "queued",
                [LOAD_ALLOCATING] = "loading",  [LOAD_READING] = "loading",     [LOAD_CHECKING] = "loading",
                [LOAD_ROUND_ENDING] = "queued", [LOAD_ROUND_DONE] = "queued",   [LOAD_READY] = "ready",
                [LOAD_FAILED] = "failed",       [LOAD_CANCELLED] = "cancelled",
        };
        return names[state];
}

/* ---- watching ---- */

void load_watch(struct load *load, struct load_watch *watch, void (*ended)(struct load_watch *, struct load *))
{
        watch->load = load;
        watch->ended = ended;
        list_append(ended != NULL ? &load->watchers : &load->subscribers, &watch->link);
}

static void on_released(struct callback *item)
{
        load_step_done(container_of(item, struct load, released));
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
        if (!load->has_subscribers || !list_empty(&load->subscribers))
                return;
        load->has_subscribers = false;
        load->released.run = on_released;
        wake_post(load->loads->reader->wake, &load->released);
}

void load_call_watchers(struct load *load)
{
        if (load->watchers_called || !load_ended(load->state))
                return;
        load->watchers_called = true;
        while (!list_empty(&load->watchers)) {
                struct load_watch *watch = container_of(load->watchers.next, struct load_watch, link);
                list_remove(&watch->link);
                watch->load = NULL;
                watch->ended(watch, load);
        }
        if (list_empty(&load->subscribers))
                return;
        load->has_subscribers = true;
        load->pending++;
        if (load->loads->ended != NULL)
                load->loads->ended(load->loads);
}

static void on_end(struct callback *item)
{
        struct load *load = container_of(item, struct load, end);
        load_call_watchers(load);
        load_step_done(load);
}

void load_post_end(struct load *load)
{
        load->end_number = ++load->loads->n_ended;
        load->pending++;
        load->end.run = on_end;
        wake_post(load->loads->reader->wake, &load->end);
}

static void move(struct list *from, struct load *to, struct list *list)
{
        list_each (pos, from)
                container_of(pos, struct load_watch, link)->load = to;
        list_append_all(list, from);
}

void load_move_watchers(struct load *from, struct load *to)
{
        move(&from->watchers, to, &to->watchers);
        move(&from->subscribers, to, &to->subscribers);
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

static bool is_between_rounds(const struct load *load)
{
        return load->state == LOAD_ROUND_ENDING || load->state == LOAD_ROUND_DONE;
}

void load_progress(struct load *load, struct load_progress *progress)
{
        *progress =
                (struct load_progress){.state = load->state, .generation = load->number, .restarts = load->restarts};
        progress->load_ns = (load_ended(load->state) ? load->ended_ns : now_ns()) - load->started_ns;
        if (load->state == LOAD_OPENING || load->state == LOAD_PLANNING || is_between_rounds(load))
                return;
        bool first = true;
        load_each_part (part, load) {
                if (part->state == PART_IDLE)
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
        bool queued = load->state == LOAD_QUEUED || is_between_rounds(load);
        bool waits = target->state == TARGET_DEFERRED || (target->state == TARGET_OPEN && queued);
        const struct admission_request *admission =
                load->pattern != NULL ? &load->targets[0].admission : &target->admission;
        *waits_ns = waits && now > admission->since_ns ? now - admission->since_ns : 0;
        if (waits)
                return load_state_name(LOAD_QUEUED);
        if (target->state == TARGET_FAILED)
                return load_state_name(LOAD_FAILED);
        return load_state_name(target->state == TARGET_SERVES ? LOAD_READY : load->state);
}
