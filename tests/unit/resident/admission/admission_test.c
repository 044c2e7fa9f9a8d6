/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission to a device: what fits, what waits for memory that is being released, what is evicted, and the errors of
 * refused loads.
 */
#include "tests/unit/admission_fixture.h"

#include "daemon/base/metric/metric.h"
#include "daemon/resident/model.h"

/* ---- requests that fit ---- */

CORE_FIXTURE(begin_admission, end_admission);

TEST(two_requests_are_not_granted_the_same_bytes)
{
        struct ask *a = asked(load_of("a", 0, 6 * MiB)), *b = asked(load_of("b", 0, 6 * MiB));
        granted(a);
        refused(b, STREAMER_ENOMEM, "6.0 MiB needed, 4.0 MiB of 10.0 MiB free (first: a 6.0 MiB (loading))");
}

/* ---- memory being freed ---- */

TEST(released_memory_is_reserved_for_the_first)
{
        gate_init(&fakes[0].release, false);
        resident_model("old", 0, 8 * MiB);
        generation_drop_name(resident_ready(&resident, "old"), "old");
        struct ask *first = asked(load_of("first", 0, 9 * MiB)), *late = asked(load_of("late", 0, 2 * MiB));
        refused(late, STREAMER_ENOMEM, "2.0 MiB needed, 1.0 MiB of");
        struct ask *small = asked(load_of("small", 0, MiB));
        granted(small);
        waits(first);
        gate_open(&fakes[0].release);
        granted(first);
}

TEST(memory_of_a_draining_model_is_not_awaited)
{
        struct generation *old = resident_model("old", 0, 8 * MiB);
        struct lease *lease = lease_of(old);
        generation_drop_name(old, "old");
        refused(asked(load_of("m", 0, 8 * MiB)), STREAMER_ENOMEM,
                "old 8.0 MiB (draining, 1 lease by 1 process: pid 1073741824 uid 0)");
        lease_end(&leases, lease);
        granted(asked(load_of("n", 0, 8 * MiB)));
}

TEST(memory_in_use_by_work_is_awaited)
{
        struct generation *old = resident_model("old", 0, 8 * MiB);
        generation_get(old);
        generation_drop_name(old, "old");
        struct ask *ask = asked(load_of("m", 0, 8 * MiB));
        waits(ask);
        generation_put(old);
        granted(ask);
}

/* ---- eviction ---- */

TEST(an_attach_makes_a_model_recently_used)
{
        struct generation *a = resident_model("a", 0, 4 * MiB);
        struct generation *b = resident_model("b", 0, 4 * MiB);
        ck_assert_uint_le(a->last_used_ns, b->last_used_ns);
        lease_end(&leases, lease_of(a));
        granted(asked(load_of("m", 0, 5 * MiB)));
        ck_assert(is_ready("a"));
        ck_assert(!is_ready("b"));
}

TEST(none_is_evicted_if_it_would_not_suffice)
{
        resident_model("a", 0, 4 * MiB);
        set_pin(resident_model("pinned", 0, 4 * MiB), true);
        refused(asked(load_of("m", 0, 8 * MiB)), STREAMER_ENOMEM, "pinned 4.0 MiB (ready, pinned), a 4.0 MiB (ready)");
        ck_assert(is_ready("a"));
}

TEST(memory_freed_for_one_load_is_not_used_by_another)
{
        gate_init(&fakes[0].release, false);
        resident_model("old", 0, BUDGET);
        struct ask *first = asked(load_of("first", 0, 8 * MiB));
        waits(first);
        core_settle(); /* it is reaped */
        gate_await(&fakes[0].release, 1);
        struct ask *second = asked(load_of("second", 0, 4 * MiB));
        refused(second, STREAMER_ENOMEM, "4.0 MiB needed");
        gate_open(&fakes[0].release);
        granted(first);
}

/* ---- shared devices ---- */

TEST(memory_used_by_other_processes_is_not_granted)
{
        fake_device_share(&fakes[0], 4 * MiB);
        refused(asked(load_of("m", 0, 5 * MiB)), STREAMER_ENOMEM,
                "5.0 MiB needed, 4.0 MiB of 4.0 MiB free, others use the device too");
        granted(asked(load_of("n", 0, 4 * MiB)));
}

