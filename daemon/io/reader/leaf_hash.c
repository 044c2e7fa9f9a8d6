/* SPDX-License-Identifier: Apache-2.0
 *
 * Digests of a block's leaves: a block that is read to its destination is hashed there, piece by piece as it grows; one
 * whose bytes are received in a buffer is hashed in the buffer.
 */
#include "daemon/io/reader/engine.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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
        hash_init(&fill->hash);
        reader_hash_begin(ticket, &fill->cursor);
        fill->have = 0;
}

#define COPY_LINE 64u

#if defined(__SSE2__)
static void copy_lines(unsigned char *to, const unsigned char *from, size_t lines)
{
        for (; lines > 0; lines--, to += COPY_LINE, from += COPY_LINE) {
                const __m128i *f = (const __m128i *)from;
                __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1), c = _mm_loadu_si128(f + 2),
                        d = _mm_loadu_si128(f + 3);
                _mm_stream_si128((__m128i *)to, a);
                _mm_stream_si128((__m128i *)to + 1, b);
                _mm_stream_si128((__m128i *)to + 2, c);
                _mm_stream_si128((__m128i *)to + 3, d);
        }
        _mm_sfence(); /* before the bytes are published */
}
#else
static void copy_lines(unsigned char *to, const unsigned char *from, size_t lines)
{
        memcpy(to, from, lines * COPY_LINE);
}
#endif

/* They do not overlap. A load writes each byte of a model once: through the cache every line would be fetched before it
 * is overwritten, and would evict what is still needed (the buffers of the next bytes). */
static void copy_past_cache(unsigned char *to, const unsigned char *from, size_t n)
{
        size_t before = -(uintptr_t)to % COPY_LINE;
        if (before > n)
                before = n;
        size_t whole = (n - before) / COPY_LINE * COPY_LINE;
        memcpy(to, from, before);
        copy_lines(to + before, from + before, whole / COPY_LINE);
        memcpy(to + before + whole, from + before + whole, n - before - whole);
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
                hash_update(&fill->hash, data + (from - fill->have), hashed - from);
                if (hashed < piece_end)
                        break;
                hash_final(&fill->hash, job->leaves[piece->leaf]);
                hash_init(&fill->hash);
                cursor->have_piece = plan_pieces_next(job->plan, ticket->block, &cursor->pieces, &cursor->piece);
        }
        copy_past_cache(to + fill->have, data, n);
        fill->have = end;
}
