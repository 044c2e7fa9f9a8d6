/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a load: what the failure of a target means for the others, the outcome, and who is notified of it.
 *
 * Replicas fail each on its own, ranks all together; the load fails with the last open one, unless others serve.
 * load_end() decides the outcome at once; watchers are called in a later turn of the loop.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"

/* ---- watchers and subscribers ---- */

void load_watch(struct load *load, struct load_watch *watch, void (*ended)(struct load_watch *, struct load *))
{
        watch->load = load;
        watch->ended = ended;
        list_append(ended != NULL ? &load->watchers : &load->subscribers, &watch->link);
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
        load_step_done(load);
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

/* ---- the outcome ---- */

void load_end(struct load *load, enum load_state state, const struct error *error)
{
        require(load->magic == LOAD_MAGIC && load_ended(state));
        load_set_state(load, state);
        __atomic_store_n(&load->abandoned, true, __ATOMIC_RELAXED);
        load->ended_ns = now_ns();
        load->loads->n_running--;
        load->announced = reader_announce_end(load->loads->reader, load->announced);
        load_unwatch(&load->awaited);
        if (admission_withdraw(&load->admission))
                load->pending--;
        quota_discharge(&load->charge);
        if (error != NULL)
                load->error = *error;
        load_each_target (t, load) {
                struct generation *g = t->generation;
                if (g == NULL || !target_lives(t))
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

bool load_step_failed(struct load *load)
{
        if (load->step_error.code != 0)
                load_end(load, LOAD_FAILED, &load->step_error);
        return load->step_error.code != 0;
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
        if (part->state == PART_READING)
                reader_drop_target(load->loads->reader, &part->job, &target->copy, error);
        else
                __atomic_store_n(&target->copy.dead, true, __ATOMIC_RELEASE);
        log_warn("%s: %s: %s", load->name, target->device->name, error->text);
        generation_fail(target->generation, error);
        if (part->state != PART_READING)
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
        for (size_t i = 0; i < load->n_targets && !load_ended(load->state); i++) {
                struct load_target *t = &load->targets[i];
                if (target_lives(t) && (part == NULL || t->part == part))
                        target_fail(t, &why);
        }
}
