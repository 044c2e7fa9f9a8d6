/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device: memory of each kind of page, sealed so that the descriptor permits only reading; missing memory is
 * an error, not a signal.
 */
#include "tests/unit/host_device_fixture.h"
#include "tests/unit/sysfile_fixture.h"

#include "daemon/device/host/host_private.h"

#include <fcntl.h>
#include <linux/falloc.h>

#define SEGMENT (4 * MiB)
/* A device of 64 MiB, and a segment of it. */
#define BEGIN_SEGMENT(kind)                                                                                            \
        do {                                                                                                           \
                BEGIN(.budget = 64 * MiB, .pages = (kind));                                                            \
                if (device->ops->alloc(device, SEGMENT, &segment, &error) < 0)                                         \
                        SKIP("no hugetlb pages are granted");                                                          \
        } while (0)

/* ---- memory ---- */

CORE_FIXTURE(NULL, device_end, .first = machine_settings_lock);

TEST(a_segment_is_zeroed_memory_of_its_kind, EACH(kinds))
{
        BEGIN_SEGMENT(kinds[_i]);
        ck_assert_int_eq((int)segment.pages, (int)expected[_i]);
        ck_assert_int_eq((int)device->pages, (int)expected[_i]);
        ck_assert_uint_eq(segment.size, SEGMENT);
        struct stat st;
        must(fstat(segment.fd, &st));
        ck_assert_uint_eq((uint64_t)st.st_size, SEGMENT);
        for (size_t i = 0; i < SEGMENT; i += 4096)
                ck_assert_uint_eq(segment.base[i], 0);
}

TEST(written_bytes_are_read_back_and_seen_by_clients, EACH(kinds))
{
        BEGIN_SEGMENT(kinds[_i]);
        ck_assert_str_eq(device->handles, "memfd");
        ck_assert_int_eq(device->ops->put(&segment, SEGMENT - 7, "weights", 7, &error), 0);
        ck_assert_mem_eq(segment.base + SEGMENT - 7, "weights", 7);
        const char *map = mmap(NULL, SEGMENT, PROT_READ, MAP_SHARED, segment.fd, 0);
        ck_assert_ptr_ne(map, MAP_FAILED);
        ck_assert_mem_eq(map + SEGMENT - 7, "weights", 7);
}

/* Whatever pages larger ones have, but those that are configured by name. */
static const enum host_pages any_kind[] = {HOST_PAGES_AUTO, HOST_PAGES_THP, HOST_PAGES_4K};

TEST(a_small_segment_takes_4k_pages, EACH(any_kind))
{
        struct stat st;
        BEGIN(.budget = 64 * MiB, .pages = any_kind[_i], .prefault = 8 * MiB);
        const uint64_t page = machine_pages.small;
        ck_assert_uint_ge(device->layout.small, page);
        ck_assert_int_eq(device->ops->alloc(device, page, &segment, &error), 0);
        ck_assert_int_eq((int)segment.pages, (int)PAGES_4K);
        ck_assert_int_eq(device->ops->prepare(&segment, 0, 10, &error), 0);
        ck_assert_int_eq(device->ops->put(&segment, 0, "weights", 7, &error), 0);
        must(fstat(segment.fd, &st));
        ck_assert_uint_eq((uint64_t)st.st_size, page);
        ck_assert_uint_le((uint64_t)st.st_blocks * 512, page);
        const char *map = mmap(NULL, page, PROT_READ, MAP_SHARED, segment.fd, 0);
        ck_assert_ptr_ne(map, MAP_FAILED);
        ck_assert_mem_eq(map, "weights", 7);
        device->ops->release(&segment);
}

TEST(hugetlb_by_name_has_no_small_segments)
{
        BEGIN(.budget = 64 * MiB, .pages = HOST_PAGES_HUGETLB);
        ck_assert_uint_eq(device->layout.small, 0);
}

TEST(preparing_takes_the_memory_of_4k_pages)
{
        struct stat st;
        const uint64_t page = machine_pages.small;
        if (!shmem_thp_is_off()) /* the kernel makes larger ones, too */
                SKIP("transparent huge pages for shared memory are on");
        BEGIN_SEGMENT(HOST_PAGES_4K);
        must(fstat(segment.fd, &st));
        ck_assert_int_eq(st.st_blocks, 0);
        ck_assert_int_eq(device->ops->prepare(&segment, page - 1, 2, &error), 0);
        must(fstat(segment.fd, &st));
        ck_assert_uint_eq((uint64_t)st.st_blocks * 512, 2 * page);
        ck_assert_int_eq(device->ops->prepare(&segment, SEGMENT - 1, 1, &error), 0);
        must(fstat(segment.fd, &st));
        ck_assert_uint_eq((uint64_t)st.st_blocks * 512, 3 * page);
}

