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
        load_each_open (t, load)
                if (t->generation != NULL)
                        t->generation->queued = state == LOAD_QUEUED;
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

static void on_teardown(struct callback *item)
{
        struct load *load = container_of(item, struct load, advance);
        load_drop_tables(load);
        load_free(load);
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
        if (load->closed) {
                load->advance.run = on_teardown;
                wake_post(load->loads->reader->wake, &load->advance);
        } else {
                work_submit(load->loads->pool, WORK_LANE_CPU, &load->step, teardown_run, teardown_done);
        }
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

/* ---- requests, and what watches them ---- */

enum load_state load_request_state(const struct load_request *request)
{
        return request->error.code != 0 ? LOAD_FAILED : request->load->state;
}

const struct error *load_request_error(const struct load_request *request)
{
        return request->error.code != 0 ? &request->error : &request->load->error;
}

void load_watch(struct load_request *request, struct load_watch *watch,
                void (*ended)(struct load_watch *, struct load_request *))
{
        require(request->magic == LOAD_REQUEST_MAGIC && request->end_number == 0);
        watch->request = request;
        watch->ended = ended;
        list_append(ended != NULL ? &request->watchers : &request->subscribers, &watch->link);
        if (ended == NULL)
                request->load->pending++;
}

/* The load, and with it generations, are freed in a later turn of the loop: the caller may use one of these. */
void load_unwatch(struct load_watch *watch)
{
        struct load_request *request = watch->request;
        if (request == NULL)
                return;
        require(request->magic == LOAD_REQUEST_MAGIC);
        list_remove(&watch->link);
        watch->request = NULL;
        if (watch->ended == NULL)
                load_step_done(request->load);
}

static void call_watchers(struct load_request *request)
{
        for (struct load_watch *watch;
             (watch = list_item(request->watchers.next, &request->watchers, struct load_watch, link)) != NULL;) {
                load_unwatch(watch);
                watch->ended(watch, request);
        }
}

void load_call_watchers(struct load *load)
{
        bool subscribed = false;
        list_each_item (struct load_request, r, &load->answers, link) {
                call_watchers(r);
                subscribed = subscribed || !list_empty(&r->subscribers);
        }
        if (load->loads->ended != NULL)
                load->loads->ended(load, subscribed);
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
        if (load_ended(load->state))
                list_each_item_safe (struct load, other, &load->awaiting, in_awaiting) {
                        end_awaiting(other);
                        load_advance_later(other);
                }
        load_step_done(load);
}

/* On a later turn of the loop. */
static void report_ends(struct load *load)
{
        if (load_relaxed(&load->end.posted))
                return;
        load->pending++;
        load->end.run = on_end;
        wake_post(load->loads->reader->wake, &load->end);
}

static void end_request(struct load_request *request, uint64_t number)
{
        struct load *load = request->load;
        require(request->end_number == 0);
        request->end_number = number;
        list_remove(&request->link);
        list_append(&load->answers, &request->link);
}

void load_deny(struct load_request *request, const struct error *error)
{
        require(!load_ended(request->load->state));
        request->error = *error;
        end_request(request, ++request->load->loads->n_ended);
        report_ends(request->load);
}

void load_move_requests(struct load *from, struct load *to)
{
        require(!load_ended(from->state) && !load_ended(to->state));
        list_each_item (struct load_request, r, &from->requests, link) {
                r->load = to;
                list_each (pos, &r->subscribers) {
                        from->pending--;
                        to->pending++;
                }
        }
        list_append_all(&to->requests, &from->requests);
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
        const struct load_part *part = target->part;
        *stages = (struct stages){{0}};
        if (part->reading == NULL)
                return;
        const struct read_job *job = part_reading(part), *first = part->disk != NULL ? &part->disk->job : &part->job;
        uint64_t over_ns = __atomic_load_n(&job->over_ns, __ATOMIC_ACQUIRE); /* a thread may just end the job */
        if (over_ns == 0 || over_ns > load->ended_ns)
                return;
        for (enum stage of = 0; of < STAGE_COUNT; of++)
                stages->ns[of] = load_relaxed(&part->job.stages.ns[of]) +
                                 (first != &part->job ? load_relaxed(&first->stages.ns[of]) : 0);
        stages->ns[STAGE_begin] = first->begun_ns - load->started_ns;
        stages->ns[STAGE_end] = load->ended_ns - over_ns;
}

void load_end(struct load *load, enum load_state state, const struct error *error)
{
        require(load->magic == LOAD_MAGIC && load_ended(state));
        load_set_state(load, state);
        __atomic_store_n(&load->abandoned, true, __ATOMIC_RELAXED);
        load->ended_ns = now_ns();
        require(load->loads->n_running > 0 && load->loads->n_background <= load->loads->n_running);
        load->loads->n_running--;
        load->loads->n_background -= load->background ? 1 : 0;
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
                if (state == LOAD_READY) { /* else a worker may be opening the source still */
                        g->origin = load->cached ? ORIGIN_RESIDENT : part_origin(t->part);
                        g->stale = load->opened.stale;
                        generation_ready(g);
                        /* A worker frees the log with the load: clients that attached have descriptors of their own. */
                        t->arrival = g->arrival;
                        g->arrival = (struct table){.fd = -1};
                } else if (load->superseded) {
                        generation_fail_unlisted(g, &load->error);
                } else {
                        generation_fail(g, &load->error);
                }
        }
        load_report(load);
        uint64_t number = ++load->loads->n_ended;
        list_each_item_safe (struct load_request, r, &load->requests, link)
                end_request(r, number);
        report_ends(load);
        load_each_part (part, load)
                if (part->state == PART_READING)
                        reader_stop(load->loads->reader, part_reading(part));
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
        if (!target->load->sha256)
                target_put_generation(target);
}

bool target_fail(struct load_target *target, const struct error *error)
{
        struct load *load = target->load;
        struct load_part *part = target->part;
        require(target_lives(target) && !load_ended(load->state) && error->code != 0);
        if (load->n_targets == 1) {
                load_end(load, LOAD_FAILED, error);
                return false;
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
                return false;
        }
        target_set_state(target, TARGET_FAILED);
        target->error = *error;
        bool in_flight = part->state == PART_READING &&
                         reader_drop_target(load->loads->reader, part_reading(part), &target->copy, error);
        __atomic_store_n(&target->copy.dead, true, __ATOMIC_RELEASE);
        log_warn("%s: %s: %s", load->name, target->device->name, error->text);
        generation_fail(target->generation, error);
        if (!in_flight)
                target_release(target);
        if (load_has(load, TARGET_OPEN))
                return true;
        if (load_has(load, TARGET_SERVES))
                load_end(load, LOAD_READY, NULL);
        else
                load_end(load, LOAD_FAILED, &named);
        return false;
}

bool load_fail_targets(struct load *load, const struct load_part *part, const struct error *error)
{
        struct error why = *error;
        load_each_open (t, load)
                if ((part == NULL || t->part == part) && !target_fail(t, &why))
                        return false;
        return true;
}
