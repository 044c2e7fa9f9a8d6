/* SPDX-License-Identifier: Apache-2.0
 *
 * How it fails: where host memory cannot be allocated, the device cannot be read or a byte differs, the model is
 * unloaded as without a cache, its reservation is dropped, and the log says why.
 */
#include "daemon/resident/hostcache/host_cache.h"

#include "daemon/base/util.h"
#include "daemon/base/log/log.h"
#include "daemon/resident/digest_check.h"
#include "daemon/resident/model_set.h"

#include <inttypes.h>
#include <string.h>

/* The eviction that it serves waits for the GPU's memory meanwhile. */
#define WAIT_NS (UINT64_C(10) * 1000000000)

uint64_t host_cache_budget(uint64_t wanted, uint64_t cgroup, uint64_t memory)
{
        uint64_t most = (cgroup < memory ? cgroup : memory) / 2;
        return wanted < most ? wanted : most;
}

/* ---- dropping ---- */

static struct generation *find_holder(const struct list *cached, const struct host_copy *copy)
{
        list_each_item (struct generation, g, cached, in_state)
                if (g->copy == copy)
                        return g;
        return NULL;
}

/* The cached generations, with the other ranks of each. */
static void drop_holders(const struct host_copy *copy)
{
        struct list *cached = &copy->cache->resident->in_state[GENERATION_CACHED];
        struct generation *g;
        while ((g = find_holder(cached, copy)) != NULL) {
                char size[SIZE_TEXT];
                log_info("%s: leaves the host cache (generation %" PRIu64 ", %s)", generation_name(g), g->number,
                         size_text(size, copy->bytes));
                model_set_drop_ranks(g, GENERATION_CACHED, END_EVICTED, "from the host cache");
        }
}

static void start_waiting(struct host_cache *cache);

/* On the device's thread. */
static void copy_free(struct host_copy *copy)
{
        encryption_free(copy->encryption);
        free(copy);
}

static void free_run(struct work *work)
{
        struct host_copy *copy = container_of(work, struct host_copy, work);
        for (unsigned i = 0; i < copy->n_bases; i++)
                copy->device->ops->host_free(copy->device, copy->bases[i], copy->sizes[i]);
        copy->n_bases = 0;
        table_drop(&copy->manifest);
}

static void free_done(struct work *work)
{
        struct host_copy *copy = container_of(work, struct host_copy, work);
        struct host_cache *cache = copy->cache;
        cache->used -= copy->bytes;
        list_remove(&copy->link);
        copy_free(copy);
        start_waiting(cache);
}

/* A copy that waits is handled when another is freed, or by the tick: its generation may be in the middle of a
 * change. */
static void free_if_unused(struct host_copy *copy)
{
        if (copy->holders > 0 || copy->users > 0)
                return;
        __atomic_store_n(&copy->unwanted, true, __ATOMIC_RELAXED);
        if (copy->state != HOST_COPY_COMPLETE)
                return;
        copy->state = HOST_COPY_FREEING;
        work_submit(copy->device->thread, WORK_LANE_CPU, &copy->work, free_run, free_done);
}

/* resident->drop_copy: frees no generation. */
static void host_copy_drop(struct generation *generation)
{
        struct host_copy *copy = generation->copy;
        generation->copy = NULL;
        copy->holders--;
        free_if_unused(copy);
}

void host_cache_init(struct host_cache *cache, struct resident *resident, uint64_t budget)
{
        *cache = (struct host_cache){.resident = resident, .budget = budget};
        list_init(&cache->copies);
        resident->cache = cache;
        resident->drop_copy = host_copy_drop;
}

void host_copy_use(struct host_copy *copy)
{
        copy->users++;
        copy->last_used_ns = now_ns();
}

void host_copy_unuse(struct host_copy *copy)
{
        copy->users--;
        free_if_unused(copy);
}

/* ---- incomplete ranks ---- */

static struct generation *find_partial(const struct list *cached)
{
        list_each_item (struct generation, g, cached, in_state) {
                unsigned n = 0;
                if (g->n_ranks < 2)
                        continue;
                generation_each_rank(rank, g) n += rank->state == GENERATION_CACHED;
                if (n < g->n_ranks)
                        return g;
        }
        return NULL;
}

void host_cache_drop_partial_ranks(struct host_cache *cache)
{
        struct generation *g;
        while ((g = find_partial(&cache->resident->in_state[GENERATION_CACHED])) != NULL) {
                log_info("%s: leaves the host cache (generation %" PRIu64 "): not all of its ranks are left",
                         generation_name(g), g->number);
                model_set_drop_ranks(g, GENERATION_CACHED, END_EVICTED, "another of its ranks has left the host cache");
        }
}

/* ---- capacity ---- */

/* Without copies that are being freed. */
static uint64_t reserved(const struct host_cache *cache)
{
        uint64_t sum = 0;
        list_each_item (const struct host_copy, copy, &cache->copies, link)
                if (copy->state != HOST_COPY_FREEING)
                        sum += copy->bytes;
        return sum;
}

