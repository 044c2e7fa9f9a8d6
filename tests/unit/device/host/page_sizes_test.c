/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device with the pages of kernels that are built for larger ones, as arm64's. Multiples of this machine's
 * pages behave as such pages do, but for what the kernel counts.
 */
#include "tests/unit/host_device_fixture.h"

#include "daemon/device/host/host_private.h"

#include <sys/stat.h>

struct sizes {
        uint64_t small, huge;
};
static const struct sizes sizes[] = {{4 * KiB, 2 * MiB}, {16 * KiB, 32 * MiB}, {64 * KiB, 512 * MiB}};

/* False: this machine's pages are larger. */
static bool set_pages(const struct sizes *s)
{
        bool multiple = s->small % machine_pages.small == 0;
        if (multiple)
                machine_pages_set(s->small, s->huge);
        return multiple;
}

#define BEGIN_PAGES(kind)                                                                                              \
        do {                                                                                                           \
                if (!set_pages(&sizes[_i]))                                                                            \
                        SKIP("this machine's pages are larger");                                                       \
                BEGIN(.budget = 4 * GiB, .pages = (kind));                                                             \
        } while (0)

CORE_FIXTURE(NULL, device_end, .first = machine_settings_lock);

TEST(segments_are_multiples_of_the_machines_pages, EACH(sizes))
{
        BEGIN_PAGES(HOST_PAGES_AUTO);
        ck_assert_uint_eq(device->layout.page, sizes[_i].small);
        ck_assert_uint_eq(device->layout.granularity, sizes[_i].huge);
        ck_assert_uint_eq(device->layout.small, sizes[_i].huge / 2);
}

static void shows_what_is_put(uint64_t size)
{
        ck_assert_int_eq(device->ops->alloc(device, size, &segment, &error), 0);
        ck_assert_int_eq(device->ops->put(&segment, 0, "first", 5, &error), 0);
        ck_assert_int_eq(device->ops->put(&segment, size - 4, "last", 4, &error), 0);
        const char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, segment.fd, 0);
        ck_assert_ptr_ne(map, MAP_FAILED);
        ck_assert_mem_eq(map, "first", 5);
        ck_assert_mem_eq(map + size - 4, "last", 4);
        device->ops->release(&segment);
}

TEST(a_segment_of_huge_pages_shows_what_is_put, EACH(sizes))
{
        BEGIN_PAGES(HOST_PAGES_AUTO);
        shows_what_is_put(2 * sizes[_i].huge);
}

TEST(a_segment_of_small_pages_shows_what_is_put, EACH(sizes))
{
        BEGIN_PAGES(HOST_PAGES_AUTO);
        shows_what_is_put(3 * sizes[_i].small);
}

/* As a publisher fills it: all of its memory is made before, in parts by two threads, and no byte beyond. */
static const uint64_t lent_pages[] = {1, 3, 1000};

TEST(lent_memory_of_small_pages_is_made_before_it_is_filled, EACH(sizes))
{
        BEGIN_PAGES(HOST_PAGES_AUTO);
        for (size_t i = 0; i < ARRAY_SIZE(lent_pages); i++) {
                const uint64_t size = lent_pages[i] * sizes[_i].small;
                if (size > device->layout.small)
                        continue;
                ck_assert_int_eq(device->ops->lend(device, size, &segment, &error), 0);
                ck_assert_int_eq((int)segment.pages, (int)PAGES_4K);
                struct stat st;
                must(fstat(segment.fd, &st));
                ck_assert_uint_eq((uint64_t)st.st_size, size);
                ck_assert_uint_eq((uint64_t)st.st_blocks * 512, size);
                char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, segment.writing_fd, 0);
                ck_assert_ptr_ne(map, MAP_FAILED);
                memcpy(map + size - 4, "last", 4);
                must(munmap(map, size));
                ck_assert_int_eq(device->ops->seal(&segment, &error), 0);
                ck_assert_mem_eq(segment.base + size - 4, "last", 4);
                device->ops->release(&segment);
        }
}

/* Memory of the pool can be unmapped in whole huge pages only. */
TEST(releasing_unmaps_all_of_a_segment, EACH(sizes))
{
        BEGIN_PAGES(HOST_PAGES_4K);
        ck_assert_int_eq(device->ops->alloc(device, 2 * sizes[_i].huge, &segment, &error), 0);
        unsigned char *base = segment.base, present;
        ck_assert_uint_eq((uintptr_t)base % sizes[_i].huge, 0);
        device->ops->release(&segment);
        ck_assert_int_eq(mincore(base + 2 * sizes[_i].huge - machine_pages.small, 1, &present), -1);
        ck_assert_int_eq(errno, ENOMEM);
}
