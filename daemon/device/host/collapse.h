/* SPDX-License-Identifier: Apache-2.0
 *
 * Huge pages on request (MADV_COLLAPSE, Linux 6.1) for one mapping of a memfd. Private to daemon/device/host.
 *
 * The kernel replaces the pages of a 2 MiB range of shared memory by a huge page if the range has a page, and none of
 * them is pinned. So each range is collapsed once, before the first byte is read into it:
 *
 *   RANGE_NEW > RANGE_BUSY (one thread: allocates the first page, collapses) > RANGE_HUGE
 *                                                                            > RANGE_SMALL  (no huge page was free)
 *
 * A thread that needs a busy range waits: a direct read into it would pin pages that are being collapsed.
 *
 * Guard. Where memory is fragmented the kernel compacts it on behalf of the caller. If collapsing has cost a segment
 * more processor time than small pages would, and the kernel has compacted memory meanwhile (compact_stall in
 * /proc/vmstat), the segment's remaining ranges get small pages.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define COLLAPSE_RANGE (UINT64_C(2) << 20)

/* How the kernel is asked; tests put their own in place. */
struct collapse_calls {
        int (*collapse)(void *base, uint64_t len); /* 0, or -1 with errno */
        uint64_t (*clock)(void);                   /* processor time of the calling thread, ns */
        uint64_t (*compactions)(void);             /* how often the kernel has compacted memory */
};
extern const struct collapse_calls collapse_calls;

/* What one kernel does; probed once. */
struct collapse_kernel {
        struct collapse_calls calls;
        bool supported;
        uint64_t small_ns; /* processor time of filling one range with small pages */
};

/* Tries one range. Where that is refused (an old kernel, shmem_enabled=deny, a filter of system calls) `supported` is
 * false. A machine that has no huge page at the moment supports it. */
void collapse_probe(struct collapse_kernel *kernel, const struct collapse_calls *calls);

/* Allocates the first page of the range at `at` and collapses the range. RANGE_NEW: no memory, with errno. */
enum collapse_range { RANGE_NEW, RANGE_BUSY, RANGE_HUGE, RANGE_SMALL };
enum collapse_range collapse_range(const struct collapse_kernel *kernel, unsigned char *base, int fd, uint64_t at);

struct collapse;

/* For `size` bytes of `fd` mapped at `base`, both multiples of COLLAPSE_RANGE; borrows all three. The first `ready`
 * bytes have their pages. NULL: no memory. */
struct collapse *collapse_new(const struct collapse_kernel *kernel, unsigned char *base, int fd, uint64_t size,
                              uint64_t ready);
/* Accepts NULL. Returns NULL. */
struct collapse *collapse_free(struct collapse *collapse);

/* Any thread: when this returns 0 each byte of [offset, offset + len) has a page. -1 with errno: no memory. */
int collapse_prepare(struct collapse *collapse, uint64_t offset, uint64_t len);

/* Any thread. Bytes of ranges that got small pages, and whether the guard has stopped collapsing. */
uint64_t collapse_small_bytes(const struct collapse *collapse);
bool collapse_stopped(const struct collapse *collapse);
