/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/model_set.h"

#include <string.h>

static bool drains(const struct generation *g)
{
        return list_empty(&g->names);
}

bool model_set_same(const struct generation *a, const struct generation *b)
{
        return a->number == b->number && drains(a) == drains(b);
}

int model_set_compare(const struct generation *a, const struct generation *b)
{
        int r = ORDER(a->number, b->number);
        if (r == 0)
                r = ORDER(drains(a), drains(b));
        if (r == 0)
                r = ORDER(a->rank, b->rank);
        return r != 0 ? r : ORDER(a->device->number, b->device->number);
}

static int compare_members(const void *a, const void *b)
{
        return model_set_compare(*(struct generation *const *)a, *(struct generation *const *)b);
}

void model_set_find(struct model_set *set, struct resident *resident, const char *name, const struct generation *of)
{
        set->name = name;
        set->n = 0;
        resident_each_named(n, resident, name) /* of one that has other names its last one is not among these */
                if (set->n < MODEL_SET_MAX && model_set_same(n->generation, of)) set->members[set->n++] = n->generation;
        qsort(set->members, set->n, sizeof(set->members[0]), compare_members);
}

void model_set_drop_ranks(struct generation *generation, enum generation_state state, enum end end, const char *why)
{
        generation_each_rank(g, generation) if (g->state == state)
        {
                end_reason_set(&g->end, end, "%s", why);
                generation_drop_all(g);
        }
}

struct generation *model_set_on(const struct model_set *set, const struct device *device)
{
        for (size_t i = 0; i < set->n; i++)
                if (device == NULL || set->members[i]->device == device)
                        return set->members[i];
        return NULL;
}

const struct generation *model_set_leading(const struct model_set *set)
{
        const struct generation *leading = set->members[0];
        for (size_t i = 1; i < set->n; i++)
                if (set->members[i]->state < leading->state && !generation_drains(set->members[i]))
                        leading = set->members[i];
        return leading;
}

/* The name is pinned on the member's device. */
static bool is_pinned_on(const struct model_set *set, const struct generation *g)
{
        const struct model_name *name = generation_find_name(g, set->name);
        return name != NULL && g->state != GENERATION_FAILED && name->settings.pinned;
}

bool model_set_member_pinned(const struct model_set *set, const struct generation *g)
{
        for (size_t i = 0; i < set->n; i++)
                if ((set->members[i] == g || generation_is_rank_of(set->members[i], g)) &&
                    is_pinned_on(set, set->members[i]))
                        return true;
        return false;
}

bool model_set_pinned(const struct model_set *set)
{
        for (size_t i = 0; i < set->n; i++)
                if (is_pinned_on(set, set->members[i]))
                        return true;
        return false;
}

struct model_size model_set_size(const struct model_set *set)
{
        struct model_size size = {0};
        for (size_t i = 0; i < set->n; i++) {
                const struct generation *g = set->members[i];
                bool adds = g->n_ranks > 0;
                if (adds || g->data_bytes > size.bytes)
                        size.bytes = g->data_bytes + (adds ? size.bytes : 0);
                if (adds || g->n_tensors > size.tensors)
                        size.tensors = g->n_tensors + (adds ? size.tensors : 0);
        }
        return size;
}

const unsigned char *model_set_digest(const struct model_set *set)
{
        const unsigned char *digest = NULL;
        for (size_t i = 0; i < set->n; i++) {
                const struct generation *g = set->members[i];
                if (g->state != GENERATION_READY && !generation_drains(g) && g->state != GENERATION_CACHED)
                        continue;
                if (digest != NULL && memcmp(digest, g->digest, DIGEST_SIZE) != 0)
                        return NULL;
                digest = g->digest;
        }
        return digest;
}
