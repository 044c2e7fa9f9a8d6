/* SPDX-License-Identifier: Apache-2.0
 *
 * A load whose files are in the host cache reads nothing. The source was opened, so its identity is known; memory is
 * requested as usual; then the segments are copied from pinned memory on the device's thread, and the manifest gets
 * the new generation's number.
 *
 *   opening > queued > allocating > reading (the copies) > ready
 *
 * One copy serves all replicas of a load. Either all targets are copied or all are read: ranks are of one load, and
 * reading files for one replica costs as much as for all.
 *
 * How it fails: like any load, each replica on its own.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"
#include "daemon/resident/hostcache/host_cache.h"

#include <string.h>

/* One transfer: long enough to be fast, short enough to see a failing device. */
#define CHUNK (64 * MiB)

bool load_find_cached(struct load *load)
{
        struct host_copy *cached[LOAD_DEVICES] = {NULL};
        for (size_t i = 0; i < load->n_targets; i++) {
                const struct load_target *t = &load->targets[i];
                cached[i] = host_cache_find(load->loads->resident->cache, &t->part->identity, t->device,
                                            load->request.sha256);
                if (target_lives(t) && (load->request.dry_run || cached[i] == NULL))
                        return false;
        }
        load_each_target (t, load) {
                if (!target_lives(t))
                        continue;
                t->cached = cached[t - load->targets];
                host_copy_use(t->cached);
                t->generation->data_bytes = t->cached->data_bytes;
                t->generation->n_tensors = t->cached->n_tensors;
        }
        return true;
}

/* Stops early if the load has ended. */
static int put_segment(struct load_target *target, struct segment *segment, const unsigned char *from)
{
        int r = 0;
        for (uint64_t at = 0; r == 0 && at < segment->size;) {
                uint64_t n = segment->size - at < CHUNK ? segment->size - at : CHUNK;
                if (__atomic_load_n(&target->load->abandoned, __ATOMIC_RELAXED))
                        return error_set(&target->step_error, STREAMER_ECANCELED, "cancelled");
                r = segment->device->ops->put(segment, at, from + at, n, &target->step_error);
                at += n;
        }
        return r;
}

static void copy_run(struct load_target *target)
{
        struct generation *g = target->generation;
        const struct host_copy *cached = target->cached;
        int r = host_table_new(&target->manifest, "streamerd-manifest", cached->manifest.size, &target->step_error);
        if (r == 0) {
                struct manifest_header *header = target->manifest.map;
                memcpy(header, cached->manifest.map, cached->manifest.size);
                header->generation = g->number;
        }
        for (unsigned i = 0; r == 0 && i < g->n_segments; i++)
                r = put_segment(target, &g->segments[i], cached->bases[i]);
}

static void copy_done(struct load_target *target)
{
        struct generation *g = target->generation;
        if (target->step_error.code != 0) {
                target_fail(target, &target->step_error);
                return;
        }
        g->manifest = target->manifest;
        target->manifest.fd = -1;
        g->verified = target->cached->verified;
        memcpy(g->digest, target->cached->digest, DIGEST_SIZE);
}

void load_copy_cached(struct load *load, void (*copied)(struct load *))
{
        load_each_target (t, load)
                if (target_lives(t))
                        log_info("%s: restored to %s from the host cache, without reading files", load->name,
                                 t->device->name);
        load_start_targets(load, copy_run, copy_done, copied);
}