/* It is being copied, or pinned; draining generations do not count. */
static bool has_to_stay(const struct generation *g)
{
        const struct host_copy *copy = g->copy;
        bool pinned = g->settings.pinned && !list_empty(&g->names);
        return pinned || (copy != NULL && (copy->state != HOST_COPY_COMPLETE || copy->users > 0));
}

/* It, or another of its ranks. */
static bool any_rank_has_to_stay(const struct generation *g)
{
        if (g->n_ranks < 2)
                return has_to_stay(g);
        generation_each_rank(other, g) if (has_to_stay(other)) return true;
        return false;
}

/* The model also serves on a GPU. */
static bool is_served(const struct resident *resident, const struct source_identity *identity)
{
        resident_each_identical(g, resident,
                                identity) if (g->state == GENERATION_READY &&
                                              memcmp(&g->identity, identity, sizeof(*identity)) == 0) return true;
        return false;
}

struct evict_candidate *host_cache_choose(const struct host_cache *cache, uint64_t needed, size_t *n)
{
        size_t n_copies = 0;
        list_each (pos, &cache->copies)
                n_copies++;
        struct evict_candidate *candidates = calloc(n_copies + 1, sizeof(*candidates));
        *n = 0;
        if (candidates == NULL)
                return NULL;
        list_each_item (struct host_copy, copy, &cache->copies, link)
                copy->stays = false;
        list_each_item (const struct generation, g, &cache->resident->in_state[GENERATION_CACHED], in_state)
                if (any_rank_has_to_stay(g))
                        g->copy->stays = true;
        list_each_item (struct host_copy, copy, &cache->copies, link) {
                if (copy->stays || copy->holders == 0)
                        continue;
                bool serves = is_served(cache->resident, &copy->identity);
                candidates[(*n)++] = (struct evict_candidate){
                        .bytes = copy->bytes,
                        .last_used = copy->last_used_ns,
                        .priority = serves ? 0 : 1,
                        .owner = copy,
                };
        }
        if (evict_choose(candidates, *n, needed))
                return candidates;
        free(candidates);
        return NULL;
}

static bool make_space(struct host_cache *cache, uint64_t bytes)
{
        uint64_t needs = reserved(cache) + bytes;
        size_t n;
        if (needs <= cache->budget)
                return true;
        cleanup_free struct evict_candidate *candidates = host_cache_choose(cache, needs - cache->budget, &n);
        for (size_t i = 0; candidates != NULL && i < n && reserved(cache) + bytes > cache->budget; i++)
                if (candidates[i].chosen)
                        drop_holders(candidates[i].owner);
        return candidates != NULL;
}

/* ---- filling, on the device's thread ---- */

static void fill_run(struct work *work)
{
        struct host_copy *copy = container_of(work, struct host_copy, work);
        struct digest_job job = {.generation = copy->from,
                                 .manifest = table_manifest(&copy->from->manifest),
                                 .bases = copy->bases,
                                 .stop = &copy->unwanted};
        int r = host_table_share(&copy->from->manifest, &copy->manifest, &copy->error);
        for (unsigned i = 0; r == 0 && i < copy->n_segments; i++) {
                void *base;
                r = copy->device->ops->host_alloc(copy->device, copy->sizes[i], &base, &copy->error);
                if (r == 0)
                        copy->bases[copy->n_bases++] = base;
        }
        if (r == 0) /* on the device's own thread, which has nobody else's work */
                while ((r = digest_job_run(&job, &copy->error)) == DIGEST_MORE)
                        ;
        if (r == STREAMER_ECANCELED)
                error_set(&copy->error, r, "superseded");
        if (r < 0)
                free_run(work);
}

/* Drops a copy without allocated memory. The device memory is freed with the generation. */
static void copy_drop(struct host_copy *copy)
{
        struct generation *from = copy->from;
        if (copy->holders > 0)
                log_warn("%s: not copied to the host cache: %s", generation_name(from), copy->error.text);
        drop_holders(copy);
        list_remove(&copy->link);
        copy_free(copy);
        generation_put(from);
}

static void fill_done(struct work *work)
{
        struct host_copy *copy = container_of(work, struct host_copy, work);
        struct host_cache *cache = copy->cache;
        struct generation *from = copy->from;
        if (copy->error.code != 0) {
                cache->used -= copy->bytes;
                copy_drop(copy);
        } else {
                copy->from = NULL;
                copy->state = HOST_COPY_COMPLETE;
                if (from->copy == copy)
                        generation_vacate(from);
                free_if_unused(copy);
                generation_put(from);
        }
        start_waiting(cache);
}

