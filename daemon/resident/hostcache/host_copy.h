/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of the host cache and of a copy in it (host_cache.h).
 */
#ifndef DAEMON_RESIDENT_HOSTCACHE_HOST_COPY_H
#define DAEMON_RESIDENT_HOSTCACHE_HOST_COPY_H

#include "daemon/resident/model.h"

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
        bool verified;
        uint64_t data_bytes, n_tensors;
        struct table manifest;
        unsigned char *bases[GENERATION_SEGMENTS];
        uint64_t sizes[GENERATION_SEGMENTS];
        unsigned n_segments, n_bases; /* n_bases: allocated */
        uint64_t bytes;               /* of all segments */

        struct work work;
        struct error error;
        bool unwanted; /* atomic: nothing holds it while it fills */
        bool stays;    /* result of the last choice (victims.h) */
};

struct host_cache {
        struct resident *resident;
        struct list copies;
        uint64_t budget, used; /* bytes; used includes what is being filled or freed */
        bool lost_rank;        /* a rank was dropped since host_cache_drop_partial_ranks() */
};

/* Chooses the copies that leave the cache for another (victims.c). Changes only marks of the copies. A malloc'd array
 * of those to drop, in order; NULL where all candidates do not free `needed` bytes, or without memory. */
struct host_copy **host_cache_choose(const struct host_cache *cache, uint64_t needed, size_t *n);

#endif
