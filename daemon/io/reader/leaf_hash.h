/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes the leaves of a block while its bytes are in the CPU's cache.
 */
#ifndef DAEMON_IO_READER_LEAF_HASH_H
#define DAEMON_IO_READER_LEAF_HASH_H

#include "daemon/io/reader/engine.h"

/* Hashes the pieces of a block whose end is at most `have` bytes into it, from memory at `data`
 * (where the block begins), continuing at the cursor. */
struct hash_cursor {
        struct plan_cursor pieces;
        struct plan_piece piece;
        bool have_piece;
};
void reader_hash_begin(const struct ticket *ticket, struct hash_cursor *cursor);
void reader_hash(const struct ticket *ticket, struct hash_cursor *cursor, const unsigned char *data, uint64_t have);

/* A block whose bytes arrive piece by piece in a buffer: hashed there, where they are in the cache, and
 * then stored past it. */
struct fill {
        struct hash *hash; /* the caller's, from hash_new() */
        struct hash_cursor cursor;
        uint64_t have; /* bytes of the block */
};
void reader_fill_begin(const struct ticket *ticket, struct fill *fill);
/* The block's next n bytes, into the block that begins at `to`. */
void reader_fill(const struct ticket *ticket, struct fill *fill, unsigned char *to, const unsigned char *data,
                 size_t n);

#endif
