/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a load: load_advance() is called whenever something of a state's work is done, and enters the next state
 * once all of it is; enter() begins the work of a state. See load.h. The other files do the work and call none of these
 * functions: they return, or post load_advance_later().
 *
 * How it fails: a step, or the last target that fails, sets an error, and load_end() decides the outcome at once.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/util.h"
#include "daemon/base/log/log.h"
#include "daemon/io/file/file_version.h"
#include "daemon/io/http/http.h"

#include <inttypes.h>
#include <string.h>

/* How often devices may refuse memory that was granted. */
#define RETRIES_MAX 4

/* ---- opening, on a worker ---- */

static int open_source(const struct load *load, struct source_set *opened, struct error *error)
{
        const struct sources sources = sources_for(load->loads->sources, load->roots, &load->caller);
        return source_open(&sources, load->source, load->sha256, opened, error);
}

static void open_run(struct load *load)
{
        if (open_source(load, &load->opened, &load->step_error) == 0)
                load_open_parts(load, &load->step_error);
}

/* ---- sampling, on a worker ---- */

static void sample_run(struct load *load)
{
        load_sample_parts(load, &load->step_error);
}

/* ---- planning, on a worker ---- */

static void plan_run(struct load *load, struct error *error)
{
        for (size_t i = 0; i < load->n_parts && error->code == 0; i++)
                if (part_first(&load->parts[i]) != NULL)
                        part_plan(&load->parts[i], error);
        load->is_small = error->code == 0 && load_is_small(load);
}

/* ---- checking, on a worker ---- */

/* Whether the source's paths lead to other files than those that were opened. */
static bool is_replaced(const struct load *load)
{
        struct error error;
        struct source_set now;
        if (!source_is_local(load->source))
                return false;
        int r = open_source(load, &now, &error);
        bool replaced = r == 0 && now.n_objects != load->opened.n_objects;
        for (size_t i = 0; r == 0 && !replaced && i < now.n_objects; i++)
                replaced = !file_version_same_file(&now.objects[i].version, &load->opened.objects[i].version);
        source_set_deinit(&now);
        return replaced;
}

static void check_run(struct load *load, struct error *error)
{
        int r = load->sampled ? 0 : load_sample_parts(load, error);
        r = r ?: source_check(&load->opened, error);
        if (r < 0)
                load->replaced = is_replaced(load);
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                if (load->parts[i].checking)
                        arrivals_finish(&load->parts[i].arrivals);
}

/* ---- work ahead ----
 *
 * Each step costs a worker and the loop a wake-up, which for a small load is more than its work. So the worker that
 * opens the source of one plans, too, and one that allocates its memory also places its bytes, which came with the
 * headers, checks the source and compares. The loop then passes through the same states, and takes the result of each
 * (take_ahead). Work that fails is the last. */

#define AHEAD(state) (1u << (state))

/* Its results are those of this state. True: it has not failed. */
static bool add_ahead(struct load *load, enum load_state state)
{
        load->ahead.states |= AHEAD(state);
        return load->ahead.error.code == 0;
}

static void plan_ahead(struct load *load)
{
        if (load->step_error.code != 0 || !load->is_new || !load_may_be_small(load))
                return;
        plan_run(load, &load->ahead.error);
        add_ahead(load, LOAD_PLANNING);
}

static void fill_ahead(struct load_target *target)
{
        struct load *load = target->load;
        struct error *error = &load->ahead.error;
        require(load->is_small && load->ahead.states == 0 && error->code == 0);
        if (target->step_error.code != 0)
                return;
        part_place(target->part, error);
        if (!add_ahead(load, LOAD_READING))
                return;
        check_run(load, error);
        if (!add_ahead(load, LOAD_CHECKING))
                return;
        target_compare(target, error);
        if (add_ahead(load, LOAD_COMPARING))
                load_close_files(load);
}

/* On the loop, which has entered the state. True: its work is done, with the result in step_error. */
static bool take_ahead(struct load *load, enum load_state state)
{
        if (!(load->ahead.states & AHEAD(state)))
                return false;
        load->ahead.states &= ~AHEAD(state);
        bool last = load->ahead.states == 0;
        load->step_error = last ? load->ahead.error : (struct error){0};
        if (last)
                load->ahead.error = (struct error){0};
        return true;
}

