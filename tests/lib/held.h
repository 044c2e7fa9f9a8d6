/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon and a model of which one half has been read and the other is held: the stage for what
 * happens while a load is under way. One for each test, as a checked fixture.
 */
#ifndef TESTS_LIB_HELD_H
#define TESTS_LIB_HELD_H

#include "tests/lib/hang.h"
#include "tests/lib/stage.h"

#define HELD_N 16 /* tensors of 1 MiB, "t00" to "t15", read in blocks of 1 MiB */
#define HELD_HALF (HELD_N / 2)
#define MIB (UINT64_C(1) << 20)

struct held {
        struct hang hang; /* held from the second half on */
        struct daemon d;
        struct model *model;
        streamer_client *client;
        char *backing;  /* the file behind the one that is loaded */
        uint64_t empty; /* bytes of the device in use without the model */
};
extern struct held held;

void held_begin(void);
void held_begin_named(const char *file);
void held_end(void);

/* Starts to load it under this name, and returns when a read is held. */
streamer_op *held_load(const char *name);
/* The load must fail with STREAMER_EFAILED, saying `text` (NULL: anything), and "m" be listed so. */
void held_fails(streamer_op *op, const char *text);
/* Writes zeros into the file behind. */
void held_rewrite(off_t at, size_t size);
/* Takes n tensors in order of arrival, each whole, hashed, and never seen before. */
void held_take(streamer_lease *lease, size_t n, bool seen[HELD_N]);

#endif
