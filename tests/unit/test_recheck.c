/* SPDX-License-Identifier: Apache-2.0
 *
 * The second look at what was taken back: who is looked at, and who is not any more.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/resident/resident.h"
#include "daemon/serve/recheck.h"

static struct fake_device fake;
static struct device *devices[1];
static struct resident resident;
static struct work_pool *pool;
static struct recheck recheck;

static void begin(void)
{
        fake_device_init(&fake, "fake", 64 * MiB, false);
        devices[0] = &fake.device;
        resident_init(&resident, devices, 1, 2);
        pool = work_pool_new(core_wake, "worker", 1, 1);
        recheck_init(&recheck, &resident, NULL, pool); /* in place: no ring */
}

static void end(void)
{
        core_until(resident_empty(&resident));
        ck_assert(work_pool_stop(pool, now_ns() + 20 * UINT64_C(1000000000)));
        pool = work_pool_free(pool);
        fake_device_deinit(&fake);
}

static struct generation *taken_back(const char *name)
{
        struct error error = {0};
        struct generation *g = generation_new(&resident, name, "/models/x", &fake.device, 0);
        generation_assign_number(g);
        g->unchecked = true;
        ck_assert_int_eq(generation_charge(g, 2 * MiB, &error), 0);
        ck_assert_int_eq(fake.device.ops->alloc(&fake.device, 2 * MiB, &g->segments[0], &error), 0);
        g->n_segments = 1;
        generation_ready(g);
        generation_unpin(g);
        return g;
}

/* Its manifest and its memory go on another thread meanwhile. */
START_TEST(a_model_that_is_given_back_is_not_looked_at)
{
        struct generation *g = taken_back("m");
        gate_init(&fake.release, false);
        generation_drop_name(g, "m");
        gate_await(&fake.release, 1);
        recheck_tick(&recheck);
        ck_assert(!recheck.busy);
        ck_assert_uint_eq(g->pins, 0);
        gate_open(&fake.release);
}
END_TEST

START_TEST(a_model_that_waits_to_leave_the_store_is_not_looked_at)
{
        struct generation *g = taken_back("m");
        generation_pin(g);
        generation_drop_name(g, "m");
        recheck_tick(&recheck);
        ck_assert(!recheck.busy);
        generation_unpin(g);
}
END_TEST

int main(void)
{
        suite_begin("recheck");
        TCase *tests = core_group("recheck", begin, end);
        tcase_add_test(tests, a_model_that_is_given_back_is_not_looked_at);
        tcase_add_test(tests, a_model_that_waits_to_leave_the_store_is_not_looked_at);
        return suite_run();
}