/* ---- steps of the load: in a lane ---- */

static void step_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        http_reuse_begin(&load->abandoned);
        switch (load->step_of) {
        case LOAD_LOCATING:
                load->lane = source_lane(load->source);
                break;
        case LOAD_OPENING:
                open_run(load);
                plan_ahead(load);
                break;
        case LOAD_SAMPLING:
                sample_run(load);
                break;
        case LOAD_PLANNING:
                plan_run(load, &load->step_error);
                break;
        case LOAD_CHECKING:
                check_run(load, &load->step_error);
                break;
        default:
                require(false);
        }
        http_reuse_end();
}

static void load_advance(struct load *load);

static void step_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        load->stepping = false;
        if (load_step_done(load))
                load_advance(load);
}

static void start_step(struct load *load, uint64_t lane)
{
        require(!load->stepping && load->n_steps == 0);
        load->pending++;
        load->stepping = true;
        load->step_of = load->state;
        load->step_error = (struct error){0};
        work_submit(load->loads->pool, lane, &load->step, step_run, step_done);
}

/* ---- steps of its targets: on their devices' threads, or in their lanes ---- */

static void target_step_run(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        switch (target->load->step_of) {
        case LOAD_ALLOCATING:
                target_allocate(target);
                if (target->load->is_small)
                        fill_ahead(target);
                break;
        case LOAD_RELEASING:
                target_deallocate(target);
                break;
        case LOAD_COPYING:
                target_copy(target);
                break;
        case LOAD_COMPARING:
                target_compare(target, &target->step_error);
                break;
        default:
                require(false);
        }
}

/* True: the device refused memory that it had granted, and the load asks again. */
static bool is_refused(struct load_target *target)
{
        struct load *load = target->load;
        if (target->step_error.code != STREAMER_ENOMEM || target->device->ops->ceiling == NULL ||
            load->retries == RETRIES_MAX)
                return false;
        char size[SIZE_TEXT];
        log_info("%s: %s: refused %s that fits its budget: retrying", load->name, target->device->name,
                 size_text(size, target->generation->charged));
        return true;
}

static void target_step_done(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct load *load = target->load;
        require(load->n_steps > 0);
        load->n_steps--;
        if (!load_step_done(load))
                return;
        require(load->state == load->step_of);
        if (load->state == LOAD_RELEASING)
                generation_uncharge(target->generation);
        else if (load->state == LOAD_ALLOCATING && is_refused(target))
                load->refused = true;
        else if (load->state == LOAD_COMPARING)
                target_compared(target, &target->step_error);
        else if (target->step_error.code != 0)
                target_fail(target, &target->step_error);
        else if (load->state == LOAD_COPYING)
                target_take_copy(target);
        load_advance(load);
}

/* On the device's thread, but for comparing, which reads the device for as long as that takes, and for all of a small
 * load. */
static void submit_target_step(struct load_target *target, enum load_state state)
{
        struct load *load = target->load;
        bool small = state == LOAD_ALLOCATING && load->is_small;
        struct work_pool *pool = small || state == LOAD_COMPARING ? load->loads->pool : target->device->thread;
        uint64_t lane = small                     ? load->lane
                        : state == LOAD_COMPARING ? WORK_LANE_DEVICE(target->device->number)
                                                  : (uint64_t)WORK_LANE_CPU;
        target->step.user = small ? load->step.user : 0;
        work_submit(pool, lane, &target->step, target_step_run, target_step_done);
}

/* For each target that lives. */
static void start_target_steps(struct load *load)
{
        require(!load->stepping && load->n_steps == 0);
        load->step_of = load->state;
        load_each_open (t, load) {
                t->step_error = (struct error){0};
                load->pending++;
                load->n_steps++;
                submit_target_step(t, load->state);
        }
        require(load->n_steps > 0);
}

/* ---- beginning the work of a state ---- */

static void begin_allocating(struct load *load)
{
        loads_check_prefault(load->loads);
        load->refused = false;
        start_target_steps(load);
}

