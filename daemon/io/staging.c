/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/staging.h"

#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

#define WASTE_MOST (2 * MiB)

/* Of whole huge pages, unless these would take much more: then of small ones. */
static uint64_t ring_size(uint64_t used)
{
        uint64_t bytes = round_up(used, machine_pages.huge), waste = bytes - used;
        return waste < WASTE_MOST || waste <= used / 8 ? bytes : round_up(used, machine_pages.small);
}

/* If the control group limits huge pages of the pool, the first touch of one may raise a signal, and models use the
 * available ones better. */
static void *map_ring(uint64_t bytes, enum page_kind *pages)
{
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS, prot = PROT_READ | PROT_WRITE;
        const int huge = __builtin_ctzll(machine_pages.huge) << MAP_HUGE_SHIFT;
        bool limited, whole = bytes % machine_pages.huge == 0;
        machine_huge_pages_left(0, &limited);
        void *base = limited || !whole ? MAP_FAILED : mmap(NULL, bytes, prot, flags | MAP_HUGETLB | huge, -1, 0);
        if (base != MAP_FAILED) {
                *pages = PAGES_HUGETLB;
                return base;
        }
        base = mmap(NULL, bytes, prot, flags, -1, 0);
        if (base == MAP_FAILED)
                return NULL;
        *pages = whole && madvise(base, bytes, MADV_HUGEPAGE) == 0 ? PAGES_THP : PAGES_4K;
        return base;
}

int staging_init(struct staging *staging, uint64_t memory_limit, uint64_t block_size, struct error *error)
{
        uint64_t n = memory_limit / block_size ?: 1;
        *staging = (struct staging){.stride = round_up(block_size + 2 * STAGING_EDGE, machine_pages.small),
                                    .n_slots = (unsigned)n};
        staging->bytes = ring_size(n * staging->stride);
        staging->free = calloc(n, sizeof(*staging->free));
        staging->touched = calloc(n, sizeof(*staging->touched));
        if (staging->free != NULL && staging->touched != NULL)
                staging->base = map_ring(staging->bytes, &staging->pages);
        if (staging->base == NULL) {
                error_set(error, STREAMER_ENOMEM, "staging ring of %" PRIu64 " bytes: %s", staging->bytes,
                          strerror(errno));
                staging_deinit(staging);
                return STREAMER_ENOMEM;
        }
        for (unsigned i = 0; i < n; i++)
                staging->free[i] = (unsigned)n - 1 - i;
        staging->n_free = (unsigned)n;
        return 0;
}

void staging_deinit(struct staging *staging)
{
        if (staging->base != NULL)
                munmap(staging->base, staging->bytes);
        free(staging->free);
        free(staging->touched);
        *staging = (struct staging){0};
}

/* Where a slot's pages begin; one that it shares with the slot before is its own. */
static uint64_t slot_begin(const struct staging *staging, unsigned slot)
{
        uint64_t page = staging->pages == PAGES_4K ? machine_pages.small : machine_pages.huge;
        return slot == staging->n_slots ? staging->bytes : round_down(slot * staging->stride, page);
}

bool staging_place(struct staging *staging, const struct numa_choice *numa)
{
        bool placed = true;
        unsigned n = staging->n_slots;
        for (unsigned i = 0; i < n && placed; i++) {
                uint64_t begin = slot_begin(staging, i), bytes = slot_begin(staging, i + 1) - begin;
                placed = numa_place_memory(numa_of_part(numa, i, n), staging->base + begin, bytes);
        }
        staging->numa = placed ? *numa : (struct numa_choice){0};
        return placed;
}

static unsigned number_of(const struct staging *staging, const unsigned char *slot)
{
        return (unsigned)((uint64_t)(slot - staging->base) / staging->stride);
}

bool staging_touch(struct staging *staging, unsigned char *slot)
{
        bool *touched = &staging->touched[number_of(staging, slot)];
        if (*touched)
                return false;
        *touched = true;
        if (madvise(slot, staging->stride, MADV_POPULATE_WRITE) < 0) /* before Linux 5.14; in gVisor */
                memset(slot, 0, staging->stride);
        return true;
}

unsigned char *staging_get(struct staging *staging, int node)
{
        if (staging->n_free == 0)
                return NULL;
        unsigned at = staging->n_free - 1, *stack = staging->free;
        bool choose = node != NUMA_ANYWHERE && staging->numa.nodes != 0;
        for (unsigned i = staging->n_free; choose && i-- > 0;)
                if (numa_of_part(&staging->numa, stack[i], staging->n_slots) == node) {
                        at = i;
                        break;
                }
        unsigned slot = stack[at];
        staging->in_memory = staging->pages != PAGES_HUGETLB;
        memmove(&stack[at], &stack[at + 1], (--staging->n_free - at) * sizeof(*stack));
        return staging->base + slot * staging->stride;
}

void staging_put(struct staging *staging, unsigned char *slot)
{
        require(staging->n_free < staging->n_slots);
        staging->free[staging->n_free++] = number_of(staging, slot);
}

bool staging_in_memory(const struct staging *staging)
{
        return staging->in_memory;
}

void staging_unpinned(struct staging *staging)
{
        staging->in_memory = staging->pages != PAGES_HUGETLB;
}

bool staging_is_free(const struct staging *staging)
{
        return staging->n_free == staging->n_slots;
}

void staging_give_back(struct staging *staging)
{
        require(staging_is_free(staging) && staging->pages != PAGES_HUGETLB);
        staging->in_memory = false;
        if (madvise(staging->base, staging->bytes, MADV_DONTNEED) == 0)
                memset(staging->touched, 0, staging->n_slots * sizeof(*staging->touched));
}
