/* SPDX-License-Identifier: Apache-2.0
 *
 * The host tier: what a GPU has no room for may stay in pinned host memory, and comes back from there
 * without storage. A budget of its own, and its own order.
 *
 *   ready > cached (copied out, off the loop) > draining > gone
 *                 \-> a load of the same files copies it back, as a new generation, to whichever GPUs it names
 *
 * What is kept. A copy is the image of each segment that a GPU had, with each tensor at the offset that it had
 * there, and the table that says where that is; between tensors are zeros. Where tensors may lie, and where
 * a segment ends, is the rule of the device's layout: one alignment and one granularity for all GPUs, and one
 * size at which segments are begun. So an image fits every GPU of its layout as it is: segments of the
 * same sizes are allocated, each is one run of bytes over the bus, and no tensor is moved. A device of another
 * layout, such as the host, reads the files instead.
 *
 * A copy is of files, not of a device. The generations that were evicted hold it: replicas of one version
 * that leave several GPUs hold the same copy, and only the first is copied out. Loads hold it while they copy
 * from it, several at once. It is freed with the last of both.
 *
 *   waits (for room) > fills > whole > leaves (nobody holds it; it is being freed)
 *        \----------------\-> nothing is kept: it took too long, or failed
 *
 * The budget counts what is allocated: from before the first byte is pinned until the last is free again, and it
 * is never passed. Room for another is made of those that are whole, in nobody's hands and not pinned: first what
 * serves on a GPU, too, then the least recently used, and no more than that takes; where all of it would not do,
 * none leaves. They are freed on the threads of their devices, and the other waits for that; but not for long, as
 * its own GPU is waited for, and a device that stalls must not hold up those that do not.
 *
 * The ranks of one load are taken, dropped and brought back together: all of them, or none. What is left of
 * them where one has lost its names is not kept: it would come back only with that one.
 *
 * A cached model keeps its names and is listed; nobody attaches to it. Its bytes are hashed as they
 * are copied out and compared with the digests of its tensors: what differs is not kept. Host memory
 * is allocated, freed and filled on the device's thread.
 */
#ifndef DAEMON_RESIDENT_HOST_CACHE_H
#define DAEMON_RESIDENT_HOST_CACHE_H

#include "daemon/resident/resident.h"

enum host_copy_state { HOST_COPY_WAITS, HOST_COPY_FILLS, HOST_COPY_WHOLE, HOST_COPY_LEAVES };

struct host_copy {
        struct list link; /* in cache->copies, oldest first */
        struct host_cache *cache;
        struct device *device; /* pins and frees it */
        enum host_copy_state state;
        struct generation *from; /* that is copied; pinned; NULL: it has been */
        unsigned holders, users; /* generations that are cached; loads that copy from it */
        uint64_t since_ns;       /* it waits */
        uint64_t last_used_ns;

        struct source_identity identity;
        unsigned char digest[DIGEST_SIZE];
        bool verified;
        uint64_t data_bytes, n_tensors;
        struct table manifest;
        unsigned char *bases[GENERATION_SEGMENTS];
        uint64_t sizes[GENERATION_SEGMENTS];
        unsigned n_segments, n_bases; /* n_bases: allocated */
        uint64_t bytes;               /* of all segments */

        struct work work;
        struct error error;
        bool unwanted; /* atomic: it fills for nobody */
        bool stays;    /* of the last choice (host_cache_choose.h) */
};

struct host_cache {
        struct resident *resident;
        struct list copies;
        uint64_t budget, used; /* bytes; used counts what is being filled and freed, too */
        bool lost_rank;        /* a rank has left since it was looked for what is left of others */
};

/* How large it may be: pinned memory cannot be swapped, so half of what the cgroup or the machine has stays
 * for everything else. */
uint64_t host_cache_budget(uint64_t wanted, uint64_t cgroup, uint64_t memory);

void host_cache_init(struct host_cache *cache, struct resident *resident, uint64_t budget);
bool host_cache_empty(const struct host_cache *cache); /* forgives NULL */

/* Takes a model that is to be evicted, with all its ranks: it is cached from now on, and its devices get
 * the memory back when it has been copied. False: it is not kept, and is still what it was. Forgives NULL. */
bool host_cache_take(struct host_cache *cache, struct generation *generation);

/* About once a second: who has waited too long for room is not kept. Forgives NULL. */
void host_cache_tick(struct host_cache *cache, uint64_t now);
/* After a change, when nobody is in the middle of one: ranks that lack another leave. Forgives NULL. */
void host_cache_drop_rests(struct host_cache *cache);

/* A whole copy of these very files that can be brought to the device as it is, and matched published digests
 * if that is asked for. NULL if there is none; forgives NULL. */
struct host_copy *host_cache_find(const struct host_cache *cache, const struct source_identity *identity,
                                  const struct device *device, bool verified);
/* It stays from the first call to the second. */
void host_copy_use(struct host_copy *copy);
void host_copy_unuse(struct host_copy *copy);

/* A cached generation goes: its hold ends. Frees no generation. */
void host_copy_let_go(struct generation *generation);

#endif
