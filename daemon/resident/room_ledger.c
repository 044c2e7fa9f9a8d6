/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/room_ledger.h"

#include "daemon/resident/evict.h"
#include "daemon/resident/group.h"

void ledger_make(struct ledger *ledger, const struct resident *resident)
{
        uint64_t now = now_ns();
        *ledger = (struct ledger){0};
        for (size_t i = 0; i < resident->n_devices; i++)
                ledger->unused[i] = device_unused(resident->devices[i]);
        list_each (pos, &resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                if (generation_coming_back(g, now))
                        ledger->coming[g->device->number] += g->charged;
        }
}

const struct device *asker_lost_device(const struct asker *asker)
{
        for (size_t i = 0; i < asker->n_demands; i++)
                if (!device_in_service(asker->demands[i].device))
                        return asker->demands[i].device;
        return NULL;
}

/* What is unused now may serve a smaller request at once. */
void ledger_speak_for(struct ledger *ledger, const struct demand *demand)
{
        unsigned d = demand->device->number;
        uint64_t coming = demand->bytes < ledger->coming[d] ? demand->bytes : ledger->coming[d];
        ledger->coming[d] -= coming;
        ledger->unused[d] -= demand->bytes - coming;
}

static bool ledger_has(const struct ledger *ledger, const struct asker *asker, bool with_coming)
{
        for (size_t i = 0; i < asker->n_demands; i++) {
                unsigned d = asker->demands[i].device->number;
                if (asker->demands[i].bytes > ledger->unused[d] + (with_coming ? ledger->coming[d] : 0))
                        return false;
        }
        return true;
}

/* ---- victims ---- */

/* The generation that serves a name stays until the one that is to replace it is there. */
static bool is_replaced(const struct asker *asker, const struct generation *g)
{
        if (asker->name != NULL && generation_has_name(g, asker->name))
                return true;
        for (size_t i = 0; i < asker->n_parts; i++)
                list_each (pos, &asker->parts[i].generation->names)
                        if (generation_has_name(g, container_of(pos, struct model_name, link)->text))
                                return true;
        return false;
}

/* It, or what would go with it. */
static bool ranks_replaced(const struct asker *asker, struct generation *g)
{
        struct generation *ranks[GROUP_MAX];
        size_t n = g->n_ranks > 1 ? group_ranks(g, g->state, ranks) : 0;
        for (size_t i = 0; i < n; i++)
                if (is_replaced(asker, ranks[i]))
                        return true;
        return n == 0 && is_replaced(asker, g);
}

static struct evict_candidate candidate_of(const struct asker *asker, struct generation *g)
{
        uint64_t last_used = generation_last_used(g);
        return (struct evict_candidate){
                .bytes = g->charged,
                .last_used = last_used,
                .expires = g->keep_alive_ns > 0 ? ns_after(last_used, g->keep_alive_ns) : 0,
                .priority = g->priority,
                .held = generation_holders(g),
                .pinned = generation_pinned(g) || ranks_replaced(asker, g),
                .ready = g->state == GENERATION_READY,
                .owner = g,
        };
}

static size_t candidates_of(const struct asker *asker, const struct device *device, struct evict_candidate *to)
{
        size_t n = 0;
        list_each (pos, &asker->resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (g->device == device && to != NULL)
                        to[n] = candidate_of(asker, g);
                n += g->device == device;
        }
        return n;
}

bool ledger_victims(const struct asker *asker, const struct device *device, uint64_t needed,
                    struct room_outlook *outlook)
{
        size_t n = candidates_of(asker, device, NULL);
        cleanup_free struct evict_candidate *candidates = calloc(n + 1, sizeof(*candidates));
        if (candidates == NULL)
                return false;
        candidates_of(asker, device, candidates);
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

void room_outlook_deinit(struct room_outlook *outlook)
{
        free(outlook->victims);
        *outlook = (struct room_outlook){.outcome = ROOM_FITS};
}

static bool choose_all(const struct asker *asker, const struct ledger *ledger, struct room_outlook *outlook)
{
        for (size_t i = 0; i < asker->n_demands; i++) {
                const struct demand *d = &asker->demands[i];
                uint64_t there = ledger->unused[d->device->number] + ledger->coming[d->device->number];
                if (d->bytes > there && !ledger_victims(asker, d->device, d->bytes - there, outlook))
                        return false;
        }
        return true;
}

void ledger_look(const struct asker *asker, const struct ledger *ledger, struct room_outlook *outlook)
{
        *outlook = (struct room_outlook){.outcome = ROOM_BLOCKED};
        if (asker_lost_device(asker) != NULL)
                return;
        if (ledger_has(ledger, asker, false)) {
                outlook->outcome = ROOM_FITS;
        } else if (ledger_has(ledger, asker, true)) {
                outlook->outcome = ROOM_COMES;
        } else if (asker->evict && choose_all(asker, ledger, outlook)) {
                outlook->outcome = ROOM_EVICTS;
        } else {
                outlook->outcome = ROOM_BLOCKED;
                outlook->n_victims = 0;
        }
}
