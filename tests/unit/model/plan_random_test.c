/* SPDX-License-Identifier: Apache-2.0
 *
 * Properties of every plan, on random models: any dtypes, sizes and header lengths, stale tensors, both layouts, any
 * block size. Each plan is executed with memcpy, block by block, and the segments are compared with the files.
 *
 * A failure prints the seed; STREAMERD_TEST_SEED repeats it.
 */
#include "tests/unit/plan_files.h"

#define FILES 3
#define MIB (UINT64_C(1) << 20)

static uint64_t seed, state;

#define holds(what)                                                                                                    \
        do {                                                                                                           \
                if (!(what))                                                                                           \
                        ck_abort_msg("seed %" PRIu64 ": broken: %s", seed, #what);                                     \
        } while (0)

struct world {
        struct made_file made[FILES];
        struct plan_file files[FILES];
        size_t n_files;
        struct plan_layout layout;
        uint64_t block_size;
        struct plan plan;
        unsigned char *segments[PLAN_MAX_SEGMENTS];
        unsigned char *written[PLAN_MAX_SEGMENTS]; /* how often each byte was */
        unsigned char *leaves;                     /* how often each was */
};

/* ---- creation ---- */

static uint64_t random_bytes(void)
{
        switch (draw_below(&state, 12)) {
        case 0:
                return 0;
        case 1:
                return draw_below(&state, 5 * MIB);
        case 2:
                return MIB * draw_below(&state, 4);
        case 3:
                return MIB + draw_below(&state, 3) - 1;
        case 4:
                return 4096 * draw_below(&state, 20);
        default:
                return draw_below(&state, 3000);
        }
}

static void random_file(struct made_file *f, size_t number)
{
        file_begin(f);
        uint64_t n = draw_below(&state, 25);
        for (uint64_t i = 0; i < n; i++) {
                char name[64];
                enum dtype dtype = (enum dtype)(1 + draw_below(&state, DTYPE_END - 1));
                uint64_t unit = dtype_bits(dtype) % 8 != 0 ? 3 : dtype_align(dtype);
                sprintf(name, "%c.%zu.%" PRIu64, (char)('a' + draw_below(&state, 26)), number, i);
                file_tensor(f, name, dtype, random_bytes() / unit * unit);
        }
        file_end(f, draw_below(&state, 2) ? 1 : 8, 0);
        for (size_t i = 0; draw_below(&state, 2) && i < f->header.n_tensors; i++)
                if (draw_below(&state, 6) == 0)
                        file_remove(f, i);
        f->bytes = must_alloc(f->header.data_start + f->end);
        for (uint64_t i = 0; i < f->header.data_start + f->end; i += 1 + draw_below(&state, 64))
                f->bytes[i] = (unsigned char)draw_below(&state, 256);
}

/* Of a file that is encrypted; 0: it is not. */
static uint64_t random_chunk(void)
{
        switch (draw_below(&state, 8)) {
        case 0:
                return UINT64_MAX;
        case 1:
                return UINT64_C(1) << draw_below(&state, 24);
        case 2:
                return MIB * (1 + draw_below(&state, 4));
        case 3:
                return 1 + draw_below(&state, 4 * MIB);
        default:
                return 0;
        }
}

static void world_begin(struct world *w)
{
        struct error error;
        w->n_files = 1 + draw_below(&state, FILES);
        w->block_size = MIB * (1 + draw_below(&state, 5));
        w->layout = draw_below(&state, 2) ? (struct plan_layout){.page = 4096, .align = 1}
                                          : (struct plan_layout){.align = 256};
        w->layout.granularity = draw_below(&state, 2) ? 4096 : 65536;
        w->layout.small = w->layout.page > 0 && draw_below(&state, 2) ? 32768 : 0;
        w->layout.max_segment = draw_below(&state, 2) ? 0 : 1 + draw_below(&state, 4 * MIB);
        for (size_t i = 0; i < w->n_files; i++) {
                random_file(&w->made[i], i);
                w->files[i] = (struct plan_file){.header = w->made[i].header, .chunk = random_chunk()};
        }
        holds(plan_make(&w->plan, w->files, w->n_files, &w->layout, w->block_size, &error) == 0);
        holds(w->plan.n_segments <= PLAN_MAX_SEGMENTS);
        for (size_t i = 0; i < w->plan.n_segments; i++) {
                w->segments[i] = must_alloc(w->plan.segments[i]);
                w->written[i] = must_alloc(w->plan.segments[i]);
        }
        w->leaves = must_alloc(w->plan.n_leaves + 1);
}

static void world_end(struct world *w)
{
        for (size_t i = 0; i < w->plan.n_segments; i++) {
                free(w->segments[i]);
                free(w->written[i]);
        }
        free(w->leaves);
        plan_deinit(&w->plan);
        for (size_t i = 0; i < w->n_files; i++)
                file_free(&w->made[i]);
}

/* ---- invariants ---- */

static const struct st_tensor *in_file(const struct world *w, const struct plan_tensor *t)
{
        return &w->made[t->file].header.tensors[t->index];
}

/* The plan lists the tensors that are not stale, file by file, in order. */
static void check_listed(const struct world *w)
{
        size_t n = 0;
        uint64_t bytes = 0, leaves = 0;
        for (uint32_t f = 0; f < w->n_files; f++) {
                const struct st_header *h = &w->made[f].header;
                for (uint32_t i = 0; i < h->n_tensors; i++) {
                        const struct plan_tensor *t = &w->plan.tensors[n++];
                        holds(t->file == f && t->index == i && t->leaf == leaves);
                        holds(t->file_off == h->data_start + h->tensors[i].begin);
                        holds(t->bytes == h->tensors[i].end - h->tensors[i].begin);
                        bytes += t->bytes;
                        leaves += t->bytes / PLAN_LEAF + (t->bytes % PLAN_LEAF != 0);
                }
        }
        holds(n == w->plan.n_tensors && bytes == w->plan.bytes && leaves == w->plan.n_leaves);
}

static bool congruent(const struct world *w, const struct plan_tensor *t)
{
        return w->layout.page != 0 && (t->file_off - t->offset) % w->layout.page == 0;
}

static void check_places(const struct world *w)
{
        const struct plan_tensor *last = NULL;
        for (size_t i = 0; i < w->plan.n_tensors; i++) {
                const struct plan_tensor *t = &w->plan.tensors[i];
                holds(t->bytes == 0 || t->offset % w->layout.align == 0);
                holds(t->bytes == 0 || t->offset % dtype_align(in_file(w, t)->dtype) == 0);
                /* The order of places is that of the files. */
                const struct plan_tensor *before = i > 0 ? t - 1 : NULL;
                holds(before == NULL || t->segment > before->segment ||
                      (t->segment == before->segment && t->offset >= before->offset + before->bytes));
                if (w->plan.n_segments > 0) {
                        holds(t->segment < w->plan.n_segments);
                        holds(t->offset + t->bytes <= w->plan.segments[t->segment]);
                }
                if (t->bytes == 0)
                        continue;
                bool follows = last != NULL && last->file == t->file && last->segment == t->segment &&
                               t->file_off == last->file_off + last->bytes;
                uint64_t end = follows ? last->offset + last->bytes : 0;
                holds(!follows || t->offset >= end);
                /* What is read in place goes on for as long as alignment allows it. */
                if (follows && congruent(w, last) && end % w->layout.align == 0 &&
                    end % dtype_align(in_file(w, t)->dtype) == 0)
                        holds(t->offset == end);
                last = t;
        }
}

/* One piece: a whole leaf, written to the place that the block's kind requires. */
static void check_piece(struct world *w, const struct plan_block *b, const struct plan_piece *p)
{
        const struct plan_tensor *t = &w->plan.tensors[p->tensor];
        uint64_t from = (p->leaf - t->leaf) * PLAN_LEAF, rest = t->bytes - from;
        holds(from < t->bytes);
        holds(p->len == (rest < PLAN_LEAF ? rest : PLAN_LEAF));
        holds(p->offset == t->offset + from);
        holds(p->segment == t->segment);
        holds(b->file_off + p->in_block == t->file_off + from);
        holds(t->file == b->file);
        holds(congruent(w, t) == b->in_place);
        if (b->in_place) {
                holds(b->offset + p->in_block == p->offset);
                holds(b->segment == p->segment);
        }
        w->leaves[p->leaf]++;
        memcpy(w->segments[p->segment] + p->offset, w->made[b->file].bytes + b->file_off + p->in_block, p->len);
        for (uint64_t i = 0; i < p->len; i++)
                w->written[p->segment][p->offset + i]++;
}

/* A chunk that is longer than a block is read by several, in order; else blocks end with chunks. */
static void check_chunks(const struct world *w)
{
        const struct plan *plan = &w->plan;
        for (size_t i = 0; i < plan->n_blocks; i++) {
                const struct plan_block *b = &plan->blocks[i];
                uint64_t chunk = w->files[b->file].chunk;
                holds(b->continues == (chunk > 0 && b->skip % chunk != 0));
                if (!b->continues)
                        continue;
                holds(i > 0 && b[-1].tensor == b->tensor && b[-1].file_off + b[-1].len == b->file_off);
                holds(b[-1].len == w->block_size);
                for (uint64_t take = PLAN_LEAF; take <= w->block_size; take += PLAN_LEAF)
                        holds((b[-1].skip + take) % chunk != 0);
        }
        for (size_t from = 0, end; from < plan->n_blocks; from = end) {
                end = plan_request_end(plan, from, 1 + draw_below(&state, 4));
                holds(end > from && (end == plan->n_blocks || !plan->blocks[end].continues));
                for (size_t i = from + 1; i < end; i++)
                        holds(plan->blocks[i].file_off == plan->blocks[i - 1].file_off + plan->blocks[i - 1].len);
        }
}

static void carry_out(struct world *w)
{
        uint64_t copied = 0;
        for (size_t i = 0; i < w->plan.n_blocks; i++) {
                const struct plan_block *b = &w->plan.blocks[i];
                struct plan_cursor cursor;
                struct plan_piece piece;
                uint64_t done = 0;
                holds(b->len > 0 && b->len <= w->block_size && b->skip % PLAN_LEAF == 0);
                holds(b->file_off == w->plan.tensors[b->tensor].file_off + b->skip);
                if (i > 0 && b[-1].file == b->file)
                        holds(b->file_off >= b[-1].file_off + b[-1].len);
                else
                        holds(i == 0 || b[-1].file < b->file);
                plan_pieces_begin(b, &cursor);
                while (plan_pieces_next(&w->plan, b, &cursor, &piece)) {
                        holds(piece.in_block == done);
                        check_piece(w, b, &piece);
                        done += piece.len;
                }
                holds(done == b->len);
                copied += b->in_place ? 0 : b->len;
        }
        holds(copied == w->plan.copied_bytes);
}

static void check_written(const struct world *w)
{
        uint64_t written = 0;
        for (size_t i = 0; i < w->plan.n_leaves; i++)
                holds(w->leaves[i] == 1);
        for (size_t i = 0; i < w->plan.n_segments; i++) {
                bool small = w->plan.segments[i] <= w->layout.small;
                holds(w->plan.segments[i] % (small ? w->layout.page : w->layout.granularity) == 0);
                for (uint64_t k = 0; k < w->plan.segments[i]; k++) {
                        holds(w->written[i][k] <= 1);
                        written += w->written[i][k];
                }
        }
        holds(written == w->plan.bytes);
        for (size_t i = 0; i < w->plan.n_tensors; i++) {
                const struct plan_tensor *t = &w->plan.tensors[i];
                if (t->bytes > 0)
                        holds(memcmp(w->segments[t->segment] + t->offset, w->made[t->file].bytes + t->file_off,
                                     t->bytes) == 0);
        }
}

static void check_sorted(const struct world *w)
{
        uint32_t *order = plan_sort_names(&w->plan);
        for (size_t i = 1; i < w->plan.n_tensors; i++) {
                const struct plan_tensor *a = &w->plan.tensors[order[i - 1]], *b = &w->plan.tensors[order[i]];
                holds(strcmp(st_name(&w->made[a->file].header, in_file(w, a)),
                             st_name(&w->made[b->file].header, in_file(w, b))) < 0);
        }
}

TEST(every_plan_loads_its_model, .to = 8)
{
        state = seed = env_number("STREAMERD_TEST_SEED", clock_ns() + (uint64_t)_i);
        for (int round = 0; round < (suite_short() ? 2 : 25); round++) {
                struct world w = {0};
                world_begin(&w);
                check_listed(&w);
                check_places(&w);
                check_chunks(&w);
                carry_out(&w);
                check_written(&w);
                check_sorted(&w);
                world_end(&w);
        }
}