TEST(memory_freed_by_other_processes_is_found_by_the_timer)
{
        fake_device_share(&fakes[0], 4 * MiB);
        struct ask *ask = patient(load_of("m", 0, 5 * MiB), 0);
        waits(ask);
        ck_assert(admission_tick(&admission));
        waits(ask);
        __atomic_store_n(&fakes[0].ceiling, 5 * MiB, __ATOMIC_SEQ_CST);
        admission_tick(&admission);
        granted(ask);
}

TEST(a_load_that_the_budget_blocks_needs_no_timer)
{
        fake_device_share(&fakes[0], BUDGET);
        struct generation *a = resident_model("a", 0, BUDGET);
        set_pin(a, true);
        struct ask *ask = patient(load_of("m", 0, 5 * MiB), 0);
        waits(ask);
        ck_assert(!admission_tick(&admission));
        generation_drop_name(a, "a");
        granted(ask);
        ck_assert(!admission_tick(&admission));
}

TEST(a_load_that_waits_for_memory_that_is_freed_needs_the_timer)
{
        struct generation *old = resident_model("old", 0, 8 * MiB);
        generation_get(old);
        generation_drop_name(old, "old");
        struct ask *ask = asked(load_of("m", 0, 8 * MiB));
        waits(ask);
        ck_assert(admission_tick(&admission));
        generation_put(old);
        granted(ask);
}

/* ---- queries ---- */

TEST(an_estimate_lists_victims_and_changes_nothing)
{
        struct generation *a = resident_model("a", 0, 4 * MiB);
        resident_model("b", 0, 4 * MiB);
        struct admission_outlook outlook;
        admission_estimate(&admission, devices[0], "m", 2 * MiB, true, &outlook);
        ck_assert_int_eq((int)outlook.outcome, (int)ADMISSION_FITS);
        admission_estimate(&admission, devices[0], "m", 5 * MiB, true, &outlook);
        ck_assert_int_eq((int)outlook.outcome, (int)ADMISSION_EVICTS);
        ck_assert_uint_eq(outlook.n_victims, 1);
        ck_assert_ptr_eq(outlook.victims[0], a);
        admission_estimate(&admission, devices[0], "a", 7 * MiB, true, &outlook);
        ck_assert_int_eq((int)outlook.outcome, (int)ADMISSION_BLOCKED);
        admission_estimate(&admission, devices[0], "m", 5 * MiB, false, &outlook);
        ck_assert_int_eq((int)outlook.outcome, (int)ADMISSION_BLOCKED);
        ck_assert_uint_eq(outlook.n_victims, 0);
        quiet();
        ck_assert(is_ready("a") && is_ready("b"));
}

/* ---- a lost device ---- */

static void lose(unsigned device)
{
        __atomic_store_n(&fakes[device].device.lost, true, __ATOMIC_SEQ_CST);
}

TEST(a_lost_device_has_no_capacity)
{
        resident_model("a", 0, 8 * MiB);
        resident_model("b", 1, 8 * MiB);
        lose(0);
        refused(asked(load_of("m", 0, 8 * MiB)), STREAMER_EFAILED, "first: out of service");
        refused(asked(load_of("small", 0, MiB)), STREAMER_EFAILED, "first: out of service");
        ck_assert(is_ready("a"));
        granted(asked(load_of("n", 1, 8 * MiB)));
        ck_assert(!is_ready("b"));
}

TEST(a_rank_on_a_lost_device_evicts_none_elsewhere)
{
        resident_model("b", 1, 8 * MiB);
        lose(0);
        struct ask *ask = load_of("m", 0, MiB);
        ask->parts[1] = part_of("m", 1, 8 * MiB);
        ask->request.n_parts = 2;
        refused(asked(ask), STREAMER_EFAILED, "first: out of service");
        ck_assert(is_ready("b"));
}

TEST(a_request_waiting_for_a_lost_device_is_refused)
{
        struct lease *lease = lease_of(resident_model("a", 0, 8 * MiB));
        struct ask *ask = patient(load_of("m", 0, 8 * MiB), 0);
        waits(ask);
        lose(0);
        admission_tick(&admission);
        refused(ask, STREAMER_EFAILED, "first: out of service");
        lease_end(&leases, lease);
}

