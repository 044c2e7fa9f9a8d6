/* SPDX-License-Identifier: Apache-2.0
 *
 * Prefaulted memory of the host device: what is prepared, its use by segments, and its limits.
 */
#include "tests/unit/host_device_fixture.h"

#define SPARE (8 * MiB)
#define BUDGET (20 * MiB)

/* A device with this much prefaulted memory. */
#define BEGIN_SPARE(kind, spare)                                                                                       \
        do {                                                                                                           \
                BEGIN(.budget = BUDGET > (spare) ? BUDGET : (spare), .pages = (kind), .prefault = (spare));            \
                prefaulter = device->prefault;                                                                         \
        } while (0)

static void alloc(struct segment *to, uint64_t size)
{
        ck_assert_msg(device->ops->alloc(device, size, to, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(to->size, size);
}

/* Its bytes that are in memory. */
static uint64_t bytes_in_memory(const struct segment *s)
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

CORE_FIXTURE(NULL, device_end, .first = machine_settings_lock);

TEST(no_segment_is_prefaulted_by_default)
{
        BEGIN_SPARE(HOST_PAGES_4K, 0);
        ck_assert_uint_eq(threads_named(PREFAULT_THREAD), 0);
        prefault_fill(prefaulter, true);
        ck_assert_uint_eq(prefault_bytes(prefaulter), 0);
        alloc(&segment, SPARE);
        ck_assert_uint_eq(bytes_in_memory(&segment), 0);
}

TEST(nothing_is_filled_before_it_is_permitted)
{
        BEGIN_SPARE(HOST_PAGES_4K, SPARE);
        threads_await_asleep(PREFAULT_THREAD, 1);
        ck_assert_uint_eq(prefault_bytes(prefaulter), 0);
}

TEST(the_prefaulted_segment_is_filled_with_whole_huge_pages, EACH(kinds))
{
        BEGIN_SPARE(kinds[_i], SPARE + 4096);
        fill(SPARE);
        ck_assert_uint_eq(device->used, 0);
}

/* More than it can have filled in the meantime. */
TEST(filling_stops_when_it_is_no_longer_permitted)
{
        BEGIN_SPARE(HOST_PAGES_4K, 8 * GiB);
        prefault_fill(prefaulter, true);
        AWAIT(prefault_bytes(prefaulter) > 0);
        prefault_fill(prefaulter, false);
        threads_await_asleep(PREFAULT_THREAD, 1);
        ck_assert_uint_lt(prefault_bytes(prefaulter), 4 * GiB);
}

TEST(the_filling_thread_has_the_lowest_priority)
{
        BEGIN_SPARE(HOST_PAGES_4K, SPARE);
        fill(SPARE);
        char *nice = NULL, *command = format_text("cat /proc/%d/task/*/stat", (int)getpid()), line[1024];
        FILE *f = popen(command, "r"); /* NOLINT: a command of our own */
        while (fgets(line, sizeof(line), f) != NULL)
                if (strstr(line, "(" PREFAULT_THREAD ")") != NULL)
                        nice = strdup(strrchr(line, ')') + 1);
        pclose(f);
        ck_assert_ptr_nonnull(nice);
        char *field = strtok(nice, " ");
        for (int i = 3; i < 19; i++) /* the state is field 3, nice 19 */
                field = strtok(NULL, " ");
        ck_assert_str_eq(field, "19");
}

TEST(segments_and_prefaulted_memory_stay_in_the_budget)
{
        BEGIN_SPARE(HOST_PAGES_4K, SPARE);
        alloc(&segment, BUDGET - 4 * MiB);
        fill(4 * MiB);
        device->ops->release(&segment);
        fill(SPARE);
}

TEST(adopted_segments_count_too)
{
        BEGIN_SPARE(HOST_PAGES_4K, SPARE);
        alloc(&segment, BUDGET - 2 * MiB);
        int fd = must(fcntl(segment.fd, F_DUPFD_CLOEXEC, 0));
        device->ops->release(&segment);
        ck_assert_int_eq(device->ops->adopt_consume_fd(device, fd, BUDGET - 2 * MiB, PAGES_4K, &segment, &error), 0);
        fill(2 * MiB);
}

/* ---- taking slots ---- */

/* Loop tests count kinds of pages, then sizes. */
TEST(a_segment_takes_prefaulted_memory_up_to_its_size, .to = 9)
{
        static const uint64_t sizes[] = {SPARE, 2 * SPARE, SPARE - 2 * MiB};
        uint64_t size = sizes[_i / 3], filled = size < SPARE ? size : SPARE;
        BEGIN_SPARE(kinds[_i % 3], SPARE);
        fill(SPARE);
        alloc(&segment, size);
        ck_assert_int_eq((int)segment.pages, (int)expected[_i % 3]);
        ck_assert_uint_eq(bytes_in_memory(&segment), filled);
        ck_assert_uint_eq(prefault_bytes(prefaulter), 0);
        is_zero(&segment);
        memset(segment.base, 1, segment.size);
        ck_assert_uint_eq(bytes_in_memory(&segment), size);
}

TEST(a_much_smaller_segment_does_not_take_it, EACH(kinds))
{
        struct segment small;
        BEGIN_SPARE(kinds[_i], SPARE);
        fill(SPARE);
        alloc(&small, 2 * MiB);
        ck_assert_uint_eq(bytes_in_memory(&small), 0);
        ck_assert_uint_eq(prefault_bytes(prefaulter), SPARE);
        alloc(&segment, SPARE);
        ck_assert_uint_eq(bytes_in_memory(&segment), SPARE);
        device->ops->release(&small);
}

TEST(a_small_segment_takes_it_if_both_do_not_fit)
{
        struct segment small;
        BEGIN_SPARE(HOST_PAGES_4K, SPARE);
        alloc(&segment, BUDGET - SPARE);
        fill(SPARE);
        alloc(&small, 2 * MiB);
        ck_assert_uint_eq(prefault_bytes(prefaulter), 0);
        ck_assert_uint_eq(bytes_in_memory(&small), 2 * MiB);
        device->ops->release(&small);
}

static uint64_t inode_of(const struct segment *s)
{
        struct stat st;
        must(fstat(s->fd, &st));
        return st.st_ino;
}

TEST(no_memory_serves_a_second_model, EACH(kinds))
{
        BEGIN_SPARE(kinds[_i], SPARE);
        fill(SPARE);
        alloc(&segment, SPARE);
        uint64_t first = inode_of(&segment);
        memset(segment.base, 0x5a, segment.size);
        must(fcntl(segment.fd, F_DUPFD_CLOEXEC, 0)); /* as a client might: the number is not free */
        device->ops->release(&segment);
        fill(SPARE);
        alloc(&segment, SPARE);
        ck_assert_uint_ne(inode_of(&segment), first);
        is_zero(&segment);
}

TEST(the_prefaulted_segment_is_sealed_as_a_new_one, EACH(kinds))
{
        BEGIN_SPARE(kinds[_i], SPARE);
        struct segment fresh;
        alloc(&fresh, SPARE);
        fill(SPARE);
        alloc(&segment, SPARE);
        ck_assert_int_eq(fcntl(segment.fd, F_GET_SEALS), fcntl(fresh.fd, F_GET_SEALS));
        device->ops->release(&fresh);
}

TEST(a_segment_may_be_requested_while_it_is_filled, EACH(kinds))
{
        BEGIN_SPARE(kinds[_i], SPARE);
        for (int i = 0; i < 20; i++) {
                prefault_fill(prefaulter, true);
                alloc(&segment, SPARE);
                ck_assert_uint_le(bytes_in_memory(&segment), SPARE);
                is_zero(&segment);
                ck_assert_uint_le(prefault_bytes(prefaulter) + SPARE, BUDGET);
                device->ops->release(&segment);
        }
}

/* ---- failing ---- */

/* RLIMIT_FSIZE also applies to memfds; a process that exceeds it gets a signal. */
static void allow_files_of(uint64_t bytes)
{
        signal(SIGXFSZ, SIG_IGN);
        must(setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = bytes, .rlim_max = RLIM_INFINITY}));
}

