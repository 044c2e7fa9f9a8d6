/* SPDX-License-Identifier: Apache-2.0
 *
 * The host cache: models that were evicted from a GPU may stay in pinned host memory. A load of the same files copies
 * them from there to the GPUs that it names, as a new generation. The cache has its own budget.
 *
 * A copy holds the image of each segment, and the manifest. The device's layout alone determines where tensors lie and
 * where a segment ends, so a copy fits every GPU of its layout, in one transfer for each segment; a device of another
 * layout reads the files instead.
 *
 * A copy belongs to files, not to a device: evicted replicas of one version share it, and only the first is copied
 * out. It is freed when neither a cached generation nor a load holds it.
 *
 *   waiting (for capacity) > filling > complete > freeing (not held)
 *        \--------------------\-> dropped: it took too long, or failed
 *
 * The budget counts allocated memory, from before the first byte is pinned until the last is freed, and is never
 * exceeded. Capacity for another copy is made by dropping others, and only if that suffices. They are freed
 * on their devices' threads while the new copy waits, with a limit, so that a stalled device does not block the others.
 *
 * The ranks of one load are cached, dropped and loaded together: all or none.
 *
 * A cached model keeps its names and is listed; clients cannot attach to it. Its bytes are compared with the tensors'
 * digests while they are copied out: a copy that differs is dropped.
 */
#pragma once

#include "daemon/resident/model.h"
#include "daemon/resident/unload/evict.h"

enum host_copy_state { HOST_COPY_WAITING, HOST_COPY_FILLING, HOST_COPY_COMPLETE, HOST_COPY_FREEING };

struct host_copy {
        struct list link; /* in cache->copies, oldest first */
        struct host_cache *cache;
        struct device *device; /* whose thread pins and frees the memory */
        enum host_copy_state state;
        struct generation *from; /* the generation that is copied out, referenced; NULL: done */
        unsigned holders, users; /* cached generations; loads that copy from it */
        uint64_t since_ns;       /* when it began to wait */
        uint64_t last_used_ns;

        struct source_identity identity;
        unsigned char digest[DIGEST_SIZE];
        struct encryption *encryption; /* as the generation's */
        bool verified;
        unsigned char sums[DIGEST_SIZE]; /* where it is verified: as the generation's */
        uint64_t data_bytes, n_tensors;
        struct table manifest;
        unsigned char *bases[GENERATION_SEGMENTS];
        uint64_t sizes[GENERATION_SEGMENTS];
        unsigned n_segments, n_bases; /* n_bases: allocated */
        uint64_t bytes;               /* that it takes: of all segments, and of the manifest */

        struct work work;
        struct error error;
        bool unwanted; /* atomic: nothing holds it while it fills */
        bool stays;    /* result of the last choice */
};

struct host_cache {
        struct resident *resident;
        struct list copies;
        uint64_t budget, used; /* bytes; used includes what is being filled or freed; budget 0: nothing is cached */
};

/* Limits the configured size: pinned memory cannot be swapped, so half of the cgroup's or the machine's memory
 * is left for everything else. */
uint64_t host_cache_budget(uint64_t wanted, uint64_t cgroup, uint64_t memory);

void host_cache_init(struct host_cache *cache, struct resident *resident, uint64_t budget);

/* Caches a model that is to be evicted, with all its ranks; its devices' memory is freed once it is copied out.
 * False: the caller drops the ranks that still serve, and those that were cached meanwhile follow. */
bool host_cache_add(struct host_cache *cache, struct generation *generation);

/* About once a second: drops copies that have waited too long for capacity. False: none waits. */
bool host_cache_tick(struct host_cache *cache, uint64_t now);
/* After a change: drops ranks that lack another one. */
void host_cache_drop_partial_ranks(struct host_cache *cache);

/* A complete copy of these files that fits the device, and whose files matched the published digests `sums`; NULL: any.
 * NULL if there is none. */
struct host_copy *host_cache_find(const struct host_cache *cache, const struct source_identity *identity,
                                  const struct device *device, const unsigned char *sums);
/* The copy is not freed between the two calls. */
void host_copy_use(struct host_copy *copy);
void host_copy_unuse(struct host_copy *copy);

/* Chooses the copies that leave the cache for another: first those of models that also serve on a GPU, then the least
 * recently used. Copies that are in use, are not complete or have a pinned holder stay, and so do the copies of its
 * other ranks. A malloc'd array; NULL where all candidates do not free `needed` bytes, or without memory. */
struct evict_candidate *host_cache_choose(const struct host_cache *cache, uint64_t needed, size_t *n);