/* ---- ranks ---- */

/* The two ranks of a model, each on a device, last used at 1000. */
static void rank_model(struct generation *ranks[2], const char *name, uint64_t bytes)
{
        for (unsigned i = 0; i < 2; i++) {
                ranks[i] = resident_model(name, (int)i, bytes);
                generation_set_number(ranks[i], ranks[0]->number);
                ranks[i]->rank = i;
                ranks[i]->n_ranks = 2;
                set_last_used(ranks[i], 1000);
        }
}

TEST(a_used_rank_renews_the_keep_alive_of_the_others)
{
        struct generation *ranks[2];
        rank_model(ranks, "m", MiB);
        for (unsigned i = 0; i < 2; i++)
                set_keep_alive(ranks[i], 2000);
        lease_end(&leases, lease_of(ranks[1]));
        uint64_t used = ranks[1]->last_used_ns;
        ck_assert_uint_eq(generation_expires_in(ranks[0], used + 1000), 1000);
        resident_expire(&resident, used + 1999);
        ck_assert(is_ready("m"));
        resident_expire(&resident, used + 2000);
        ck_assert(!is_ready("m"));
        core_until(fakes[0].device.used == 0 && fakes[1].device.used == 0);
}

/* An earlier version may have stored this value, because it had no limit. */
TEST(a_keep_alive_beyond_the_clock_never_expires)
{
        struct generation *g = resident_model("m", 0, MiB);
        set_keep_alive(g, UINT64_MAX - 1);
        uint64_t used = g->last_used_ns;
        ck_assert_uint_gt(used, 1);
        ck_assert_uint_eq(generation_expires_in(g, used), UINT64_MAX - used);
        resident_expire(&resident, used + 1);
        ck_assert(is_ready("m"));
}

TEST(ranks_are_as_recently_used_as_the_last_of_them)
{
        struct generation *ranks[2];
        rank_model(ranks, "ranks", 4 * MiB);
        set_last_used(resident_model("alone", 0, 4 * MiB), 3000);
        lease_end(&leases, lease_of(ranks[1]));
        granted(asked(load_of("m", 0, 4 * MiB)));
        ck_assert(is_ready("ranks"));
        ck_assert(!is_ready("alone"));
}

/* ---- many models ---- */

/* Of so many bytes, without a segment. */
static struct generation *small_model(const char *name, uint64_t bytes)
{
        return ready(charged(loading(name), bytes));
}

/* The loop has other tasks. */
TEST(few_models_expire_in_one_turn)
{
        enum { MANY = 200 };
        unsigned left = 0;
        for (unsigned i = 0; i < MANY; i++)
                set_keep_alive(small_model(format_text("model %u", i), 0), 1);
        resident_expire(&resident, now_ns() + 2);
        list_each_item (const struct generation, g, &resident.generations, link)
                left += g->state == GENERATION_READY;
        ck_assert_uint_eq(left, MANY - 64);
        while (left > 0) {
                resident_expire(&resident, now_ns() + 2);
                left -= left < 64 ? left : 64;
        }
        ck_assert(!is_ready("model 0") && !is_ready("model 199"));
}

TEST(many_small_models_are_evicted_for_a_large_one)
{
        for (unsigned i = 0; i < 300; i++)
                small_model(format_text("small %u", i), 32 * KiB);
        granted(asked(load_of("large", 0, BUDGET)));
        ck_assert(!is_ready("small 0") && !is_ready("small 299"));
}

TEST(evictions_are_counted_and_expiries_are_not)
{
        struct generation *g = resident_model("brief", 0, 4 * MiB);
        set_keep_alive(g, 1);
        resident_expire(&resident, now_ns() + 2);
        ck_assert(!is_ready("brief"));
        core_until(fakes[0].device.used == 0);
        ck_assert_str_eq(strrchr(metric_text(METRIC_EVICTIONS), ' '), " 0\n");
        resident_model("old", 0, BUDGET);
        granted(asked(load_of("m", 0, 4 * MiB)));
        ck_assert_str_eq(strrchr(metric_text(METRIC_EVICTIONS), ' '), " 1\n");
}