TEST(failed_prefaulting_has_no_effect, EACH(kinds))
{
        BEGIN_SPARE(kinds[_i], SPARE);
        allow_files_of(SPARE - 2 * MiB);
        prefault_fill(prefaulter, true);
        threads_await_asleep(PREFAULT_THREAD, 1);
        ck_assert_uint_eq(prefault_bytes(prefaulter), 0);
        alloc(&segment, SPARE - 2 * MiB);
        is_zero(&segment);
        allow_files_of(RLIM_INFINITY);
        fill(SPARE);
}

TEST(a_segment_that_does_not_fit_is_newly_allocated, EACH(kinds))
{
        BEGIN_SPARE(kinds[_i], SPARE);
        fill(SPARE);
        unsigned fds = process_fds(getpid());
        allow_files_of(SPARE);
        ck_assert_int_eq(device->ops->alloc(device, 2 * SPARE, &segment, &error), STREAMER_ENOMEM);
        ck_assert_uint_eq(prefault_bytes(prefaulter), 0);
        ck_assert_uint_eq(process_fds(getpid()), fds - 1);
        alloc(&segment, SPARE);
        ck_assert_uint_eq(bytes_in_memory(&segment), 0);
        device->ops->release(&segment);
        allow_files_of(RLIM_INFINITY);
        fill(SPARE); /* a refused allocation is not counted */
        alloc(&segment, BUDGET - SPARE);
}

/* The limit is found at the first page, when the segment is made. */
TEST(a_segment_that_a_limit_of_huge_pages_refuses_is_counted_once)
{
        if (!hugepages_allow(256 * MiB))
                SKIP("the pool of hugetlb pages cannot be set");
        if (!hugepages_limit(0, suite_path("groups-%d", (int)getpid())))
                SKIP("huge pages of a control group cannot be limited here");
        ck_assert_int_eq(NEW(.budget = BUDGET, .pages = HOST_PAGES_AUTO, .prefault = SPARE), 0);
        prefaulter = device->prefault;
        for (int i = 0; i < 3; i++) {
                alloc(&segment, BUDGET - 4 * MiB);
                ck_assert_int_ne((int)segment.pages, (int)PAGES_HUGETLB);
                fill(4 * MiB);
                device->ops->release(&segment);
                fill(SPARE);
        }
        device_end();
        limit_end();
}

TEST(stopping_leaks_nothing, EACH(kinds))
{
        BEGIN_SPARE(kinds[_i], 64 * MiB);
        unsigned fds = process_fds(getpid()), others = process_threads(getpid()) - 2;
        prefault_fill(prefaulter, true); /* while it fills the segment */
        ck_assert(work_pool_stop(device->thread, now_ns() + 20 * SECOND));
        device = device_free(device);
        ck_assert_uint_le(process_fds(getpid()), fds);
        /* A thread that was joined may be listed for a moment more. */
        AWAIT(process_threads(getpid()) == others && threads_named(PREFAULT_THREAD) == 0);
}
