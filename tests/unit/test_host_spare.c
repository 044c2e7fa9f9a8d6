/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device's spare: what is made ready, what becomes of it when a segment is allocated, and what it
 * leaves to others.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "tests/lib/storage.h"

#include <errno.h>
#include <linux/memfd.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define SPARE (8 * MiB)
#define BUDGET (20 * MiB)
#define THREAD "host-spare"

static const enum host_pages kinds[] = {HOST_PAGES_4K, HOST_PAGES_THP, HOST_PAGES_HUGETLB};
static const enum page_kind expected[] = {PAGES_4K, PAGES_THP, PAGES_HUGETLB};

static struct device *device;
static struct segment segment;

/* NULL, or why there is no device of this kind here. */
static const char *device_begin(enum host_pages pages, uint64_t spare)
{
        struct error error = {0};
        const struct host_opts opts = {.budget = BUDGET > spare ? BUDGET : spare, .pages = pages, .spare = spare};
        if (pages == HOST_PAGES_HUGETLB && !hugepages_allow(256 * MiB))
                return "the pool of hugetlb pages cannot be set";
        if (pages == HOST_PAGES_THP)
                shmem_thp_allow();
        if (host_device_new(&device, &opts, core_wake, &error) < 0)
                return "no transparent huge pages for shared memory";
        return NULL;
}

static void device_end(void)
{
        if (device == NULL)
                return;
        if (segment.fd > 0)
                device->ops->release(&segment);
        ck_assert(work_pool_stop(device->thread, now_ns() + UINT64_C(20000000000)));
        device = device_free(device);
}

#define BEGIN(pages, spare)                                                                                            \
        do {                                                                                                           \
                const char *why_not = device_begin(pages, spare);                                                      \
                if (why_not != NULL)                                                                                   \
                        SKIP(why_not);                                                                                 \
        } while (0)

static bool has_ready(void *bytes)
{
        return device_spare(device) == *(const uint64_t *)bytes;
}

static bool has_begun(void *unused)
{
        (void)unused;
        return device_spare(device) > 0;
}

/* Says so again and again, as the daemon does. */
static bool fills_to(void *bytes)
{
        device->ops->spare_fill(device, true);
        return has_ready(bytes);
}

static void fill(uint64_t bytes)
{
        ck_assert_msg(eventually(fills_to, &bytes, 20000), "%ju bytes are ready", (uintmax_t)device_spare(device));
        threads_await_asleep(THREAD, 1);
        ck_assert_uint_eq(device_spare(device), bytes); /* and no more */
        device->ops->spare_fill(device, false);
}

