/* SPDX-License-Identifier: Apache-2.0
 *
 * A part: what is planned and read once for one target or several. Its files, plan, reading with its arrivals, the
 * manifest that is built meanwhile, and SHA-256 of each file that is complete.
 *
 * How it fails: a failed plan, read or manifest fails every target; a failed copy, or bytes that differ on a device,
 * fail that target alone.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/text/secret.h"
#include "daemon/load/content/sha.h"
#include "daemon/model/ranks.h"

#include <string.h>

void part_set_state(struct load_part *part, enum part_state state)
{
#define TO(state) (1u << PART_##state)
        static const unsigned allowed[PART_STATES] = {
                [PART_IDLE] = TO(IDLE) | TO(PLANNED),
                [PART_PLANNED] = TO(IDLE) | TO(PLANNED) | TO(READING),
                [PART_READING] = TO(IDLE) | TO(READ),
                [PART_READ] = TO(IDLE),
        };
#undef TO
        require(allowed[part->state] & 1u << state);
        part->state = state;
}

bool part_lives(const struct load_part *part)
{
        for (size_t i = 0; i < part->n_targets; i++)
                if (target_lives(part->targets[i]))
                        return true;
        return false;
}

/* ---- opening, on a worker ---- */

/* The files of each rank, selected by their names. */
static int split_ranks(struct load *load, struct error *error)
{
        const struct source_set *set = &load->opened.set;
        cleanup_free const char **names = calloc(set->n_objects + 1, sizeof(*names));
        struct ranks ranks;
        struct error why;
        char shown[REDACTED_SOURCE];
        if (names == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < set->n_objects; i++) {
                const char *slash = strrchr(set->objects[i].path, '/');
                names[i] = slash != NULL ? slash + 1 : set->objects[i].path;
        }
        redact_source(shown, load->source);
        if (ranks_make(&ranks, names, set->n_objects, load->pattern, load->n_targets, &why) < 0)
                return error_set(error, why.code, "%s (%s)", why.text, shown);
        int r = 0;
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                r = resolve_view(&load->parts[i].resolved, set, ranks.files + ranks.first[i],
                                 ranks.first[i + 1] - ranks.first[i], error);
        ranks_deinit(&ranks);
        return r;
}

int load_open_parts(struct load *load, struct error *error)
{
        struct {
                struct source_identity files;
                uint64_t rank, n_ranks;
        } ranked = {.n_ranks = load->n_parts};
        int r = load->pattern != NULL ? split_ranks(load, error) : 0;
        for (size_t i = 0; r == 0 && i < load->n_parts; i++) {
                struct load_part *part = &load->parts[i];
                if (load->pattern == NULL)
                        r = resolve_view(&part->resolved, &load->opened.set, NULL, 0, error);
                if (r == 0)
                        r = source_identity(&part->resolved.set, &part->identity, error);
                if (r == 0 && !load->dry_run && (part->files = source_files_new(&part->resolved.set)) == NULL)
                        r = error_set(error, STREAMER_ENOMEM, "no memory");
                if (r < 0 || load->pattern == NULL)
                        continue;
                /* A rank's identity differs from that of its files as a model of their own. */
                ranked.files = part->identity;
                ranked.rank = i;
                hash_bytes(&ranked, sizeof(ranked), part->identity.digest);
        }
        return r;
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
        struct load_part *part = container_of(item, struct load_part, arrived);
        __atomic_store_n(&part->arrived_posted, false, __ATOMIC_SEQ_CST);
        notify_arrived(part);
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
        const struct load_target *target = part->targets[step->target];
        sha_check_file(part->sha, part->load->loads->reader, &part->resolved, target->device, target->copy.segments,
                       step->file, &step->error);
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
                load_maybe_check(load);
                return;
        }
        struct load_target *target = part->targets[step->target++];
        struct error error = step->error;
        step->error = (struct error){0};
        if (error.code != 0 && target_lives(target))
                target_fail(target, &error);
        /* After an end the steps are freed. */
        if (!load_ended(load->state))
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

/* ---- plan and publishing, on a worker ---- */

static int begin_publishing(struct load_part *part, struct error *error)
{
        part->has_publish = true;
        int r = publish_init(&part->publish, &part->resolved, part->copies, part->n_targets, part->load->sha256, error);
        if (r == 0)
                publish_begin(&part->publish);
        return r;
}

