/* SPDX-License-Identifier: Apache-2.0
 *
 * The manifest of a published model, made from the client's table in the sealed memory: a record for each storage and
 * one for the table, and the key and base as metadata. Then its digests: several workers hash leaves in turn.
 */
#pragma once

#include "daemon/resident/model.h"
#include "proto/published/table.h"

struct reader;

/* On a worker. STREAMER_EINVAL where the table is refused. */
int published_manifest_build(struct table *manifest, const struct generation *generation,
                             const struct published_storage *table, struct error *error);

struct storage_hash {
        const struct generation *generation; /* its segments */
        const struct table *manifest;        /* without digests */
        struct reader *reader;
        const bool *stop;                      /* atomic */
        unsigned char (*digests)[DIGEST_SIZE]; /* of the leaves */
        pthread_mutex_t mutex;
        uint64_t leaf, record, done; /* the first leaf that no worker has taken, in which record, after these bytes */
        unsigned n_running;          /* workers */
        struct error error;          /* of one of them */
};

/* STREAMER_ENOMEM. To be deinited in any case. */
int storage_hash_init(struct storage_hash *hash, const struct generation *generation, const struct table *manifest,
                      struct reader *reader, unsigned workers, const bool *stop, struct error *error);
void storage_hash_deinit(struct storage_hash *hash); /* accepts a zeroed one */
/* On each worker: hashes leaves until none is left, or *stop. The last one to end writes the digests into the manifest,
 * unless one has failed. */
void storage_hash_run(struct storage_hash *hash);
