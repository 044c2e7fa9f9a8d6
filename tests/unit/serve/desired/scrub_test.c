/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashing of restored models: which are hashed, and which no longer.
 */
#include "tests/unit/resident_fixture.h"

#include "daemon/resident/model.h"
#include "daemon/serve/desired/scrub.h"

static struct work_pool *pool;
static struct loads loads = {.resident = &resident};
static struct desired desired;
static struct scrub scrub;

static void begin_scrub(void)
{
        begin();
        pool = work_pool_new(core_wake, "worker", 1, 1);
        loads.pool = pool;
        desired_init(&desired, &loads, NULL);
        list_init(&loads.all);
        scrub_init(&scrub, &desired); /* in place: no ring */
}

static void end_scrub(void)
{
        ck_assert(work_pool_stop(pool, now_ns() + 20 * UINT64_C(1000000000)));
        pool = work_pool_free(pool);
        end();
}

CORE_FIXTURE(begin_scrub, end_scrub);

/* Another thread may free its manifest and memory at any time. */
TEST(a_model_that_drains_without_a_lease_is_not_read)
{
        struct generation *g = loading_with("m", 2 * MiB);
        list_append(&resident.unchecked, &g->in_unchecked); /* restored */
        ready(g);
        generation_get(g);
        generation_drop_name(g, "m");
        scrub_tick(&scrub);
        ck_assert_ptr_null(scrub.checks[0].checked);
        ck_assert(!list_empty(&g->in_unchecked));
        generation_put(g);
}
