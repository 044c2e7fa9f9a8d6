/* SPDX-License-Identifier: Apache-2.0
 *
 * Look-ups: which generation a name, a number or a set of files leads to, and what has become of models.
 * Changes nothing.
 */
#include "daemon/resident/model.h"

#include <string.h>

const char *generation_state_name(enum generation_state state)
{
        static const char *const names[] = {
                [GENERATION_READY] = "ready",       [GENERATION_LOADING] = "loading",
                [GENERATION_CACHED] = "cached",     [GENERATION_FAILED] = "failed",
                [GENERATION_DRAINING] = "draining", [GENERATION_REVOKED] = "draining",
                [GENERATION_UNLOADED] = "unloaded",
        };
        return names[state];
}

const char *generation_listed_state(const struct generation *generation)
{
        bool queued = generation->state == GENERATION_LOADING && generation->queued;
        return queued ? "queued" : generation_state_name(generation->state);
}

const char *end_name(enum end end)
{
        static const char *const names[] = {
                [END_UNLOADED] = "unloaded", [END_REPLACED] = "replaced", [END_EXPIRED] = "expired",
                [END_EVICTED] = "evicted",   [END_FAILED] = "failed",     [END_DAMAGED] = "damaged",
        };
        return names[end];
}

/* ---- devices ---- */

struct device *resident_device(struct resident *resident, const char *name, struct error *error)
{
        char devices[200] = ""; /* "host, cuda:0", as many as fit */
        const char *wanted = name != NULL && strcmp(name, "cpu") == 0 ? "host" : name; /* as frameworks call it */
        if (name == NULL && resident->n_devices == 1)
                return resident->devices[0];
        for (size_t i = 0; i < resident->n_devices; i++) {
                struct device *device = resident->devices[i];
                if (name != NULL && (strcmp(device->name, wanted) == 0 || strcmp(device->uuid, name) == 0))
                        return device;
                format_append(devices, sizeof(devices), "%s%s", i > 0 ? ", " : "", device->name);
        }
        if (name == NULL)
                error_set(error, STREAMER_EINVAL, "device: the daemon has %zu devices, name one: %s",
                          resident->n_devices, devices);
        else
                error_set(error, STREAMER_EINVAL, "device: %s: no such device; the daemon has %s", name, devices);
        return NULL;
}

/* ---- generations ---- */

struct model_name *generation_find_name(const struct generation *generation, const char *name)
{
        if (list_empty(&generation->names))
                return NULL;
        struct model_name *oldest = container_of(generation->names.next, struct model_name, link);
        if (strcmp(oldest->text, name) == 0) /* most have no other */
                return oldest;
        list_each_item (struct model_name, n, resident_bucket(generation->resident, name), by_name)
                if (n->generation == generation && strcmp(n->text, name) == 0)
                        return n;
        return NULL;
}

bool generation_has_name(const struct generation *generation, const char *name)
{
        return generation_find_name(generation, name) != NULL;
}

static const struct model_name *oldest_name(const struct generation *generation)
{
        if (list_empty(&generation->names))
                return generation->last_name;
        return container_of(generation->names.next, struct model_name, link);
}

const char *generation_name(const struct generation *generation)
{
        return oldest_name(generation)->text;
}

uint64_t generation_small_page_bytes(const struct generation *generation)
{
        uint64_t sum = 0;
        bool allocated = generation->state == GENERATION_READY || generation_drains(generation);
        for (unsigned i = 0; allocated && !generation->releasing && i < generation->n_segments; i++)
                sum += segment_small_bytes(&generation->segments[i]);
        return sum;
}

struct list *resident_bucket(struct resident *resident, const char *name)
{
        return bucket(&resident->by_name, hash_text(name));
}

struct generation *resident_on(struct resident *resident, const char *name, enum generation_state state,
                               const struct device *device)
{
        const struct list *all = resident_bucket(resident, name);
        struct generation *found = NULL;
        list_each_item (const struct model_name, n, all, by_name) {
                struct generation *g = n->generation;
                if (g->state == state && (device == NULL || g->device == device) && strcmp(n->text, name) == 0 &&
                    (found == NULL || g->sequence > found->sequence))
                        found = g;
        }
        return found;
}

struct generation *resident_named(struct resident *resident, const char *name)
{
        struct generation *found = NULL;
        for (enum generation_state state = GENERATION_READY; found == NULL && state <= GENERATION_FAILED; state++)
                found = resident_on(resident, name, state, NULL);
        return found;
}

struct generation *resident_ready(struct resident *resident, const char *name)
{
        return resident_on(resident, name, GENERATION_READY, NULL);
}

