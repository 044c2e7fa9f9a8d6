/* SPDX-License-Identifier: Apache-2.0
 *
 * How it fails: where host memory cannot be had, the device cannot be read or a byte differs, the
 * model goes as if there were no cache, and the log says why.
 */
#include "daemon/resident/host_cache.h"

#include "daemon/base/log.h"
#include "daemon/resident/compare.h"
#include "daemon/resident/group.h"

#include <inttypes.h>
#include <string.h>

uint64_t host_cache_budget(uint64_t wanted, uint64_t cgroup, uint64_t memory)
{
        uint64_t most = (cgroup < memory ? cgroup : memory) / 2;
        return wanted < most ? wanted : most;
}

void host_cache_init(struct host_cache *cache, struct resident *resident, uint64_t budget)
{
        *cache = (struct host_cache){.resident = resident, .budget = budget};
        resident->cache = cache;
}

/* ---- room ---- */

/* What is not on its way out already. */
static uint64_t kept_bytes(const struct host_cache *cache)
{
        uint64_t sum = 0;
        list_each (pos, &cache->resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                if (g->copy != NULL && g->state == GENERATION_CACHED)
                        sum += g->copy->bytes;
        }
        return sum;
}

/* Of those that are not pinned, and that nobody copies from or to, nor from or to another of their ranks. */
static struct generation *least_recently_used(const struct host_cache *cache)
{
        struct generation *oldest = NULL;
        list_each (pos, &cache->resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (g->state != GENERATION_CACHED || generation_holders(g) > 0 || generation_pinned(g))
                        continue;
                if (oldest == NULL || generation_last_used(g) < generation_last_used(oldest))
                        oldest = g;
        }
        return oldest;
}

static bool make_room(struct host_cache *cache, uint64_t bytes)
{
        while (kept_bytes(cache) + bytes > cache->budget) {
                struct generation *g = least_recently_used(cache);
                if (g == NULL)
                        return false;
                log_info("%s: leaves the host cache (generation %" PRIu64 ", %" PRIu64 " bytes)", generation_name(g),
                         g->number, g->copy->bytes);
                generation_drop_ranks(g, GENERATION_CACHED); /* they are of use together alone */
        }
        return true;
}

/* ---- copying out, on the device's thread ---- */

static int allocate(struct host_copy *copy)
{
        struct generation *g = copy->generation;
        for (unsigned i = 0; i < g->n_segments; i++) {
                void *base;
                int r = g->device->ops->host_alloc(g->device, copy->sizes[i], &base, &copy->error);
                if (r < 0)
                        return r;
                copy->bases[copy->n++] = base;
        }
        return 0;
}

static void copy_all(struct host_copy *copy)
{
        struct compare compare;
        if (allocate(copy) < 0)
                return;
        int r = compare_init(&compare, copy->generation, NULL, copy->bases, &copy->error);
        for (uint64_t i = 0; r == 0 && i < compare.manifest.header->n_records; i++)
                r = compare_tensor(&compare, &copy->error);
        compare_deinit(&compare);
}

/* Whatever came of it, the device gets its memory back. */
static void take_run(struct work *work)
{
        struct host_copy *copy = container_of(work, struct host_copy, work);
        struct generation *g = copy->generation;
        copy_all(copy);
        for (unsigned i = 0; i < g->n_segments; i++)
                g->device->ops->release(&g->segments[i]);
        g->n_segments = 0;
}

static void take_done(struct work *work)
{
        struct host_copy *copy = container_of(work, struct host_copy, work);
        struct generation *g = copy->generation;
        generation_uncharge(g);
        if (copy->error.code != 0) {
                log_warn("%s: not kept in the host cache: %s", generation_name(g), copy->error.text);
                if (g->state == GENERATION_CACHED)
                        generation_drop_ranks(g, GENERATION_CACHED);
        }
        generation_unpin(g);
}

/* ---- the door ---- */

static bool can_be_kept(const struct host_cache *cache, const struct generation *g)
{
        return cache != NULL && cache->budget > 0 && g->device->ops->host_alloc != NULL && !g->probe &&
               g->n_segments > 0;
}

static void take(struct host_cache *cache, struct generation *g, struct host_copy *copy)
{
        copy->generation = g;
        for (unsigned i = 0; i < g->n_segments; i++)
                copy->sizes[i] = g->segments[i].size;
        copy->bytes = g->charged;
        cache->used += copy->bytes;
        g->copy = copy;
        g->state = GENERATION_CACHED;
        generation_pin(g);
        generation_changed(g);
        work_submit(g->device->thread, WORK_LANE_CPU, &copy->work, take_run, take_done);
}

bool host_cache_take(struct host_cache *cache, struct generation *generation)
{
        struct generation *ranks[GROUP_MAX];
        struct host_copy *copies[GROUP_MAX];
        size_t n = group_ranks(generation, GENERATION_READY, ranks), n_copies = 0;
        uint64_t bytes = 0;
        bool all = true;
        for (size_t i = 0; i < n; i++) {
                all = all && can_be_kept(cache, ranks[i]);
                bytes += ranks[i]->charged;
        }
        if (!all || bytes > cache->budget || !make_room(cache, bytes))
                return false;
        while (n_copies < n && (copies[n_copies] = calloc(1, sizeof(struct host_copy))) != NULL)
                n_copies++;
        for (size_t i = 0; i < n_copies; i++)
                if (n_copies == n)
                        take(cache, ranks[i], copies[i]);
                else
                        free(copies[i]);
        return n_copies == n;
}

void host_copy_release(struct host_copy *copy)
{
        struct device *device = copy->generation->device;
        for (unsigned i = 0; i < copy->n; i++)
                device->ops->host_free(device, copy->bases[i], copy->sizes[i]);
        copy->n = 0;
}

void host_copy_released(struct generation *g)
{
        g->resident->cache->used -= g->copy->bytes;
        free(g->copy);
        g->copy = NULL;
}
