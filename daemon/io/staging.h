/* SPDX-License-Identifier: Apache-2.0
 *
 * The staging ring: a fixed set of equal slots in one allocation, touched once before it is used: all of the daemon's
 * buffer memory, whatever the size of the models. Slots are handed out under the reader's lock.
 */
#pragma once

#include "daemon/base/sys/numa.h"
#include "daemon/device/device.h"

#define STAGING_EDGE UINT64_C(4096) /* bytes before and after a block for O_DIRECT's alignment */

struct staging {
        unsigned char *base;
        uint64_t bytes; /* mapped */
        uint64_t stride;
        unsigned n_slots, n_free;
        unsigned *free; /* a stack: the slot used last is the one still in a CPU's cache */
        enum page_kind pages;
        struct numa_choice numa; /* nodes that have a part of the slots each */
        unsigned pinned;         /* atomic: enum ring_pinned, of the device that pins it */
};

/* At least one slot, whatever the limit says. */
int staging_init(struct staging *staging, uint64_t memory_limit, uint64_t block_size, struct error *error);
void staging_deinit(struct staging *staging);

/* Splits the slots among these nodes, before any is touched. False if the kernel refuses: then they are on any node. */
bool staging_place(struct staging *staging, const struct numa_choice *numa);

/* Takes a slot's page faults, which may cost more than the first read into it. Any thread, for a slot that it holds. */
void staging_touch(struct staging *staging, unsigned char *slot);

/* A free slot, on this node if there is one; or NULL. It has block_size + 2 x STAGING_EDGE bytes, page-aligned. */
unsigned char *staging_get(struct staging *staging, int node);
void staging_put(struct staging *staging, unsigned char *slot);
