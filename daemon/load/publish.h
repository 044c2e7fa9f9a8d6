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
 *
 * Where the blocks go to several targets these share all of it but the arrival log: each has one of
 * its own, which stands still from the moment its target is dead, since what comes later is not there.
 */
#ifndef DAEMON_LOAD_PUBLISH_H
#define DAEMON_LOAD_PUBLISH_H

#include "daemon/io/reader.h"
#include "daemon/load/resolve.h"
#include "daemon/resident/resident.h"

struct publish {
        const struct resolved *resolved;
        const struct plan *plan;
        struct read_target *const *targets;
        size_t n_targets;
        bool by_file; /* hold tensors back until their file is released */

        unsigned char (*leaves)[DIGEST_SIZE];  /* of the plan's leaves, written by reader threads */
        unsigned char (*digests)[DIGEST_SIZE]; /* of the plan's tensors */
        uint32_t *remaining;                   /* atomic: leaves to come, by tensor */
        uint64_t *file_left;                   /* atomic: bytes to come, by file */
        uint64_t bytes;                        /* atomic: landed */

        pthread_mutex_t mutex;
        uint32_t *arrived; /* plan tensors in order of arrival */
        size_t n_arrived;
        size_t n_published;  /* atomic, for who looks without the lock */
        uint32_t *record_of; /* plan tensor > record; NULL until the manifest is built */

        /* Its own maps, written to; generations have others (publish_share). */
        struct table manifest;
        struct table *logs; /* of arrival, by target; none where it was dead already */
};

/* Does no I/O; borrows the array of targets. On failure publish_deinit() is still to be called. */
int publish_init(struct publish *publish, const struct resolved *resolved, struct read_target *const *targets,
                 size_t n_targets, bool by_file, struct error *error);
void publish_deinit(struct publish *publish);

/* Before reading: tensors without bytes arrive at once. */
void publish_begin(struct publish *publish);

/* On a reader thread. True if *file became whole with this block. */
bool publish_landed(struct publish *publish, const struct plan_block *block);

/* On a worker. `segment_sizes` by plan segment. */
int publish_build(struct publish *publish, uint64_t generation, const uint64_t *segment_sizes, struct error *error);

/* On a worker, after it: the tables for a target's generation. */
int publish_share(const struct publish *publish, size_t target, struct table *manifest, struct table *arrival,
                  struct error *error);

/* On any thread: all tensors of the file may be seen. */
void publish_file(struct publish *publish, size_t file);

/* Tensors that have been published so far. */
uint64_t publish_count(struct publish *publish);

/* On a worker, when everything was published: the model digest, into the manifest too. */
int publish_finish(struct publish *publish, unsigned char digest[DIGEST_SIZE], struct error *error);

#endif
