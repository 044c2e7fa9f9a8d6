/* SPDX-License-Identifier: Apache-2.0
 *
 * The arrival of tensors: from blocks in memory to tensors that clients can see, and never before all bytes of a tensor
 * are in memory and hashed.
 *
 * Two things run at the same time: reader threads report blocks (arrivals_block_landed), and a worker builds the
 * manifest (arrivals_build), whose sort of all names must not delay the reading. A tensor that is complete is appended
 * to `complete`. Once the manifest is built, complete tensors are logged: the digest is stored in the manifest, then
 * the index in the arrival log, where clients see it.
 *
 * With SHA-256 a file's tensors are held back until the whole file has matched (arrivals_release_file).
 *
 * Several targets share all of this but the arrival log: each has its own, which ends when its target dies.
 */
#pragma once

#include "daemon/io/reader/reader.h"
#include "daemon/resident/model.h"

/* A map of its log that is written to, and maps of both tables for its generation: either may live longer. */
struct arrivals_target {
        const struct read_target *copy;
        struct table log; /* of arrival; none where the target was dead already, or is not followed */
        struct table manifest, arrival;
};

struct arrivals {
        const struct plan *plan;
        struct arrivals_target *targets;
        size_t n_targets;
        bool by_file; /* hold tensors back until their file is released */

        unsigned char (*leaves)[DIGEST_SIZE]; /* of the plan's leaves; written by reader threads */
        uint64_t bytes;                       /* atomic: landed */

        pthread_mutex_t mutex;
        uint32_t *remaining; /* missing leaves, by tensor */
        uint64_t *file_left; /* missing bytes, by file */
        uint32_t *complete;  /* plan tensors, in the order in which they became so */
        size_t n_complete;
        size_t n_logged;     /* atomic, for reads without the lock */
        uint32_t *record_of; /* plan tensor > record; NULL until the manifest is built */
        struct table manifest;
};

/* The size of the manifest that is made of a plan. STREAMER_EFAILED: it would be too large. */
int arrivals_measure(const struct plan *plan, uint64_t *manifest_size, struct error *error);

/* Does no I/O. Tensors without bytes arrive at once. arrivals_deinit() is due also after a failure. */
int arrivals_init(struct arrivals *arrivals, const struct plan *plan, struct read_target *const *targets,
                  size_t n_targets, bool by_file, struct error *error);
void arrivals_deinit(struct arrivals *arrivals); /* accepts a zeroed one */

/* On a reader thread. True if its file became complete with this block. */
bool arrivals_block_landed(struct arrivals *arrivals, const struct plan_block *block);

/* On a worker. `followed`: clients may attach before all tensors have arrived; then generations may take the tables of
 * their targets. Else there is one target, whose generation may take the manifest at the end, and no log. */
int arrivals_build(struct arrivals *arrivals, uint64_t generation, bool followed, struct error *error);

/* On any thread: all tensors of the file are complete. */
void arrivals_release_file(struct arrivals *arrivals, size_t file);

/* Tensors that have been logged so far. */
static inline uint64_t arrivals_count(const struct arrivals *arrivals)
{
        return __atomic_load_n(&arrivals->n_logged, __ATOMIC_ACQUIRE);
}

/* On a worker, when all tensors are logged: the model digest, into the manifest. */
void arrivals_finish(struct arrivals *arrivals);