static void begin_copying(struct load *load)
{
        load_each_open (t, load)
                log_info("%s: restored to %s from the host cache, without reading files", load->name, t->device->name);
        start_target_steps(load);
}

static void begin_reading(struct load *load)
{
        load_each_part (part, load)
                if (part_first(part) != NULL)
                        part_read(part);
        reader_announce_end(load->loads->reader, &load->announced);
}

static void begin_checking(struct load *load)
{
        load_each_part (part, load)
                part->checking = part_first(part) != NULL;
        start_step(load, load->lane);
}

/* What a worker has done of READING, CHECKING and COMPARING: load_advance() takes the rest of the results. */
static void take_placed(struct load *load, enum load_state state)
{
        struct load_target *target = &load->targets[0];
        if (state == LOAD_READING)
                reader_announce_end(load->loads->reader, &load->announced);
        if (state == LOAD_READING && load->step_error.code != 0)
                load_fail_targets(load, NULL, &load->step_error);
        else if (state == LOAD_READING)
                part_take_placed(target->part);
        else if (state == LOAD_COMPARING)
                target_compared(target, &load->step_error);
}

/* May end the load. */
static void enter(struct load *load, enum load_state state)
{
        load_set_state(load, state);
        if (take_ahead(load, state)) {
                if (state >= LOAD_READING)
                        take_placed(load, state);
                return;
        }
        switch (state) {
        case LOAD_OPENING:
        case LOAD_SAMPLING:
        case LOAD_PLANNING:
                start_step(load, load->lane);
                break;
        case LOAD_QUEUED:
                load_reserve(load);
                break;
        case LOAD_ALLOCATING:
                begin_allocating(load);
                break;
        case LOAD_RELEASING:
        case LOAD_COMPARING:
                start_target_steps(load);
                break;
        case LOAD_COPYING:
                begin_copying(load);
                break;
        case LOAD_READING:
                begin_reading(load);
                break;
        case LOAD_CHECKING:
                begin_checking(load);
                break;
        case LOAD_AWAITING: /* load_coalesce() has begun that */
                break;
        case LOAD_LOCATING: /* load_launch() */
        case LOAD_READY:    /* load_end() */
        case LOAD_FAILED:
        case LOAD_CANCELLED:
                require(false);
        }
}

/* ---- taking the result of a state ---- */

/* Nothing is added to them any more. */
static void take_notes(struct load *load)
{
        load_each_open (t, load)
                if (t->generation != NULL && !source_notes_empty(t->part->notes))
                        t->generation->notes = source_notes_ref(t->part->notes);
}

/* A part may be resident: the bytes of its files are to be compared with those of the resident model's. */
static bool lacks_sample(const struct load *load)
{
        load_each_part (part, load)
                if (source_is_weak(&part->resolved.set) && resident_resembles(load->loads->resident, &part->identity))
                        return !load->sampled;
        return false;
}

/* The source is open, or what was awaited has ended: another load may have to be awaited. */
static void coalesce(struct load *load)
{
        if (lacks_sample(load)) {
                enter(load, LOAD_SAMPLING);
                return;
        }
        switch (load_coalesce(load)) {
        case COALESCE_ENDED:
                break;
        case COALESCE_AWAITS:
                enter(load, LOAD_AWAITING);
                break;
        case COALESCE_LOADS:
                load->is_small = load->is_small && !load->cached;
                if (load->cached)
                        take_notes(load);
                enter(load, load->cached ? LOAD_QUEUED : LOAD_PLANNING);
                break;
        }
}

/* With the samples, once these are read. */
static void take_samples(struct load *load)
{
        load_each_target (t, load)
                if (t->generation != NULL && target_lives(t))
                        generation_set_identity(t->generation, &t->part->identity);
}

static void take_identities(struct load *load)
{
        load_each_target (t, load) {
                struct generation *g = t->generation;
                if (g == NULL)
                        continue;
                generation_set_identity(g, &t->part->identity);
                g->files = source_files_ref(t->part->files);
        }
}

