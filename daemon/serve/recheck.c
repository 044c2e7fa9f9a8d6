/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/recheck.h"

#include "daemon/base/log.h"

#include <inttypes.h>

/* A failed model in the place of each name. */
static void take_down(struct recheck *recheck, struct generation *g, const struct error *error)
{
        log_error("%s: generation %" PRIu64 " was taken back and is damaged: %s", generation_name(g), g->number,
                  error->text);
        while (!list_empty(&g->names)) {
                if (g->pinned && recheck->lost != NULL)
                        recheck->lost(recheck, g, generation_name(g));
                struct generation *failed =
                        generation_new(g->resident, generation_name(g), g->source, g->device, generation_owner(g));
                generation_drop_name(g, generation_name(g));
                if (failed == NULL)
                        continue;
                failed->loaded_by = g->loaded_by;
                generation_assign_number(failed);
                generation_fail(failed, error);
                generation_unpin(failed);
        }
}

static void checked(struct verify *verify)
{
        struct recheck *recheck = container_of(verify, struct recheck, verify);
        struct generation *g = verify->generation;
        recheck->busy = false;
        g->unchecked = false;
        if (recheck->stopped)
                return;
        if (verify->error.code != 0)
                take_down(recheck, g, &verify->error);
        else
                log_info("%s: generation %" PRIu64 " was taken back and is whole", generation_name(g), g->number);
}

/* The verify gives its pin back after this; the next one is begun on a later turn. */
static void verified(struct verify *verify)
{
        struct recheck *recheck = container_of(verify, struct recheck, verify);
        checked(verify);
        if (!recheck->stopped)
                recheck->due = true;
}

/* What nobody holds any more may be on its way back already. */
static bool is_due(const struct generation *g)
{
        return g->unchecked && (g->state == GENERATION_READY || (g->state == GENERATION_DRAINING && g->n_leases > 0));
}

static void next(struct recheck *recheck)
{
        list_each (pos, &recheck->resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (!is_due(g))
                        continue;
                recheck->busy = true;
                verify_start(&recheck->verify, recheck->pool, recheck->reader, g, verified);
                return;
        }
}

void recheck_init(struct recheck *recheck, struct resident *resident, struct reader *reader, struct work_pool *pool)
{
        *recheck = (struct recheck){.resident = resident, .reader = reader, .pool = pool, .due = true};
}

void recheck_tick(struct recheck *recheck)
{
        if (!recheck->due || recheck->busy || recheck->stopped)
                return;
        recheck->due = false;
        next(recheck);
}

void recheck_stop(struct recheck *recheck)
{
        recheck->stopped = true;
        if (recheck->busy)
                verify_stop(&recheck->verify);
}