TEST(preparing_changes_no_byte, EACH(kinds))
{
        BEGIN_SEGMENT(kinds[_i]);
        memset(segment.base, 0x5a, SEGMENT);
        ck_assert_int_eq(device->ops->prepare(&segment, 0, SEGMENT, &error), 0);
        for (size_t i = 0; i < SEGMENT; i += 1021)
                ck_assert_uint_eq(segment.base[i], 0x5a);
}

TEST(releasing_frees_the_map_and_descriptor)
{
        BEGIN_SEGMENT(HOST_PAGES_4K);
        unsigned before = process_fds(getpid());
        device->ops->release(&segment);
        ck_assert_uint_eq(process_fds(getpid()), before - 1);
        ck_assert_int_eq(segment.fd, -1);
        ck_assert_ptr_null(segment.base);
}

/* ---- rights of the client's descriptor ---- */

TEST(a_client_cannot_map_it_to_write, EACH(kinds))
{
        BEGIN_SEGMENT(kinds[_i]);
        ck_assert_ptr_eq(mmap(NULL, SEGMENT, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0), MAP_FAILED);
        ck_assert_int_eq(errno, EPERM);
        char *map = mmap(NULL, SEGMENT, PROT_READ, MAP_SHARED, segment.fd, 0);
        ck_assert_ptr_ne(map, MAP_FAILED);
        ck_assert_int_lt(mprotect(map, SEGMENT, PROT_READ | PROT_WRITE), 0);
        ck_assert_int_eq(errno, EACCES);
}

