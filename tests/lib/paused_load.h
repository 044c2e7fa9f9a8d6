/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon (`test_daemon`, `client`) and a model of which one half has been read and the other is held, for tests of
 * what happens during a load. One for each test, as a checked fixture.
 */
#pragma once

#include "tests/lib/fuse_file.h"
#include "tests/lib/fixture.h"

#define PAUSED_N 16 /* tensors of 1 MiB, "t00" to "t15", read in blocks of 1 MiB */
#define PAUSED_HALF (PAUSED_N / 2)
struct paused_load {
        struct fuse_file hang; /* reads of the second half are held */
        struct model *model;
        char *backing;  /* the backing file of the loaded one */
        uint64_t empty; /* bytes of the device in use without the model */
};
extern struct paused_load paused;

void paused_load_begin(void);
void paused_load_end(void);

/* Begins a load under this name, and returns when a read is held. */
streamer_op *paused_load_start(const char *name);
/* The load must fail with STREAMER_EFAILED and `text` (NULL: any), and "m" must be listed as failed. */
void paused_load_fails(streamer_op *op, const char *text);
/* Writes zeros into the backing file. */
void paused_load_rewrite(off_t at, size_t size);
/* Reads n tensors in order of arrival; each must be complete, hashed and not in `seen`. */
void paused_load_take(streamer_lease *lease, size_t n, bool seen[PAUSED_N]);
