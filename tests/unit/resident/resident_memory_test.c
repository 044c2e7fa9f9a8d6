/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of resident models: charging the budget, releasing it when the memory is freed and not when the model is
 * dropped, and notifications.
 */
#include "tests/unit/resident_fixture.h"

/* ---- budget ---- */

CORE_FIXTURE(begin, end);

TEST(a_load_too_large_for_an_empty_device_reports_that_it_is_empty)
{
        struct error error = {0};
        struct generation *g = loading("m");
        ck_assert_int_eq(generation_charge(g, BUDGET + 1, &error), STREAMER_ENOMEM);
        ck_assert_ptr_nonnull(strstr(error.text, "nothing resident"));
        failed(g, error.text);
}

TEST(more_holders_than_fit_the_text_are_cut)
{
        struct error error = {0};
        struct generation *many[30], *g;
        char name[120];
        for (size_t i = 0; i < ARRAY_SIZE(many); i++) {
                memset(name, 'n', sizeof(name));
                snprintf(name + 100, 20, "%zu", i);
                many[i] = loading_with(name, 2 * MiB);
                ready(many[i]);
        }
        g = loading("m");
        ck_assert_int_eq(generation_charge(g, 10 * MiB, &error), STREAMER_ENOMEM);
        ck_assert_ptr_nonnull(strstr(error.text, "10.0 MiB needed"));
        failed(g, error.text);
}

/* ---- drop without release ---- */

TEST(a_reference_keeps_the_memory_allocated)
{
        struct generation *g = ready(loading_with("m", 2 * MiB));
        generation_get(g);
        generation_drop_name(g, "m");
        core_settle();
        ck_assert(!g->releasing);
        generation_put(g);
        core_until(resident_empty(&resident));
}

TEST(a_failed_load_keeps_its_memory_for_early_attaches)
{
        struct generation *g = loading_with("m", 2 * MiB);
        g->n_leases = 1;
        failed(g, "changed");
        core_settle();
        ck_assert_uint_eq(fake.freed, 0);
        g->n_leases = 0;
        generation_reap(g);
        core_until(fake.device.used == 0);
        ck_assert_ptr_eq(resident_on(&resident, "m", GENERATION_FAILED, NULL), g); /* listed, without memory */
        ck_assert_uint_eq(g->n_segments, 0);
        ck_assert_int_eq(g->manifest.fd, -1);
}

TEST(memory_is_freed_exactly_once_on_the_devices_thread)
{
        struct generation *g = loading_with("m", 2 * MiB);
        gate_init(&fake.release, false);
        ready(g);
        generation_drop_name(g, "m");
        core_settle(); /* it is reaped */
        gate_await(&fake.release, 1);
        generation_reap(g);
        generation_reap(g);
        core_settle();
        ck_assert_uint_eq(fake.device.used, 2 * MiB); /* not granted to others before it is freed */
        gate_open(&fake.release);
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(gate_arrived(&fake.release), 1);
        ck_assert_uint_eq(fake.device.used, 0);
}

/* ---- waiting requests ---- */

static unsigned changes_since(unsigned *last)
{
        unsigned n = changes - *last;
        *last = changes;
        return n;
}

TEST(each_event_is_sent_once)
{
        unsigned last = changes;
        struct error error = {0};
        struct generation *g = loading("m");
        ck_assert_uint_eq(changes_since(&last), 0);
        ck_assert_int_eq(generation_charge(g, MiB, &error), 0);
        ck_assert_uint_eq(changes_since(&last), 1);
        ready(g);
        ck_assert_uint_eq(changes_since(&last), 1);
        resident_any(&resident, "m");
        generation_get(g);
        generation_put(g);
        ck_assert_uint_eq(changes_since(&last), 0);
        generation_drop_name(g, "m");
        ck_assert_uint_eq(changes_since(&last), 1);
        core_until(resident_empty(&resident)); /* memory is back */
        ck_assert_uint_eq(changes_since(&last), 1);
        failed(loading("m"), "x");
        ck_assert_uint_eq(changes_since(&last), 1);
}

TEST(a_replacement_is_reported_for_both)
{
        struct generation *old = ready(loading("m")), *new = loading("m");
        generation_get(old);
        unsigned last = changes;
        ready(new);
        ck_assert_uint_eq(changes_since(&last), 2);
        generation_put(old);
}

/* ---- users ---- */

TEST(a_failed_load_is_not_charged_while_listed)
{
        struct quotas users;
        quotas_init(&users);
        struct generation *g = loading("m");
        ck_assert_int_eq(quota_charge_restored(&users, 1000, &g->quota_charge, QUOTA_BYTES, 8 * MiB), 0);
        failed(g, "does not fit");
        ck_assert_ptr_eq(resident_on(&resident, "m", GENERATION_FAILED, NULL), g);
        ck_assert_ptr_null(quotas_find(&users, 1000));
}

TEST(memory_of_a_load_that_failed_is_charged_until_it_is_free)
{
        struct quotas users;
        struct error error;
        quotas_init(&users);
        struct generation *g = loading_with("m", 8 * MiB);
        ck_assert_int_eq(quota_charge_restored(&users, 1000, &g->quota_charge, QUOTA_BYTES, 8 * MiB), 0);
        error_set(&error, STREAMER_EFAILED, "late");
        generation_fail(g, &error);
        ck_assert_uint_eq(quotas_find(&users, 1000)->held[QUOTA_BYTES], 8 * MiB);
        generation_put(g);
        core_until(quotas_find(&users, 1000) == NULL);
}
