/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier: what a GPU has no room for may stay in pinned host memory, and comes back from there
 * without storage. A budget of its own, and its own order: the least recently used go.
 *
 *   ready > cached (copied out, off the loop) > draining > gone
 *                 \-> a load of the same files copies it back, as a new generation
 *
 * The ranks of one load are taken, dropped and brought back together: all of them, or none.
 *
 * A cached model keeps its names and is listed; nobody attaches to it. Its bytes are hashed as they
 * are copied out and compared with the digests of its tensors: what differs is not kept. Host memory
 * is allocated, freed and filled on the device's thread.
 */
#ifndef DAEMON_RESIDENT_HOST_CACHE_H
#define DAEMON_RESIDENT_HOST_CACHE_H

#include "daemon/resident/resident.h"

struct host_copy {
        struct work work;
        struct generation *generation;
        unsigned char *bases[GENERATION_SEGMENTS];
        uint64_t sizes[GENERATION_SEGMENTS];
        unsigned n;     /* that are allocated */
        uint64_t bytes; /* of all */
        struct error error;
};

struct host_cache {
        struct resident *resident;
        uint64_t budget, used; /* bytes; used counts what is being freed, too */
};

/* How large it may be: pinned memory cannot be swapped, so half of what the cgroup or the machine has stays
 * for everything else. */
uint64_t host_cache_budget(uint64_t wanted, uint64_t cgroup, uint64_t memory);

void host_cache_init(struct host_cache *cache, struct resident *resident, uint64_t budget);

/* Takes a model that is to be evicted, with all its ranks: it is cached from now on, and its devices get
 * the memory back when it has been copied. False: it is not kept, and is still what it was. */
bool host_cache_take(struct host_cache *cache, struct generation *generation);

/* The copies of a generation that goes: on the device's thread, and on the loop. */
void host_copy_release(struct host_copy *copy);
void host_copy_released(struct generation *generation);

#endif
