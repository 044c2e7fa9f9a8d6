/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/hostcache/victims.h"

#include "daemon/resident/unload/evict.h"

#include <string.h>

/* The result of one walk over all generations. */
struct survey {
        uint64_t *must_stay; /* numbers of models with several ranks, one of which has to stay */
        struct source_identity *served;
        size_t n_must_stay, n_served;
};

/* ---- the walk ---- */

/* It is being copied, or pinned; draining generations do not count. */
static bool has_to_stay(const struct generation *g)
{
        const struct host_copy *copy = g->copy;
        bool pinned = g->settings.pinned && !list_empty(&g->names);
        return pinned || (copy != NULL && (copy->state != HOST_COPY_COMPLETE || copy->users > 0));
}

static int by_number(const void *a, const void *b)
{
        return ORDER(*(const uint64_t *)a, *(const uint64_t *)b);
}

static int by_identity(const void *a, const void *b)
{
        return memcmp(a, b, sizeof(struct source_identity));
}

static bool survey_make(struct survey *survey, const struct resident *resident)
{
        size_t n = 1; /* calloc(0) may return NULL */
        list_each (pos, &resident->generations)
                n++;
        *survey = (struct survey){.must_stay = calloc(n, sizeof(*survey->must_stay)),
                                  .served = calloc(n, sizeof(*survey->served))};
        if (survey->must_stay == NULL || survey->served == NULL)
                return false;
        list_each_item (const struct generation, g, &resident->generations, link) {
                if (g->n_ranks > 1 && has_to_stay(g))
                        survey->must_stay[survey->n_must_stay++] = g->number;
                if (g->state == GENERATION_READY && g->has_identity)
                        survey->served[survey->n_served++] = g->identity;
        }
        qsort(survey->must_stay, survey->n_must_stay, sizeof(*survey->must_stay), by_number);
        qsort(survey->served, survey->n_served, sizeof(*survey->served), by_identity);
        return true;
}

/* ---- candidates ---- */

static void mark(const struct survey *survey, const struct host_cache *cache)
{
        list_each (pos, &cache->copies)
                container_of(pos, struct host_copy, link)->stays = false;
        list_each_item (const struct generation, g, &cache->resident->generations, link) {
                bool ranks_stay = g->n_ranks > 1 && bsearch(&g->number, survey->must_stay, survey->n_must_stay,
                                                            sizeof(*survey->must_stay), by_number) != NULL;
                if (g->copy != NULL && (ranks_stay || has_to_stay(g)))
                        g->copy->stays = true;
        }
}

static struct evict_candidate candidate_of(const struct survey *survey, struct host_copy *copy)
{
        bool serves = bsearch(&copy->identity, survey->served, survey->n_served, sizeof(*survey->served),
                              by_identity) != NULL;
        return (struct evict_candidate){
                .bytes = copy->bytes,
                .last_used = copy->last_used_ns,
                .priority = serves ? 0 : 1,
                .held = copy->users,
                .pinned = copy->stays,
                .ready = copy->state == HOST_COPY_COMPLETE && copy->holders > 0,
                .owner = copy,
        };
}

/* ---- the choice ---- */

static struct host_copy **choose(const struct survey *survey, const struct host_cache *cache, uint64_t needed,
                                 size_t *n)
{
        size_t max = 1, all = 0;
        list_each (pos, &cache->copies)
                max++;
        cleanup_free struct evict_candidate *candidates = calloc(max, sizeof(*candidates));
        struct host_copy **chosen = calloc(max, sizeof(struct host_copy *));
        bool ok = candidates != NULL && chosen != NULL;
        list_each_item (struct host_copy, copy, &cache->copies, link)
                if (ok)
                        candidates[all++] = candidate_of(survey, copy);
        ok = ok && evict_choose(candidates, all, needed);
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
        free(survey.must_stay);
        free(survey.served);
        return chosen;
}
