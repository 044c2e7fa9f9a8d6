/* SPDX-License-Identifier: Apache-2.0
 *
 * A part and the disk cache: which of its files are read from their copies, and which are stored behind the load.
 *
 *   planned > [read: blocks of files that have copies > ended] > read: the other blocks, and those that failed > read
 *
 * The two jobs follow each other, so that a copy which turns out to be damaged costs only its blocks that have not
 * landed: they are read from the store. Leaves of a copy are compared as they are read, before they can be seen. What
 * else fails a job fails the part.
 *
 * Files that are encrypted are so in the cache. Their leaves are compared before they are decrypted. Blocks that
 * continue each other's chunk land together, so that what is read anew begins with a chunk.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"
#include "daemon/source/stored.h"

#include <string.h>

/* ---- files ---- */

/* The plan has all bytes of the file behind its header: none of its tensors is taken from another file. */
static bool is_whole(const struct plan *plan, size_t file, uint64_t header, uint64_t size, uint64_t *leaves)
{
        size_t i, end;
        uint64_t at = header;
        *leaves = 0;
        plan_file_tensors(plan, file, &i, &end);
        for (; i < end; i++) {
                if (plan->tensors[i].bytes > 0 && plan->tensors[i].file_off != at)
                        return false;
                at += plan->tensors[i].bytes;
                *leaves += plan_leaves(plan->tensors[i].bytes);
        }
        return at == size;
}

/* Bytes before the first tensor. */
static uint64_t header_of(const struct load_part *part, size_t file)
{
        return ST_PREFIX + part->resolved.texts[file].n;
}

/* Its leaves are those of the plan. */
static bool fits(const struct load_part *part, size_t file)
{
        const struct object_copy *copy = part->resolved.set.objects[file].copy;
        uint64_t leaves;
        return copy != NULL && !copy->damaged && copy->header == header_of(part, file) &&
               is_whole(&part->resolved.plan, file, copy->header, copy->file->version.size, &leaves) &&
               leaves == copy->n_sums;
}

/* ---- what is stored behind the load ---- */

static void count_unread(const struct object *object)
{
        metric_add_label(METRIC_DISK_NOT_STORED, REASON_IO, 1);
        log_warn("disk cache: %s: not stored: its header cannot be kept in memory until it is written", object->path);
}

static void add_file(struct disk_write *write, const struct load_part *part, size_t i)
{
        const struct object *object = &part->resolved.set.objects[i];
        const struct plan *plan = &part->resolved.plan;
        struct object_label label;
        uint64_t leaves;
        if (object->ops->label == NULL || object->copy != NULL || object->version.size == 0)
                return;
        if (!object->ops->label(object, &label))
                metric_add_label(METRIC_DISK_NOT_STORED, REASON_VERSION, 1);
        else if (!is_whole(plan, i, header_of(part, i), object->version.size, &leaves))
                metric_add_label(METRIC_DISK_NOT_STORED, REASON_LAYOUT, 1);
        else if (!disk_write_add_file(write, object, &label, plan, i, header_of(part, i), part->resolved.encrypted[i]))
                count_unread(object);
}

static void add_index(struct disk_write *write, const struct load *load)
{
        const struct object *index = &load->opened.index_object;
        struct object_label label;
        if (load->opened.index.n_files > 0 && index->ops->label != NULL && index->copy == NULL &&
            index->ops->label(index, &label) && !disk_write_add_text(write, index, &label))
                count_unread(index);
}

/* Local files are stored where the configuration names their folder. */
static bool may_be_stored(const struct load_part *part)
{
        bool any = false;
        for (size_t i = 0; i < part->resolved.set.n_objects; i++)
                any = any || part->resolved.set.objects[i].ops->label != NULL;
        return any;
}

