/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/unload/expiry.h"

#include "daemon/base/log/log.h"
#include "daemon/resident/model_set.h"

#include <inttypes.h>

#define TURN 64 /* handled in one turn of the loop; the others in the next */

static bool may_expire(const struct generation *g)
{
        return g->state == GENERATION_READY && g->settings.keep_alive_ns > 0 && !generation_pinned(g) &&
               generation_holders(g) == 0;
}

uint64_t generation_expires_in(const struct generation *g, uint64_t now)
{
        uint64_t at = ns_after(generation_last_used(g), g->settings.keep_alive_ns);
        if (!may_expire(g))
                return 0;
        return at > now ? at - now : 1;
}

static bool has_expired(const struct generation *g, uint64_t now)
{
        return may_expire(g) && now - generation_last_used(g) >= g->settings.keep_alive_ns;
}

static bool is_overdue(const struct generation *g, uint64_t now)
{
        return g->state == GENERATION_DRAINING && g->drained_by_ns != 0 && now >= g->drained_by_ns && g->n_leases > 0 &&
               !g->quarantined;
}

/* One at a time: unloading one may free others of the list. */
static struct generation *next_due(const struct resident *resident, uint64_t now)
{
        list_each_item (struct generation, g, &resident->generations, link)
                if (has_expired(g, now) || is_overdue(g, now))
                        return g;
        return NULL;
}

void resident_expire(struct resident *resident, uint64_t now)
{
        struct generation *g;
        for (int i = 0; i < TURN && (g = next_due(resident, now)) != NULL; i++) {
                if (g->state == GENERATION_DRAINING) {
                        generation_revoke(g);
                        continue;
                }
                log_info("%s: generation %" PRIu64 " expired: no lease for %" PRIu64 " ms", generation_name(g),
                         g->number, (now - generation_last_used(g)) / 1000000);
                model_set_drop_ranks(g, GENERATION_READY);
        }
}
