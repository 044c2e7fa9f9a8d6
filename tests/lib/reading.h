/* SPDX-License-Identifier: Apache-2.0
 *
 * One load's reading, and the reader that does it: a planned file, poisoned segments for its bytes,
 * and what these should hold in the end.
 *
 * "Hangs" is a closed gate in the device's prepare (blocks in place) or put (blocks through slots):
 * to the reader a thread that moves no byte is the same wherever it waits.
 */
#ifndef TESTS_LIB_READING_H
#define TESTS_LIB_READING_H

#include "daemon/io/reader.h"
#include "tests/lib/core.h"

#define BLOCK (2 * MiB)

extern struct reader reader;

/* Every thread that moves no byte is one that hangs, as soon as reader_watch() looks. */
void reading_reader_begin(unsigned concurrency, uint64_t memory_limit);
/* It gives up at its deadline: the threads that hang are nobody's to join. */
void reading_reader_left(void);
/* reader_watch(), and it has looked: a thread that has the lock may do that for it later. */
void reading_watch(void);
void reading_reader_end(void); /* fails where a thread is left; forgives one that has not begun */

/* One without threads, so that each step is the test's: its engines say that they have `alive` of them. */
void reading_bare_begin(struct reader *bare, unsigned concurrency, unsigned slots, unsigned alive);
void reading_bare_end(struct reader *bare);

struct reading {
        struct read_job job;
        struct resolved resolved;
        struct fake_device device;
        struct segment segments[PLAN_MAX_SEGMENTS];
        struct read_target target;
        unsigned char *image; /* of the file */
        size_t image_size;
        uint32_t *landed; /* atomic: how often, by block */
        uint32_t n_landed;
        bool ended;
};

void reading_plan(struct reading *r, const char *path, bool hidden); /* without the image */
void reading_begin(struct reading *r, const char *path, bool hidden);
void reading_end(struct reading *r);

/* Starts it and turns the loop until it has ended. */
void read_all(struct reading *r);

/* Begins and starts one of blocks in place that hangs, and waits until this many of them do. */
void reading_hang(struct reading *r, const char *path, unsigned blocks);
/* Lets it go on, to its end. */
void reading_go_on(struct reading *r);

/* The segments hold the bytes of these blocks, and poison everywhere else. */
bool as_expected(const struct reading *r, const struct plan_block *blocks, size_t n);
bool leaves_right(const struct reading *r);
void all_landed_once(const struct reading *r);

/* ---- files ---- */

/* Tensors of odd sizes, some of several blocks; data at any offset modulo 4096. */
char *odd_file(const char *name, uint64_t residue);
/* n tensors of a block each, at page boundaries. */
char *even_file(const char *name, size_t n);
void cache_or_not(const char *path, bool cached);

#endif
