/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/admission/ledger.h"

#include "daemon/resident/unload/evict.h"
#include "daemon/resident/model_set.h"

void ledger_make(struct ledger *ledger, const struct resident *resident)
{
        uint64_t now = now_ns();
        *ledger = (struct ledger){0};
        for (size_t i = 0; i < resident->n_devices; i++)
                ledger->unused[i] = device_unused(resident->devices[i]);
        list_each_item (const struct generation, g, &resident->generations, link)
                if (generation_is_freeing(g, now))
                        ledger->freeing[g->device->number] += g->charged;
}

/* Unused bytes may satisfy a smaller request at once. */
void ledger_reserve(struct ledger *ledger, const struct admission_part *part)
{
        unsigned d = part->device->number;
        uint64_t freeing = part->bytes < ledger->freeing[d] ? part->bytes : ledger->freeing[d];
        uint64_t unused = part->bytes - freeing;
        ledger->freeing[d] -= freeing;
        ledger->unused[d] -= unused < ledger->unused[d] ? unused : ledger->unused[d];
}

/* ---- victims ---- */

/* The generation that serves a name stays until its replacement is ready. */
static bool is_replaced(const struct admission_query *query, const struct generation *g)
{
        if (query->name != NULL)
                return generation_has_name(g, query->name);
        for (size_t i = 0; i < query->n_parts; i++)
                list_each_item (const struct model_name, name, &query->parts[i].generation->names, link)
                        if (generation_has_name(g, name->text))
                                return true;
        return false;
}

/* The generation, or a rank that would be evicted with it. */
static bool ranks_replaced(const struct admission_query *query, struct generation *g)
{
        struct generation *ranks[MODEL_SET_MAX];
        size_t n = g->n_ranks > 1 ? model_set_ranks(g, g->state, ranks) : 0;
        for (size_t i = 0; i < n; i++)
                if (is_replaced(query, ranks[i]))
                        return true;
        return n == 0 && is_replaced(query, g);
}

static struct evict_candidate candidate_of(const struct admission_query *query, struct generation *g)
{
        struct generation_use use = generation_use(g);
        return (struct evict_candidate){
                .bytes = g->charged,
                .last_used = use.last_used_ns,
                .expires = g->settings.keep_alive_ns > 0 ? ns_after(use.last_used_ns, g->settings.keep_alive_ns) : 0,
                .priority = g->settings.priority,
                .held = use.holders,
                .pinned = use.pinned || ranks_replaced(query, g),
                .ready = g->state == GENERATION_READY,
                .owner = g,
        };
}

/* Adds victims on one device that free `needed` bytes to the outlook; false where there are none. */
static bool add_victims(const struct admission_query *query, const struct device *device, uint64_t needed,
                        struct admission_outlook *outlook)
{
        size_t max = 1, n = 0;
        list_each_item (const struct generation, g, &query->resident->generations, link)
                max += g->device == device;
        cleanup_free struct evict_candidate *candidates = calloc(max, sizeof(*candidates));
        if (candidates == NULL)
                return false;
        list_each_item (struct generation, g, &query->resident->generations, link)
                if (g->device == device)
                        candidates[n++] = candidate_of(query, g);
        if (!evict_choose(candidates, n, needed))
                return false;
        struct generation **victims = reallocarray(outlook->victims, outlook->n_victims + n + 1, sizeof(*victims));
        if (victims == NULL)
                return false;
        outlook->victims = victims;
        for (size_t i = 0; i < n; i++)
                if (candidates[i].chosen)
                        victims[outlook->n_victims++] = candidates[i].owner;
        return true;
}

void admission_outlook_deinit(struct admission_outlook *outlook)
{
        free(outlook->victims);
        *outlook = (struct admission_outlook){.outcome = ADMISSION_FITS};
}

void ledger_assess(const struct admission_query *query, const struct ledger *ledger, struct admission_outlook *outlook)
{
        enum admission_outcome outcome = ADMISSION_FITS;
        *outlook = (struct admission_outlook){.outcome = ADMISSION_BLOCKED};
        for (size_t i = 0; i < query->n_parts; i++)
                if (!device_in_service(query->parts[i].device)) {
                        outlook->missing = &query->parts[i];
                        return;
                }
        for (size_t i = 0; i < query->n_parts; i++) {
                const struct admission_part *part = &query->parts[i];
                uint64_t unused = ledger->unused[part->device->number];
                uint64_t available = unused + ledger->freeing[part->device->number];
                if (part->bytes <= unused)
                        continue;
                if (part->bytes <= available) {
                        outcome = outcome == ADMISSION_FITS ? ADMISSION_PENDING : outcome;
                } else if (query->evict && add_victims(query, part->device, part->bytes - available, outlook)) {
                        outcome = ADMISSION_EVICTS;
                } else {
                        outlook->missing = part;
                        outlook->n_victims = 0;
                        return;
                }
        }
        outlook->outcome = outcome;
}
