/* SPDX-License-Identifier: Apache-2.0
 *
 * Who watches a load, and what they see of it: how far it is, in all and on each of its devices.
 */
#include "daemon/load/load_steps.h"

/* ---- watching ---- */

void load_watch(struct load *load, struct load_watch *watch, void (*ended)(struct load_watch *, struct load *))
{
        watch->load = load;
        watch->ended = ended;
        list_append(&load->watchers, &watch->link);
}

void load_follow(struct load *load, struct load_watch *watch)
{
        watch->load = load;
        watch->ended = NULL;
        list_append(&load->followers, &watch->link);
}

void load_unwatch(struct load_watch *watch)
{
        struct load *load = watch->load;
        if (load == NULL)
                return;
        list_remove(&watch->link);
        watch->load = NULL;
        if (list_empty(&load->telling) || !list_empty(&load->followers))
                return;
        list_remove(&load->telling);
        load_step_home(load);
}

struct load_watch *loads_follower(struct loads *loads)
{
        if (list_empty(&loads->telling))
                return NULL;
        const struct load *load = container_of(loads->telling.next, struct load, telling);
        return container_of(load->followers.next, struct load_watch, link);
}

static void keep_for_followers(struct load *load)
{
        struct loads *loads = load->loads;
        if (list_empty(&load->followers))
                return;
        load->pending++;
        list_append(&loads->telling, &load->telling);
        if (loads->ended != NULL)
                loads->ended(loads);
}

void load_tell_watchers(struct load *load)
{
        load->end_number = ++load->loads->n_ended;
        keep_for_followers(load);
        while (!list_empty(&load->watchers)) {
                struct load_watch *watch = container_of(load->watchers.next, struct load_watch, link);
                list_remove(&watch->link);
                watch->load = NULL;
                watch->ended(watch, load);
        }
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
        move(&from->followers, to, &to->followers);
}

/* Resident already: what its generations have. */
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

/* What parts have read. Replicas that are read twice, since their devices differ, have as many tensors
 * as are whole everywhere; ranks have all of theirs. */
static void add_part(struct load_part *part, struct load_progress *progress, bool first)
{
        const struct load *load = part->load;
        uint64_t tensors = 0, total = part->resolved.plan.n_tensors;
        progress->total += part->resolved.plan.bytes;
        if (load->state == LOAD_READY) {
                progress->bytes += part->resolved.plan.bytes;
                tensors = total;
        } else if (part->job.plan != NULL) { /* it has begun to read; before, a worker makes the books */
                progress->bytes += __atomic_load_n(&part->publish.bytes, __ATOMIC_RELAXED);
                tensors = publish_count(&part->publish);
        }
        if (load->pattern != NULL || first) {
                progress->tensors += tensors;
                progress->tensors_total += total;
        } else if (tensors < progress->tensors) {
                progress->tensors = tensors;
        }
        if (part->reading) {
                progress->stalled = progress->stalled || reader_job_stalled(&part->job);
                progress->streamed = progress->streamed || source_set_streamed(&part->resolved.set);
        }
}

void load_progress(struct load *load, struct load_progress *progress)
{
        *progress = (struct load_progress){.state = load->state, .generation = load->number};
        progress->elapsed_ns = (load_ended(load->state) ? load->ended_ns : now_ns()) - load->started_ns;
        if (load->state == LOAD_OPENING || load->state == LOAD_PLANNING)
                return;
        bool first = true;
        for (size_t i = 0; i < load->n_parts; i++) {
                if (!load->parts[i].planned)
                        continue;
                add_part(&load->parts[i], progress, first);
                first = false;
        }
        if (first && load->state == LOAD_READY)
                add_shared(load, progress);
}

const char *load_target_state(const struct load_target *target, uint64_t now, uint64_t *waits_ns)
{
        const struct load *load = target->load;
        bool waits = target_open(target) && !target->granted && (target->late || load->state == LOAD_QUEUED);
        const struct room_request *room = load->pattern != NULL ? &load->targets[0].room : &target->room;
        *waits_ns = waits && now > room->since_ns ? now - room->since_ns : 0;
        if (waits)
                return load_state_name(LOAD_QUEUED);
        if (target->failed)
                return load_state_name(LOAD_FAILED);
        return load_state_name(target->shared ? LOAD_READY : load->state);
}
