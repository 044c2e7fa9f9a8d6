/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/desired/scrub.h"

#include "daemon/base/log/log.h"
#include "daemon/load/content/verify.h"

#include <inttypes.h>

static void scrub_set_state(struct scrub *scrub, enum scrub_state state)
{
#define TO(state) (1u << SCRUB_##state)
        static const unsigned allowed[] = {
                [SCRUB_DUE] = TO(CHECKING) | TO(DONE) | TO(STOPPED),
                [SCRUB_CHECKING] = TO(DUE) | TO(STOPPED),
                [SCRUB_DONE] = TO(STOPPED),
        };
#undef TO
        change_state(scrub->state, state, allowed);
}

/* Puts a failed model in the place of each name. */
static void take_down(struct scrub *scrub, struct generation *g, const struct error *error)
{
        log_error("%s: generation %" PRIu64 " was restored and is damaged: %s", generation_name(g), g->number,
                  error->text);
        while (!list_empty(&g->names)) {
                if (g->settings.pinned && scrub->desired != NULL && g->published == NULL)
                        desired_add(scrub->desired, g, generation_name(g));
                struct generation *failed =
                        generation_new(g->resident, generation_name(g), g->source, g->device, generation_owner(g));
                end_reason_set(&g->end, END_DAMAGED, "%s", error->text);
                generation_drop_name(g, generation_name(g));
                if (failed == NULL)
                        continue;
                failed->caller = g->caller;
                generation_assign_number(failed);
                generation_fail(failed, error);
                generation_put(failed);
        }
}

static void check_run(struct work *work)
{
        struct scrub *scrub = container_of(work, struct scrub, work);
        verify_generation(scrub->checked, scrub->reader, &scrub->stop, &scrub->error);
}

static void check_done(struct work *work)
{
        struct scrub *scrub = container_of(work, struct scrub, work);
        struct generation *g = scrub->checked;
        g->unchecked = false;
        if (scrub->state != SCRUB_STOPPED) {
                scrub_set_state(scrub, SCRUB_DUE);
                if (scrub->error.code != 0)
                        take_down(scrub, g, &scrub->error);
                else
                        log_info("%s: generation %" PRIu64 " was restored and is whole", generation_name(g), g->number);
        }
        generation_put(g);
}

void scrub_init(struct scrub *scrub, struct resident *resident, struct reader *reader, struct work_pool *pool)
{
        *scrub = (struct scrub){.resident = resident, .reader = reader, .pool = pool};
}

void scrub_tick(struct scrub *scrub)
{
        if (scrub->state != SCRUB_DUE)
                return;
        list_each_item (struct generation, g, &scrub->resident->generations, link) {
                /* A generation that drains without a lease may be freed at any time. */
                if (!g->unchecked || (g->state != GENERATION_READY && (!generation_drains(g) || g->n_leases == 0)))
                        continue;
                scrub_set_state(scrub, SCRUB_CHECKING);
                generation_get(g);
                scrub->checked = g;
                scrub->error = (struct error){0};
                work_submit(scrub->pool, WORK_LANE_DEVICE(g->device->number), &scrub->work, check_run, check_done);
                return;
        }
        scrub_set_state(scrub, SCRUB_DONE);
}

void scrub_stop(struct scrub *scrub)
{
        __atomic_store_n(&scrub->stop, true, __ATOMIC_RELAXED);
        scrub_set_state(scrub, SCRUB_STOPPED);
}
