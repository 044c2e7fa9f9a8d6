/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashing of restored models: which are hashed, and which no longer.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/resident/model.h"
#include "daemon/serve/desired/scrub.h"

static struct fake_device fake;
static struct device *devices[1];
static struct resident resident;
static struct work_pool *pool;
static struct loads loads = {.resident = &resident};
static struct desired desired;
static struct scrub scrub;

static void begin(void)
{
        fake_device_init(&fake, "fake", 64 * MiB, false);
        devices[0] = &fake.device;
        resident_init(&resident, core_wake, devices, 1, 2);
        pool = work_pool_new(core_wake, "worker", 1, 1);
        desired_init(&desired, &loads, pool, NULL);
        scrub_init(&scrub, &desired, NULL); /* in place: no ring */
}

static void end(void)
{
        core_until(resident_empty(&resident));
        ck_assert(work_pool_stop(pool, now_ns() + 20 * UINT64_C(1000000000)));
        pool = work_pool_free(pool);
        fake_device_deinit(&fake);
}

static struct generation *restored(const char *name)
{
        struct error error = {0};
        struct generation *g = generation_new(&resident, name, "/models/x", &fake.device, 0);
        generation_assign_number(g);
        g->unchecked = true;
        ck_assert_int_eq(generation_charge(g, 2 * MiB, &error), 0);
        ck_assert_int_eq(fake.device.ops->alloc(&fake.device, 2 * MiB, &g->segments[0], &error), 0);
        g->n_segments = 1;
        generation_ready(g);
        generation_put(g);
        return g;
}

CORE_FIXTURE(begin, end);

/* Another thread may free its manifest and memory at any time. */
TEST(a_model_that_drains_without_a_lease_is_not_read)
{
        struct generation *g = restored("m");
        generation_get(g);
        generation_drop_name(g, "m");
        scrub_tick(&scrub);
        ck_assert_ptr_null(scrub.checked);
        generation_put(g);
}
