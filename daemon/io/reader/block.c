/* SPDX-License-Identifier: Apache-2.0
 *
 * A block that a thread fills: where its bytes belong, their memory, their decryption, and the digests of its leaves.
 */
#include "daemon/io/reader/engine.h"

#include <inttypes.h>

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

static void next_leaf(const struct ticket *ticket, struct leaf_hash *leaves)
{
        leaves->have_piece = plan_pieces_next(ticket->job->plan, ticket->block, &leaves->pieces, &leaves->piece);
        hash_init(&leaves->hash);
}

static void begin_leaves(const struct ticket *ticket, struct leaf_hash *leaves)
{
        leaves->hashed = 0;
        plan_pieces_begin(ticket->block, &leaves->pieces);
        next_leaf(ticket, leaves);
}

static const struct encrypted_file *encryption_of(const struct ticket *ticket)
{
        const struct read_job *job = ticket->job;
        return job->encrypted != NULL ? job->encrypted[ticket->block->file] : NULL;
}

static bool is_encrypted(const struct ticket *ticket, uint32_t tensor)
{
        const struct encrypted_file *file = encryption_of(ticket);
        return file != NULL && file->tensors[ticket->job->plan->tensors[tensor].index].wrapped_key != 0;
}

void reader_fill_begin(const struct ticket *ticket, struct fill *fill)
{
        const struct plan_block *block = ticket->block;
        const struct chunk *chunk = &fill->chunk;
        fill->have = 0;
        fill->tensor = block->tensor;
        fill->skip = block->skip;
        if (block->continues && is_encrypted(ticket, block->tensor))
                require(chunk->file == encryption_of(ticket) && chunk->at == block->skip);
        else
                reader_fill_deinit(fill); /* of a request for this block that was given up */
        begin_leaves(ticket, &fill->leaves);
        if (ticket->job->expected != NULL && encryption_of(ticket) != NULL)
                begin_leaves(ticket, &fill->stored);
}

