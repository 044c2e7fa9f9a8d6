/* SPDX-License-Identifier: Apache-2.0
 *
 * A spare that nobody has asked for: of huge pages that were set aside, and in nobody's way. What is left of
 * the pool is told by a tree that stands for the kernel's files, so that programs beside this one do not
 * matter; the pages themselves are real.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/device/host_spare.h"
#include "tests/lib/storage.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define THREAD "host-spare"
#define POOL "sys/kernel/mm/hugepages/hugepages-2048kB"
#define HUGE_PAGE (2 * MiB)
#define KEPT_FREE (64 * MiB) /* at the least */

static struct host_spare *spare;
static char *tree;
static bool granted; /* are there huge pages at all? */

/* ---- stage ---- */

static void put_number(const char *name, uint64_t bytes)
{
        char *path = format_text("%s/%s", POOL, name), *text = format_text("%ju\n", (uintmax_t)(bytes / HUGE_PAGE));
        file_put(tree, path, text);
        free(text);
        free(path);
}

static void pool_has(uint64_t unused, uint64_t promised)
{
        put_number("resv_hugepages", promised);
        put_number("free_hugepages", unused);
}

static void begin(void)
{
        tree = suite_path("tree-%d", (int)getpid());
        must(mkdir(tree, 0755));
}

static void end(void)
{
        spare = host_spare_free(spare);
}

static void spare_begin(uint64_t budget)
{
        const struct host_spare_opts opts = {
                .most = budget, .budget = budget, .kinds = {PAGES_HUGETLB}, .n_kinds = 1, .modest = true, .root = tree};
        spare = host_spare_new(&opts);
        ck_assert_ptr_nonnull(spare);
}

#define BEGIN(budget)                                                                                                  \
        do {                                                                                                           \
                if (!granted)                                                                                          \
                        SKIP("the pool of hugetlb pages cannot be set");                                               \
                spare_begin(budget);                                                                                   \
        } while (0)

static bool fills_to(void *bytes)
{
        host_spare_fill(spare, true);
        return host_spare_bytes(spare) == *(const uint64_t *)bytes;
}

static void fill(uint64_t bytes)
{
        ck_assert_msg(eventually(fills_to, &bytes, 20000), "%ju bytes are ready", (uintmax_t)host_spare_bytes(spare));
        threads_await_asleep(THREAD, 1);
        ck_assert_uint_eq(host_spare_bytes(spare), bytes);
        host_spare_fill(spare, false);
}

/* Bytes that are there of what a segment is given; -1: it is given nothing. The segment goes again. */
static int64_t take(uint64_t size)
{
        enum page_kind pages;
        uint64_t ready;
        struct stat st;
        host_spare_hold(spare, size);
        cleanup_close int fd = host_spare_take(spare, size, &ready, &pages);
        host_spare_release(spare, size);
        if (fd < 0)
                return -1;
        ck_assert_int_eq((int)pages, PAGES_HUGETLB);
        must(fstat(fd, &st));
        ck_assert_uint_eq((uint64_t)st.st_blocks * 512, ready);
        return (int64_t)ready;
}

/* ---- what it takes ---- */

START_TEST(without_a_pool_there_is_none)
{
        BEGIN(64 * MiB);
        fill(0);
        ck_assert_int_eq(take(2 * MiB), -1);
}
END_TEST

START_TEST(an_empty_pool_is_not_gone_beyond)
{
        BEGIN(64 * MiB);
        pool_has(0, 0);
        fill(0);
        ck_assert_int_eq(take(2 * MiB), -1);
}
END_TEST

START_TEST(what_was_promised_to_others_is_not_taken)
{
        BEGIN(64 * MiB);
        pool_has(GiB, GiB);
        fill(0);
        pool_has(GiB, GiB - KEPT_FREE - 10 * MiB);
        fill(10 * MiB);
}
END_TEST

START_TEST(it_leaves_as_much_as_it_takes)
{
        BEGIN(GiB);
        pool_has(KEPT_FREE + 40 * MiB, 0);
        fill(40 * MiB);
}
END_TEST

START_TEST(it_takes_what_the_budget_leaves)
{
        BEGIN(20 * MiB);
        pool_has(GiB, 0);
        host_spare_hold(spare, 12 * MiB);
        fill(8 * MiB);
        host_spare_release(spare, 12 * MiB);
        fill(12 * MiB); /* as large as that segment was */
}
END_TEST

