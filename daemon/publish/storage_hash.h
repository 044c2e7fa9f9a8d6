/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes the storages of a model that was sealed: several workers take leaves in turn, and one computes the digests of
 * the records and of the model from them.
 */
#ifndef DAEMON_PUBLISH_STORAGE_HASH_H
#define DAEMON_PUBLISH_STORAGE_HASH_H

#include "daemon/resident/model.h"

struct reader;

struct storage_hash {
        const struct generation *generation; /* its segments */
        const struct table *manifest;        /* without digests */
        struct reader *reader;
        uint64_t n_leaves, next;               /* next: atomic, the first leaf that no worker has taken */
        uint64_t *first_leaves;                /* of each record */
        unsigned char (*digests)[DIGEST_SIZE]; /* of the leaves */
        const bool *stop;                      /* atomic */
};

/* STREAMER_ENOMEM. To be deinited in any case. */
int storage_hash_init(struct storage_hash *hash, const struct generation *generation, const struct table *manifest,
                      struct reader *reader, const bool *stop, struct error *error);
void storage_hash_deinit(struct storage_hash *hash); /* accepts a zeroed one */

/* On each worker: hashes leaves until none is left. */
int storage_hash_run(struct storage_hash *hash, struct error *error);
/* Once all workers have ended: writes the digests into the manifest. */
int storage_hash_finish(struct storage_hash *hash, unsigned char digest[DIGEST_SIZE], struct error *error);

#endif