TEST(a_client_cannot_write_resize_or_punch_it, EACH(kinds))
{
        BEGIN_SEGMENT(kinds[_i]);
        int fd = segment.fd;
        segment.base[0] = 'x';
        ck_assert_int_lt(pwrite(fd, "y", 1, 0), 0);
        ck_assert_int_lt(ftruncate(fd, 0), 0);
        ck_assert_int_lt(fallocate(fd, 0, 0, 2 * SEGMENT), 0);
        ck_assert_int_lt(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SEGMENT), 0);
        ck_assert_int_lt(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
        /* Opening it again gives no more rights. */
        fd = must(open(format_text("/proc/self/fd/%d", fd), O_RDWR | O_CLOEXEC));
        ck_assert_int_lt(pwrite(fd, "y", 1, 0), 0);
        ck_assert_ptr_eq(mmap(NULL, SEGMENT, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        ck_assert_int_eq(segment.base[0], 'x');
}

/* ---- missing kinds ---- */

/* Bytes that the system would hand out as hugetlb pages now, at most. */
static uint64_t hugetlb_limit(void)
{
        char *over = file_read("/proc/sys/vm/nr_overcommit_hugepages", NULL);
        char *total = file_read("/proc/sys/vm/nr_hugepages", NULL);
        return (strtoull(over, NULL, 10) + strtoull(total, NULL, 10)) * 2 * MiB;
}

TEST(auto_takes_smaller_pages_without_hugetlb)
{
        ck_assert_int_eq(NEW(.budget = GiB, .pages = HOST_PAGES_AUTO), 0);
        uint64_t size = hugetlb_limit() + 2 * MiB;
        ck_assert_msg(device->ops->alloc(device, size, &segment, &error) == 0, "%s", error.text);
        ck_assert_int_ne((int)segment.pages, (int)PAGES_HUGETLB);
        ck_assert_ptr_nonnull(segment.base);
}

TEST(auto_takes_hugetlb_if_granted)
{
        if (!hugepages_allow(64 * MiB))
                SKIP("the pool of hugetlb pages cannot be set");
        ck_assert_int_eq(NEW(.budget = GiB, .pages = HOST_PAGES_AUTO), 0);
        ck_assert_int_eq((int)device->pages, (int)PAGES_HUGETLB);
        ck_assert_int_eq(device->ops->alloc(device, 2 * MiB, &segment, &error), 0);
        ck_assert_int_eq((int)segment.pages, (int)PAGES_HUGETLB);
}

TEST(hugetlb_by_name_fails_without_reserved_pages)
{
        ck_assert_int_eq(NEW(.budget = GiB, .pages = HOST_PAGES_HUGETLB), 0);
        struct segment refused;
        int r = device->ops->alloc(device, hugetlb_limit() + 2 * MiB, &refused, &error);
        FAILS_WITH(error, r, STREAMER_ENOMEM, "hugetlb");
        ck_assert_ptr_nonnull(strstr(error.text, "vm.nr_hugepages"));
        ck_assert_int_eq(refused.fd, -1);
}

static int refuse(void *base, uint64_t len)
{
        errno = EINVAL;
        return -1;
}

static uint64_t no_time(void)
{
        return 0;
}

/* A kernel before 6.1, or one with shmem_enabled=deny. */
static const struct collapse_calls refusing = {.collapse = refuse, .clock = no_time, .compactions = no_time};

TEST(auto_takes_4k_pages_without_huge_pages)
{
        if (!shmem_thp_is_off())
                SKIP("transparent huge pages for shared memory are on");
        ck_assert_int_eq(NEW(.budget = GiB, .collapse = &refusing), 0);
        ck_assert_int_eq(device->ops->alloc(device, hugetlb_limit() + 2 * MiB, &segment, &error), 0);
        ck_assert_int_eq((int)segment.pages, (int)PAGES_4K);
        ck_assert_uint_eq(segment_small_bytes(&segment), 0);
}

TEST(thp_by_name_fails_without_transparent_huge_pages)
{
        if (!shmem_thp_is_off())
                SKIP("transparent huge pages for shared memory are on");
        FAILS_WITH(error, NEW(.budget = GiB, .pages = HOST_PAGES_THP, .collapse = &refusing), STREAMER_EUNSUPPORTED,
                   "shmem_enabled");
        ck_assert_ptr_null(device);
}

/* A kernel whose huge pages take what the daemon writes, and show other mappings other bytes. */
static int hide(void *base, uint64_t len)
{
        return mmap(base, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == base ? 0 : -1;
}

static const struct collapse_calls hiding = {.collapse = hide, .clock = no_time, .compactions = no_time};

TEST(huge_pages_that_hide_bytes_are_not_used)
{
        ck_assert_int_eq(NEW(.budget = GiB, .collapse = &hiding), 0);
        ck_assert(!device_trusts(device, PAGES_THP));
        ck_assert(device_trusts(device, PAGES_4K));
        ck_assert_int_eq(device->ops->alloc(device, hugetlb_limit() + 2 * MiB, &segment, &error), 0);
        ck_assert_int_eq((int)segment.pages, (int)PAGES_4K);
}

TEST(huge_pages_by_name_that_hide_bytes_are_refused)
{
        FAILS_WITH(error, NEW(.budget = GiB, .pages = HOST_PAGES_THP, .collapse = &hiding), STREAMER_EUNSUPPORTED,
                   "no kind of page can be used");
        ck_assert_ptr_null(device);
}

TEST(a_kind_that_is_distrusted_later_is_not_used_again)
{
        ck_assert_int_eq(NEW(.budget = GiB), 0);
        device->ops->distrust(device, PAGES_THP, "a test");
        device->ops->distrust(device, PAGES_HUGETLB, "a test");
        ck_assert_int_eq((int)device->pages, (int)PAGES_4K);
        ck_assert_int_eq(device->ops->alloc(device, SEGMENT, &segment, &error), 0);
        ck_assert_int_eq((int)segment.pages, (int)PAGES_4K);
}

TEST(a_kind_by_name_that_is_distrusted_is_an_error, EACH(kinds))
{
        struct segment refused;
        BEGIN(.budget = 64 * MiB, .pages = kinds[_i]);
        device->ops->distrust(device, expected[_i], "a test");
        FAILS_WITH(error, device->ops->alloc(device, SEGMENT, &refused, &error), STREAMER_EUNSUPPORTED,
                   "pages are not used: their bytes were not those that were written");
}

/* What segments hold, and what the machine can still give; a segment that is not filled yet holds nothing. */
TEST(the_ceiling_counts_what_segments_hold_and_what_is_available)
{
        BEGIN_SEGMENT(HOST_PAGES_4K);
        begin_tree();
        put("/proc/meminfo", "MemTotal:  100 kB\nMemAvailable:    1024 kB\n");
        ck_assert_uint_eq(device->ops->ceiling(device), MiB);
        ck_assert_int_eq(device->ops->prepare(&segment, 0, 2 * MiB, &error), 0);
        ck_assert_uint_eq(device->ops->ceiling(device), 3 * MiB);
        device->ops->release(&segment);
        ck_assert_uint_eq(device->ops->ceiling(device), MiB);
        sysfile_root = "";
}

/* Once models fill the machine, the daemon's own memory is still there. */
TEST(segments_leave_the_daemons_own_memory)
{
        struct segment refused;
        BEGIN_SEGMENT(HOST_PAGES_4K);
        begin_tree();
        device->reserve = 2 * MiB;
        put("/proc/meminfo", "MemAvailable:    3072 kB\n");
        ck_assert_uint_eq(device->ops->ceiling(device), MiB);
        FAILS_WITH(error, device->ops->alloc(device, 2 * MiB, &refused, &error), STREAMER_ENOMEM,
                   "2.0 MiB needed, 1.0 MiB available");
        put("/proc/meminfo", "MemAvailable:    1024 kB\n");
        ck_assert_uint_eq(device->ops->ceiling(device), 0);
        sysfile_root = "";
}

TEST(the_ceiling_counts_huge_pages_as_they_are_made)
{
        BEGIN_SEGMENT(HOST_PAGES_THP);
        begin_tree();
        put("/proc/meminfo", "MemAvailable:    1024 kB\n");
        ck_assert_int_eq(device->ops->prepare(&segment, 5, 1, &error), 0);
        uint64_t held = device->ops->ceiling(device) - MiB;
        ck_assert(held == machine_pages.huge || (segment_small_bytes(&segment) > 0 && held == 1));
        ck_assert_int_eq(device->ops->prepare(&segment, 6, 1, &error), 0);
        ck_assert_uint_le(device->ops->ceiling(device), MiB + machine_pages.huge);
        sysfile_root = "";
}

TEST(memory_beyond_the_machines_is_an_error)
{
        struct segment refused;
        BEGIN_SEGMENT(HOST_PAGES_4K);
        FAILS_WITH(error, device->ops->alloc(device, 1024 * 1024 * GiB, &refused, &error), STREAMER_ENOMEM,
                   "available to this machine or the daemon's control group");
        ck_assert_int_eq(refused.fd, -1);
        ck_assert_ptr_null(refused.base);
}

/* Of this process, in bytes. */
static uint64_t address_space(void)
{
        char text[64];
        uint64_t pages = 0;
        FILE *f = fopen("/proc/self/statm", "re");
        ck_assert(f != NULL && fgets(text, sizeof(text), f) != NULL && sscanf(text, "%" SCNu64, &pages) == 1);
        fclose(f);
        return pages * (uint64_t)getpagesize();
}

/* The memory is sealed by then, and cannot be sealed again. There is still space for a thread that begins meanwhile. */
TEST(a_seal_that_found_no_address_space_may_be_repeated)
{
        struct rlimit limit;
        BEGIN_SEGMENT(HOST_PAGES_4K);
        device->ops->release(&segment);
        ck_assert_int_eq(device->ops->lend(device, SEGMENT, &segment, &error), 0);
        must(getrlimit(RLIMIT_AS, &limit));
        must(setrlimit(RLIMIT_AS, &(struct rlimit){address_space() + SEGMENT / 2, limit.rlim_max}));
        int r = device->ops->seal(&segment, &error);
        must(setrlimit(RLIMIT_AS, &limit));
        ck_assert_int_eq(r, STREAMER_ENOMEM);
        ck_assert_int_eq(device->ops->seal(&segment, &error), 0);
        ck_assert_ptr_nonnull(segment.base);
}

/* ---- tables ---- */

CORE_FIXTURE(NULL, NULL);

/* 1: one that is made of these bytes. */
TEST(a_table_is_readable_in_another_process, .to = 2)
{
        static const char bytes[5000] = "digests";
        struct table table;
        if (_i == 0)
                ck_assert_int_eq(host_table_new(&table, "table", 5000, &error), 0);
        else
                ck_assert_int_eq(host_table_copy(&table, "table", bytes, 5000, &error), 0);
        ck_assert_uint_eq(table.size, 5000);
        int fd = table.fd;
        if (_i == 0)
                memcpy(table.map, "digests", 7);
        ck_assert_mem_eq(table.map, bytes, 5000);
        char *theirs = mmap(NULL, 5000, PROT_READ, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(theirs, MAP_FAILED);
        ck_assert_mem_eq(theirs, "digests", 7);
        ck_assert_ptr_eq(mmap(NULL, 5000, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        ck_assert_int_lt(pwrite(fd, "x", 1, 0), 0);
        ck_assert_int_lt(ftruncate(fd, 0), 0);
        ck_assert_int_lt(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
        struct stat st;
        must(fstat(fd, &st));
        ck_assert_int_eq(st.st_blocks * 512, 8192); /* no page is allocated later */
}

TEST(a_table_that_is_too_large_is_an_error)
{
        struct table table = {.fd = -1};
        unsigned before = process_fds(getpid());
        FAILS_WITH(error, host_table_new(&table, "table", UINT64_C(1) << 60, &error), STREAMER_ENOMEM, "table of");
        ck_assert_int_eq(table.fd, -1);
        ck_assert_uint_eq(process_fds(getpid()), before);
}
