/* SPDX-License-Identifier: Apache-2.0
 *
 * Automatic prefaulting: idle huge pages of the pool only. A fake tree of kernel files has the free pages of the pool,
 * so other programs do not matter; the pages are real.
 */
#include "tests/unit/host_device_fixture.h"
#include "tests/unit/sysfile_fixture.h"

#include "daemon/device/host/host_private.h"

#define POOL "sys/kernel/mm/hugepages/hugepages-2048kB"
#define MANAGED_FREE (64 * MiB) /* at the least */

static bool granted; /* whether the machine has huge pages */

/* ---- fixture ---- */

static void put_number(const char *name, uint64_t bytes)
{
        put(format_text("%s/%s", POOL, name), format_text("%ju\n", (uintmax_t)(bytes / machine_pages.huge)));
}

static void pool_has(uint64_t unused, uint64_t promised)
{
        put_number("resv_hugepages", promised);
        put_number("free_hugepages", unused);
}

static void end(void)
{
        prefaulter = prefault_free(prefaulter);
}

static void spare_begin(uint64_t budget)
{
        const struct prefault_opts opts = {
                .most = budget, .budget = budget, .pages = PAGES_HUGETLB, .fallback = PAGES_HUGETLB, .modest = true};
        prefaulter = prefault_new(&opts);
        ck_assert_ptr_nonnull(prefaulter);
}

#define BEGIN_MODEST(budget)                                                                                           \
        do {                                                                                                           \
                if (!granted)                                                                                          \
                        SKIP("the pool of hugetlb pages cannot be set");                                               \
                spare_begin(budget);                                                                                   \
        } while (0)

/* Allocates a segment and frees it. Returns its prefaulted bytes that were in memory; -1: it got none. */
static int64_t take(uint64_t size)
{
        enum page_kind pages;
        uint64_t ready;
        struct stat st;
        prefault_hold(prefaulter, size);
        cleanup_close int fd = prefault_take(prefaulter, size, &ready, &pages);
        prefault_release(prefaulter, size);
        if (fd < 0)
                return -1;
        ck_assert_int_eq((int)pages, PAGES_HUGETLB);
        must(fstat(fd, &st));
        ck_assert_uint_eq((uint64_t)st.st_blocks * 512, ready);
        return (int64_t)ready;
}

/* ---- memory use ---- */

BEFORE_ALL()
{
        granted = hugepages_allow(256 * MiB);
}

CORE_FIXTURE(begin_tree, end, .first = machine_settings_lock);

TEST(an_empty_pool_is_not_exceeded)
{
        BEGIN_MODEST(64 * MiB);
        pool_has(0, 0);
        fill(0);
        ck_assert_int_eq(take(2 * MiB), -1);
}

TEST(reserved_pages_are_not_used)
{
        BEGIN_MODEST(64 * MiB);
        pool_has(GiB, GiB);
        fill(0);
        pool_has(GiB, GiB - MANAGED_FREE - 10 * MiB);
        fill(10 * MiB);
}

TEST(the_prefaulted_size_is_bounded_by_the_budget)
{
        BEGIN_MODEST(20 * MiB);
        pool_has(GiB, 0);
        prefault_hold(prefaulter, 12 * MiB);
        fill(8 * MiB);
        prefault_release(prefaulter, 12 * MiB);
        fill(12 * MiB); /* as large as that segment was */
}

TEST(memory_of_other_page_sizes_is_not_prefaulted, .to = 2)
{
        static const enum host_pages others[] = {HOST_PAGES_4K, HOST_PAGES_THP};
        BEGIN(.budget = 64 * MiB, .pages = others[_i], .prefault = PREFAULT_AUTO);
        ck_assert_uint_eq(threads_named(PREFAULT_THREAD), 0);
        prefault_fill(device->prefault, true);
        ck_assert_uint_eq(prefault_bytes(device->prefault), 0);
        device_end();
}

/* ---- later users ---- */

TEST(the_prefaulted_size_is_stable_while_others_use_their_share)
{
        BEGIN_MODEST(GiB);
        pool_has(MANAGED_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        pool_has(10 * MiB, 0);
        fill(40 * MiB);
}

TEST(the_prefaulted_size_shrinks_as_others_use_the_pool)
{
        BEGIN_MODEST(GiB);
        pool_has(MANAGED_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        pool_has(10 * MiB, 4 * MiB);
        fill(24 * MiB);
        pool_has(0, 0);
        fill(0);
        pool_has(MANAGED_FREE + 8 * MiB, 0);
        fill(8 * MiB);
}

TEST(released_memory_is_freed)
{
        BEGIN_MODEST(GiB);
        pool_has(MANAGED_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        pool_has(4 * MiB, 0);
        fill(16 * MiB);
        ck_assert_int_eq(take(40 * MiB), 16 * MiB);
}

/* ---- how large ---- */

TEST(the_first_segment_takes_it_however_small)
{
        BEGIN_MODEST(GiB);
        pool_has(MANAGED_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        ck_assert_int_eq(take(4 * MiB), 40 * MiB);
}

TEST(the_prefaulted_size_is_the_largest_recent_segment)
{
        BEGIN_MODEST(GiB);
        pool_has(GiB, 0);
        ck_assert_int_eq(take(24 * MiB), -1);
        ck_assert_int_eq(take(6 * MiB), -1);
        fill(24 * MiB);
        for (unsigned i = 0; i < PREFAULT_RECENT - 2; i++)
                ck_assert_int_eq(take(6 * MiB), -1); /* left for a larger one */
        fill(24 * MiB);
        ck_assert_int_eq(take(6 * MiB), 24 * MiB);
        fill(6 * MiB);
}

TEST(an_excess_of_prefaulted_memory_is_freed)
{
        BEGIN_MODEST(GiB);
        pool_has(MANAGED_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        prefault_hold(prefaulter, 6 * MiB); /* for instance adopted ones */
        fill(6 * MiB);
}
