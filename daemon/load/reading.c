/* SPDX-License-Identifier: Apache-2.0
 *
 * How a part is read: its blocks with their arrivals, the manifest that is built meanwhile, and SHA-256 of each file
 * that is complete. load->proceed() is called whenever something of this is done.
 *
 * How it fails: a failed read or manifest fails every target; a failed copy, or bytes that differ on a device, fail
 * that target alone.
 */
#include "daemon/load/load_private.h"

static void fail_all(struct load_part *part, const struct error *error)
{
        load_fail_targets(part->load, part, error);
        if (!load_ended(part->load->state))
                part->load->proceed(part->load);
}

/* ---- arrivals ---- */

static void notify_arrived(struct load_part *part)
{
        struct load *load = part->load;
        for (size_t i = 0; part->built && i < part->n_targets && !load_ended(load->state); i++) {
                struct generation *g = part->targets[i]->generation;
                /* No tables: a copy to the device failed before they were made, and the loop has not handled it yet. */
                if (target_lives(part->targets[i]) && g->manifest.fd >= 0)
                        load->loads->arrived(load->loads, g);
        }
}

static void on_arrived(struct callback *item)
{
        notify_arrived(container_of(item, struct load_part, arrived));
}

/* ---- SHA-256: a file, one target after another ---- */

static void sha_next(struct sha_step *step);

static void sha_run(struct work *work)
{
        struct sha_step *step = container_of(work, struct sha_step, work);
        struct load_part *part = step->part;
        if (step->target == part->n_targets) {
                publish_file(&part->publish, step->file);
                return;
        }
        struct load_target *target = part->targets[step->target];
        struct reader *reader = part->load->loads->reader;
        struct error error = {0};
        if (sha_check_file(reader, &part->resolved, target->device, target->copy.segments, step->file, &error) < 0)
                reader_fail_target(reader, &part->job, &target->copy, &error);
}

static void sha_done(struct work *work)
{
        struct sha_step *step = container_of(work, struct sha_step, work);
        struct load_part *part = step->part;
        struct load *load = part->load;
        if (!load_step_done(load))
                return;
        if (step->target == part->n_targets) {
                part->files_checked++;
                notify_arrived(part);
                load->proceed(load);
                return;
        }
        step->target++;
        sha_next(step);
}

/* For the next live target. */
static void sha_next(struct sha_step *step)
{
        const struct load_part *part = step->part;
        struct load *load = part->load;
        uint64_t lane = WORK_LANE_CPU;
        while (step->target < part->n_targets && !target_lives(part->targets[step->target]))
                step->target++;
        if (!part_lives(part))
                return;
        if (step->target < part->n_targets)
                lane = WORK_LANE_DEVICE(part->targets[step->target]->device->number);
        load->pending++;
        work_submit(load->loads->pool, lane, &step->work, sha_run, sha_done);
}

static void on_file_whole(struct callback *item)
{
        struct sha_step *step = container_of(item, struct sha_step, item);
        if (!load_ended(step->part->load->state))
                sha_next(step);
}

/* ---- the manifest, on a worker ---- */

static void build_run(struct work *work)
{
        struct load_part *part = container_of(work, struct load_part, build);
        struct publish *p = &part->publish;
        int r = publish_build(p, part->load->number, &part->build_error);
        for (size_t i = 0; r == 0 && i < part->n_targets; i++)
                if (p->logs[i].fd >= 0)
                        r = publish_share(p, i, &part->targets[i]->manifest, &part->targets[i]->arrival,
                                          &part->build_error);
}

static void build_done(struct work *work)
{
        struct load_part *part = container_of(work, struct load_part, build);
        struct load *load = part->load;
        if (!load_step_done(load))
                return;
        if (part->build_error.code != 0) {
                fail_all(part, &part->build_error);
                return;
        }
        for (size_t i = 0; i < part->n_targets; i++) {
                struct load_target *t = part->targets[i];
                if (!target_lives(t))
                        continue;
                t->generation->manifest = t->manifest;
                t->generation->arrival = t->arrival;
                t->manifest.fd = t->arrival.fd = -1;
        }
        part->built = true;
        load_log_stage(load, "manifest built");
        notify_arrived(part);
        load->proceed(load);
}

/* ---- reading ---- */

/* On a reader thread. */
static void on_landed(struct read_job *job, const struct plan_block *block)
{
        struct load_part *part = container_of(job, struct load_part, job);
        struct wake *wake = part->load->loads->reader->wake;
        bool whole = publish_landed(&part->publish, block);
        if (part->load->request.sha256 && whole)
                wake_post(wake, &part->sha_steps[block->file].item);
        if (!part->load->request.sha256)
                wake_post_once(wake, &part->arrived);
}

static void on_died(struct callback *item)
{
        struct load_target *target = container_of(item, struct load_target, copy.died);
        if (load_ended(target->load->state) || !target_lives(target))
                return;
        target_fail(target, &target->copy.error);
        if (!load_ended(target->load->state))
                target->load->proceed(target->load);
}

static void on_idle(struct callback *item)
{
        struct load_target *target = container_of(item, struct load_target, copy.idle);
        if (!load_ended(target->load->state))
                target_release(target);
}

static void read_ended(struct callback *item)
{
        struct load_part *part = container_of(item, struct load_part, job.ended);
        const struct read_job *job = &part->job;
        part_set_state(part, job->failed ? PART_FAILED : PART_READ);
        if (!load_step_done(part->load))
                return;
        if (job->failed)
                fail_all(part, &job->error);
        else
                part->load->proceed(part->load);
}

void part_read(struct load_part *part)
{
        struct load *load = part->load;
        const struct source_set *set = &part->resolved.set;
        struct read_job *job = &part->job;
        load->pending += 2;
        part_set_state(part, PART_READING);
        job->engine = set->n_objects > 0 ? set->objects[0].ops->engine : READ_PREAD;
        /* A load from the network has a limit of its own, which the server's responses set. */
        job->storage = job->engine == READ_PREAD ? load->lane : 0;
        job->weight = load->priority;
        job->plan = &part->resolved.plan;
        job->objects = set->objects;
        job->leaves = part->publish.leaves;
        job->n_targets = part->n_targets;
        job->landed = on_landed;
        job->ended.run = read_ended;
        for (size_t i = 0; i < part->n_targets; i++) {
                job->targets[i]->died.run = on_died;
                job->targets[i]->idle.run = on_idle;
        }
        part->arrived.run = on_arrived;
        for (size_t i = 0; load->request.sha256 && i < set->n_objects; i++)
                part->sha_steps[i].item.run = on_file_whole;
        /* Files without a byte to read are complete already. */
        for (size_t i = 0; load->request.sha256 && i < set->n_objects; i++)
                if (part->publish.file_left[i] == 0)
                        sha_next(&part->sha_steps[i]);
        work_submit(load->loads->pool, WORK_LANE_CPU, &part->build, build_run, build_done);
        reader_start(load->loads->reader, job);
}
