/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests of a block's leaves: a block that is read to its destination is hashed there, piece by piece as it grows; one
 * whose bytes are received in a buffer is hashed in the buffer.
 */
#include "daemon/base/copy.h"
#include "daemon/io/reader/engine.h"

void reader_hash_begin(const struct ticket *ticket, struct hash_cursor *cursor)
{
        plan_pieces_begin(ticket->block, &cursor->pieces);
        cursor->have_piece = plan_pieces_next(ticket->job->plan, ticket->block, &cursor->pieces, &cursor->piece);
}

void reader_hash(const struct ticket *ticket, struct hash_cursor *cursor, const unsigned char *data, uint64_t have)
{
        struct read_job *job = ticket->job;
        uint64_t since = now_ns();
        while (cursor->have_piece && cursor->piece.in_block + cursor->piece.len <= have) {
                hash_bytes(data + cursor->piece.in_block, cursor->piece.len, job->leaves[cursor->piece.leaf]);
                cursor->have_piece = plan_pieces_next(job->plan, ticket->block, &cursor->pieces, &cursor->piece);
        }
        stages_add(&job->stages, STAGE_hash, now_ns() - since);
}

void reader_fill_begin(const struct ticket *ticket, struct fill *fill)
{
        hash_reset(fill->hash);
        reader_hash_begin(ticket, &fill->cursor);
        fill->have = 0;
}

void reader_fill(const struct ticket *ticket, struct fill *fill, unsigned char *to, const unsigned char *data, size_t n)
{
        const struct read_job *job = ticket->job;
        struct hash_cursor *cursor = &fill->cursor;
        const struct plan_piece *piece = &cursor->piece;
        uint64_t end = fill->have + n;
        while (cursor->have_piece && piece->in_block < end) { /* bytes between pieces belong to no tensor */
                uint64_t from = piece->in_block > fill->have ? piece->in_block : fill->have;
                uint64_t piece_end = piece->in_block + piece->len, hashed = piece_end < end ? piece_end : end;
                hash_update(fill->hash, data + (from - fill->have), hashed - from);
                if (hashed < piece_end)
                        break;
                hash_final(fill->hash, job->leaves[piece->leaf]);
                hash_reset(fill->hash);
                cursor->have_piece = plan_pieces_next(job->plan, ticket->block, &cursor->pieces, &cursor->piece);
        }
        copy_past_cache(to + fill->have, data, n);
        fill->have = end;
}
