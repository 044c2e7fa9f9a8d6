/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of a load, one function for each step and one for its end; the happy path first. See
 * load.h for the picture.
 *
 * How it fails: any step, the reading or the manifest sets an error, and load_end() settles the
 * outcome at once. From then on steps that come home find the load ended and only count down
 * `pending`; the last one takes it apart, in a worker, since giving back a large table takes time.
 */
#include "daemon/load/load.h"

#include "daemon/base/log.h"
#include "daemon/load/load_steps.h"
#include "daemon/load/report.h"

#include <inttypes.h>
#include <string.h>

static void load_end(struct load *load, enum load_state state, const struct error *error);

/* ---- steps in flight ---- */

static void step_start(struct load *load, struct work_pool *pool, uint64_t lane, void (*run)(struct work *),
                       void (*done)(struct work *))
{
        load->pending++;
        load->step_error = (struct error){0};
        work_submit(pool, lane, &load->step, run, done);
}

static void taken_apart(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        struct generation *generation = load->generation;
        load_free(load);
        if (generation != NULL)
                generation_unpin(generation);
}

static void take_apart(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (load->has_books) {
                publish_deinit(&load->publish);
                table_drop(&load->manifest);
                table_drop(&load->arrival);
        }
        resolve_deinit(&load->resolved);
        load->sha = sha_free(load->sha);
        free(load->sha_steps);
}

/* Where the time of a load goes. */
static void log_stage(const struct load *load, const char *stage)
{
        log_debug("%s: %s after %.3f ms", load->name, stage, (double)(now_ns() - load->started_ns) / 1e6);
}

/* Something came home. False if the load has ended meanwhile: then there is nothing to go on with. */
static bool step_home(struct load *load)
{
        require(load->pending > 0);
        load->pending--;
        if (!load_ended(load->state))
                return true;
        if (load->pending == 0)
                work_submit(load->loads->pool, WORK_LANE_CPU, &load->step, take_apart, taken_apart);
        return false;
}

static bool step_failed(struct load *load, const struct error *error)
{
        if (error->code == 0)
                return false;
        load_end(load, LOAD_FAILED, error);
        return true;
}

/* ---- checking ---- */

static void check_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (source_check(&load->resolved.set, &load->step_error) == 0)
                publish_finish(&load->publish, load->generation->digest, &load->step_error);
}

static void check_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!step_home(load) || step_failed(load, &load->step_error))
                return;
        load->generation->verified = load->sha256;
        load_end(load, LOAD_READY, NULL);
}

static void maybe_check(struct load *load)
{
        size_t files = load->sha256 ? load->resolved.set.n_objects : 0;
        if (!load->read || !load->built || load->files_checked < files)
                return;
        load->state = LOAD_CHECKING;
        log_stage(load, "read");
        step_start(load, load->loads->pool, load->lane, check_run, check_done);
}

/* ---- reading, and what runs beside it ---- */

static void tell_arrived(struct load *load)
{
        if (load->built && !load_ended(load->state))
                load->loads->arrived(load->loads, load->generation);
}

static void on_arrived(struct wake_item *item)
{
        struct load *load = container_of(item, struct load, arrived);
        __atomic_store_n(&load->arrived_posted, false, __ATOMIC_SEQ_CST);
        tell_arrived(load);
}

static void sha_run(struct work *work)
{
        struct sha_step *step = container_of(work, struct sha_step, work);
        struct load *load = step->load;
        if (sha_check_file(load->sha, &load->resolved, load->generation->segments, step->file, &step->error) == 0)
                publish_file(&load->publish, step->file);
}

static void sha_done(struct work *work)
{
        struct sha_step *step = container_of(work, struct sha_step, work);
        struct load *load = step->load;
        if (!step_home(load) || step_failed(load, &step->error))
                return;
        load->files_checked++;
        tell_arrived(load);
        maybe_check(load);
}

static void sha_start(struct load *load, size_t file)
{
        struct sha_step *step = &load->sha_steps[file];
        load->pending++;
        work_submit(load->loads->pool, WORK_LANE_CPU, &step->work, sha_run, sha_done);
}

static void on_file_whole(struct wake_item *item)
{
        struct sha_step *step = container_of(item, struct sha_step, item);
        if (!load_ended(step->load->state))
                sha_start(step->load, step->file);
}

/* On a reader thread. */
static void on_landed(struct read_job *job, const struct plan_block *block)
{
        struct load *load = container_of(job, struct load, job);
        bool whole = publish_landed(&load->publish, block);
        if (load->sha256 && whole)
                wake_post(load->loads->reader->wake, &load->sha_steps[block->file].item);
        if (!load->sha256 && !__atomic_exchange_n(&load->arrived_posted, true, __ATOMIC_SEQ_CST))
                wake_post(load->loads->reader->wake, &load->arrived);
}

