/* SPDX-License-Identifier: Apache-2.0
 *
 * A load whose very files lie in the host cache: nothing is read. The source was opened, so it is
 * known to be what it was; room is asked for as ever; then the segments are copied from pinned memory
 * on the device's thread, and the table of tensors gets the new generation's number.
 *
 *   opening > queued > allocating > reading (the copies) > ready
 *
 * Whichever GPUs it names, one copy serves all replicas of a load. All targets are copied, or all read from
 * their files: ranks are of one load, and a replica that is read from a file costs storage once, however many
 * there are. Replicas that wait for room have rounds of their own here, too (round.c).
 *
 * How it fails: as a load does, replicas each on its own. Where a device has no pieces of the size that the copy
 * has, the load goes on from its files, and says so.
 */
#include "daemon/load/load_steps.h"

#include "daemon/base/log.h"
#include "daemon/resident/host_cache.h"

#include <string.h>

/* One transfer: long enough to be fast, short enough to see a failing device. */
#define CHUNK (64 * MiB)

bool load_is_cached(const struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++)
                if (load->targets[i].kept != NULL)
                        return true;
        return false;
}

static struct host_copy *find(const struct load_target *target)
{
        const struct load *load = target->load;
        return host_cache_find(load->loads->resident->cache, &target->part->identity, target->device, load->sha256);
}

static void use(struct load_target *target, struct host_copy *kept)
{
        target->kept = kept;
        host_copy_use(kept);
        target->generation->data_bytes = kept->data_bytes;
        target->generation->n_tensors = kept->n_tensors;
}

bool load_find_cached(struct load *load)
{
        struct host_copy *kept[LOAD_DEVICES];
        if (load->dry_run)
                return false;
        for (size_t i = 0; i < load->n_targets; i++) {
                kept[i] = target_lives(&load->targets[i]) ? find(&load->targets[i]) : NULL;
                if (kept[i] == NULL && target_lives(&load->targets[i]))
                        return false;
        }
        for (size_t i = 0; i < load->n_targets; i++)
                if (kept[i] != NULL)
                        use(&load->targets[i], kept[i]);
        return true;
}

void load_forget_cached(struct load *load)
{
        for (size_t i = 0; i < load->n_targets; i++) {
                struct host_copy *kept = load->targets[i].kept;
                load->targets[i].kept = NULL;
                if (kept != NULL)
                        host_copy_unuse(kept);
        }
}

/* Of a load that was given up meanwhile the rest is left out: nobody sees it. */
static int put_segment(struct load_target *target, struct segment *segment, const unsigned char *from)
{
        int r = 0;
        for (uint64_t at = 0; r == 0 && at < segment->size;) {
                uint64_t n = segment->size - at < CHUNK ? segment->size - at : CHUNK;
                if (__atomic_load_n(&target->load->given_up, __ATOMIC_RELAXED))
                        return error_set(&target->step_error, STREAMER_ECANCELED, "cancelled");
                r = segment->device->ops->put(segment, at, from + at, n, &target->step_error);
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
        const struct host_copy *kept = target->kept;
        int r = copy_table(target, &kept->manifest);
        for (unsigned i = 0; r == 0 && i < g->n_segments; i++)
                r = put_segment(target, &g->segments[i], kept->bases[i]);
}

static void hand_over(struct load_target *target)
{
        struct generation *g = target->generation;
        g->manifest = target->manifest;
        target->manifest.fd = -1;
        g->verified = target->kept->verified;
        memcpy(g->digest, target->kept->digest, DIGEST_SIZE);
}

/* All that live are copied. */
static void copied(struct load *load)
{
        if (load_has_late(load))
                load_serve_round(load);
        else
                load_end(load, LOAD_READY, NULL);
}

static void copy_done(struct work *work)
{
        struct load_target *target = container_of(work, struct load_target, step);
        struct load *load = target->load;
        if (!load_step_home(load))
                return;
        load->allocating--;
        if (target->step_error.code != 0)
                target_failed(target, &target->step_error);
        else
                hand_over(target);
        if (load->allocating == 0 && load->state == LOAD_READING)
                copied(load);
}

void load_copy_back(struct load *load)
{
        load->state = LOAD_READING;
        load_log_stage(load, "allocated");
        for (size_t i = 0; i < load->n_targets; i++) {
                struct load_target *target = &load->targets[i];
                if (!target_lives(target))
                        continue;
                log_info("%s: comes to %s from the host cache, nothing is read", load->name, target->device->name);
                load->pending++;
                load->allocating++;
                work_submit(target->device->thread, WORK_LANE_CPU, &target->step, copy_run, copy_done);
        }
}
