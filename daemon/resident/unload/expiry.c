/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/model.h"

#include "daemon/base/log/log.h"
#include "daemon/resident/model_set.h"

#include <inttypes.h>
#include <stdio.h>

#define ENDS_PER_CALL 64 /* the others end in a later call */

/* 0: never, or it is in use. */
static uint64_t expires_at(const struct generation *g)
{
        bool expires = g->settings.keep_alive_ns > 0 && generation_is_idle(g);
        return expires ? ns_after(g->last_used_ns, g->settings.keep_alive_ns) : 0;
}

uint64_t generation_expires_in(const struct generation *g, uint64_t now)
{
        uint64_t at = expires_at(g);
        return at == 0 ? 0 : at > now ? at - now : 1;
}

uint64_t resident_expire(struct resident *resident, uint64_t now)
{
        unsigned n = 0;
        uint64_t next = UINT64_MAX;
        list_each_item (struct generation, g, &resident->generations, link) {
                bool drains = g->state == GENERATION_DRAINING;
                uint64_t at = drains ? g->drained_by_ns : expires_at(g);
                if (at == 0 || (drains && g->n_leases == 0))
                        continue;
                if (now < at) {
                        next = at < next ? at : next;
                        continue;
                }
                if (n++ == ENDS_PER_CALL)
                        return now;
                if (drains) {
                        generation_revoke(g);
                        continue;
                }
                char why[80];
                snprintf(why, sizeof(why), "no lease for %" PRIu64 " ms", (now - g->last_used_ns) / 1000000);
                log_info("%s: generation %" PRIu64 " expired: %s", generation_name(g), g->number, why);
                model_set_drop_ranks(g, GENERATION_READY, END_EXPIRED, why);
        }
        return next;
}
