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

const struct device *query_lost_device(const struct admission_query *query)
{
        for (size_t i = 0; i < query->n_demands; i++)
                if (!device_in_service(query->demands[i].device))
                        return query->demands[i].device;
        return NULL;
}

/* Unused bytes may satisfy a smaller request at once. */
void ledger_reserve(struct ledger *ledger, const struct demand *demand)
{
        unsigned d = demand->device->number;
        uint64_t freeing = demand->bytes < ledger->freeing[d] ? demand->bytes : ledger->freeing[d];
        ledger->freeing[d] -= freeing;
        ledger->unused[d] -= demand->bytes - freeing;
}

static bool ledger_has(const struct ledger *ledger, const struct admission_query *query, bool with_coming)
{
        for (size_t i = 0; i < query->n_demands; i++) {
                unsigned d = query->demands[i].device->number;
                if (query->demands[i].bytes > ledger->unused[d] + (with_coming ? ledger->freeing[d] : 0))
                        return false;
        }
        return true;
}

/* ---- victims ---- */

/* The generation that serves a name stays until its replacement is ready. */
static bool is_replaced(const struct admission_query *query, const struct generation *g)
{
        if (query->name != NULL && generation_has_name(g, query->name))
                return true;
        for (size_t i = 0; i < query->n_parts; i++)
                list_each (pos, &query->parts[i].generation->names)
                        if (generation_has_name(g, container_of(pos, struct model_name, link)->text))
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
        uint64_t last_used = generation_last_used(g);
        return (struct evict_candidate){
                .bytes = g->charged,
                .last_used = last_used,
                .expires = g->settings.keep_alive_ns > 0 ? ns_after(last_used, g->settings.keep_alive_ns) : 0,
                .priority = g->settings.priority,
                .held = generation_holders(g),
                .pinned = generation_pinned(g) || ranks_replaced(query, g),
                .ready = g->state == GENERATION_READY,
                .owner = g,
        };
}

static size_t candidates_of(const struct admission_query *query, const struct device *device,
                            struct evict_candidate *to)
{
        size_t n = 0;
        list_each_item (struct generation, g, &query->resident->generations, link) {
                if (g->device == device && to != NULL)
                        to[n] = candidate_of(query, g);
                n += g->device == device;
        }
        return n;
}

bool ledger_victims(const struct admission_query *query, const struct device *device, uint64_t needed,
                    struct admission_outlook *outlook)
{
        size_t n = candidates_of(query, device, NULL);
        cleanup_free struct evict_candidate *candidates = calloc(n + 1, sizeof(*candidates));
        if (candidates == NULL)
                return false;
        candidates_of(query, device, candidates);
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

static bool choose_all(const struct admission_query *query, const struct ledger *ledger,
                       struct admission_outlook *outlook)
{
        for (size_t i = 0; i < query->n_demands; i++) {
                const struct demand *d = &query->demands[i];
                uint64_t there = ledger->unused[d->device->number] + ledger->freeing[d->device->number];
                if (d->bytes > there && !ledger_victims(query, d->device, d->bytes - there, outlook))
                        return false;
        }
        return true;
}

void ledger_assess(const struct admission_query *query, const struct ledger *ledger, struct admission_outlook *outlook)
{
        *outlook = (struct admission_outlook){.outcome = ADMISSION_BLOCKED};
        if (query_lost_device(query) != NULL)
                return;
        if (ledger_has(ledger, query, false)) {
                outlook->outcome = ADMISSION_FITS;
        } else if (ledger_has(ledger, query, true)) {
                outlook->outcome = ADMISSION_PENDING;
        } else if (query->evict && choose_all(query, ledger, outlook)) {
                outlook->outcome = ADMISSION_EVICTS;
        } else {
                outlook->outcome = ADMISSION_BLOCKED;
                outlook->n_victims = 0;
        }
}
