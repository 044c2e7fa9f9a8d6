/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of a load's life: one function begins each step, one takes its result and begins the next. See load.h. The
 * other files make the steps and call none of these functions; they return, or call load->proceed().
 *
 * How it fails: a step, or the last target that fails, sets an error, and load_end() decides the outcome at once.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"

#include <inttypes.h>
#include <string.h>

/* How often devices may refuse memory that was granted. */
#define RETRIES_MAX 4

/* True: the load has ended. */
static bool step_failed(struct load *load)
{
        if (load->step_error.code != 0)
                load_end(load, LOAD_FAILED, &load->step_error);
        return load->step_error.code != 0;
}

/* ---- opening ---- */

static int open_source(const struct load *load, struct source_set *opened, struct error *error)
{
        const struct sources sources = sources_for(load->loads->sources, load->request.roots, &load->caller);
        return source_open(&sources, load->source, load->request.sha256, opened, error);
}

static void open_run(struct load *load)
{
        if (open_source(load, &load->opened, &load->step_error) == 0)
                load_open_parts(load, &load->step_error);
}

static void coalesce(struct load *load);
static void plan(struct load *load);
static void allocate(struct load *load);

static void reserve(struct load *load)
{
        load_set_state(load, LOAD_QUEUED);
        load_reserve(load, allocate);
}

static void awaited_ended(struct load_watch *watch, struct load *other)
{
        coalesce(container_of(watch, struct load, awaited));
}

static void coalesce(struct load *load)
{
        if (!load_coalesce(load, awaited_ended))
                return;
        if (load->cached)
                reserve(load);
        else
                plan(load);
}

static void open_done(struct load *load)
{
        if (step_failed(load))
                return;
        load_each_target (t, load) {
                struct generation *g = t->generation;
                if (g == NULL)
                        continue;
                g->identity = t->part->identity;
                g->files = source_files_ref(t->part->files);
                g->has_identity = true;
        }
        coalesce(load);
}

static void find_lane_run(struct load *load)
{
        load->lane = source_lane(load->source);
}

static void find_lane_done(struct load *load)
{
        if (source_is_local(load->source) && !load->request.dry_run)
                reader_announce(load->loads->reader, &load->announced, load->lane);
        load_step_start(load, load->lane, open_run, open_done);
}

/* A worker looks the source's file system up first, in a file as well: the announcement names it. */
void load_open(struct load *load)
{
        loads_check_prefault(load->loads);
        load_step_start(load, WORK_LANE_CPU, find_lane_run, find_lane_done);
}

/* ---- planning ---- */

static void plan_run(struct load *load)
{
        for (size_t i = 0; i < load->n_parts && load->step_error.code == 0; i++)
                if (part_first(&load->parts[i]) != NULL)
                        part_plan(&load->parts[i], &load->step_error);
}

static void plan_done(struct load *load)
{
        if (step_failed(load))
                return;
        if (load->request.dry_run) {
                load_end(load, LOAD_READY, NULL);
                return;
        }
        load_each_open (t, load) {
                if (t->part->state == PART_IDLE) /* replicas share it */
                        part_set_state(t->part, PART_PLANNED);
                t->generation->data_bytes = t->part->resolved.plan.bytes;
                t->generation->n_tensors = t->part->resolved.plan.n_tensors;
        }
        reserve(load);
}

static void plan(struct load *load)
{
        load_set_state(load, LOAD_PLANNING);
        load_step_start(load, load->lane, plan_run, plan_done);
}

/* ---- reading ---- */

static void maybe_check(struct load *load);

static void start_reading(struct load *load)
{
        load_set_state(load, LOAD_READING);
        if (load->cached) {
                load_copy_cached(load);
                return;
        }
        load->proceed = maybe_check;
        load_each_part (part, load)
                if (part_first(part) != NULL)
                        part_read(part);
        reader_announce_end(load->loads->reader, &load->announced);
}

/* ---- allocating ----
 *
 * A device that is shared with other software may refuse what was granted. Then the load frees what it has allocated
 * everywhere and asks again: admission knows the new ceiling, and may evict, queue or refuse. */

static void release_run(struct load_target *target)
{
        generation_release_segments(target->generation);
        target->generation->n_segments = 0;
}

static void release_done(struct load_target *target)
{
        generation_uncharge(target->generation);
}

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
}

