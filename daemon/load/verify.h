/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a resident model back from its device and compares every tensor, and the model, with the
 * digests taken while loading. Runs on a worker; pins the generation meanwhile.
 */
#ifndef DAEMON_LOAD_VERIFY_H
#define DAEMON_LOAD_VERIFY_H

#include "daemon/resident/resident.h"

struct reader;

struct verify {
        struct work work;
        struct reader *reader; /* of whose ring it borrows */
        struct generation *generation;
        void (*done)(struct verify *verify); /* on the loop; error.code 0: every byte is as it was */
        struct error error;
        uint64_t tensors, bytes;
        bool stop; /* atomic */
};

/* The generation must be ready. done() is called exactly once, before the pin is given back. */
void verify_start(struct verify *verify, struct work_pool *pool, struct reader *reader, struct generation *generation,
                  void (*done)(struct verify *));
void verify_stop(struct verify *verify);

#endif