static void on_lost(struct read_target *target)
{
        (void)target; /* the job's end says it */
}

static void read_ended(struct read_job *job)
{
        struct load *load = container_of(job, struct load, job);
        load->reading = false;
        if (!step_home(load) || step_failed(load, &job->error))
                return;
        load->read = true;
        maybe_check(load);
}

static void build_run(struct work *work)
{
        struct load *load = container_of(work, struct load, build);
        int r = publish_build(&load->publish, load->generation->number, load->resolved.plan.segments,
                              &load->build_error);
        if (r == 0)
                publish_share(&load->publish, 0, &load->manifest, &load->arrival, &load->build_error);
}

static void hand_over_tables(struct load *load)
{
        load->generation->manifest = load->manifest;
        load->generation->arrival = load->arrival;
        load->manifest.fd = load->arrival.fd = -1;
}

static void build_done(struct work *work)
{
        struct load *load = container_of(work, struct load, build);
        if (load->build_error.code == 0)
                hand_over_tables(load);
        if (!step_home(load) || step_failed(load, &load->build_error))
                return;
        load->built = true;
        log_stage(load, "tabled");
        tell_arrived(load);
        maybe_check(load);
}

static void start_reading(struct load *load)
{
        load->state = LOAD_READING;
        log_stage(load, "allocated");
        load->pending += 2;
        load->reading = true;
        load->target = (struct read_target){.segments = load->generation->segments, .lost = on_lost};
        struct source_set *set = &load->resolved.set;
        load->job = (struct read_job){.engine = set->n_objects > 0 ? set->objects[0].ops->engine : READ_PREAD,
                                      .plan = &load->resolved.plan,
                                      .objects = load->resolved.set.objects,
                                      .targets = {&load->target},
                                      .n_targets = 1,
                                      .leaves = load->publish.leaves,
                                      .weight = load->priority,
                                      .landed = on_landed,
                                      .ended = read_ended};
        load->arrived.fn = on_arrived;
        /* Files without a byte to read are whole already. */
        for (size_t i = 0; load->sha256 && i < load->resolved.set.n_objects; i++)
                if (load->publish.file_left[i] == 0)
                        sha_start(load, i);
        work_submit(load->loads->pool, WORK_LANE_CPU, &load->build, build_run, build_done);
        reader_start(load->loads->reader, &load->job);
}

/* ---- allocating ---- */

static void alloc_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        struct generation *g = load->generation;
        const struct plan *plan = &load->resolved.plan;
        for (size_t i = 0; i < plan->n_segments; i++) {
                if (g->device->ops->alloc(g->device, plan->segments[i], &g->segments[i], &load->step_error) < 0)
                        return;
                g->n_segments++;
        }
}

static void alloc_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!step_home(load) || step_failed(load, &load->step_error))
                return;
        start_reading(load);
}

/* ---- planning ---- */

static void set_sha_steps(struct load *load)
{
        for (size_t i = 0; load->sha256 && i < load->resolved.set.n_objects; i++)
                load->sha_steps[i] = (struct sha_step){.load = load, .file = i, .item = {.fn = on_file_whole}};
}

static void plan_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        struct error *error = &load->step_error;
        struct resolved *resolved = &load->resolved;
        if (load->sha256 && !load->dry_run) {
                load->sha = sha_new(resolved->set.n_objects);
                load->sha_steps = calloc(resolved->set.n_objects + 1, sizeof(*load->sha_steps));
                if (load->sha == NULL || load->sha_steps == NULL) {
                        error_set(error, STREAMER_ENOMEM, "no memory");
                        return;
                }
                set_sha_steps(load);
        }
        int r = resolve_plan(resolved, &load->device->layout, load->loads->block_size,
                             load->sha != NULL ? sha_header : NULL, load->sha, error);
        if (r < 0 || load->dry_run)
                return;
        load->has_books = true;
        load->targets[0] = &load->target;
        load->manifest.fd = load->arrival.fd = -1;
        if (publish_init(&load->publish, resolved, load->targets, 1, load->sha256, error) == 0)
                publish_begin(&load->publish);
}

static uint64_t needed_bytes(const struct plan *plan)
{
        uint64_t sum = 0;
        for (size_t i = 0; i < plan->n_segments; i++)
                sum += plan->segments[i];
        return sum;
}

