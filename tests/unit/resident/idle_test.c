/* SPDX-License-Identifier: Apache-2.0
 *
 * What a generation counts as where memory is needed: evictable, or free soon.
 */
#include "tests/unit/resident_fixture.h"

CORE_FIXTURE(begin, end);

static uint64_t freeing_at(uint64_t now)
{
        return idle_freeing(&resident, devices[0], now);
}

static uint64_t freeing(void)
{
        return freeing_at(now_ns());
}

TEST(what_is_dropped_is_free_soon_until_it_is_freed)
{
        struct generation *a = ready(loading_with("a", 2 * MiB)), *b = loading_with("b", 4 * MiB);
        ck_assert_uint_eq(freeing(), 0);
        ck_assert_uint_eq(resident.idle[0].bytes, 2 * MiB);
        generation_drop_all(a);
        ck_assert_uint_eq(freeing(), 2 * MiB);
        ck_assert_uint_eq(resident.idle[0].bytes, 0);
        failed(b, "lost");
        ck_assert_uint_eq(freeing(), 6 * MiB);
        core_until(devices[0]->used == 0);
        ck_assert_uint_eq(freeing(), 0);
}

TEST(what_is_leased_is_not_free_soon)
{
        struct generation *g = ready(loading_with("m", 2 * MiB));
        struct lease *lease = lease_new(&leases, process_of(1), g, NULL);
        generation_drop_all(g);
        ck_assert_uint_eq(freeing(), 0);
        lease_end(&leases, lease);
        ck_assert_uint_eq(freeing(), 2 * MiB);
}

/* The one that was dropped last is counted for longest. */
TEST(work_that_hangs_is_not_waited_for)
{
        struct generation *first = ready(loading_with("a", 2 * MiB)), *second = ready(loading_with("b", 4 * MiB));
        generation_get(first);
        generation_get(second);
        generation_drop_all(first);
        uint64_t dropped_ns = first->dropped_ns;
        generation_drop_all(second);
        ck_assert_uint_eq(freeing(), 6 * MiB);
        ck_assert_uint_eq(freeing_at(second->dropped_ns + 30 * SECOND - 1),
                          second->dropped_ns - dropped_ns > 1 ? 4 * MiB : 6 * MiB);
        ck_assert_uint_eq(freeing_at(second->dropped_ns + 30 * SECOND), 0);
        generation_put(first);
        ck_assert_uint_eq(freeing_at(second->dropped_ns + 30 * SECOND), 2 * MiB);
        generation_put(second);
        ck_assert_uint_eq(freeing_at(second->dropped_ns + 30 * SECOND), 6 * MiB);
}