struct generation *resident_any(struct resident *resident, const char *name)
{
        struct generation *found = resident_named(resident, name);
        if (found != NULL)
                return found;
        resident_each_named(n, resident, name) if (generation_drains(n->generation)) found = n->generation;
        return found;
}

/* ---- owners ---- */

bool resident_removal_owner(struct resident *resident, const char *name, uid_t *owner)
{
        const struct generation *g = resident_named(resident, name);
        if (g == NULL)
                return false;
        *owner = generation_find_name(g, name)->owner;
        return true;
}

bool resident_name_owner(struct resident *resident, const char *name, uid_t *owner)
{
        const struct generation *g = resident_named(resident, name);
        return g != NULL && g->state != GENERATION_FAILED && resident_removal_owner(resident, name, owner);
}

uid_t generation_owner(const struct generation *generation)
{
        return oldest_name(generation)->owner;
}

/* ---- the same files ---- */

/* Ready or loading, from exactly these files, as one of those that are equal but for the sample. One that is loading
 * has no sample yet: it reads the files now. */
static bool provides(const struct generation *g, const struct source_identity *identity)
{
        bool same_sample = memcmp(g->identity.sample, identity->sample, DIGEST_SIZE) == 0;
        require(g->has_identity);
        return g->state == GENERATION_LOADING || (g->state == GENERATION_READY && same_sample);
}

bool resident_resembles(const struct resident *resident, const struct source_identity *identity)
{
        resident_each_identical(g, resident, identity) if (g->state == GENERATION_READY ||
                                                           g->state == GENERATION_CACHED) return true;
        return false;
}

struct generation *resident_same(struct resident *resident, const struct source_identity *identity,
                                 const struct device *device, const struct generation *except, uint64_t number)
{
        resident_each_identical(g, resident, identity) if (g != except && g->device == device &&
                                                           (number == 0 || g->number == number) &&
                                                           provides(g, identity)) return g;
        return NULL;
}

uint64_t resident_shared_number(struct resident *resident, const struct source_identity *identity, const char *name)
{
        resident_each_identical(g, resident, identity) if (g->number != 0 && provides(g, identity) &&
                                                           generation_has_name(g, name)) return g->number;
        return 0;
}

/* ---- models that are not resident ---- */

const struct ended *ended_find(const struct ended_ring *ring, const char *name, const struct ended *last)
{
        uint64_t oldest = ring->n > ENDED_MAX ? ring->n - ENDED_MAX : 0;
        bool passed = last == NULL;
        for (uint64_t i = ring->n; i-- > oldest;) {
                const struct ended *e = &ring->entries[i % ENDED_MAX];
                if (passed && strcmp(e->name, name) == 0)
                        return e;
                passed = passed || e == last;
        }
        return NULL;
}

int resident_no_model(const struct resident *resident, const char *name, struct error *error)
{
        const struct ended *ended = ended_find(&resident->ended, name, NULL);
        if (ended != NULL)
                return error_set(error, STREAMER_ENOENT, "%s: no such model (%s%s%s)", name,
                                 end_name(ended->reason.end), ended->reason.text != NULL ? ": " : "",
                                 ended->reason.text ?: "");
        return error_set(error, STREAMER_ENOENT, "%s: no such model", name);
}

/* ---- leases and references ---- */

bool generation_matches_name(const struct generation *generation, const char *name)
{
        if (generation->n_ranks < 2 || list_empty(&generation->names))
                return generation_has_name(generation, name);
        generation_each_rank(g, generation) if (generation_has_name(g, name)) return true;
        return false;
}

struct generation *resident_next_matching(struct resident *resident, const char *name, const struct generation *last)
{
        struct generation *next = NULL;
        resident_each_named(n, resident, name) generation_each_rank(g, n->generation)
        {
                bool follows = (last == NULL || g->sequence > last->sequence) &&
                               (next == NULL || g->sequence < next->sequence);
                if (follows && generation_matches_name(g, name))
                        next = g;
        }
        return next;
}

bool generation_is_held(const struct generation *generation)
{
        if (generation->n_ranks < 2) /* it is called for each model in turn */
                return generation->n_leases + generation->refs > 0;
        generation_each_rank(g, generation) if (!list_empty(&g->names) && g->n_leases + g->refs > 0) return true;
        return false;
}

bool generation_is_idle(const struct generation *generation)
{
        return generation->state == GENERATION_READY && !generation->settings.pinned && !generation_is_held(generation);
}

uint64_t generation_arrived(const struct generation *g)
{
        const struct arrival_header *log = g->arrival.map;
        if (g->state == GENERATION_READY || generation_drains(g))
                return g->n_tensors;
        return log == NULL ? 0 : __atomic_load_n(&log->count, __ATOMIC_ACQUIRE);
}