/* Replicas that are read twice, for devices of different layouts, are stored once. */
static void prepare_write(struct load_part *part)
{
        const struct load *load = part->load;
        struct disk_writer *writer = load->loads->disk_writer;
        size_t n = part->resolved.set.n_objects;
        if (writer == NULL || load->probe || !may_be_stored(part) || (load->pattern == NULL && part != load->parts))
                return;
        part->write = disk_write_new(writer, n + 1, n);
        for (size_t i = 0; part->write != NULL && i < n; i++)
                add_file(part->write, part, i);
        if (part->write != NULL && part == load->parts && load->pattern == NULL)
                add_index(part->write, load);
        if (part->write == NULL || part != load->parts || load->opened.stale || source_is_local(load->source))
                return;
        disk_write_add_source(part->write, source_describe(load->source, &load->opened, source_file_uri));
        if (load->opened.fixed != NULL)
                disk_write_add_source(part->write, source_describe(load->opened.fixed, &load->opened, source_file_uri));
}

/* ---- what is read from copies ---- */

static void disk_free(struct part_disk *disk)
{
        if (disk == NULL)
                return;
        free(disk->objects);
        free(disk->expected);
        free(disk->landed);
        free(disk->first.blocks);
        free(disk->rest.blocks);
        free(disk);
}

/* Views of the plan with some of its blocks; NULL: no memory. */
static struct part_disk *disk_new(const struct load_part *part)
{
        const struct plan *plan = &part->resolved.plan;
        struct part_disk *disk = calloc(1, sizeof(*disk));
        if (disk == NULL)
                return NULL;
        disk->first = disk->rest = *plan;
        disk->first.n_blocks = disk->rest.n_blocks = 0;
        disk->first.blocks = malloc((plan->n_blocks + 1) * sizeof(*plan->blocks));
        disk->rest.blocks = malloc((plan->n_blocks + 1) * sizeof(*plan->blocks));
        disk->objects = calloc(plan->n_files + 1, sizeof(*disk->objects));
        disk->expected = malloc((plan->n_leaves + 1) * DIGEST_SIZE);
        disk->landed = calloc(plan->n_blocks + 1, sizeof(*disk->landed));
        if (disk->first.blocks != NULL && disk->rest.blocks != NULL && disk->objects != NULL &&
            disk->expected != NULL && disk->landed != NULL)
                return disk;
        disk_free(disk);
        return NULL;
}

static void add_copy(struct part_disk *disk, const struct load_part *part, size_t file)
{
        const struct object_copy *copy = part->resolved.set.objects[file].copy;
        size_t first, end;
        plan_file_tensors(&part->resolved.plan, file, &first, &end);
        disk->objects[file] = *copy->file; /* descriptors are borrowed */
        if (copy->n_sums > 0)
                memcpy(disk->expected[part->resolved.plan.tensors[first].leaf], copy->sums, copy->n_sums * DIGEST_SIZE);
}

static int prepare_copies(struct load_part *part, struct error *error)
{
        const struct plan *plan = &part->resolved.plan;
        size_t n_files = part->resolved.set.n_objects;
        bool any = false;
        for (size_t i = 0; i < n_files; i++)
                any = any || fits(part, i);
        if (!any)
                return 0;
        part->disk = disk_new(part);
        if (part->disk == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < n_files; i++)
                if (fits(part, i))
                        add_copy(part->disk, part, i);
        for (size_t i = 0; i < plan->n_blocks; i++)
                if (part->disk->objects[plan->blocks[i].file].path != NULL)
                        part->disk->first.blocks[part->disk->first.n_blocks++] = plan->blocks[i];
        return 0;
}

int part_prepare_disk(struct load_part *part, struct error *error)
{
        prepare_write(part);
        return prepare_copies(part, error);
}

void part_drop_disk(struct load_part *part)
{
        if (part->write != NULL)
                disk_write_end(part->write);
        part->write = disk_write_unref(part->write);
        disk_free(part->disk);
        part->disk = NULL;
}

void part_begin_write(struct load_part *part)
{
        const struct load_target *from = part_first(part);
        if (part->write == NULL || from == NULL)
                return;
        struct loads *loads = part->load->loads;
        require(from->generation->write == NULL);
        if (loads->stores != NULL)
                loads->stores(loads);
        from->generation->write = disk_write_ref(part->write);
        disk_write_start(part->write, from->generation->segments, from->device);
}

/* ---- the jobs ---- */

