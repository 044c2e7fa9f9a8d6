/* SPDX-License-Identifier: Apache-2.0
 *
 * A part: what is planned and read once for one target or several. A worker opens its files and makes its plan. Then
 * its blocks are read; meanwhile workers build the manifest, and check with SHA-256 each file that is complete.
 * load_advance_later() is called whenever something of this is done.
 *
 * How it fails: a failed read or manifest fails every target; a failed copy, or bytes that differ on a device, fail
 * that target alone.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/text/secret.h"
#include "daemon/load/content/spot_check.h"
#include "daemon/model/ranks.h"

#include <string.h>

void part_set_state(struct load_part *part, enum part_state state)
{
#define TO(state) (1u << PART_##state)
        static const unsigned allowed[] = {
                [PART_IDLE] = TO(PLANNED), [PART_PLANNED] = TO(READING), [PART_READING] = TO(READ) | TO(FAILED)};
#undef TO
        change_state(part->state, state, allowed);
}

/* ---- opening, on a worker ---- */

/* The files of each rank, selected by their names. An index would cover all files, by their number: it is not used. */
static int split_ranks(struct load *load, struct error *error)
{
        const struct source_set *set = &load->opened;
        cleanup_free const char **names = calloc(set->n_objects + 1, sizeof(*names));
        cleanup_free struct rank_file *files = calloc(set->n_objects + 1, sizeof(*files));
        size_t n;
        struct error why;
        char shown[REDACTED_SOURCE];
        load->ranked = calloc(set->n_objects + 1, sizeof(*load->ranked));
        if (names == NULL || files == NULL || load->ranked == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < set->n_objects; i++) {
                const char *slash = strrchr(set->objects[i].path, '/');
                names[i] = slash != NULL ? slash + 1 : set->objects[i].path;
        }
        redact_source(shown, load->source);
        if (ranks_list(files, &n, names, set->n_objects, load->pattern, load->n_targets, &why) < 0)
                return error_set(error, why.code, "%s (%s)", why.text, shown);
        for (size_t i = 0; i < n; i++) {
                struct source_set *rank = &load->parts[files[i].rank].resolved.set;
                load->ranked[i] = set->objects[files[i].file];
                if (rank->n_objects++ == 0)
                        rank->objects = &load->ranked[i];
        }
        return 0;
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
                        part->resolved.set = load->opened;
                source_identity(&part->resolved.set, &part->identity);
                if (r == 0 && !load->dry_run && (part->files = source_files_new(&part->resolved.set)) == NULL)
                        r = error_no_memory(error);
                if (r == 0 && (part->notes = source_notes_new(&load->opened)) == NULL)
                        r = error_no_memory(error);
                part->resolved.notes = part->notes;
                if (r < 0 || load->pattern == NULL)
                        continue;
                /* A rank's identity differs from that of its files as a model of their own. */
                ranked.files = part->identity;
                ranked.rank = i;
                hash_bytes(&ranked, sizeof(ranked), part->identity.digest);
        }
        return r;
}

int load_sample_parts(struct load *load, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < load->n_parts; i++)
                r = source_identity_sample(&load->parts[i].resolved.set, &load->parts[i].identity, error);
        load->sampled = r == 0;
        return r;
}

/* ---- the plan, on a worker ---- */

int part_plan(struct load_part *part, struct error *error)
{
        const struct load *load = part->load;
        bool sha256 = load->sha256 && !load->dry_run;
        if (sha256 && (part->sha_steps = calloc(part->resolved.set.n_objects, sizeof(*part->sha_steps))) == NULL)
                return error_no_memory(error);
        const struct resolve_opts opts = {.layout = &part->targets[0]->device->layout,
                                          .block_size = load->loads->block_size,
                                          .sha256 = sha256,
                                          .whole = load_may_be_small(load),
                                          .keyring = load->keyring,
                                          .encrypted_only = load->encrypted_only};
        int r = resolve_plan(&part->resolved, &opts, &part->load->budget, error);
        r = r ?: arrivals_measure(&part->resolved.plan, &part->manifest_size, error);
        if (r < 0 || load->dry_run)
                return r;
        r = part_prepare_disk(part, error);
        if (r < 0)
                return r;
        return arrivals_init(&part->arrivals, &part->resolved.plan, part->job.targets, part->n_targets, load->sha256,
                             error);
}

