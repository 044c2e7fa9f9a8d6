/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/model.h"

#include "daemon/base/log/log.h"
#include "daemon/resident/model_set.h"

#include <inttypes.h>
#include <stdio.h>

#define ENDS_PER_CALL 64 /* the others end in a later call */

uint64_t generation_expires_in(const struct generation *g, uint64_t now)
{
        uint64_t at = g->state == GENERATION_READY ? idle_deadline(g) : 0;
        return at == 0 ? 0 : at > now ? at - now : 1;
}

uint64_t resident_expire(struct resident *resident, uint64_t now)
{
        struct generation *g;
        for (unsigned n = 0; n < ENDS_PER_CALL && (g = idle_take_due(resident, now)) != NULL; n++) {
                if (g->state == GENERATION_DRAINING) {
                        generation_revoke(g);
                        continue;
                }
                char why[80];
                snprintf(why, sizeof(why), "no lease for %" PRIu64 " ms", (now - g->last_used_ns) / 1000000);
                log_info("%s: generation %" PRIu64 " expired: %s", generation_name(g), g->number, why);
                model_set_drop_ranks(g, GENERATION_READY, END_EXPIRED, why);
        }
        return idle_next_due(resident);
}