static void alloc_done(struct load_target *target)
{
        struct load *load = target->load;
        bool refused = target->step_error.code == STREAMER_ENOMEM && target->device->ops->ceiling != NULL;
        if (refused && load->retries < RETRIES_MAX) {
                log_info("%s: %s: refused %" PRIu64 " bytes that fit its budget: retrying", load->name,
                         target->device->name, target->generation->charged);
                load->refused = true;
        } else if (target->step_error.code != 0) {
                target_fail(target, &target->step_error);
        }
}

static void all_allocated(struct load *load)
{
        if (!load->refused) {
                start_reading(load);
                return;
        }
        load->retries++;
        load_start_targets(load, release_run, release_done, reserve);
}

static void allocate(struct load *load)
{
        load_set_state(load, LOAD_ALLOCATING);
        loads_check_prefault(load->loads);
        load->refused = false;
        load_each_open (t, load) {
                t->copy.segments = t->generation->segments;
                t->step_error = (struct error){0};
        }
        load_start_targets(load, alloc_run, alloc_done, all_allocated);
}

/* ---- checking ---- */

/* Whether the source's paths lead to other files than those that were opened. */
static bool is_replaced(const struct load *load)
{
        struct error error;
        struct source_set now;
        if (!source_is_local(load->source))
                return false;
        int r = open_source(load, &now, &error);
        bool replaced = r == 0 && now.n_objects != load->opened.n_objects;
        for (size_t i = 0; r == 0 && !replaced && i < now.n_objects; i++) {
                const struct object_version *a = &now.objects[i].version, *b = &load->opened.objects[i].version;
                replaced = a->dev != b->dev || a->ino != b->ino;
        }
        source_set_deinit(&now);
        return replaced;
}

static void check_run(struct load *load)
{
        int r = source_check(&load->opened, &load->step_error);
        if (r < 0)
                load->replaced = is_replaced(load);
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                if (load->parts[i].checking)
                        arrivals_finish(&load->parts[i].arrivals);
}

/* The same request as a new load, unless that was done too often, or there is no memory. What was read is of the old
 * file, complete or not. Clients that attached early are notified of the failure. */
static bool begin_again(struct load *load)
{
        struct device *devices[LOAD_DEVICES];
        if (!load->replaced || load->loads->over || load->restarts == LOAD_RESTARTS)
                return false;
        for (size_t i = 0; i < load->n_targets; i++)
                devices[i] = load->targets[i].device;
        struct load *next = load_new(load->loads, &load->request, devices, load->n_targets);
        if (next == NULL)
                return false;
        load_each_open (t, load) /* verbs may have changed them since the request */
                next->targets[t - load->targets].generation->settings = t->generation->settings;
        next->priority = load->priority;
        next->restarts = load->restarts + 1;
        next->started_ns = load->started_ns;
        next->charge = load->charge;
        load->charge = (struct quota_charge){.user = NULL};
        load->superseded = true;
        load_move_watchers(load, next);
        load_open(next);
        log_info("%s: its files were replaced while they were read: the load begins again (%u of %d): %s", load->name,
                 load->restarts + 1, LOAD_RESTARTS, load->step_error.text);
        load_end(load, LOAD_FAILED, &load->step_error);
        return true;
}

static void check_done(struct load *load)
{
        if (load->step_error.code != 0 && begin_again(load))
                return;
        if (step_failed(load))
                return;
        load_each_open (t, load) {
                const struct manifest_header *header = t->generation->manifest.map;
                t->generation->verified = load->request.sha256;
                memcpy(t->generation->digest, header->digest, DIGEST_SIZE);
        }
        load_end(load, LOAD_READY, NULL);
}

static void maybe_check(struct load *load)
{
        if (load->state != LOAD_READING)
                return;
        load_each_part (part, load) {
                size_t files = load->request.sha256 ? part->resolved.set.n_objects : 0;
                bool complete = part->state == PART_READ && part->built && part->files_checked >= files;
                part->checking = part_first(part) != NULL;
                if (part->checking && !complete)
                        return;
        }
        load_set_state(load, LOAD_CHECKING);
        load_step_start(load, load->lane, check_run, check_done);
}

/* ---- prefaulting ----
 *
 * Devices prefault memory only while no load is in progress, since that takes processor time and memory bandwidth. A
 * load stops it at once; about a second after the last one it resumes, so that consecutive loads are not disturbed. A
 * load that waits for memory does not stop it. */

void loads_check_prefault(struct loads *loads)
{
        bool fill = !loads->over;
        list_each_item (const struct load, load, &loads->all, link)
                fill = fill && (load_ended(load->state) || load->state == LOAD_QUEUED);
        for (size_t i = 0; i < loads->resident->n_devices; i++)
                prefault_fill(loads->resident->devices[i]->prefault, fill);
}
