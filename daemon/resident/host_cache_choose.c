/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/host_cache_choose.h"

#include "daemon/resident/evict.h"

#include <string.h>

/* What one walk over all generations finds, to be looked up in another. */
struct survey {
        uint64_t *kept; /* numbers of those of several ranks, one of which has to stay */
        struct source_identity *served;
        size_t n_kept, n_served;
};

/* ---- the walk ---- */

/* Somebody copies from or to it, or it is pinned; what drains holds nothing else by that. */
static bool has_to_stay(const struct generation *g)
{
        const struct host_copy *copy = g->copy;
        bool pinned = g->pinned && !list_empty(&g->names);
        return pinned || (copy != NULL && (copy->state != HOST_COPY_WHOLE || copy->users > 0));
}

static int by_number(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
        return (x > y) - (x < y);
}

static int by_identity(const void *a, const void *b)
{
        return memcmp(a, b, sizeof(struct source_identity));
}

static void look_at(struct survey *survey, const struct generation *g)
{
        if (g->n_ranks > 1 && has_to_stay(g))
                survey->kept[survey->n_kept++] = g->number;
        if (g->state == GENERATION_READY && g->has_identity)
                survey->served[survey->n_served++] = g->identity;
}

static bool survey_make(struct survey *survey, const struct resident *resident)
{
        size_t n = 1; /* none is not NULL */
        list_each (pos, &resident->generations)
                n++;
        *survey =
                (struct survey){.kept = calloc(n, sizeof(*survey->kept)), .served = calloc(n, sizeof(*survey->served))};
        if (survey->kept == NULL || survey->served == NULL)
                return false;
        list_each (pos, &resident->generations)
                look_at(survey, container_of(pos, struct generation, link));
        qsort(survey->kept, survey->n_kept, sizeof(*survey->kept), by_number);
        qsort(survey->served, survey->n_served, sizeof(*survey->served), by_identity);
        return true;
}

static void survey_deinit(struct survey *survey)
{
        free(survey->kept);
        free(survey->served);
}

/* ---- what it means for each copy ---- */

static void mark(const struct survey *survey, const struct host_cache *cache)
{
        list_each (pos, &cache->copies)
                container_of(pos, struct host_copy, link)->stays = false;
        list_each (pos, &cache->resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                bool ranks_stay = g->n_ranks > 1 && bsearch(&g->number, survey->kept, survey->n_kept,
                                                            sizeof(*survey->kept), by_number) != NULL;
                if (g->copy != NULL && (ranks_stay || has_to_stay(g)))
                        g->copy->stays = true;
        }
}

static bool serves_too(const struct survey *survey, const struct host_copy *copy)
{
        return bsearch(&copy->identity, survey->served, survey->n_served, sizeof(*survey->served), by_identity) != NULL;
}

static struct evict_candidate candidate_of(const struct survey *survey, struct host_copy *copy)
{
        return (struct evict_candidate){
                .bytes = copy->bytes,
                .last_used = copy->last_used_ns,
                .priority = serves_too(survey, copy) ? 0 : 1,
                .held = copy->users,
                .pinned = copy->stays,
                .ready = copy->state == HOST_COPY_WHOLE && copy->holders > 0,
                .owner = copy,
        };
}

static size_t candidates_of(const struct survey *survey, const struct host_cache *cache, struct evict_candidate *to)
{
        size_t n = 0;
        list_each (pos, &cache->copies)
                to[n++] = candidate_of(survey, container_of(pos, struct host_copy, link));
        return n;
}

/* ---- the choice ---- */

static struct host_copy **choose(const struct survey *survey, const struct host_cache *cache, uint64_t needed,
                                 size_t *n)
{
        size_t all = 0;
        list_each (pos, &cache->copies)
                all++;
        cleanup_free struct evict_candidate *candidates = calloc(all + 1, sizeof(*candidates));
        struct host_copy **chosen = calloc(all + 1, sizeof(struct host_copy *));
        bool ok = candidates != NULL && chosen != NULL &&
                  evict_choose(candidates, candidates_of(survey, cache, candidates), needed);
        for (size_t i = 0; ok && i < all; i++)
                if (candidates[i].chosen)
                        chosen[(*n)++] = candidates[i].owner;
        if (ok)
                return chosen;
        free(chosen);
        return NULL;
}

struct host_copy **host_cache_choose(const struct host_cache *cache, uint64_t needed, size_t *n)
{
        struct survey survey;
        struct host_copy **chosen = NULL;
        *n = 0;
        if (survey_make(&survey, cache->resident)) {
                mark(&survey, cache);
                chosen = choose(&survey, cache, needed, n);
        }
        survey_deinit(&survey);
        return chosen;
}
