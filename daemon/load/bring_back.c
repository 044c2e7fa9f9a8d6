/* SPDX-License-Identifier: Apache-2.0
 *
 * A load whose very files lie in the host cache: nothing is read. The source was opened, so it is
 * known to be what it was; room is asked for as ever; then the segments are copied from pinned memory
 * on the device's thread, and the table of tensors gets the new generation's number.
 *
 *   opening > queued > allocating > reading (the copy) > ready
 *
 * Ranks come back all or not at all: each from its part, or all from their files.
 *
 * How it fails: as a load does. Where the device has no pieces of the size that the copy has, the load
 * goes on from its files.
 */
#include "daemon/load/load_steps.h"

#include "daemon/resident/host_cache.h"

#include <string.h>

/* One transfer: long enough to be fast, short enough to see a failing device. */
#define CHUNK (64 * MiB)

bool load_is_cached(const struct load *load)
{
        return load->targets[0].cached != NULL;
}

/* What the target was, in the cache; NULL where it is not, or must not pass for what is asked. */
static struct generation *find(const struct load_target *target)
{
        const struct load *load = target->load;
        struct generation *g = resident_cached(load->loads->resident, &target->part->identity, target->device);
        return g == NULL || (load->sha256 && !g->verified) ? NULL : g;
}

static void use(struct load_target *target, struct generation *cached)
{
        target->cached = cached;
        generation_pin(cached);
        generation_used(cached);
        target->generation->data_bytes = cached->data_bytes;
        target->generation->n_tensors = cached->n_tensors;
}

bool load_find_cached(struct load *load)
{
        struct generation *cached[LOAD_DEVICES];
        if (load->dry_run || (load->pattern == NULL && load->n_targets != 1))
                return false;
        for (size_t i = 0; i < load->n_targets; i++) {
                cached[i] = find(&load->targets[i]);
                if (cached[i] == NULL || cached[i]->number != cached[0]->number)
                        return false;
        }
        for (size_t i = 0; i < load->n_targets; i++)
                use(&load->targets[i], cached[i]);
        return true;
}

void load_forget_cached(struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++) {
                struct generation *cached = load->targets[i].cached;
                load->targets[i].cached = NULL;
                if (cached != NULL)
                        generation_unpin(cached);
        }
}

static int put_segment(struct segment *segment, const unsigned char *from, struct error *error)
{
        int r = 0;
        for (uint64_t at = 0; r == 0 && at < segment->size;) {
                uint64_t n = segment->size - at < CHUNK ? segment->size - at : CHUNK;
                r = segment->device->ops->put(segment, at, from + at, n, error);
                at += n;
        }
        return r;
}

static int copy_table(struct load_target *target, const struct table *from)
{
        struct table *to = &target->manifest;
        void *map;
        int r = host_table_new("streamerd-manifest", from->size, &to->fd, &map, &target->step_error);
        if (r < 0)
                return r;
        to->map = map;
        to->size = from->size;
        memcpy(map, from->map, from->size);
        ((struct manifest_header *)map)->generation = target->generation->number;
        return 0;
}

static void copy_run(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct generation *g = target->generation;
        const struct generation *cached = target->cached;
        int r = copy_table(target, &cached->manifest);
        for (unsigned i = 0; r == 0 && i < g->n_segments; i++)
                r = put_segment(&g->segments[i], cached->copy->bases[i], &target->step_error);
}

static void copy_done(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct load *load = target->load;
        struct generation *g = target->generation;
        if (!load_step_home(load))
                return;
        if (target->step_error.code != 0) {
                target_failed(target, &target->step_error);
                return;
        }
        g->manifest = target->manifest;
        target->manifest.fd = -1;
        g->verified = target->cached->verified;
        memcpy(g->digest, target->cached->digest, DIGEST_SIZE);
        if (--load->allocating == 0)
                load_end(load, LOAD_READY, NULL);
}

void load_copy_back(struct load *load)
{
        load->state = LOAD_READING;
        load_log_stage(load, "allocated");
        for (size_t i = 0; i < load->n_targets; i++) {
                struct load_target *target = &load->targets[i];
                load->pending++;
                load->allocating++;
                work_submit(target->device->thread, WORK_LANE_CPU, &target->step, copy_run, copy_done);
        }
}
