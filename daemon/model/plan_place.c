/* SPDX-License-Identifier: Apache-2.0
 *
 * Placement. One walk over the tensors keeps a position in the current segment. A tensor joins the extent before it if
 * the file's own distance keeps it aligned; else it begins another one.
 *
 * On a layout with pages extents begin congruent to the file where that allows them to be read in place. Such an extent
 * may share a page with its neighbour: readers bounce the partial pages at the edges of blocks anyway, so segments stay
 * as dense as alignment allows.
 */
#include "daemon/model/plan_private.h"
#include "proto/manifest.h"

/* Going from a copied extent back to one in place costs up to a page of padding. From this size on
 * that is cheaper than the copy, and at most half a percent of the segment. */
#define WORTH_A_PAGE PLAN_LEAF

struct placer {
        struct plan *plan;
        const struct plan_file *files;
        const struct plan_layout *layout;
        uint64_t max_segment;
        uint64_t pos;                   /* in the current segment */
        const struct plan_tensor *last; /* the last that has bytes */
        bool in_place;                  /* how the current extent is read */
        size_t too_short_until;         /* runs that begin before this tensor are not worth a page */
};

static uint64_t alignment(const struct placer *p, const struct plan_tensor *t)
{
        uint64_t element = dtype_align(p->files[t->file].header->tensors[t->index].dtype);
        return element > p->layout->align ? element : p->layout->align;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
        return (n + to - 1) / to * to;
}

/* ---- the place of a tensor ---- */

static bool aligned_in_file(const struct placer *p, const struct plan_tensor *t)
{
        return p->layout->page != 0 && t->file_off % alignment(p, t) == 0;
}

/* Whether t's bytes follow the last tensor's in the file, and could in the segment. */
static bool follows(const struct placer *p, const struct plan_tensor *t)
{
        const struct plan_tensor *last = p->last;
        return p->pos > 0 && last->file == t->file && last->file_off + last->bytes == t->file_off;
}

/* Whether the run of tensors from i that could be read in place is long enough. Each tensor is looked
 * at once: where a run is too short, so are those that begin later in it. */
static bool worth_a_page(struct placer *p, size_t i)
{
        const struct plan *plan = p->plan;
        const struct plan_tensor *first = &plan->tensors[i];
        uint64_t len = 0;
        size_t k = i;
        if (i < p->too_short_until)
                return false;
        for (; k < plan->n_tensors && len < WORTH_A_PAGE; k++) {
                const struct plan_tensor *t = &plan->tensors[k];
                if (t->bytes == 0)
                        continue;
                if (t->file != first->file || t->file_off != first->file_off + len || !aligned_in_file(p, t))
                        break;
                len += t->bytes;
        }
        if (len >= WORTH_A_PAGE)
                return true;
        p->too_short_until = k;
        return false;
}

/* The place of tensor i if it stays in the current segment; *joins: in the current extent. */
static uint64_t next_offset(struct placer *p, size_t i, bool *joins)
{
        const struct plan_tensor *t = &p->plan->tensors[i];
        uint64_t align = alignment(p, t), page = p->layout->page;
        *joins = follows(p, t) && p->pos % align == 0;
        if (*joins && p->in_place)
                return p->pos;
        bool fresh = p->pos == 0 || p->last->file != t->file;
        if (aligned_in_file(p, t) && (fresh || worth_a_page(p, i))) {
                *joins = false;
                return p->pos + (t->file_off % page + page - p->pos % page) % page;
        }
        return *joins ? p->pos : round_up(p->pos, align);
}

/* ---- segments ---- */

/* False: it would be one too many. */
static bool close_segment(struct placer *p)
{
        struct plan *plan = p->plan;
        if (p->pos == 0)
                return true;
        if (plan->n_segments == PLAN_MAX_SEGMENTS)
                return false;
        plan->segments[plan->n_segments++] = round_up(p->pos, p->layout->granularity);
        p->pos = 0;
        return true;
}

static bool place(struct placer *p, size_t i)
{
        struct plan *plan = p->plan;
        struct plan_tensor *t = &plan->tensors[i];
        if (t->bytes == 0) {
                /* No bytes, but an address that is fit for its elements. */
                t->segment = (uint32_t)p->plan->n_segments;
                t->extent = p->plan->n_extents > 0 ? (uint32_t)p->plan->n_extents - 1 : 0;
                t->offset = round_up(p->pos, alignment(p, t));
                return true;
        }
        bool joins;
        uint64_t offset = next_offset(p, i, &joins);
        if (p->max_segment > 0 && p->pos > 0 && offset + t->bytes > p->max_segment) {
                if (!close_segment(p))
                        return false;
                offset = next_offset(p, i, &joins);
        }
        plan->n_extents += !joins;
        t->extent = (uint32_t)plan->n_extents - 1;
        t->segment = (uint32_t)plan->n_segments;
        t->offset = offset;
        p->in_place = plan_congruent(p->layout, t->file_off, offset);
        plan->copied_bytes += p->in_place ? 0 : t->bytes;
        p->pos = offset + t->bytes;
        p->last = t;
        return true;
}

static bool place_all(struct plan *plan, const struct plan_file *files, const struct plan_layout *layout,
                      uint64_t max_segment)
{
        struct placer p = {.plan = plan, .files = files, .layout = layout, .max_segment = max_segment};
        plan->n_segments = plan->n_extents = 0;
        plan->copied_bytes = 0;
        for (size_t i = 0; i < plan->n_tensors; i++)
                if (!place(&p, i))
                        return false;
        return close_segment(&p);
}

/* Two neighbouring segments hold more than max_segment together, so a few doublings suffice. */
void plan_place(struct plan *plan, const struct plan_file *files, const struct plan_layout *layout)
{
        uint64_t max = layout->max_segment;
        if (max > 0 && max < plan->bytes / PLAN_MAX_SEGMENTS)
                max = plan->bytes / PLAN_MAX_SEGMENTS;
        while (!place_all(plan, files, layout, max))
                max *= 2;
}
