/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/desired/scrub.h"

#include "daemon/base/log/log.h"

#include <inttypes.h>
#include <sys/sysinfo.h>

/* Puts a failed model in the place of each name. */
static void take_down(struct scrub *scrub, struct generation *g, const struct error *error)
{
        log_error("%s: generation %" PRIu64 " was restored and is damaged: %s", generation_name(g), g->number,
                  error->text);
        while (!list_empty(&g->names)) {
                const struct model_name *name = container_of(g->names.next, struct model_name, link);
                if (name->settings.pinned && g->published == NULL)
                        desired_add(scrub->desired, g, generation_name(g));
                struct generation *failed =
                        generation_new(g->resident, generation_name(g), g->source, g->device, generation_owner(g));
                end_reason_set(&g->end, END_DAMAGED, "%s", error->text);
                generation_drop_name(g, generation_name(g));
                if (failed == NULL)
                        continue;
                generation_set_caller(failed, g->caller); /* without memory for that it is root's */
                generation_assign_number(failed);
                generation_fail(failed, error);
                generation_put(failed);
        }
}

static void check_run(struct work *work)
{
        struct scrub_check *check = container_of(work, struct scrub_check, work);
        check->more = verify_run(&check->job, &check->error) == DIGEST_MORE;
}

static void check_done(struct work *work);

static void submit(struct scrub_check *check)
{
        work_submit(check->scrub->desired->loads->pool, WORK_LANE_DEVICE(check->checked->device->number), &check->work,
                    check_run, check_done);
}

/* A generation that drains without a lease may be freed at any time. */
static struct generation *next_unchecked(const struct resident *resident)
{
        list_each_item (struct generation, g, &resident->unchecked, in_unchecked)
                if (g->state == GENERATION_READY || (generation_drains(g) && g->n_leases > 0))
                        return g;
        return NULL;
}

static void start_next(struct scrub_check *check)
{
        const struct desired *desired = check->scrub->desired;
        struct generation *g = next_unchecked(desired->loads->resident);
        if (g == NULL || desired->closing)
                return;
        require(check->checked == NULL);
        list_remove(&g->in_unchecked);
        generation_get(g);
        check->checked = g;
        check->error = (struct error){0};
        verify_begin(&check->job, g, desired->loads->reader, &desired->closing);
        submit(check);
}

static void check_done(struct work *work)
{
        struct scrub_check *check = container_of(work, struct scrub_check, work);
        struct scrub *scrub = check->scrub;
        struct generation *g = check->checked;
        if (check->more && !scrub->desired->closing) {
                submit(check);
                return;
        }
        check->checked = NULL;
        if (!scrub->desired->closing && check->error.code != 0)
                take_down(scrub, g, &check->error);
        else if (!scrub->desired->closing)
                log_info("%s: generation %" PRIu64 " was restored and is whole", generation_name(g), g->number);
        generation_put(g);
        if (loads_all_wait(scrub->desired->loads))
                start_next(check);
}

void scrub_init(struct scrub *scrub, struct desired *desired)
{
        int processors = get_nprocs();
        *scrub = (struct scrub){.desired = desired, .at_once = 1};
        if (processors > 2)
                scrub->at_once = processors - 1 < SCRUB_CHECKS ? (unsigned)processors - 1 : SCRUB_CHECKS;
        for (size_t i = 0; i < SCRUB_CHECKS; i++)
                scrub->checks[i].scrub = scrub;
}

static unsigned count_running(const struct scrub *scrub)
{
        unsigned n = 0;
        for (size_t i = 0; i < SCRUB_CHECKS; i++)
                n += scrub->checks[i].checked != NULL ? 1 : 0;
        return n;
}

void scrub_tick(struct scrub *scrub)
{
        unsigned most = loads_all_wait(scrub->desired->loads) ? scrub->at_once : 1;
        unsigned running = list_empty(&scrub->desired->loads->resident->unchecked) ? most : count_running(scrub);
        for (size_t i = 0; i < SCRUB_CHECKS && running < most; i++)
                if (scrub->checks[i].checked == NULL) {
                        start_next(&scrub->checks[i]);
                        running++;
                }
}
