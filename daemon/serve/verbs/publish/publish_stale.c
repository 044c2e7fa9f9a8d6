/* SPDX-License-Identifier: Apache-2.0
 *
 * Published models whose base has changed: they are unloaded, and their leases keep what they have mapped.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"

#include <inttypes.h>
#include <string.h>

void publish_drop_stale(struct generation *g)
{
        char shown[REDACTED_SOURCE];
        redact_source(shown, g->published->base.source);
        log_info("%s: generation %" PRIu64 " is unloaded: its base has changed (%s)", generation_name(g), g->number,
                 shown);
        end_reason_set(&g->end, END_UNLOADED, "its base has changed (%s)", shown);
        generation_drop_all(g);
}

/* Another version of the base was loaded from the same source, later than it was published: numbers ascend, also over
 * restarts, and an older version that is still resident has a lower one. */
static bool is_replaced(const struct resident *resident, const struct generation *published)
{
        const struct published_base *base = &published->published->base;
        list_each_item (const struct generation, g, &resident->generations, link)
                if (g->state == GENERATION_READY && g->has_identity && g->number > published->number &&
                    base->source != NULL && strcmp(g->source, base->source) == 0 &&
                    memcmp(&g->identity, &base->identity, sizeof(base->identity)) != 0)
                        return true;
        return false;
}

void publish_tick(struct server *server)
{
        list_each_item_safe (struct generation, g, &server->resident->generations, link)
                if (g->state == GENERATION_READY && g->published != NULL && is_replaced(server->resident, g))
                        publish_drop_stale(g);
}