static void take_plans(struct load *load)
{
        load_each_open (t, load) {
                if (t->part->state == PART_IDLE) /* replicas share it */
                        part_set_state(t->part, PART_PLANNED);
                t->generation->data_bytes = t->part->resolved.plan.bytes;
                t->generation->n_tensors = t->part->resolved.plan.n_tensors;
                t->generation->encryption = encryption_ref(t->part->resolved.encryption);
        }
}

/* All blocks, manifests and files' digests of the parts that have a target left. */
static bool is_read(const struct load *load)
{
        load_each_part (part, load) {
                size_t files = load->sha256 ? part->resolved.set.n_objects : 0;
                bool complete = part->state == PART_READ && part->built && part->files_checked >= files;
                if (part_first(part) != NULL && !complete)
                        return false;
        }
        return true;
}

/* A new load takes over the requests and the names, unless it is a probe, that was done too often, or there is no
 * memory. What was read is of the old file, complete or not. Clients that attached early are notified of the failure.
 */
static void begin_again(struct load *load)
{
        struct device *devices[LOAD_DEVICES];
        struct error error;
        int r = 0;
        const struct load_args args = {.source = load->source,
                                       .name = load->name,
                                       .pattern = load->pattern,
                                       .sha256 = load->sha256,
                                       .wait = load->wait,
                                       .no_evict = load->no_evict,
                                       .encrypted_only = load->encrypted_only,
                                       .retention = {.priority = load->priority},
                                       .caller = &load->caller,
                                       .owner = &load->owner,
                                       .roots = load->roots,
                                       .users = load->users,
                                       .limits = &load->limits};
        require(!load->dry_run);
        if (!load->replaced || load->probe || load->loads->over || load->restarts == LOAD_RESTARTS)
                return;
        for (size_t i = 0; i < load->n_targets; i++)
                devices[i] = load->targets[i].device;
        struct load *next = load_new(load->loads, &args, devices, load->n_targets);
        if (next == NULL)
                return;
        load_each_open (t, load) {
                struct generation *g = next->targets[t - load->targets].generation;
                list_each_item (struct model_name, n, &t->generation->names, link) {
                        r = r ?: load_give_name(next, n, g, &error);
                        if (r == 0) /* with what requests and verbs have changed */
                                model_name_set_settings(generation_find_name(g, n->text), &n->settings, n->asked);
                }
        }
        if (r < 0) {
                load_discard(next);
                return;
        }
        next->restarts = load->restarts + 1;
        next->started_ns = load->started_ns;
        next->charge = load->charge;
        load->charge = (struct quota_charge){.user = NULL};
        next->evictions = load->evictions;
        next->n_evictions = load->n_evictions;
        load->evictions = NULL;
        load->n_evictions = 0;
        load->superseded = true;
        load_unsettle_requests(load);
        load_move_requests(load, next);
        load_launch(next);
        log_info("%s: its files were replaced while they were read: the load begins again (%u of %d): %s", load->name,
                 load->restarts + 1, LOAD_RESTARTS, load->step_error.text);
}

static void take_digests(struct load *load)
{
        take_samples(load);
        load_each_open (t, load) {
                const struct manifest_header *header = t->generation->manifest.map;
                t->generation->verified = load->sha256;
                memcpy(t->generation->sums, t->part->files->sums, DIGEST_SIZE);
                memcpy(t->generation->digest, header->digest, DIGEST_SIZE);
        }
}

/* ---- the states ---- */

static bool work_is_done(const struct load *load)
{
        switch (load->state) {
        case LOAD_LOCATING:
        case LOAD_OPENING:
        case LOAD_SAMPLING:
        case LOAD_PLANNING:
        case LOAD_CHECKING:
                return !load->stepping;
        case LOAD_AWAITING:
                return load->awaits == NULL;
        case LOAD_QUEUED:
                return load->granted;
        case LOAD_ALLOCATING:
        case LOAD_RELEASING:
        case LOAD_COPYING:
        case LOAD_COMPARING:
                return load->n_steps == 0;
        case LOAD_READING:
                return is_read(load);
        case LOAD_READY:
        case LOAD_FAILED:
        case LOAD_CANCELLED:
                return false;
        }
        return false;
}

