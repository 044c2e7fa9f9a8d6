/* SPDX-License-Identifier: Apache-2.0
 *
 * One load's reads, and the reader that performs them: a planned file, poisoned segments, and their expected
 * contents.
 *
 * A thread hangs at a closed gate in the device's prepare() (blocks in place) or put() (blocks through slots): the
 * reader cannot distinguish why a thread moves no byte.
 */
#pragma once

#include "daemon/io/reader/engine.h"
#include "tests/lib/core.h"

#define BLOCK (2 * MiB)

extern struct reader reader;

/* A reader for which every thread that moves no byte hangs at the next reader_watch(), on a machine with as many
 * processors as it has threads for a load. */
void read_fixture_reader_begin(unsigned concurrency, uint64_t memory_limit);
/* Waits until each thread for files sleeps, and none has a block to take. */
void read_fixture_settle(void);
/* Ends a reader with hung threads: it gives up at its deadline and does not join them. */
void read_fixture_reader_abandon(void);
/* Calls reader_watch() until it has run: a thread that has the lock may run it later. */
void read_fixture_watch(void);
void read_fixture_reader_end(void); /* fails if a thread is leaked; accepts a reader that has not begun */

/* A reader without threads, so that the test makes each step; its engines report `alive` threads. A test sets of its
 * jobs what engines set (limit, silent) and what time would (share.head_start). */
void read_fixture_bare_begin(struct reader *bare, unsigned concurrency, unsigned slots, unsigned alive);
void read_fixture_bare_end(struct reader *bare);

struct read_fixture {
        struct read_job job;
        struct resolved resolved;
        struct fake_device device;
        struct segment segments[PLAN_MAX_SEGMENTS];
        struct read_target target;
        unsigned char *image; /* of the file */
        size_t image_size;
        uint32_t *landed; /* atomic: count of reads by block */
        uint32_t n_landed;
        bool ended;
};

void read_fixture_plan(struct read_fixture *r, const char *path, bool hidden);  /* without the image */
void read_fixture_begin(struct read_fixture *r, const char *path, bool hidden); /* it ends with the test */

/* Starts it and runs the loop until it has ended. */
void read_all(struct read_fixture *r);

/* Begins and starts a hanging job of blocks in place, and waits until `n` threads hang. */
void read_fixture_hang(struct read_fixture *r, const char *path, unsigned blocks);
/* Releases it and waits for its end. */
void read_fixture_resume(struct read_fixture *r);

/* The segments hold the bytes of these blocks, and poison everywhere else. */
bool segments_match(const struct read_fixture *r, const struct plan_block *blocks, size_t n);
bool leaf_digests_match(const struct read_fixture *r);
void all_read_once(const struct read_fixture *r);

/* ---- files ---- */

/* Tensors of odd sizes, some of several blocks; data at any offset modulo 4096. */
char *odd_file(const char *name, uint64_t residue);
void cache_or_not(const char *path, bool cached);
