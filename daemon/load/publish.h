/* SPDX-License-Identifier: Apache-2.0
 *
 * From landed blocks to tensors that clients can see. Never a tensor before all its bytes have
 * landed and been hashed.
 *
 * Two things run side by side: reader threads land blocks (publish_landed), and a worker builds the
 * manifest (publish_build), which costs a sort of all names and must not hold the reading up. A
 * tensor that is whole goes to `arrived`; what has arrived is published (digest into its record,
 * then its index into the arrival log) as soon as the manifest is there.
 *
 * With SHA-256 a file's tensors wait until the whole file has matched (publish_file).
 */
#ifndef DAEMON_LOAD_PUBLISH_H
#define DAEMON_LOAD_PUBLISH_H

#include "daemon/base/hash.h"
#include "daemon/load/resolve.h"
#include "proto/manifest.h"

#include <pthread.h>

struct publish {
        const struct resolved *resolved;
        const struct plan *plan;
        bool by_file; /* hold tensors back until their file is released */

        unsigned char (*leaves)[DIGEST_SIZE];  /* of the plan's leaves, written by reader threads */
        unsigned char (*digests)[DIGEST_SIZE]; /* of the plan's tensors */
        uint32_t *remaining;                   /* atomic: leaves to come, by tensor */
        uint64_t *file_left;                   /* atomic: bytes to come, by file */
        uint64_t bytes;                        /* atomic: landed */

        pthread_mutex_t mutex;
        uint32_t *arrived; /* plan tensors in order of arrival */
        size_t n_arrived, n_published;
        uint32_t *record_of; /* plan tensor > record; NULL until the manifest is built */

        /* The tables, handed to the generation when built. */
        int manifest_fd, arrival_fd;
        struct manifest_header *manifest;
        struct arrival_header *arrival;
        uint64_t manifest_size, arrival_size;
};

/* Plans no I/O. On failure publish_deinit() is still to be called. */
int publish_init(struct publish *publish, const struct resolved *resolved, bool by_file, struct error *error);
void publish_deinit(struct publish *publish); /* tables that were not handed over go too */

/* Before reading: tensors without bytes arrive at once. */
void publish_begin(struct publish *publish);

/* On a reader thread. True if *file became whole with this block. */
bool publish_landed(struct publish *publish, const struct plan_block *block);

/* On a worker. `segment_sizes` by plan segment. */
int publish_build(struct publish *publish, uint64_t generation, const uint64_t *segment_sizes, struct error *error);

/* On any thread: all tensors of the file may be seen. */
void publish_file(struct publish *publish, size_t file);

/* Tensors that have been published so far. */
uint64_t publish_count(struct publish *publish);

/* On a worker, when everything was published: the model digest, into the manifest too. */
int publish_finish(struct publish *publish, unsigned char digest[DIGEST_SIZE], struct error *error);

#endif
