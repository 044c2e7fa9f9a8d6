/* SPDX-License-Identifier: Apache-2.0
 *
 * A block that a thread fills: where its bytes belong, their memory, and the digests of its leaves.
 */
#include "daemon/io/reader/engine.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

unsigned char *reader_block_data(const struct ticket *ticket)
{
        const struct plan_block *block = ticket->block;
        struct plan_cursor cursor;
        struct plan_piece piece;
        if (ticket->slot == NULL)
                return ticket->job->targets[0]->segments[block->segment].base + block->offset;
        plan_pieces_begin(block, &cursor);
        if (!plan_pieces_next(ticket->job->plan, block, &cursor, &piece))
                return ticket->slot;
        return ticket->slot + (piece.offset - piece.in_block) % STAGING_EDGE;
}

int reader_block_prepare(struct reader *reader, const struct ticket *ticket, uint64_t from, uint64_t len,
                         struct error *error)
{
        const struct plan_block *block = ticket->block;
        uint64_t left = block->len - from, since = now_ns();
        if (ticket->slot != NULL) {
                if (staging_touch(&reader->staging, ticket->slot))
                        stages_add(&ticket->job->stages, STAGE_memory, now_ns() - since);
                return 0;
        }
        struct segment *segment = &ticket->job->targets[0]->segments[block->segment];
        int r = segment->device->ops->prepare(segment, block->offset + from, len < left ? len : left, error);
        stages_add(&ticket->job->stages, STAGE_memory, now_ns() - since);
        return r;
}

static void next_piece(const struct ticket *ticket, struct fill *fill)
{
        fill->have_piece = plan_pieces_next(ticket->job->plan, ticket->block, &fill->pieces, &fill->piece);
        hash_init(&fill->hash);
}

void reader_fill_begin(const struct ticket *ticket, struct fill *fill)
{
        fill->have = 0;
        plan_pieces_begin(ticket->block, &fill->pieces);
        next_piece(ticket, fill);
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
        const struct plan_piece *piece = &fill->piece;
        uint64_t end = fill->have + n;
        while (fill->have_piece && piece->in_block < end) { /* bytes between pieces belong to no tensor */
                uint64_t from = piece->in_block > fill->have ? piece->in_block : fill->have;
                uint64_t piece_end = piece->in_block + piece->len, hashed = piece_end < end ? piece_end : end;
                hash_update(&fill->hash, data + (from - fill->have), hashed - from);
                if (hashed < piece_end)
                        break;
                hash_final(&fill->hash, ticket->job->leaves[piece->leaf]);
                next_piece(ticket, fill);
        }
        if (data != to + fill->have)
                copy_past_cache(to + fill->have, data, n);
        fill->have = end;
}
