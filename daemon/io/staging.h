/* SPDX-License-Identifier: Apache-2.0
 *
 * The staging ring: a fixed set of equal slots in one allocation: all of the daemon's buffer memory, whatever the size
 * of the models. Slots are handed out under the reader's lock. A slot has memory from its first use until the ring's
 * memory is given back.
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
        bool *touched;  /* by slot; of a slot that is taken, its holder's */
        bool in_memory; /* some slot may have memory that can be given back */
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

/* Takes a slot's page faults, which may cost more than the first read into it; false: they were taken before. Any
 * thread, for a slot that it holds. */
bool staging_touch(struct staging *staging, unsigned char *slot);
bool staging_in_memory(const struct staging *staging);
void staging_unpinned(struct staging *staging);      /* a device had it pinned: then all of it is in memory */
bool staging_is_free(const struct staging *staging); /* no slot is taken */
/* Where it is in memory, and all slots are free; no device may have it pinned. Pages of the pool stay: the kernel would
 * not reserve them again. */
void staging_give_back(struct staging *staging);

/* A free slot, on this node if there is one; or NULL. It has block_size + 2 x STAGING_EDGE bytes, page-aligned. */
unsigned char *staging_get(struct staging *staging, int node);
void staging_put(struct staging *staging, unsigned char *slot);
