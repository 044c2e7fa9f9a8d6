/* SPDX-License-Identifier: Apache-2.0
 *
 * Publishing: from blocks in memory to tensors that clients can see, and never before all bytes of a tensor are in
 * memory and hashed.
 *
 * Two things run at the same time: reader threads report blocks (publish_landed), and a worker builds the manifest
 * (publish_build), whose sort of all names must not delay the reading. A complete tensor is appended to `arrived`;
 * arrived tensors are published (the digest into the manifest, then the index into the arrival log) once the
 * manifest is built.
 *
 * With SHA-256 a file's tensors are held back until the whole file has matched (publish_file).
 *
 * Several targets share all of this but the arrival log: each has its own, which ends when its target dies.
 */
#pragma once

#include "daemon/io/reader/reader.h"
#include "daemon/resident/model.h"

/* A map of its log that is written to, and maps of both tables for its generation: either may live longer. */
struct publish_target {
        const struct read_target *copy;
        struct table log; /* of arrival; none where the target was dead already */
        struct table manifest, arrival;
};

struct publish {
        const struct plan *plan;
        struct publish_target *targets;
        size_t n_targets;
        bool by_file; /* hold tensors back until their file is released */

        unsigned char (*leaves)[DIGEST_SIZE]; /* of the plan's leaves; written by reader threads */
        uint64_t bytes;                       /* atomic: landed */

        pthread_mutex_t mutex;
        uint32_t *remaining; /* missing leaves, by tensor */
        uint64_t *file_left; /* missing bytes, by file */
        uint32_t *arrived;   /* plan tensors in order of arrival */
        size_t n_arrived;
        size_t n_published;  /* atomic, for reads without the lock */
        uint32_t *record_of; /* plan tensor > record; NULL until the manifest is built */
        struct table manifest;
};

/* Does no I/O. Tensors without bytes arrive at once. publish_deinit() is due also after a failure. */
int publish_init(struct publish *publish, const struct plan *plan, struct read_target *const *targets, size_t n_targets,
                 bool by_file, struct error *error);
void publish_deinit(struct publish *publish); /* accepts a zeroed one */

/* On a reader thread. True if *file became whole with this block. */
bool publish_landed(struct publish *publish, const struct plan_block *block);

/* On a worker. Then generations may take the tables of their targets. */
int publish_build(struct publish *publish, uint64_t generation, struct error *error);

/* On any thread: publishes all tensors of the file. */
void publish_file(struct publish *publish, size_t file);

/* Tensors that have been published so far. */
static inline uint64_t publish_count(const struct publish *publish)
{
        return __atomic_load_n(&publish->n_published, __ATOMIC_ACQUIRE);
}

/* On a worker, when everything was published: the model digest, into the manifest. */
void publish_finish(struct publish *publish);