int part_plan(struct load_part *part, struct error *error)
{
        const struct load *load = part->load;
        bool sha256 = load->sha256 && !load->dry_run;
        size_t n = part->resolved.set.n_objects;
        if (sha256) {
                part->sha = sha_new(n);
                part->sha_steps = calloc(n + 1, sizeof(*part->sha_steps));
                if (part->sha == NULL || part->sha_steps == NULL)
                        return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        for (size_t i = 0; sha256 && i < n; i++)
                part->sha_steps[i] = (struct sha_step){.part = part, .file = i, .item = {.run = on_file_whole}};
        struct plan_layout layout = part->targets[0]->device->layout;
        if (part->max_segment > 0)
                layout.max_segment = part->max_segment;
        int r = resolve_plan(&part->resolved, &layout, load->loads->block_size, sha256 ? sha_header : NULL, part->sha,
                             error);
        return r < 0 || load->dry_run ? r : begin_publishing(part, error);
}

int part_replan(struct load_part *part, const struct plan_layout *layout, struct error *error)
{
        publish_deinit(&part->publish);
        part->has_publish = false;
        int r = resolve_replan(&part->resolved, layout, part->load->loads->block_size, error);
        return r < 0 ? r : begin_publishing(part, error);
}

int part_reopen(struct load_part *part, struct error *error)
{
        part_deinit(part);
        int r = resolve_view(&part->resolved, &part->load->opened.set, NULL, 0, error);
        return r == 0 ? part_plan(part, error) : r;
}

void part_deinit(struct load_part *part)
{
        if (part->has_publish)
                publish_deinit(&part->publish);
        part->has_publish = false;
        for (size_t i = 0; i < part->n_targets; i++) {
                table_drop(&part->targets[i]->manifest);
                table_drop(&part->targets[i]->arrival);
        }
        resolve_deinit(&part->resolved);
        part->files = source_files_free(part->files);
        part->sha = sha_free(part->sha);
        free(part->sha_steps);
        part->sha_steps = NULL;
}

/* ---- the manifest, on a worker ---- */

static void build_run(struct work *work)
{
        struct load_part *part = container_of(work, struct load_part, build);
        struct publish *p = &part->publish;
        int r = publish_build(p, part->load->number, part->resolved.plan.segments, &part->build_error);
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
                load_fail_targets(load, part, &part->build_error);
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
        load_maybe_check(load);
}

/* ---- reading ---- */

/* On a reader thread. */
static void on_landed(struct read_job *job, const struct plan_block *block)
{
        struct load_part *part = container_of(job, struct load_part, job);
        struct wake *wake = part->load->loads->reader->wake;
        bool whole = publish_landed(&part->publish, block);
        if (part->load->sha256 && whole)
                wake_post(wake, &part->sha_steps[block->file].item);
        if (!part->load->sha256 && !__atomic_exchange_n(&part->arrived_posted, true, __ATOMIC_SEQ_CST))
                wake_post(wake, &part->arrived);
}

/* A copy has failed. */
static void on_died(struct read_target *copy)
{
        struct load_target *target = container_of(copy, struct load_target, copy);
        if (!load_ended(target->load->state) && target_lives(target))
                target_fail(target, &copy->error);
}

static void on_idle(struct read_target *copy)
{
        struct load_target *target = container_of(copy, struct load_target, copy);
        if (!load_ended(target->load->state))
                target_release(target);
}

static void read_ended(struct read_job *job)
{
        struct load_part *part = container_of(job, struct load_part, job);
        bool counts = !job->failed && part->load->state != LOAD_ROUND_ENDING;
        part_set_state(part, counts ? PART_READ : PART_IDLE);
        if (!load_step_done(part->load))
                return;
        if (job->failed)
                load_fail_targets(part->load, part, &job->error);
        else
                load_maybe_check(part->load);
}

void part_read(struct load_part *part)
{
        struct load *load = part->load;
        const struct source_set *set = &part->resolved.set;
        load->pending += 2;
        part_set_state(part, PART_READING);
        part->job = (struct read_job){.engine = set->n_objects > 0 ? set->objects[0].ops->engine : READ_PREAD,
                                      .weight = load->priority,
                                      .plan = &part->resolved.plan,
                                      .objects = set->objects,
                                      .leaves = part->publish.leaves,
                                      .n_targets = part->n_targets,
                                      .landed = on_landed,
                                      .ended = read_ended};
        for (size_t i = 0; i < part->n_targets; i++) {
                part->copies[i]->died = on_died;
                part->copies[i]->idle = on_idle;
                part->job.targets[i] = part->copies[i];
        }
        /* A load from the network has a limit of its own, which the server's responses set. */
        part->job.storage = part->job.engine == READ_PREAD ? load->lane : 0;
        part->arrived.run = on_arrived;
        /* Files without a byte to read are complete already. */
        for (size_t i = 0; load->sha256 && i < set->n_objects; i++)
                if (part->publish.file_left[i] == 0)
                        sha_next(&part->sha_steps[i]);
        work_submit(load->loads->pool, WORK_LANE_CPU, &part->build, build_run, build_done);
        reader_start(load->loads->reader, &part->job);
}
