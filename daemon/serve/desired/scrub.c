/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/desired/scrub.h"

#include "daemon/base/log/log.h"

#include <inttypes.h>

/* Puts a failed model in the place of each name. */
static void take_down(struct scrub *scrub, struct generation *g, const struct error *error)
{
        log_error("%s: generation %" PRIu64 " was restored and is damaged: %s", generation_name(g), g->number,
                  error->text);
        while (!list_empty(&g->names)) {
                if (g->settings.pinned && g->published == NULL)
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
        scrub->more = verify_run(&scrub->job, &scrub->error) == DIGEST_MORE;
}

static void check_done(struct work *work);

static void submit(struct scrub *scrub)
{
        work_submit(scrub->desired->loads->pool, WORK_LANE_DEVICE(scrub->checked->device->number), &scrub->work,
                    check_run, check_done);
}

static void check_done(struct work *work)
{
        struct scrub *scrub = container_of(work, struct scrub, work);
        struct generation *g = scrub->checked;
        if (scrub->more && !scrub->desired->closing) {
                submit(scrub);
                return;
        }
        g->unchecked = false;
        scrub->checked = NULL;
        if (!scrub->desired->closing && scrub->error.code != 0)
                take_down(scrub, g, &scrub->error);
        else if (!scrub->desired->closing)
                log_info("%s: generation %" PRIu64 " was restored and is whole", generation_name(g), g->number);
        generation_put(g);
}

void scrub_init(struct scrub *scrub, struct desired *desired)
{
        *scrub = (struct scrub){.desired = desired};
}

void scrub_tick(struct scrub *scrub)
{
        if (scrub->checked != NULL)
                return;
        list_each_item (struct generation, g, &scrub->desired->loads->resident->generations, link) {
                /* A generation that drains without a lease may be freed at any time. */
                if (!g->unchecked || (g->state != GENERATION_READY && (!generation_drains(g) || g->n_leases == 0)))
                        continue;
                generation_get(g);
                scrub->checked = g;
                scrub->error = (struct error){0};
                verify_begin(&scrub->job, g, scrub->desired->loads->reader, &scrub->desired->closing);
                submit(scrub);
                return;
        }
}