void reader_fill_deinit(struct fill *fill)
{
        chunk_deinit(&fill->chunk);
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

/* Up to byte `end` of the block, of which `data` is the part from leaves->hashed on. The digests of leaves that
 * end there go to `digests` (NULL: nowhere). False: one of them is not what is expected; NULL: nothing is. */
static bool hash_leaves(const struct ticket *ticket, struct leaf_hash *leaves, const unsigned char *data, uint64_t end,
                        unsigned char (*digests)[DIGEST_SIZE], const unsigned char (*expected)[DIGEST_SIZE])
{
        const struct plan_piece *piece = &leaves->piece;
        uint64_t begin = leaves->hashed;
        bool equal = true;
        while (leaves->have_piece && piece->in_block < end) { /* bytes between pieces belong to no tensor */
                unsigned char digest[DIGEST_SIZE];
                uint64_t from = piece->in_block > begin ? piece->in_block : begin;
                uint64_t piece_end = piece->in_block + piece->len, hashed = piece_end < end ? piece_end : end;
                hash_update(&leaves->hash, data + (from - begin), hashed - from);
                if (hashed < piece_end)
                        break;
                hash_final(&leaves->hash, digest);
                if (digests != NULL)
                        memcpy(digests[piece->leaf], digest, DIGEST_SIZE);
                if (expected != NULL && memcmp(digest, expected[piece->leaf], DIGEST_SIZE) != 0)
                        equal = false;
                next_leaf(ticket, leaves);
        }
        leaves->hashed = end;
        return equal;
}

static int fail_differing(const struct ticket *ticket, const struct fill *fill, struct error *error)
{
        return error_set(error, STREAMER_EFAILED,
                         "the bytes up to offset %" PRIu64 " differ from those that were stored (%s)",
                         ticket->block->file_off + fill->have, ticket->job->objects[ticket->block->file].path);
}

/* ---- decryption: see daemon/crypt/encrypted_file.h ---- */

static int fail_decryption(const struct ticket *ticket, const struct fill *fill, int r, struct error *error)
{
        const struct read_job *job = ticket->job;
        const struct plan *plan = job->plan;
        const struct plan_tensor *t = &plan->tensors[fill->tensor];
        const struct st_tensor *in_file = plan_in_file(plan, t);
        const char *path = job->objects[t->file].path;
        char quoted[NAME_QUOTE], why[sizeof(error->text)];
        error_escape_n(quoted, sizeof(quoted), st_name(&plan->files[t->file].header, in_file), in_file->name_len);
        if (r == CIPHER_WRONG_TAG)
                return error_set(error, STREAMER_EFAILED,
                                 "tensor '%s': chunk %" PRIu64
                                 " does not match its tag: the file is damaged, or was changed (%s)",
                                 quoted, fill->chunk.number, path);
        snprintf(why, sizeof(why), "%s", error->text);
        return error_set(error, r, "tensor '%s': %s (%s)", quoted, why, path);
}

/* The next bytes, at most n, up to the end of a chunk, or of a tensor that is not encrypted. *taken of them. */
static int fill_chunk(const struct ticket *ticket, struct fill *fill, unsigned char *to, const unsigned char *data,
                      size_t n, size_t *taken, struct error *error)
{
        const struct encrypted_file *file = encryption_of(ticket);
        const struct plan_tensor *tensors = ticket->job->plan->tensors;
        struct chunk *chunk = &fill->chunk;
        while (fill->skip == tensors[fill->tensor].bytes) {
                fill->tensor++;
                fill->skip = 0;
        }
        const struct plan_tensor *t = &tensors[fill->tensor];
        bool encrypted = is_encrypted(ticket, fill->tensor);
        uint64_t left = (encrypted ? chunk_end(file, fill->skip, t->bytes) : t->bytes) - fill->skip;
        bool continued = left > ticket->block->len - fill->have; /* by the next block */
        int r = 0;
        *taken = left < n ? (size_t)left : n;
        if (!encrypted) {
                if (data != to + fill->have)
                        copy_past_cache(to + fill->have, data, *taken);
        } else {
                if (chunk->file == NULL)
                        r = chunk_begin(chunk, file, t->index, fill->skip, t->bytes, error);
                r = r ?: chunk_decrypt(chunk, to + fill->have, data, *taken, error);
        }
        if (r != 0)
                return fail_decryption(ticket, fill, r, error);
        fill->skip += *taken;
        fill->have += *taken;
        /* At its end a chunk is authentic. One that the next block continues is hashed as it comes, and the tensor
         * does not arrive before its end. */
        if (chunk->file == NULL || continued)
                hash_leaves(ticket, &fill->leaves, to + fill->leaves.hashed, fill->have, ticket->job->leaves, NULL);
        return 0;
}

int reader_fill(const struct ticket *ticket, struct fill *fill, unsigned char *to, const unsigned char *data, size_t n,
                struct error *error)
{
        const struct read_job *job = ticket->job;
        require(n <= ticket->block->len - fill->have);
        if (encryption_of(ticket) == NULL) {
                bool equal = hash_leaves(ticket, &fill->leaves, data, fill->have + n, job->leaves, job->expected);
                if (data != to + fill->have)
                        copy_past_cache(to + fill->have, data, n);
                fill->have += n;
                return equal ? 0 : fail_differing(ticket, fill, error);
        }
        if (job->expected != NULL && !hash_leaves(ticket, &fill->stored, data, fill->have + n, NULL, job->expected))
                return fail_differing(ticket, fill, error);
        for (size_t taken; n > 0; data += taken, n -= taken) {
                int r = fill_chunk(ticket, fill, to, data, n, &taken, error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* ---- without a reader thread ---- */

int reader_place_block(struct read_job *job, const struct plan_block *block, const unsigned char *from,
                       struct error *error)
{
        const struct ticket ticket = {.job = job, .block = block};
        struct fill fill = {.have = 0};
        require(block->in_place && !block->continues && job->begun_ns == 0);
        unsigned char *to = reader_block_data(&ticket);
        reader_fill_begin(&ticket, &fill);
        int r = reader_block_prepare(NULL, &ticket, 0, block->len, error)
                        ?: reader_fill(&ticket, &fill, to, from, block->len, error);
        reader_fill_deinit(&fill);
        return r;
}
