/* SPDX-License-Identifier: Apache-2.0
 *
 * The staging ring: as many slots as the limit permits, handed out last in, first out.
 */
#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"
#include "daemon/io/staging.h"
#include "tests/lib/suite.h"

#define BLOCK (2 * MiB)
#define SLOT (BLOCK + 2 * STAGING_EDGE)

static struct staging ring;

static void begin(uint64_t limit)
{
        struct error error = {0};
        ck_assert_msg(staging_init(&ring, limit, BLOCK, &error) == 0, "%s", error.text);
}

TEST(the_ring_has_as_many_slots_as_fit_the_limit)
{
        begin(5 * BLOCK + BLOCK / 2);
        ck_assert_uint_eq(ring.n_slots, 5);
        for (unsigned i = 0; i < 5; i++)
                ck_assert_ptr_nonnull(staging_get(&ring, NUMA_ANYWHERE));
        ck_assert_ptr_null(staging_get(&ring, NUMA_ANYWHERE));
}

TEST(the_slot_used_last_is_used_next)
{
        begin(3 * BLOCK);
        unsigned char *a = staging_get(&ring, NUMA_ANYWHERE), *b = staging_get(&ring, NUMA_ANYWHERE),
                      *c = staging_get(&ring, NUMA_ANYWHERE);
        staging_put(&ring, b);
        staging_put(&ring, a);
        staging_put(&ring, c);
        ck_assert_ptr_eq(staging_get(&ring, NUMA_ANYWHERE), c);
        ck_assert_ptr_eq(staging_get(&ring, NUMA_ANYWHERE), a);
        ck_assert_ptr_eq(staging_get(&ring, NUMA_ANYWHERE), b);
}

/* Pages of the pool of reserved ones, which the machine may have, are kept. */
TEST(memory_that_is_given_back_reads_as_zero)
{
        begin(3 * BLOCK);
        ck_assert(!staging_in_memory(&ring));
        for (int i = 0; i < 2 && ring.pages != PAGES_HUGETLB; i++) {
                unsigned char *slot = staging_get(&ring, NUMA_ANYWHERE);
                ck_assert(staging_touch(&ring, slot));
                ck_assert(!staging_touch(&ring, slot));
                ck_assert(staging_in_memory(&ring));
                ck_assert(!staging_is_free(&ring));
                ck_assert_uint_eq(slot[SLOT - 1], 0);
                memset(slot, 1, SLOT);
                staging_put(&ring, slot);
                ck_assert(staging_is_free(&ring));
                staging_give_back(&ring);
                ck_assert(!staging_in_memory(&ring));
        }
}

TEST(slots_are_page_aligned_and_disjoint)
{
        unsigned char *slots[4];
        begin(4 * BLOCK);
        for (size_t i = 0; i < 4; i++) {
                slots[i] = staging_get(&ring, NUMA_ANYWHERE);
                ck_assert_uint_eq((uintptr_t)slots[i] % machine_pages.small, 0);
                ck_assert(slots[i] >= ring.base && slots[i] + SLOT <= ring.base + ring.bytes);
                memset(slots[i], (int)i + 1, SLOT);
        }
        for (size_t i = 0; i < 4; i++)
                for (size_t at = 0; at < SLOT; at += 4095)
                        ck_assert_uint_eq(slots[i][at], i + 1);
}

TEST(a_slot_of_the_preferred_node_is_preferred_to_others)
{
        unsigned char *slots[6];
        begin(6 * BLOCK);
        ring.numa.nodes = 0x9; /* as if the machine had nodes 0 and 3 */
        for (size_t i = 0; i < 3; i++) {
                slots[i] = staging_get(&ring, 3);
                ck_assert_ptr_eq(slots[i], ring.base + (3 + i) * ring.stride);
        }
        ck_assert_ptr_eq(staging_get(&ring, 3), ring.base);
        ck_assert_ptr_eq(staging_get(&ring, NUMA_ANYWHERE), ring.base + ring.stride);
        staging_put(&ring, slots[2]);
        staging_put(&ring, slots[0]);
        ck_assert_ptr_eq(staging_get(&ring, 0), ring.base + 2 * ring.stride);
        ck_assert_ptr_eq(staging_get(&ring, 3), slots[0]); /* used last */
        ck_assert_ptr_eq(staging_get(&ring, 3), slots[2]);
        ck_assert_ptr_null(staging_get(&ring, 3));
}

TEST(an_impossible_numa_placement_is_ignored)
{
        begin(4 * BLOCK);
        ck_assert(staging_place(&ring, &(struct numa_choice){0}));
        ck_assert(!staging_place(&ring, &(struct numa_choice){UINT64_C(1) << 63 | 1})); /* a missing node */
        ck_assert_uint_eq(ring.numa.nodes, 0);
        unsigned char *last = staging_get(&ring, NUMA_ANYWHERE);
        staging_put(&ring, last);
        ck_assert_ptr_eq(staging_get(&ring, 63), last);
}

TEST(touched_slots_are_resident)
{
        begin(2 * BLOCK);
        size_t pages = (ring.n_slots * ring.stride) / machine_pages.small;
        for (unsigned char *slot; (slot = staging_get(&ring, NUMA_ANYWHERE)) != NULL;)
                staging_touch(&ring, slot);
        unsigned char *in_core = must_alloc(pages);
        must(mincore(ring.base, pages * machine_pages.small, in_core));
        for (size_t i = 0; i < pages; i++)
                ck_assert_uint_eq(in_core[i] & 1, 1);
}

static const struct {
        uint64_t small, huge, bytes;
} rings[] = {
        {4 * KiB, 2 * MiB, 10 * MiB},
        {16 * KiB, 32 * MiB, 4 * (BLOCK + 16 * KiB)},
        {64 * KiB, 512 * MiB, 4 * (BLOCK + 64 * KiB)},
        {64 * KiB, 8 * MiB, 4 * (BLOCK + 64 * KiB)},
};

TEST(a_ring_has_huge_pages_unless_these_would_waste_memory, EACH(rings))
{
        machine_pages_set(rings[_i].small, rings[_i].huge);
        begin(4 * BLOCK);
        ck_assert_uint_eq(ring.bytes, rings[_i].bytes);
        if (ring.bytes % rings[_i].huge != 0)
                ck_assert_int_eq((int)ring.pages, (int)PAGES_4K);
}

TEST(a_ring_that_does_not_fit_is_an_error)
{
        struct error error = {0};
        FAILS_WITH(error, staging_init(&ring, UINT64_C(1) << 50, GiB, &error), STREAMER_ENOMEM, "staging ring of");
        ck_assert_ptr_null(ring.base);
}
