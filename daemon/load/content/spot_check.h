/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples of what a load has placed, compared with what it has read before the model is ready: that clients see these
 * bytes is observed, not assumed. Samples are read back as clients see them (io/readback.h).
 *
 * A sample is one leaf, or less. One is taken of each device->sample_interval bytes, the first and the last leaf among
 * them, and three at least; the others differ from load to load.
 */
#pragma once

#include "daemon/io/reader/reader.h"
#include "daemon/resident/hostcache/host_cache.h"

/* Positions of samples among `bytes` bytes. */
struct samples {
        uint64_t bytes, n, next, random;
};

/* interval 0: none. */
void samples_init(struct samples *samples, uint64_t bytes, uint64_t interval, uint64_t seed);
/* Ascending; false: no more. */
bool samples_next(struct samples *samples, uint64_t *position);

struct spot_check_job {
        struct reader *reader; /* lends slots of its ring */
        struct device *device;
        const struct segment *segments;
        uint64_t seed;
        const bool *stop; /* atomic */
};

/* On a worker, in the lane of the device. Compares the samples with the digests of the plan's leaves, which were
 * computed from the bytes that were read. STREAMER_EFAILED names a tensor that differs, and *pages the pages that hold
 * it; other errors leave it. STREAMER_ECANCELED once *stop is true. */
int spot_check(const struct spot_check_job *job, const struct plan *plan, unsigned char (*leaves)[DIGEST_SIZE],
               enum page_kind *pages, struct error *error);
/* On a worker. Compares the samples with a copy in host memory, of the same segments, that was put there. Likewise. */
int spot_check_copy(const struct spot_check_job *job, const struct host_copy *copy, enum page_kind *pages,
                    struct error *error);