/* ---- arrivals ----
 *
 * Clients see what has arrived in the log. They are notified of it no more often than a few hundredths of the loop's
 * time allow, however many hold the model and however fast it arrives: the first time at once, then after a pause. */

#define PAUSE_NS (20 * MS)
#define PAUSE_OF_LEASE_NS (MS / 10)

static uint64_t next_notice(const struct load_part *part)
{
        uint64_t leases = 0;
        for (size_t i = 0; i < part->n_targets; i++)
                if (target_lives(part->targets[i]))
                        leases += part->targets[i]->generation->n_leases;
        uint64_t pause = leases * PAUSE_OF_LEASE_NS;
        return part->noticed_ns + (pause > PAUSE_NS ? pause : PAUSE_NS);
}

static void notice(struct load_part *part, uint64_t now)
{
        struct load *load = part->load;
        part->noticed_ns = arrivals_count(&part->arrivals) > 0 ? now : 0;
        part->notice_due = false;
        for (size_t i = 0; i < part->n_targets && !load_ended(load->state); i++) {
                struct generation *g = part->targets[i]->generation;
                /* No tables: a copy to the device failed before they were made, and the loop has not handled it yet. */
                if (target_lives(part->targets[i]) && g->manifest.fd >= 0)
                        load->loads->arrived(load->loads, g);
        }
}

static void on_arrived(struct callback *item)
{
        struct load_part *part = container_of(item, struct load_part, arrived);
        struct loads *loads = part->load->loads;
        uint64_t now = now_ns();
        if (!part->built || part->notice_due || load_ended(part->load->state))
                return;
        part->notice_due = loads->arrives_later != NULL && part->noticed_ns != 0 && now < next_notice(part);
        if (part->notice_due)
                loads->arrives_later(loads, next_notice(part));
        else
                notice(part, now);
}

uint64_t part_notify_arrivals(struct load_part *part, uint64_t now)
{
        if (!part->notice_due || load_ended(part->load->state))
                return UINT64_MAX;
        if (now < next_notice(part))
                return next_notice(part);
        notice(part, now);
        return UINT64_MAX;
}

/* ---- SHA-256 of a file that is complete: on one device after another, before its tensors are released ---- */

static void sha_run(struct work *work)
{
        struct sha_step *step = container_of(work, struct sha_step, work);
        struct load_part *part = step->part;
        struct reader *reader = part->load->loads->reader;
        struct error error = {0};
        if (step->target == part->n_targets) {
                arrivals_release_file(&part->arrivals, step->file);
                return;
        }
        struct read_target *copy = part->job.targets[step->target];
        struct device *device = part->targets[step->target]->device;
        if (step->check == NULL)
                step->check = sha_check_new(reader, &part->resolved, device, copy->segments, step->file,
                                            &part->load->abandoned);
        int r = step->check != NULL ? sha_check_run(step->check, &error) : error_no_memory(&error);
        if (r != SHA_MORE)
                step->check = sha_check_free(step->check);
        if (r < 0)
                reader_fail_target(reader, part_reading(part), copy, &error);
}

static void sha_done(struct work *work);

/* For the next live target, in the lane of its device. */
static void sha_next(struct sha_step *step)
{
        const struct load_part *part = step->part;
        struct load *load = part->load;
        uint64_t lane = WORK_LANE_CPU;
        for (; step->target < part->n_targets && !target_lives(part->targets[step->target]); step->target++)
                step->check = sha_check_free(step->check); /* that of a target that failed between two pieces */
        if (part_first(part) == NULL)
                return;
        if (step->target < part->n_targets)
                lane = WORK_LANE_DEVICE(part->targets[step->target]->device->number);
        load->pending++;
        step->work.user = load->step.user;
        work_submit(load->loads->pool, lane, &step->work, sha_run, sha_done);
}

static void sha_done(struct work *work)
{
        struct sha_step *step = container_of(work, struct sha_step, work);
        struct load_part *part = step->part;
        struct load *load = part->load;
        if (!load_step_done(load))
                return;
        if (step->check != NULL) { /* the next piece */
                sha_next(step);
                return;
        }
        if (step->target++ < part->n_targets) {
                sha_next(step);
                return;
        }
        part->files_checked++;
        on_arrived(&part->arrived);
        load_advance_later(load);
}

