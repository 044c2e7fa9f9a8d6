/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device's prefaulted memory: allocated and zeroed while nothing is loaded. Private to daemon/device.
 *
 * A thread of the lowest nice value does most of the work of a load into host memory ahead of need, in one memfd that
 * no client has seen, which becomes the next segment. It counts against no budget: it is freed when a segment needs its
 * memory. All calls accept NULL, a device without one.
 *
 * One that is not configured is modest: it takes idle huge pages of the pool alone, and must not cost other programs
 * anything. The next segment is assumed to be as large as the largest of the last few, if there were any.
 */
#pragma once

#include "daemon/device/device.h"
#include "daemon/device/host/collapse.h"

#define PREFAULT_RECENT 8u /* segments, whose largest a modest one is made for */

struct prefault_opts {
        uint64_t most;   /* bytes; rounded down to whole huge pages */
        uint64_t budget; /* of segments and prefaulted memory together */
        enum page_kind pages;
        const struct collapse_kernel *kernel; /* makes transparent huge pages; borrowed */
        bool modest;                          /* only huge pages that were set aside and are idle */
};

/* NULL: no memory, or its thread cannot be started. It fills nothing yet. */
struct prefault *prefault_new(const struct prefault_opts *opts);
/* Waits for the end of the thread and frees the memory. NULL. */
struct prefault *prefault_free(struct prefault *prefault);

/* ---- from any thread, without waiting: these, prefault_fill() and prefault_bytes() (device.h) ---- */

/* Segments hold this many bytes more, or fewer. */
void prefault_hold(struct prefault *prefault, uint64_t bytes);
void prefault_release(struct prefault *prefault, uint64_t bytes);

/* ---- from the device's thread; may wait for one huge page ---- */

/* For a segment of `size` bytes, which is held already: a memfd that is the caller's, of any size, whose first *ready
 * bytes are allocated and zero. -1: none exists, or it stays for a larger segment. */
int prefault_take(struct prefault *prefault, uint64_t size, uint64_t *ready, enum page_kind *pages);
/* Memory is short: frees it. False: none existed. */
bool prefault_drop(struct prefault *prefault);
