/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the copies that leave the host cache for another: first those of models that also serve on a GPU, then
 * the least recently used, and none that is superfluous (evict.h). Copies that are in use, are not complete or have a
 * pinned holder stay, and so do the copies of its other ranks.
 *
 * It looks at each generation and each copy a constant number of times, ranks aside, and sorts.
 */
#include "daemon/resident/hostcache/host_cache.h"
#include "daemon/resident/unload/evict.h"

#include <string.h>

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
        list_each_item (const struct generation, other, &g->resident->generations, link)
                if (generation_is_rank_of(g, other) && has_to_stay(other))
                        return true;
        return false;
}

static int by_identity(const void *a, const void *b)
{
        return memcmp(a, b, sizeof(struct source_identity));
}

struct host_copy **host_cache_choose(const struct host_cache *cache, uint64_t needed, size_t *n)
{
        size_t n_generations = 0, n_copies = 0, n_served = 0, n_candidates = 0;
        list_each (pos, &cache->resident->generations)
                n_generations++;
        list_each (pos, &cache->copies)
                n_copies++;
        cleanup_free struct source_identity *served = calloc(n_generations + 1, sizeof(*served));
        cleanup_free struct evict_candidate *candidates = calloc(n_copies + 1, sizeof(*candidates));
        *n = 0;
        if (served == NULL || candidates == NULL)
                return NULL;
        list_each_item (struct host_copy, copy, &cache->copies, link)
                copy->stays = false;
        list_each_item (const struct generation, g, &cache->resident->generations, link) {
                if (g->state == GENERATION_READY && g->has_identity)
                        served[n_served++] = g->identity;
                if (g->copy != NULL && any_rank_has_to_stay(g))
                        g->copy->stays = true;
        }
        qsort(served, n_served, sizeof(*served), by_identity);
        list_each_item (struct host_copy, copy, &cache->copies, link) {
                if (copy->stays || copy->holders == 0)
                        continue;
                bool serves = bsearch(&copy->identity, served, n_served, sizeof(*served), by_identity) != NULL;
                candidates[n_candidates++] = (struct evict_candidate){
                        .bytes = copy->bytes,
                        .last_used = copy->last_used_ns,
                        .priority = serves ? 0 : 1,
                        .owner = copy,
                };
        }
        struct host_copy **chosen = calloc(n_copies + 1, sizeof(struct host_copy *));
        if (chosen == NULL || !evict_choose(candidates, n_candidates, needed)) {
                free(chosen);
                return NULL;
        }
        for (size_t i = 0; i < n_candidates; i++)
                if (candidates[i].chosen)
                        chosen[(*n)++] = candidates[i].owner;
        return chosen;
}