static void estimate(struct load *load)
{
        const struct plan *plan = &load->resolved.plan;
        const struct device *device = load->device;
        struct load_estimate *e = &load->estimate;
        e->files = load->resolved.set.n_objects;
        e->tensors = plan->n_tensors;
        e->bytes = plan->bytes;
        e->segments = plan->n_segments;
        e->blocks = plan->n_blocks;
        e->copied = plan->copied_bytes;
        e->needed = needed_bytes(plan);
        e->budget = device->budget;
        e->unused = device->budget > device->used ? device->budget - device->used : 0;
        e->fits = e->resident || e->needed <= e->unused;
}

static void plan_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!step_home(load) || step_failed(load, &load->step_error))
                return;
        if (load->dry_run) {
                estimate(load);
                load_end(load, LOAD_READY, NULL);
                return;
        }
        struct generation *g = load->generation;
        struct error error = {0};
        g->data_bytes = load->resolved.plan.bytes;
        g->n_tensors = load->resolved.plan.n_tensors;
        generation_charge(g, needed_bytes(&load->resolved.plan), &error);
        if (step_failed(load, &error))
                return;
        load->state = LOAD_ALLOCATING;
        log_stage(load, "planned");
        step_start(load, g->device->thread, WORK_LANE_CPU, alloc_run, alloc_done);
}

/* ---- opening ---- */

/* The same files are resident, or on their way: this load becomes a name for them. A generation
 * whose bytes were not held against published digests does not pass for one that must be. */
static struct generation *already(struct load *load, struct load **other)
{
        struct source_identity identity;
        source_identity(&load->resolved.set, &identity);
        struct generation *same = resident_same(load->loads->resident, &identity, load->device, load->generation);
        *other = NULL;
        if (load->generation != NULL) {
                load->generation->identity = identity;
                load->generation->has_identity = true;
        }
        if (same == NULL)
                return NULL;
        list_each (pos, &load->loads->all) {
                struct load *l = container_of(pos, struct load, link);
                if (l != load && l->generation == same && !load_ended(l->state))
                        *other = l;
        }
        bool verified = *other != NULL ? (*other)->sha256 : same->verified;
        if (load->sha256 && !verified)
                return NULL;
        return same->state == GENERATION_READY || *other != NULL ? same : NULL;
}

static void become_shared(struct load *load, struct generation *same, struct load *other)
{
        struct generation *mine = load->generation;
        struct error error = {0};
        if (!generation_has_name(same, load->name) && generation_add_name(same, load->name) < 0)
                error_set(&error, STREAMER_ENOMEM, "no memory");
        load->generation = NULL;
        generation_discard(mine);
        generation_unpin(mine);
        if (step_failed(load, &error))
                return;
        if (other != NULL)
                load_move_watchers(load, other);
        else
                generation_take_over(same, load->name);
        load->generation = same;
        load->shared = true;
        generation_pin(same);
        generation_changed(same);
        load_end(load, LOAD_READY, NULL);
}

static void open_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        resolve_open(&load->resolved, load->loads->sources, load->source, &load->caller, load->sha256,
                     &load->step_error);
}

static void open_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (!step_home(load) || step_failed(load, &load->step_error))
                return;
        struct load *other;
        struct generation *same = already(load, &other);
        load->estimate.resident = same != NULL;
        if (same != NULL && !load->dry_run) {
                become_shared(load, same, other);
                return;
        }
        if (load->generation != NULL)
                generation_assign_number(load->generation);
        load->state = LOAD_PLANNING;
        log_stage(load, "opened");
        step_start(load, load->loads->pool, load->lane, plan_run, plan_done);
}

static void place_run(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        load->lane = source_lane(load->source);
}

static void place_done(struct work *work)
{
        struct load *load = container_of(work, struct load, step);
        if (step_home(load))
                step_start(load, load->loads->pool, load->lane, open_run, open_done);
}

/* Which file system it is on is asked of the mount table first, and that is a file, too. */
void load_open(struct load *load)
{
        load->state = LOAD_OPENING;
        step_start(load, load->loads->pool, WORK_LANE_CPU, place_run, place_done);
}

/* ---- the end ---- */

/* The outcome is known. Called by a step that came home (pending may be zero) or by a cancel. */
static void load_end(struct load *load, enum load_state state, const struct error *error)
{
        require(!load_ended(load->state) && load_ended(state));
        load->state = state;
        load->ended_ns = now_ns();
        load->loads->n_running--;
        if (error != NULL)
                load->error = *error;
        struct generation *g = load->generation;
        if (g != NULL && !load->shared) {
                g->load_ns = load->ended_ns - load->started_ns;
                if (state == LOAD_READY)
                        generation_ready(g);
                else
                        generation_fail(g, &load->error);
        }
        load_report(load);
        load_tell_watchers(load);
        if (load->reading)
                reader_stop(load->loads->reader, &load->job);
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