/* The work of its state is done: enters the next state, or ends the load. */
static void leave_state(struct load *load)
{
        switch (load->state) {
        case LOAD_LOCATING:
                if (source_is_local(load->source) && !load->dry_run)
                        reader_announce(load->loads->reader, &load->announced, load->lane);
                enter(load, LOAD_OPENING);
                break;
        case LOAD_OPENING:
                if (load->step_error.code != 0) {
                        load_end(load, LOAD_FAILED, &load->step_error);
                        break;
                }
                take_identities(load);
                coalesce(load);
                break;
        case LOAD_SAMPLING:
                if (load->step_error.code != 0) {
                        load_end(load, LOAD_FAILED, &load->step_error);
                        break;
                }
                take_samples(load);
                coalesce(load);
                break;
        case LOAD_AWAITING:
                coalesce(load);
                break;
        case LOAD_PLANNING:
                if (load->step_error.code != 0) {
                        load_end(load, LOAD_FAILED, &load->step_error);
                } else {
                        if (!load->dry_run)
                                take_plans(load);
                        take_notes(load);
                        enter(load, LOAD_QUEUED);
                }
                break;
        case LOAD_QUEUED:
                if (load->dry_run) /* the devices have been asked */
                        load_end(load, LOAD_READY, NULL);
                else
                        enter(load, LOAD_ALLOCATING);
                break;
        case LOAD_ALLOCATING:
                if (load->refused)
                        enter(load, LOAD_RELEASING);
                else
                        enter(load, load->cached ? LOAD_COPYING : LOAD_READING);
                break;
        case LOAD_RELEASING:
                load->retries++;
                enter(load, LOAD_QUEUED);
                break;
        case LOAD_COPYING:
                enter(load, LOAD_COMPARING);
                break;
        case LOAD_READING:
                enter(load, LOAD_CHECKING);
                break;
        case LOAD_CHECKING:
                if (load->step_error.code != 0) {
                        begin_again(load);
                        load_end(load, LOAD_FAILED, &load->step_error);
                } else {
                        take_digests(load);
                        load_each_part (part, load)
                                if (part->write != NULL)
                                        disk_write_checked(part->write);
                        enter(load, LOAD_COMPARING);
                }
                break;
        case LOAD_COMPARING:
                load_end(load, LOAD_READY, NULL);
                break;
        case LOAD_READY:
        case LOAD_FAILED:
        case LOAD_CANCELLED:
                require(false);
        }
}

/* Something of the work of its state is done. If all is, enters the next state, whose work may be done, too. */
static void load_advance(struct load *load)
{
        require(load->magic == LOAD_MAGIC);
        while (work_is_done(load))
                leave_state(load);
}

static void on_advance(struct callback *item)
{
        struct load *load = container_of(item, struct load, advance);
        if (load_step_done(load))
                load_advance(load);
}

/* The source's file system is looked up first, in a file as well: the announcement names it. */
void load_launch(struct load *load)
{
        require(load->state == LOAD_LOCATING && load->id == 0);
        load->id = ++load->loads->last_id;
        list_append(&load->loads->all, &load->link);
        load->loads->n_running++;
        load->loads->n_background += load->background ? 1 : 0;
        load->advance.run = on_advance;
        loads_check_prefault(load->loads);
        const struct load_target *first = &load->targets[0];
        load->is_new = resident_on(load->loads->resident, load->name, GENERATION_READY, first->device) == NULL;
        if (source_lane_known(load->source, &load->lane))
                load_advance(load);
        else
                start_step(load, WORK_LANE_CPU);
}

/* ---- prefaulting ----
 *
 * Devices prefault memory only while no load is in progress, since that takes processor time and memory bandwidth. A
 * load stops it at once; about a second after the last one it resumes, so that consecutive loads are not disturbed. A
 * load that waits for memory does not stop it. */

bool loads_check_prefault(struct loads *loads)
{
        bool fill = !loads->over, again = false;
        list_each_item (const struct load, load, &loads->all, link)
                fill = fill && (load_ended(load->state) || load->state == LOAD_QUEUED);
        for (size_t i = 0; i < loads->resident->n_devices; i++)
                again = prefault_fill(loads->resident->devices[i]->prefault, fill) || again;
        return again;
}
