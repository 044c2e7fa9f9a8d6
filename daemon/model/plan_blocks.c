/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks: what is read at once. A block takes tensors, and whole leaves of tensors, while the file's bytes are
 * contiguous; a block that is read in place also ends with its extent. The pieces of a block, one for each leaf, follow
 * from the table of tensors and are not stored.
 */
#include "daemon/base/json/pages.h"
#include "daemon/model/plan_private.h"

struct cutter {
        struct plan *plan;
        const struct plan_layout *layout;
        uint64_t block_size;
        struct pages blocks;
        struct plan_block open; /* len 0: none */
        uint32_t extent;        /* of the open block's last tensor */
};

static bool flush(struct cutter *c)
{
        size_t n = c->plan->n_blocks;
        if (c->open.len == 0)
                return true;
        if (!pages_reserve(&c->blocks, (n + 1) * sizeof(c->open)))
                return false;
        ((struct plan_block *)c->blocks.p)[n] = c->open;
        c->plan->n_blocks++;
        c->open.len = 0;
        return true;
}

static bool runs_on(const struct cutter *c, const struct plan_tensor *t, bool in_place)
{
        const struct plan_block *open = &c->open;
        return open->len > 0 && open->file == t->file && open->file_off + open->len == t->file_off &&
               open->in_place == in_place && (!in_place || c->extent == t->extent);
}

static void open_block(struct cutter *c, uint32_t tensor, uint64_t skip, bool in_place)
{
        const struct plan_tensor *t = &c->plan->tensors[tensor];
        c->open = (struct plan_block){
                .file_off = t->file_off + skip,
                .file = t->file,
                .tensor = tensor,
                .in_place = in_place,
                .skip = skip,
                .offset = t->offset + skip,
                .segment = t->segment,
        };
}

static bool cut_tensor(struct cutter *c, uint32_t i)
{
        const struct plan_tensor *t = &c->plan->tensors[i];
        bool in_place = plan_congruent(c->layout, t->file_off, t->offset);
        if (!runs_on(c, t, in_place) && !flush(c))
                return false;
        c->extent = t->extent;
        for (uint64_t skip = 0, take; skip < t->bytes; skip += take) {
                uint64_t room = c->block_size - c->open.len, left = t->bytes - skip;
                take = left <= room ? left : room / PLAN_LEAF * PLAN_LEAF;
                if (take == 0 && !flush(c))
                        return false;
                if (c->open.len == 0)
                        open_block(c, i, skip, in_place);
                c->open.len += (uint32_t)take;
        }
        return true;
}

bool plan_cut(struct plan *plan, const struct plan_layout *layout, uint64_t block_size)
{
        struct cutter c = {.plan = plan, .layout = layout, .block_size = block_size};
        bool ok = true;
        for (uint32_t i = 0; ok && i < plan->n_tensors; i++)
                if (plan->tensors[i].bytes > 0)
                        ok = cut_tensor(&c, i);
        ok = ok && flush(&c);
        if (ok)
                plan->blocks = pages_take(&c.blocks, plan->n_blocks * sizeof(*plan->blocks));
        else
                plan->n_blocks = 0;
        pages_deinit(&c.blocks);
        return ok;
}

/* ---- pieces ---- */

void plan_pieces_begin(const struct plan_block *block, struct plan_cursor *cursor)
{
        *cursor = (struct plan_cursor){block->tensor, block->skip, 0};
}

bool plan_pieces_next(const struct plan *plan, const struct plan_block *block, struct plan_cursor *cursor,
                      struct plan_piece *piece)
{
        if (cursor->done == block->len)
                return false;
        while (cursor->skip == plan->tensors[cursor->tensor].bytes)
                *cursor = (struct plan_cursor){cursor->tensor + 1, 0, cursor->done};
        const struct plan_tensor *t = &plan->tensors[cursor->tensor];
        uint64_t left = t->bytes - cursor->skip;
        *piece = (struct plan_piece){
                .tensor = cursor->tensor,
                .segment = t->segment,
                .leaf = t->leaf + cursor->skip / PLAN_LEAF,
                .in_block = cursor->done,
                .offset = t->offset + cursor->skip,
                .len = left < PLAN_LEAF ? left : PLAN_LEAF,
        };
        cursor->skip += piece->len;
        cursor->done += piece->len;
        return true;
}