static void on_file_whole(struct callback *item)
{
        struct sha_step *step = container_of(item, struct sha_step, item);
        if (!load_ended(step->part->load->state))
                sha_next(step);
}

/* ---- the manifest, on a worker ---- */

static void fail_all(struct load_part *part, const struct error *error)
{
        load_fail_targets(part->load, part, error);
        load_advance_later(part->load);
}

static void build_run(struct work *work)
{
        struct load_part *part = container_of(work, struct load_part, build);
        arrivals_build(&part->arrivals, part->load->number, true, &part->build_error);
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
                struct arrivals_target *tables = &part->arrivals.targets[i];
                struct generation *g = part->targets[i]->generation;
                if (!target_lives(part->targets[i]))
                        continue;
                g->manifest = tables->manifest;
                g->arrival = tables->arrival;
                tables->manifest.fd = tables->arrival.fd = -1;
        }
        part->built = true;
        on_arrived(&part->arrived);
        load_advance_later(load);
}

/* ---- reading ---- */

/* On a reader thread. */
static void on_landed(struct read_job *job, const struct plan_block *block)
{
        struct load_part *part = container_of(job, struct load_part, job);
        struct wake *wake = part->load->loads->reader->wake;
        if (part->write != NULL)
                disk_write_landed(part->write, &part->resolved.plan, block, part->arrivals.leaves);
        bool whole = arrivals_block_landed(&part->arrivals, block);
        if (part->load->sha256 && whole)
                wake_post(wake, &part->sha_steps[block->file].item);
        if (!part->load->sha256)
                wake_post(wake, &part->arrived);
}

static void on_died(struct callback *item)
{
        struct load_target *target = container_of(item, struct load_target, copy.died);
        if (load_ended(target->load->state) || !target_lives(target))
                return;
        target_fail(target, &target->copy.error);
        load_advance_later(target->load);
}

static void on_idle(struct callback *item)
{
        struct load_target *target = container_of(item, struct load_target, copy.idle);
        if (!load_ended(target->load->state))
                target_release(target);
}

static void start_job(struct load_part *part, struct read_job *job)
{
        __atomic_store_n(&part->reading, job, __ATOMIC_RELEASE);
        reader_start(part->load->loads->reader, job);
}

static void read_ended(struct callback *item)
{
        struct load_part *part = container_of(item, struct load_part, job.ended);
        const struct read_job *job = part_reading(part);
        struct read_job *next = load_ended(part->load->state) ? NULL : part_next_job(part);
        if (next != NULL) {
                start_job(part, next);
                return;
        }
        part_set_state(part, job->failed ? PART_FAILED : PART_READ);
        if (!load_step_done(part->load))
                return;
        if (job->failed)
                fail_all(part, &job->error);
        else
                load_advance_later(part->load);
}

/* What is read, and where to. */
static void set_up_job(struct load_part *part)
{
        const struct source_set *set = &part->resolved.set;
        struct read_job *job = &part->job;
        job->engine = set->n_objects > 0 ? set->objects[0].ops->engine : READ_PREAD;
        job->plan = &part->resolved.plan;
        job->objects = set->objects;
        job->encrypted = part->resolved.encryption != NULL ? part->resolved.encrypted : NULL;
        job->leaves = part->arrivals.leaves;
        job->n_targets = part->n_targets;
}

void part_read(struct load_part *part)
{
        struct load *load = part->load;
        const struct source_set *set = &part->resolved.set;
        struct read_job *job = &part->job;
        load->pending += 2;
        part_set_state(part, PART_READING);
        set_up_job(part);
        /* A load from the network has a limit of its own, which the server's responses set. */
        job->storage = job->engine == READ_PREAD ? load->lane : 0;
        job->weight = load->priority;
        job->landed = on_landed;
        job->ended.run = read_ended;
        for (size_t i = 0; i < part->n_targets; i++) {
                job->targets[i]->died.run = on_died;
                job->targets[i]->idle.run = on_idle;
        }
        part->arrived.run = on_arrived;
        for (size_t i = 0; load->sha256 && i < set->n_objects; i++) {
                struct sha_step *step = &part->sha_steps[i];
                *step = (struct sha_step){.part = part, .file = i, .item.run = on_file_whole};
                if (part->arrivals.file_left[i] == 0) /* no byte to read: it is complete already */
                        on_file_whole(&step->item);
        }
        work_submit(load->loads->pool, WORK_LANE_CPU, &part->build, build_run, build_done);
        part_begin_write(part);
        start_job(part, part_begin_copies(part));
}

