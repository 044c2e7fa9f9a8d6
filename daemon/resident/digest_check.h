/* SPDX-License-Identifier: Apache-2.0
 *
 * Computes the digest of each tensor from its resident bytes, and compares it with the one in the manifest or stores it
 * there. May also copy the bytes to host memory of the same layout.
 *
 * A job runs in pieces of a quarter of a second and the tensor that it is in, so that others of its lane have their
 * turn: its owner submits the next piece.
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

/* A piece, on each worker. DIGEST_MORE: tensors are left. STREAMER_EFAILED where digests differ; STREAMER_ECANCELED,
 * without a text, once *stop is true. */
#define DIGEST_MORE 1
int digest_job_run(struct digest_job *job, struct error *error);

/* A job that compares every tensor, and at its end the model's digest, with those of a generation that has been ready,
 * of which the owner has a reference. */
void verify_begin(struct digest_job *job, const struct generation *generation, struct reader *reader, const bool *stop);
/* A piece, on a worker in the lane of the device. DIGEST_MORE, STREAMER_EFAILED, STREAMER_ECANCELED. */
int verify_run(struct digest_job *job, struct error *error);