static void alloc(struct segment *to, uint64_t size)
{
        struct error error = {0};
        ck_assert_msg(device->ops->alloc(device, size, to, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(to->size, size);
}

/* Bytes of it that are there. */
static uint64_t there(const struct segment *s)
{
        struct stat st;
        must(fstat(s->fd, &st));
        ck_assert_uint_eq((uint64_t)st.st_size, s->size);
        return (uint64_t)st.st_blocks * 512;
}

static void is_zero(const struct segment *s)
{
        for (uint64_t i = 0; i < s->size; i += 512)
                ck_assert_uint_eq(s->base[i], 0);
        ck_assert_uint_eq(s->base[s->size - 1], 0);
}

/* ---- filling ---- */

START_TEST(there_is_none_unless_it_is_asked_for)
{
        uint64_t none = 0;
        BEGIN(HOST_PAGES_4K, 0);
        ck_assert_uint_eq(threads_named(THREAD), 0);
        device->ops->spare_fill(device, true);
        ck_assert(has_ready(&none));
        alloc(&segment, SPARE);
        ck_assert_uint_eq(there(&segment), 0);
}
END_TEST

START_TEST(nothing_is_made_ready_before_it_may)
{
        BEGIN(HOST_PAGES_4K, SPARE);
        threads_await_asleep(THREAD, 1);
        ck_assert_uint_eq(device_spare(device), 0);
}
END_TEST

START_TEST(it_is_filled_with_whole_huge_pages)
{
        BEGIN(kinds[_i], SPARE + 4096);
        fill(SPARE);
        ck_assert_uint_eq(device->used, 0);
}
END_TEST

/* More than it can have filled in the meantime. */
START_TEST(it_stops_when_it_may_no_more)
{
        BEGIN(HOST_PAGES_4K, 8 * GiB);
        device->ops->spare_fill(device, true);
        ck_assert(eventually(has_begun, NULL, 20000));
        device->ops->spare_fill(device, false);
        threads_await_asleep(THREAD, 1);
        ck_assert_uint_lt(device_spare(device), 4 * GiB);
}
END_TEST

START_TEST(its_thread_gives_way_to_all_others)
{
        BEGIN(HOST_PAGES_4K, SPARE);
        fill(SPARE);
        char *nice = NULL, *command = format_text("cat /proc/%d/task/*/stat", (int)getpid()), line[1024];
        FILE *f = popen(command, "r"); /* NOLINT: a command of our own */
        while (fgets(line, sizeof(line), f) != NULL)
                if (strstr(line, "(" THREAD ")") != NULL)
                        nice = strdup(strrchr(line, ')') + 1);
        pclose(f);
        ck_assert_ptr_nonnull(nice);
        char *field = strtok(nice, " ");
        for (int i = 3; i < 19; i++) /* the state is field 3, nice 19 */
                field = strtok(NULL, " ");
        ck_assert_str_eq(field, "19");
}
END_TEST

START_TEST(with_the_segments_it_stays_in_the_budget)
{
        BEGIN(HOST_PAGES_4K, SPARE);
        alloc(&segment, BUDGET - 4 * MiB);
        fill(4 * MiB);
        device->ops->release(&segment);
        fill(SPARE);
}
END_TEST

START_TEST(adopted_segments_count_too)
{
        struct error error = {0};
        BEGIN(HOST_PAGES_4K, SPARE);
        alloc(&segment, BUDGET - 2 * MiB);
        int fd = must(fcntl(segment.fd, F_DUPFD_CLOEXEC, 0));
        device->ops->release(&segment);
        ck_assert_int_eq(device->ops->adopt_consume_fd(device, fd, BUDGET - 2 * MiB, PAGES_4K, &segment, &error), 0);
        fill(2 * MiB);
}
END_TEST

/* ---- taking ---- */

START_TEST(a_segment_is_made_of_it)
{
        BEGIN(kinds[_i], SPARE);
        fill(SPARE);
        alloc(&segment, SPARE);
        ck_assert_int_eq((int)segment.pages, (int)expected[_i]);
        ck_assert_uint_eq(there(&segment), SPARE);
        ck_assert_uint_eq(device_spare(device), 0);
        is_zero(&segment);
        ck_assert_uint_eq(there(&segment), SPARE);
}
END_TEST

START_TEST(a_larger_segment_gets_the_rest_fresh)
{
        BEGIN(kinds[_i], SPARE);
        fill(SPARE);
        alloc(&segment, 2 * SPARE);
        ck_assert_uint_eq(there(&segment), SPARE);
        is_zero(&segment);
        memset(segment.base, 1, segment.size);
        ck_assert_uint_eq(there(&segment), 2 * SPARE);
}
END_TEST

START_TEST(a_smaller_segment_keeps_what_it_needs)
{
        BEGIN(kinds[_i], SPARE);
        fill(SPARE);
        alloc(&segment, SPARE - 2 * MiB);
        ck_assert_uint_eq(there(&segment), SPARE - 2 * MiB);
        ck_assert_uint_eq(device_spare(device), 0);
        is_zero(&segment);
}
END_TEST

START_TEST(a_much_smaller_one_leaves_it_to_a_larger_one)
{
        struct segment small;
        BEGIN(kinds[_i], SPARE);
        fill(SPARE);
        alloc(&small, 2 * MiB);
        ck_assert_uint_eq(there(&small), 0);
        ck_assert_uint_eq(device_spare(device), SPARE);
        alloc(&segment, SPARE);
        ck_assert_uint_eq(there(&segment), SPARE);
        device->ops->release(&small);
}
END_TEST

START_TEST(where_both_do_not_fit_even_a_small_one_takes_it)
{
        struct segment small;
        BEGIN(HOST_PAGES_4K, SPARE);
        alloc(&segment, BUDGET - SPARE);
        fill(SPARE);
        alloc(&small, 2 * MiB);
        ck_assert_uint_eq(device_spare(device), 0);
        ck_assert_uint_eq(there(&small), 2 * MiB);
        device->ops->release(&small);
}
END_TEST

static uint64_t inode_of(const struct segment *s)
{
        struct stat st;
        must(fstat(s->fd, &st));
        return st.st_ino;
}

START_TEST(no_memory_serves_a_second_model)
{
        BEGIN(kinds[_i], SPARE);
        fill(SPARE);
        alloc(&segment, SPARE);
        uint64_t first = inode_of(&segment);
        memset(segment.base, 0x5a, segment.size);
        int kept = must(fcntl(segment.fd, F_DUPFD_CLOEXEC, 0)); /* as a client might: the number is not free */
        device->ops->release(&segment);
        fill(SPARE);
        alloc(&segment, SPARE);
        ck_assert_uint_ne(inode_of(&segment), first);
        is_zero(&segment);
        close(kept);
}
END_TEST

START_TEST(it_is_sealed_as_a_fresh_one)
{
        BEGIN(kinds[_i], SPARE);
        struct segment fresh;
        alloc(&fresh, SPARE);
        fill(SPARE);
        alloc(&segment, SPARE);
        ck_assert_int_eq(fcntl(segment.fd, F_GET_SEALS), fcntl(fresh.fd, F_GET_SEALS));
        ck_assert_ptr_eq(mmap(NULL, SPARE, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0), MAP_FAILED);
        ck_assert_int_eq(errno, EPERM);
        ck_assert_int_lt(pwrite(segment.fd, "x", 1, 0), 0);
        ck_assert_int_lt(ftruncate(segment.fd, 0), 0);
        device->ops->release(&fresh);
}
END_TEST

START_TEST(it_is_filled_again)
{
        BEGIN(HOST_PAGES_4K, SPARE);
        for (int i = 0; i < 3; i++) {
                fill(SPARE);
                alloc(&segment, SPARE);
                ck_assert_uint_eq(there(&segment), SPARE);
                device->ops->release(&segment);
        }
}
END_TEST

START_TEST(a_segment_may_come_while_it_is_filled)
{
        BEGIN(kinds[_i], SPARE);
        for (int i = 0; i < 20; i++) {
                device->ops->spare_fill(device, true);
                alloc(&segment, SPARE);
                ck_assert_uint_le(there(&segment), SPARE);
                is_zero(&segment);
                ck_assert_uint_le(device_spare(device) + SPARE, BUDGET);
                device->ops->release(&segment);
        }
}
END_TEST

/* ---- failing ---- */

/* What a file may have at most is asked of memfds, too; who has more is sent a signal. */
static void allow_files_of(uint64_t bytes)
{
        signal(SIGXFSZ, SIG_IGN);
        must(setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = bytes, .rlim_max = RLIM_INFINITY}));
}