/* ---- small loads ---- */

#define SMALL_FILES 4

bool load_may_be_small(const struct load *load)
{
        const struct source_set *set = &load->opened;
        bool may = load->n_targets == 1 && !load->dry_run && !load->sha256 && set->n_objects <= SMALL_FILES &&
                   (load->targets[0].device->caps & DEVICE_SMALL_ANYWHERE) != 0;
        for (size_t i = 0; may && i < set->n_objects; i++)
                may = set->objects[i].ops->engine == READ_PREAD && object_is_read(&set->objects[i]);
        return may;
}

bool load_is_small(const struct load *load)
{
        const struct load_part *part = &load->parts[0];
        const struct plan *plan = &part->resolved.plan;
        uint64_t most = load->targets[0].device->layout.small;
        bool small = load_may_be_small(load) && part->disk == NULL && part->write == NULL;
        for (size_t i = 0; small && i < plan->n_segments; i++)
                small = plan->segments[i] <= most;
        for (size_t i = 0; small && i < plan->n_blocks; i++)
                small = plan->blocks[i].in_place && !plan->blocks[i].continues;
        return small;
}

void part_place(struct load_part *part, struct error *error)
{
        const struct plan *plan = &part->resolved.plan;
        struct read_job *job = &part->job;
        uint64_t since = now_ns();
        int r = 0;
        require(part->state == PART_PLANNED && part->n_targets == 1);
        set_up_job(part);
        for (const struct plan_block *b = plan->blocks; r == 0 && b < plan->blocks + plan->n_blocks; b++) {
                const struct header_text *text = &part->resolved.texts[b->file];
                require(b->file_off + b->len <= text->size);
                r = reader_place_block(job, b, text->map + b->file_off, error);
                if (r == 0)
                        arrivals_block_landed(&part->arrivals, b);
        }
        if (r == 0)
                arrivals_build(&part->arrivals, part->load->number, false, error);
        part->checking = true;
        job->begun_ns = since;
        __atomic_store_n(&job->over_ns, now_ns(), __ATOMIC_RELEASE);
}

void part_take_placed(struct load_part *part)
{
        struct generation *g = part->targets[0]->generation;
        require(g->manifest.fd < 0 && part->arrivals.manifest.fd >= 0);
        __atomic_store_n(&part->reading, &part->job, __ATOMIC_RELEASE);
        part_set_state(part, PART_READING);
        part_set_state(part, PART_READ);
        g->manifest = part->arrivals.manifest;
        part->arrivals.manifest.fd = -1;
        part->built = true;
}

void load_close_files(struct load *load)
{
        load_each_part (part, load)
                resolve_drop_texts(&part->resolved);
        source_set_close(&load->opened);
        load->closed = true;
}

/* ---- samples ---- */

void target_compare(struct load_target *target, struct error *error)
{
        struct load *load = target->load;
        struct load_part *part = target->part;
        const struct spot_check_job job = {.reader = load->loads->reader,
                                           .device = target->device,
                                           .segments = target->generation->segments,
                                           .seed = load->started_ns + load->id,
                                           .stop = &load->abandoned};
        uint64_t since = now_ns();
        target->wrong = PAGES_NONE;
        if (target->cached != NULL)
                spot_check_copy(&job, target->cached, &target->wrong, error);
        else
                spot_check(&job, &part->resolved.plan, part->arrivals.leaves, &target->wrong, error);
        stages_add(&part->job.stages, STAGE_spot_check, now_ns() - since);
}

void target_compared(struct load_target *target, const struct error *error)
{
        struct device *device = target->device;
        if (error->code == 0)
                return;
        if (target->wrong != PAGES_NONE && device->ops->distrust != NULL)
                device->ops->distrust(device, target->wrong, error->text);
        target_fail(target, error);
}
