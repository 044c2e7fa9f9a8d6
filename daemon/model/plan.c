/* SPDX-License-Identifier: Apache-2.0
 *
 * Placement is one walk over the tensors, with a position in the current segment. A tensor joins the extent before it
 * if the file's own distance keeps it aligned; else it begins another one. On a layout with pages extents begin
 * congruent to the file where that allows them to be read in place. Such an extent may share a page with its neighbour:
 * readers bounce the partial pages at the edges of blocks anyway, so segments stay as dense as alignment allows.
 *
 * A block takes tensors, and whole leaves of tensors, while the file's bytes are contiguous; a block that is read in
 * place also ends with its extent. The pieces of a block, one for each leaf, follow from the table of tensors and are
 * not stored.
 */
#include "daemon/base/util.h"
#include "daemon/model/plan.h"
#include "proto/manifest.h"

/* Going from a copied extent back to one in place costs up to a page of padding. From this size on
 * that is cheaper than the copy, and at most half a percent of the segment. */
#define WORTH_A_PAGE PLAN_LEAF

/* ---- the tensors ---- */

static int list_tensors(struct plan *plan, struct error *error)
{
        uint64_t sum = 0;
        size_t n = 0;
        for (size_t f = 0; f < plan->n_files; f++) {
                const struct st_header *h = &plan->files[f].header;
                uint64_t end = h->n_tensors > 0 ? h->tensors[h->n_tensors - 1].end : 0;
                /* Files are as large as they say, but a few that claim 2^63 bytes would wrap every sum below. */
                if (__builtin_add_overflow(sum, end, &sum) || sum > UINT64_MAX / 4)
                        return error_set(error, STREAMER_EFAILED, "the files' sizes overflow");
                n += h->n_tensors;
        }
        if (n >= NAMES_NONE)
                return error_set(error, STREAMER_EFAILED, "too many tensors");
        plan->tensors = calloc(n + 1, sizeof(*plan->tensors));
        if (plan->tensors == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory for the plan");
        for (uint32_t f = 0; f < plan->n_files; f++) {
                const struct st_header *header = &plan->files[f].header;
                for (uint32_t i = 0; i < header->n_tensors; i++) {
                        const struct st_tensor *t = &header->tensors[i];
                        struct plan_tensor *placed = &plan->tensors[plan->n_tensors++];
                        *placed = (struct plan_tensor){
                                .file = f,
                                .index = i,
                                .file_off = header->data_start + t->begin,
                                .bytes = t->end - t->begin,
                                .leaf = plan->n_leaves,
                        };
                        plan->bytes += placed->bytes;
                        plan->n_leaves += plan_leaves(placed->bytes);
                }
        }
        return 0;
}

/* ---- names ---- */

static struct name tensor_name(const void *owner, uint32_t i)
{
        const struct plan *plan = owner;
        const struct plan_tensor *t = &plan->tensors[i];
        const struct st_tensor *in_file = plan_in_file(plan, t);
        return (struct name){st_name(&plan->files[t->file].header, in_file), in_file->name_len};
}

/* The file that has name i, and which of its tensors that is. */
static const struct st_tensor *added_tensor(const struct plan_names *names, uint32_t i, size_t *file)
{
        size_t from = 0, to = names->n_files;
        while (to - from > 1) {
                size_t middle = from + (to - from) / 2;
                if (names->first[middle] <= i)
                        from = middle;
                else
                        to = middle;
        }
        *file = from;
        return &names->files[from].header.tensors[i - names->first[from]];
}

static struct name added_name(const void *owner, uint32_t i)
{
        const struct plan_names *names = owner;
        size_t file;
        const struct st_tensor *t = added_tensor(names, i, &file);
        return (struct name){st_name(&names->files[file].header, t), t->name_len};
}

static int in_two_files(const struct plan_names *names, uint32_t i, uint32_t other, struct error *error)
{
        char quoted[NAME_QUOTE];
        struct name name = added_name(names, i);
        size_t file, other_file;
        added_tensor(names, i, &file);
        added_tensor(names, other, &other_file);
        error_escape_n(quoted, sizeof(quoted), name.s, name.len);
        return error_set(error, STREAMER_EFAILED, "tensor '%s' is in two files (%s, %s)", quoted,
                         names->files[other_file].path, names->files[file].path);
}

/* The set grows to twice its size, with all names so far. False: no memory. */
static bool names_reserve(struct plan_names *names, uint32_t n, uint32_t needed)
{
        if (needed <= names->capacity)
                return true;
        size_t capacity = 2 * names->capacity > needed ? 2 * names->capacity : needed;
        if (!nameset_begin(&names->set, capacity))
                return false;
        names->capacity = capacity;
        for (uint32_t i = 0; i < n; i++)
                nameset_add(&names->set, added_name, names, i);
        return true;
}

int plan_names_add(struct plan_names *names, const struct plan_file *files, struct error *error)
{
        const struct st_header *header = &files[names->n_files].header;
        uint32_t *first = reallocarray(names->first, names->n_files + 2, sizeof(*first));
        if (first == NULL)
                return error_no_memory(error);
        names->first = first;
        uint32_t from = names->n_files > 0 ? first[names->n_files] : 0;
        if (header->n_tensors >= NAMES_NONE - from)
                return error_set(error, STREAMER_EFAILED, "too many tensors");
        uint32_t end = from + (uint32_t)header->n_tensors;
        first[names->n_files] = from;
        first[names->n_files + 1] = end;
        names->files = files;
        names->n_files++;
        if (!names_reserve(names, from, end))
                return error_set(error, STREAMER_ENOMEM, "no memory to compare names");
        for (uint32_t i = from; i < end; i++) {
                uint32_t other = nameset_add(&names->set, added_name, names, i);
                if (other != NAMES_NONE)
                        return in_two_files(names, i, other, error);
        }
        return 0;
}

void plan_names_deinit(struct plan_names *names)
{
        nameset_deinit(&names->set);
        free(names->first);
        *names = (struct plan_names){.n_files = 0};
}

uint32_t *plan_sort_names(const struct plan *plan)
{
        uint32_t *order = malloc((plan->n_tensors > 0 ? plan->n_tensors : 1) * sizeof(*order));
        if (order != NULL)
                names_sort(order, plan->n_tensors, tensor_name, plan);
        return order;
}

/* ---- placement ---- */

/* Whether file bytes at file_off may be read straight to `offset` of a segment. */
static bool is_congruent(const struct plan_layout *layout, uint64_t file_off, uint64_t offset)
{
        return layout->page != 0 && file_off % layout->page == offset % layout->page;
}

struct placer {
        struct plan *plan;
        const struct plan_layout *layout;
        uint64_t max_segment;
        uint64_t pos;                   /* in the current segment */
        const struct plan_tensor *last; /* the last that has bytes */
        bool in_place;                  /* how the current extent is read */
        size_t too_short_until;         /* runs that begin before this tensor are not worth a page */
};

static uint64_t alignment(const struct placer *p, const struct plan_tensor *t)
{
        uint64_t element = dtype_align(plan_in_file(p->plan, t)->dtype);
        return element > p->layout->align ? element : p->layout->align;
}

static bool aligned_in_file(const struct placer *p, const struct plan_tensor *t)
{
        return p->layout->page != 0 && t->file_off % alignment(p, t) == 0;
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

/* The place of tensor i if it stays in the current segment. */
static uint64_t next_offset(struct placer *p, size_t i)
{
        const struct plan_tensor *t = &p->plan->tensors[i], *last = p->last;
        uint64_t align = alignment(p, t), page = p->layout->page;
        bool follows = p->pos > 0 && last->file == t->file && last->file_off + last->bytes == t->file_off;
        if (follows && p->in_place && p->pos % align == 0)
                return p->pos;
        bool fresh = p->pos == 0 || last->file != t->file;
        if (aligned_in_file(p, t) && (fresh || worth_a_page(p, i)))
                return p->pos + (t->file_off % page + page - p->pos % page) % page;
        return round_up(p->pos, align);
}

static void close_segment(struct placer *p)
{
        struct plan *plan = p->plan;
        if (p->pos > 0 && plan->n_segments < PLAN_MAX_SEGMENTS)
                plan->segments[plan->n_segments] = plan_segment_size(p->layout, p->pos);
        plan->n_segments += p->pos > 0;
        p->pos = 0;
}

static void place(struct placer *p, size_t i)
{
        struct plan *plan = p->plan;
        struct plan_tensor *t = &plan->tensors[i];
        if (t->bytes == 0) {
                /* No bytes, so no alignment: between its neighbours, so that offsets have the order of the file. */
                t->segment = (uint32_t)plan->n_segments;
                t->offset = p->pos;
                return;
        }
        uint64_t offset = next_offset(p, i);
        if (p->max_segment > 0 && p->pos > 0 && offset + t->bytes > p->max_segment) {
                close_segment(p);
                offset = next_offset(p, i);
        }
        t->segment = (uint32_t)plan->n_segments;
        t->offset = offset;
        p->in_place = is_congruent(p->layout, t->file_off, offset);
        plan->copied_bytes += p->in_place ? 0 : t->bytes;
        p->pos = offset + t->bytes;
        p->last = t;
}

/* Again with larger segments while there are too many. Two neighbouring ones hold more than max_segment together, so a
 * few doublings suffice. */
static void place_all(struct plan *plan, const struct plan_layout *layout)
{
        uint64_t max = layout->max_segment;
        if (max > 0 && max < plan->bytes / PLAN_MAX_SEGMENTS)
                max = plan->bytes / PLAN_MAX_SEGMENTS;
        do {
                struct placer p = {.plan = plan, .layout = layout, .max_segment = max};
                plan->n_segments = plan->copied_bytes = 0;
                for (size_t i = 0; i < plan->n_tensors; i++)
                        place(&p, i);
                close_segment(&p);
                max *= 2;
        } while (plan->n_segments > PLAN_MAX_SEGMENTS);
}

/* ---- blocks ---- */

/* The most bytes, from `skip` bytes of a tensor on, that are whole leaves and end with a chunk; 0: none do. */
static uint64_t whole_chunks(uint64_t skip, uint64_t room, uint64_t chunk)
{
        uint64_t take = room / PLAN_LEAF * PLAN_LEAF;
        while (take > 0 && chunk > 0 && (skip + take) % chunk != 0)
                take -= PLAN_LEAF;
        return take;
}

/* The last block takes the tensor's leaves, as many as fit, if it ends where the tensor begins; new ones the rest. */
static bool cut_tensor(struct plan *plan, uint32_t i, const struct plan_layout *layout, uint64_t block_size)
{
        const struct plan_tensor *t = &plan->tensors[i];
        struct plan_block *last = plan->n_blocks > 0 ? &plan->blocks[plan->n_blocks - 1] : NULL;
        uint64_t chunk = plan->files[t->file].chunk;
        bool in_place = is_congruent(layout, t->file_off, t->offset);
        bool joins = last != NULL && last->file == t->file && last->file_off + last->len == t->file_off &&
                     last->in_place == in_place &&
                     (!in_place || (last->segment == t->segment && last->offset + last->len == t->offset));
        for (uint64_t skip = 0, take; skip < t->bytes; skip += take) {
                uint64_t left = t->bytes - skip, room = joins ? block_size - last->len : 0;
                take = left <= room ? left : whole_chunks(skip, room, chunk);
                if (take == 0) {
                        struct plan_block *blocks = array_grow(plan->blocks, plan->n_blocks, sizeof(*blocks));
                        if (blocks == NULL)
                                return false;
                        plan->blocks = blocks;
                        last = &blocks[plan->n_blocks++];
                        *last = (struct plan_block){
                                .file_off = t->file_off + skip,
                                .file = t->file,
                                .tensor = i,
                                .in_place = in_place,
                                .continues = chunk > 0 && skip % chunk != 0,
                                .skip = skip,
                                .offset = t->offset + skip,
                                .segment = t->segment,
                        };
                        take = left <= block_size ? left : whole_chunks(skip, block_size, chunk) ?: block_size;
                }
                last->len += (uint32_t)take;
                joins = true;
        }
        return true;
}

/* ---- the plan ---- */

int plan_make(struct plan *plan, const struct plan_file *files, size_t n_files, const struct plan_layout *layout,
              uint64_t block_size, struct error *error)
{
        require(block_size > 0 && block_size % PLAN_LEAF == 0 && block_size <= UINT32_MAX);
        require(layout->align > 0 && layout->granularity > 0 && (layout->small == 0 || layout->page > 0));
        *plan = (struct plan){.files = files, .n_files = n_files};
        int r = list_tensors(plan, error);
        if (r == 0)
                place_all(plan, layout);
        for (uint32_t i = 0; r == 0 && i < plan->n_tensors; i++)
                if (!cut_tensor(plan, i, layout, block_size))
                        r = error_set(error, STREAMER_ENOMEM, "no memory for the plan's blocks");
        if (r < 0)
                plan_deinit(plan);
        return r;
}

/* The first tensor of a file that is not before this one: they are in the order of the files. */
static size_t lower_bound(const struct plan *plan, size_t file)
{
        size_t from = 0, to = plan->n_tensors;
        while (from < to) {
                size_t middle = from + (to - from) / 2;
                if (plan->tensors[middle].file < file)
                        from = middle + 1;
                else
                        to = middle;
        }
        return from;
}

void plan_file_tensors(const struct plan *plan, size_t file, size_t *first, size_t *end)
{
        *first = lower_bound(plan, file);
        *end = lower_bound(plan, file + 1);
}

size_t plan_request_blocks(const struct plan *plan, unsigned parts, size_t most)
{
        size_t even = (plan->n_blocks + parts - 1) / parts, n = even < most ? even : most;
        return n > 0 ? n : 1;
}

size_t plan_request_end(const struct plan *plan, size_t first, size_t blocks)
{
        const struct plan_block *b = plan->blocks;
        size_t end = first + 1;
        while (end < plan->n_blocks && end < first + blocks && b[end].file == b[end - 1].file &&
               b[end].file_off == b[end - 1].file_off + b[end - 1].len)
                end++;
        return plan_chunk_begin(plan, end, plan->n_blocks);
}

size_t plan_chunk_begin(const struct plan *plan, size_t from, size_t end)
{
        while (from < end && plan->blocks[from].continues)
                from++;
        return from;
}

void plan_deinit(struct plan *plan)
{
        free(plan->tensors);
        free(plan->blocks);
        *plan = (struct plan){0};
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
