/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the digest of each tensor from its resident bytes, and compares it with the one in the manifest or stores it
 * there. May also copy the bytes to host memory of the same layout.
 */
#pragma once

#include "daemon/resident/model.h"

/* The tensors of a manifest. Several workers may share a job: each takes the next tensor in the manifest's order. */
struct digest_job {
        const struct generation *generation; /* its segments */
        struct manifest_view manifest;
        struct reader *reader;           /* lends slots of its ring where bytes are not stored */
        unsigned char *const *bases;     /* host memory, one for each segment; NULL: the bytes are not stored */
        const bool *stop;                /* atomic */
        struct manifest_record *records; /* the digests are stored here; NULL: they are compared with the manifest's */
        uint64_t next;                   /* atomic: the first that no worker has taken */
};

/* On each worker, until no tensor is left. STREAMER_EFAILED where digests differ; STREAMER_ECANCELED, without a text,
 * once *stop is true. */
int digest_job_run(struct digest_job *job, struct error *error);

/* On a worker, in the lane of the device, with a reference to the generation, which must have been ready: compares
 * every tensor and the model's digest. `reader`, `stop`: as above. STREAMER_EFAILED, STREAMER_ECANCELED. */
int verify_generation(const struct generation *generation, struct reader *reader, const bool *stop,
                      struct error *error);