START_TEST(a_pool_that_comes_later_is_found)
{
        BEGIN(8 * MiB);
        fill(0);
        pool_has(GiB, 0);
        fill(8 * MiB);
}
END_TEST

START_TEST(there_is_none_of_other_pages)
{
        static const enum host_pages others[] = {HOST_PAGES_4K, HOST_PAGES_THP};
        struct error error = {0};
        struct device *device;
        const struct host_opts opts = {.budget = 64 * MiB, .pages = others[_i], .spare = HOST_SPARE_AUTO};
        shmem_thp_allow();
        if (host_device_new(&device, &opts, core_wake, &error) < 0)
                SKIP("no transparent huge pages for shared memory");
        ck_assert_uint_eq(threads_named(THREAD), 0);
        device->ops->spare_fill(device, true);
        ck_assert_uint_eq(device_spare(device), 0);
        ck_assert(work_pool_stop(device->thread, now_ns() + UINT64_C(20000000000)));
        device_free(device);
}
END_TEST

/* ---- others come ---- */

START_TEST(it_stays_while_others_take_their_part)
{
        BEGIN(GiB);
        pool_has(KEPT_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        pool_has(10 * MiB, 0);
        fill(40 * MiB);
}
END_TEST

START_TEST(it_gives_way_where_they_take_more)
{
        BEGIN(GiB);
        pool_has(KEPT_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        pool_has(10 * MiB, 4 * MiB);
        fill(24 * MiB);
        pool_has(0, 0);
        fill(0);
        pool_has(KEPT_FREE + 8 * MiB, 0);
        fill(8 * MiB);
}
END_TEST

START_TEST(what_it_gave_back_is_gone)
{
        BEGIN(GiB);
        pool_has(KEPT_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        pool_has(4 * MiB, 0);
        fill(16 * MiB);
        ck_assert_int_eq(take(40 * MiB), 16 * MiB);
}
END_TEST

/* ---- how large ---- */

START_TEST(a_first_segment_takes_it_however_small)
{
        BEGIN(GiB);
        pool_has(KEPT_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        ck_assert_int_eq(take(4 * MiB), 40 * MiB);
}
END_TEST

START_TEST(then_it_is_as_large_as_the_largest_of_the_last_segments)
{
        BEGIN(GiB);
        pool_has(GiB, 0);
        ck_assert_int_eq(take(24 * MiB), -1);
        ck_assert_int_eq(take(6 * MiB), -1);
        fill(24 * MiB);
        for (unsigned i = 0; i < HOST_SPARE_RECENT - 2; i++)
                ck_assert_int_eq(take(6 * MiB), -1); /* it is left to a larger one */
        fill(24 * MiB);
        ck_assert_int_eq(take(6 * MiB), 24 * MiB);
        fill(6 * MiB);
}
END_TEST

START_TEST(what_is_too_large_for_them_is_given_back)
{
        BEGIN(GiB);
        pool_has(KEPT_FREE + 40 * MiB, 0);
        fill(40 * MiB);
        host_spare_hold(spare, 6 * MiB); /* adopted, say */
        fill(6 * MiB);
}
END_TEST

int main(void)
{
        machine_settings_lock();
        suite_begin("host spare of its own accord");
        granted = hugepages_allow(256 * MiB);
        TCase *takes = core_group("what it takes", begin, end);
        tcase_add_test(takes, without_a_pool_there_is_none);
        tcase_add_test(takes, an_empty_pool_is_not_gone_beyond);
        tcase_add_test(takes, what_was_promised_to_others_is_not_taken);
        tcase_add_test(takes, it_leaves_as_much_as_it_takes);
        tcase_add_test(takes, it_takes_what_the_budget_leaves);
        tcase_add_test(takes, a_pool_that_comes_later_is_found);
        tcase_add_loop_test(takes, there_is_none_of_other_pages, 0, 2);
        TCase *others = core_group("others come", begin, end);
        tcase_add_test(others, it_stays_while_others_take_their_part);
        tcase_add_test(others, it_gives_way_where_they_take_more);
        tcase_add_test(others, what_it_gave_back_is_gone);
        TCase *large = core_group("how large", begin, end);
        tcase_add_test(large, a_first_segment_takes_it_however_small);
        tcase_add_test(large, then_it_is_as_large_as_the_largest_of_the_last_segments);
        tcase_add_test(large, what_is_too_large_for_them_is_given_back);
        return suite_run();
}
