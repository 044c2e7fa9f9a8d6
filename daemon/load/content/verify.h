/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a resident model back from its device and compares every tensor, and the model, with the digests that were
 * taken while loading. Runs on a worker, with a reference to the generation.
 */
#ifndef DAEMON_LOAD_CONTENT_VERIFY_H
#define DAEMON_LOAD_CONTENT_VERIFY_H

#include "daemon/resident/model.h"

struct reader;

struct verify {
        struct work work;
        struct reader *reader; /* whose ring lends slots */
        struct generation *generation;
        void (*done)(struct verify *verify); /* on the loop; error.code 0: all digests match */
        struct error error;
        uint64_t tensors, bytes;
        bool stop; /* atomic */
};

/* The generation must be ready; takes a reference, which the caller drops. */
void verify_init(struct verify *verify, struct reader *reader, struct generation *generation);
/* On a worker: fills error, tensors and bytes. */
void verify_check(struct verify *verify);
/* Both, in the lane of the device. The generation must be ready. done() is called exactly once, before the reference is
 * dropped. */
void verify_start(struct verify *verify, struct work_pool *pool, struct reader *reader, struct generation *generation,
                  void (*done)(struct verify *));
void verify_stop(struct verify *verify);

#endif