/* Of the blocks [*first, *end), all but the first continue the one before. */
static void find_run(const struct plan *plan, size_t block, size_t *first, size_t *end)
{
        *first = block;
        *end = block + 1;
        while (plan->blocks[*first].continues) {
                require(*first > 0);
                --*first;
        }
        while (*end < plan->n_blocks && plan->blocks[*end].continues)
                ++*end;
}

/* On a reader thread. */
static void on_copy_landed(struct read_job *job, const struct plan_block *block)
{
        struct part_disk *disk = container_of(job, struct part_disk, job);
        size_t first, end;
        find_run(&disk->first, (size_t)(block - disk->first.blocks), &first, &end);
        if (__atomic_add_fetch(&disk->landed[first], 1, __ATOMIC_ACQ_REL) < end - first)
                return;
        for (size_t i = first; i < end; i++) {
                add_relaxed(&disk->bytes, disk->first.blocks[i].len);
                disk->part->job.landed(&disk->part->job, &disk->first.blocks[i]);
        }
}

static void copies_ended(struct callback *item)
{
        struct part_disk *disk = container_of(item, struct part_disk, job.ended);
        disk->part->job.ended.run(&disk->part->job.ended);
}

struct read_job *part_begin_copies(struct load_part *part)
{
        struct part_disk *disk = part->disk;
        const struct read_job *job = &part->job;
        if (disk == NULL)
                return &part->job;
        disk->part = part;
        disk->job = (struct read_job){.engine = READ_PREAD,
                                      .plan = &disk->first,
                                      .objects = disk->objects,
                                      .encrypted = job->encrypted,
                                      .leaves = job->leaves,
                                      .expected = (const unsigned char(*)[DIGEST_SIZE])disk->expected,
                                      .n_targets = job->n_targets,
                                      .weight = job->weight,
                                      .storage = part->load->loads->sources->disk->lane,
                                      .landed = on_copy_landed,
                                      .ended.run = copies_ended};
        memcpy(disk->job.targets, job->targets, sizeof(job->targets));
        return &disk->job;
}

/* All blocks of the run have landed. */
static bool has_landed(const struct part_disk *disk, size_t block)
{
        size_t first, end;
        find_run(&disk->first, block, &first, &end);
        uint32_t n = __atomic_load_n(&disk->landed[first], __ATOMIC_ACQUIRE);
        require(n <= end - first);
        return n == end - first;
}

/* Blocks that have not landed. */
static void find_rest(struct load_part *part)
{
        struct part_disk *disk = part->disk;
        const struct plan *plan = &part->resolved.plan;
        size_t of_copies = 0;
        for (size_t i = 0; i < plan->n_blocks; i++) {
                bool tried = disk->objects[plan->blocks[i].file].path != NULL;
                if (!tried || !has_landed(disk, of_copies))
                        disk->rest.blocks[disk->rest.n_blocks++] = plan->blocks[i];
                of_copies += tried;
        }
        require(of_copies == disk->first.n_blocks);
}

struct read_job *part_next_job(struct load_part *part)
{
        struct part_disk *disk = part->disk;
        if (disk == NULL || part->reading != &disk->job)
                return NULL;
        const struct read_job *job = &disk->job;
        bool of_copy = job->failed && job->failed_file != UINT32_MAX;
        bool damaged = of_copy && job->error.code == STREAMER_EFAILED;
        bool lacks = of_copy && error_is_lack(job->error.code); /* which says nothing of the copy */
        if (job->failed && !damaged && !lacks)
                return NULL;
        if (damaged)
                disk_copy_drop(part->resolved.set.objects[job->failed_file].copy, job->error.text);
        if (lacks)
                part->resolved.set.objects[job->failed_file].copy->damaged = true;
        find_rest(part);
        if (disk->rest.n_blocks == 0)
                return NULL;
        part->job.plan = &disk->rest;
        return &part->job;
}

enum model_origin part_origin(const struct load_part *part)
{
        bool whole = part->disk != NULL && part->disk->bytes == part->resolved.plan.bytes;
        return whole && part->resolved.plan.bytes > 0 ? ORIGIN_DISK : ORIGIN_STORE;
}