/* In order; drops those that nothing holds. */
static void start_waiting(struct host_cache *cache)
{
        list_each_item_safe (struct host_copy, copy, &cache->copies, link) {
                if (copy->state != HOST_COPY_WAITING)
                        continue;
                if (copy->holders == 0) {
                        copy_drop(copy);
                        continue;
                }
                if (cache->used + copy->bytes > cache->budget)
                        return;
                cache->used += copy->bytes;
                copy->state = HOST_COPY_FILLING;
                work_submit(copy->device->thread, WORK_LANE_CPU, &copy->work, fill_run, fill_done);
        }
}

/* ---- taking and finding ---- */

static struct host_copy *find_copy(const struct host_cache *cache, const struct generation *g)
{
        list_each_item (struct host_copy, copy, &cache->copies, link)
                if (copy->holders > 0 && copy->state != HOST_COPY_FREEING && copy->error.code == 0 &&
                    (copy->verified || !g->verified) &&
                    memcmp(&copy->identity, &g->identity, sizeof(g->identity)) == 0 &&
                    memcmp(copy->digest, g->digest, DIGEST_SIZE) == 0)
                        return copy;
        return NULL;
}

/* Waiting, without a holder. */
static struct host_copy *copy_new(struct host_cache *cache, struct generation *g)
{
        struct host_copy *copy = calloc(1, sizeof(*copy));
        if (copy == NULL)
                return NULL;
        *copy = (struct host_copy){.cache = cache,
                                   .device = g->device,
                                   .from = g,
                                   .since_ns = now_ns(),
                                   .identity = g->identity,
                                   .encryption = encryption_ref(g->encryption),
                                   .verified = g->verified,
                                   .data_bytes = g->data_bytes,
                                   .n_tensors = g->n_tensors,
                                   .manifest.fd = -1,
                                   .n_segments = g->n_segments,
                                   .bytes = g->charged};
        memcpy(copy->digest, g->digest, DIGEST_SIZE);
        memcpy(copy->sums, g->sums, DIGEST_SIZE);
        for (unsigned i = 0; i < g->n_segments; i++)
                copy->sizes[i] = g->segments[i].size;
        generation_get(g);
        list_append(&cache->copies, &copy->link);
        return copy;
}

/* False: no memory. */
static bool hold(struct host_cache *cache, struct generation *g)
{
        struct host_copy *found = find_copy(cache, g), *copy = found != NULL ? found : copy_new(cache, g);
        if (copy == NULL)
                return false;
        g->copy = copy;
        copy->holders++;
        if (g->last_used_ns > copy->last_used_ns)
                copy->last_used_ns = g->last_used_ns;
        generation_set_state(g, GENERATION_CACHED);
        if (found != NULL)
                generation_vacate(g);
        generation_changed(g);
        return true;
}

static bool may_be_held(const struct generation *g)
{
        return g->device->ops->host_alloc != NULL && !source_is_test(g->source) && g->has_identity && g->n_segments > 0;
}

bool host_cache_add(struct host_cache *cache, struct generation *generation)
{
        uint64_t bytes = 0;
        unsigned n = 0, missing = 0;
        generation_each_rank(g, generation) if (g->state == GENERATION_READY && may_be_held(g))
        {
                bytes += g->charged;
                missing += find_copy(cache, g) == NULL;
                n++;
        }
        if (missing == 0) /* else the copy of one of them may be dropped for the others */
                bytes = 0;
        if (n == 0 || n < generation->n_ranks || bytes > cache->budget || !make_space(cache, bytes))
                return false;
        generation_each_rank(g, generation) if (g->state == GENERATION_READY && !hold(cache, g)) return false;
        start_waiting(cache);
        return true;
}

bool host_cache_tick(struct host_cache *cache, uint64_t now)
{
        bool waits = false;
        list_each_item_safe (struct host_copy, copy, &cache->copies, link) {
                waits = waits || copy->state == HOST_COPY_WAITING;
                if (copy->state != HOST_COPY_WAITING || now - copy->since_ns < WAIT_NS)
                        continue;
                error_set(&copy->error, STREAMER_ETIMEOUT, "what is to be freed for it has not been in %u s",
                          (unsigned)(WAIT_NS / 1000000000));
                copy_drop(copy);
        }
        start_waiting(cache);
        return waits;
}

struct host_copy *host_cache_find(const struct host_cache *cache, const struct source_identity *identity,
                                  const struct device *device, const unsigned char *sums)
{
        list_each_item (struct host_copy, copy, &cache->copies, link)
                /* Memory that a context has pinned is lost with it: a lost GPU must not fail loads of others. */
                if (copy->state == HOST_COPY_COMPLETE && device_in_service(copy->device) &&
                    (sums == NULL || (copy->verified && memcmp(copy->sums, sums, DIGEST_SIZE) == 0)) &&
                    memcmp(&copy->identity, identity, sizeof(*identity)) == 0 &&
                    memcmp(&copy->device->layout, &device->layout, sizeof(device->layout)) == 0)
                        return copy;
        return NULL;
}