START_TEST(what_cannot_be_had_harms_nobody)
{
        BEGIN(kinds[_i], SPARE);
        allow_files_of(SPARE - 2 * MiB);
        device->ops->spare_fill(device, true);
        threads_await_asleep(THREAD, 1);
        ck_assert_uint_eq(device_spare(device), 0);
        alloc(&segment, SPARE - 2 * MiB);
        is_zero(&segment);
        allow_files_of(RLIM_INFINITY);
        fill(SPARE);
}
END_TEST

START_TEST(what_it_cannot_become_is_allocated_fresh)
{
        struct error error = {0};
        BEGIN(kinds[_i], SPARE);
        fill(SPARE);
        unsigned fds = process_fds(getpid());
        allow_files_of(SPARE);
        ck_assert_int_eq(device->ops->alloc(device, 2 * SPARE, &segment, &error), STREAMER_ENOMEM);
        ck_assert_uint_eq(device_spare(device), 0);
        ck_assert_uint_eq(process_fds(getpid()), fds - 1);
        alloc(&segment, SPARE);
        ck_assert_uint_eq(there(&segment), 0);
        device->ops->release(&segment);
        allow_files_of(RLIM_INFINITY);
        fill(SPARE); /* what was refused is not counted */
        alloc(&segment, BUDGET - SPARE);
}
END_TEST

/* One that was joined may be listed for a moment more. */
static bool has_threads(void *n)
{
        return process_threads(getpid()) == *(unsigned *)n && threads_named(THREAD) == 0;
}

START_TEST(the_end_leaves_nothing)
{
        BEGIN(kinds[_i], 64 * MiB);
        unsigned fds = process_fds(getpid()), others = process_threads(getpid()) - 2;
        device->ops->spare_fill(device, true); /* and it is in the middle of it */
        ck_assert(work_pool_stop(device->thread, now_ns() + UINT64_C(20000000000)));
        device = device_free(device);
        ck_assert_uint_le(process_fds(getpid()), fds);
        ck_assert(eventually(has_threads, &others, 20000));
}
END_TEST

int main(void)
{
        machine_settings_lock();
        suite_begin("host spare");
        TCase *filling = core_group("filling", NULL, device_end);
        tcase_add_test(filling, there_is_none_unless_it_is_asked_for);
        tcase_add_test(filling, nothing_is_made_ready_before_it_may);
        LOOP(filling, it_is_filled_with_whole_huge_pages, kinds);
        tcase_add_test(filling, it_stops_when_it_may_no_more);
        tcase_add_test(filling, its_thread_gives_way_to_all_others);
        tcase_add_test(filling, with_the_segments_it_stays_in_the_budget);
        tcase_add_test(filling, adopted_segments_count_too);
        TCase *taking = core_group("taking", NULL, device_end);
        LOOP(taking, a_segment_is_made_of_it, kinds);
        LOOP(taking, a_larger_segment_gets_the_rest_fresh, kinds);
        LOOP(taking, a_smaller_segment_keeps_what_it_needs, kinds);
        LOOP(taking, a_much_smaller_one_leaves_it_to_a_larger_one, kinds);
        tcase_add_test(taking, where_both_do_not_fit_even_a_small_one_takes_it);
        LOOP(taking, no_memory_serves_a_second_model, kinds);
        LOOP(taking, it_is_sealed_as_a_fresh_one, kinds);
        tcase_add_test(taking, it_is_filled_again);
        LOOP(taking, a_segment_may_come_while_it_is_filled, kinds);
        TCase *failing = core_group("failing", NULL, device_end);
        LOOP(failing, what_cannot_be_had_harms_nobody, kinds);
        LOOP(failing, what_it_cannot_become_is_allocated_fresh, kinds);
        LOOP(failing, the_end_leaves_nothing, kinds);
        return suite_run();
}
