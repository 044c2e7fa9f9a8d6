/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a load: parsed headers and a device's layout rules in; segments, placed tensors and
 * blocks out. Pure.
 *
 *   tensor   its place in its file, and its destination (segment, offset)
 *   extent   a run of neighbouring tensors whose file bytes land contiguously in a segment
 *   block    what is read at once: a run of file bytes, cut at leaf or tensor boundaries, at most
 *            block_size long. `in_place`: lies inside one extent whose segment offset is congruent
 *            to its file offset modulo the layout's page, so that O_DIRECT can land there; else the
 *            block is read into a staging slot and copied piece by piece.
 *
 * A leaf is PLAN_LEAF bytes of a tensor counted from its start (the last one shorter).
 *
 * Of an encrypted file the tensors consist of chunks, too, of `chunk` bytes counted from their start (the last one
 * shorter), which are decrypted from their beginning to their end. A block ends with one where any chunk fits it.
 * Else the next block `continues` the chunk, and is read after it, in the same run.
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/base/util.h"
#include "daemon/model/safetensors.h"

#define PLAN_LEAF (UINT64_C(1) << 20)
static inline uint64_t plan_leaves(uint64_t bytes)
{
        return (bytes + PLAN_LEAF - 1) / PLAN_LEAF;
}
#define PLAN_MAX_SEGMENTS 64u

struct plan_layout {
        uint64_t page; /* of the machine, a multiple of 4096: extents keep file and segment offsets congruent modulo it;
                          0: no in-place reads */
        uint64_t align;       /* every tensor at a multiple of this, and of its own element's size */
        uint64_t granularity; /* segment sizes are multiples of this (a huge page) */
        uint64_t small;       /* but a segment of at most this size is a multiple of `page`; 0: none is */
        uint64_t max_segment; /* where a new segment is begun, between tensors; 0: one segment. Raised where more than
                                 PLAN_MAX_SEGMENTS would come of it */
};

/* What a segment that holds so many bytes takes: loads and publications have one rule. */
static inline uint64_t plan_segment_size(const struct plan_layout *layout, uint64_t bytes)
{
        return round_up(bytes, bytes <= layout->small ? layout->page : layout->granularity);
}

/* What several segments take together is a multiple of this. */
static inline uint64_t plan_segment_unit(const struct plan_layout *layout)
{
        return layout->small > 0 ? layout->page : layout->granularity;
}

struct plan_file {
        struct st_header header; /* its tensors are the model's: other ones are removed from it */
        const char *path;        /* for errors */
        uint64_t chunk;          /* bytes of one; UINT64_MAX: a tensor is one; 0: the file is not encrypted */
};

struct plan_tensor {
        uint32_t file;
        uint32_t index;    /* in the file's header */
        uint64_t file_off; /* absolute offset in the file */
        uint64_t bytes;
        uint64_t offset; /* in the segment */
        uint32_t segment;
        uint64_t leaf; /* number of its first leaf, counted over the whole plan */
};

struct plan_block {
        uint64_t file_off;
        uint32_t len;
        uint32_t file;
        uint32_t tensor; /* the first tensor with bytes in the block (empty tensors are in no block) */
        bool in_place;
        bool continues;  /* a chunk that the block before began */
        uint64_t skip;   /* bytes of that tensor before the block: a multiple of PLAN_LEAF */
        uint64_t offset; /* in_place: where file_off lands in the segment */
        uint32_t segment;
};

struct plan {
        const struct plan_file *files; /* borrowed */
        size_t n_files;
        struct plan_tensor *tensors; /* by file, then (begin, end) */
        size_t n_tensors;
        struct plan_block *blocks; /* in reading order */
        size_t n_blocks;
        uint64_t segments[PLAN_MAX_SEGMENTS]; /* sizes */
        size_t n_segments;
        uint64_t n_leaves;
        uint64_t bytes;        /* of tensor data */
        uint64_t copied_bytes; /* of them, through slots */
};

static inline const struct st_tensor *plan_in_file(const struct plan *plan, const struct plan_tensor *tensor)
{
        return &plan->files[tensor->file].header.tensors[tensor->index];
}

/* The names of files that were added in their order: each name occurs once. */
struct plan_names {
        const struct plan_file *files; /* borrowed */
        size_t n_files;
        uint32_t *first; /* of each file: the number of its first name; and of the next file */
        struct nameset set;
        size_t capacity; /* of the set */
};
/* STREAMER_EFAILED where a name of the next file, files[n_files], is in one before; STREAMER_ENOMEM. */
int plan_names_add(struct plan_names *names, const struct plan_file *files, struct error *error);
void plan_names_deinit(struct plan_names *names); /* accepts a zeroed one */

/* 0, STREAMER_EFAILED (overflow), or _ENOMEM. No name is in two files (plan_names). block_size is a multiple
 * of PLAN_LEAF, below 4 GiB. Empty tensors get the running position, rounded up to their alignment;
 * where no tensor has bytes there is no segment. */
int plan_make(struct plan *plan, const struct plan_file *files, size_t n_files, const struct plan_layout *layout,
              uint64_t block_size, struct error *error);
void plan_deinit(struct plan *plan);

/* ---- requests: runs of blocks that follow each other in a file ---- */

/* Blocks of one request: an even part of all for each of `parts` that may be in flight, `most` at the most, one at the
 * least. A limit that grows to `parts` finds something left. */
size_t plan_request_blocks(const struct plan *plan, unsigned parts, size_t most);
/* One past the last block of a request for `blocks` from `first` on; it ends at a gap, with the file, and not within a
 * chunk: it may be longer. */
size_t plan_request_end(const struct plan *plan, size_t first, size_t blocks);
/* Of the blocks [from, end), the first where a chunk begins; `end`: none. */
size_t plan_chunk_begin(const struct plan *plan, size_t from, size_t end);

/* The pieces of a block, in file order: whole leaves of tensors. */
struct plan_piece {
        uint32_t tensor;
        uint32_t segment;
        uint64_t leaf;     /* number of the piece's leaf over the whole plan */
        uint64_t in_block; /* offset in the block */
        uint64_t offset;   /* in the segment */
        uint64_t len;      /* at most PLAN_LEAF */
};
struct plan_cursor {
        uint32_t tensor;
        uint64_t skip;
        uint64_t done;
};
void plan_pieces_begin(const struct plan_block *block, struct plan_cursor *cursor);
bool plan_pieces_next(const struct plan *plan, const struct plan_block *block, struct plan_cursor *cursor,
                      struct plan_piece *piece);

/* The tensors of a file: from *first to before *end. */
void plan_file_tensors(const struct plan *plan, size_t file, size_t *first, size_t *end);

/* Tensor indexes in byte order of names (n_tensors entries, malloc'd; the caller frees), or NULL on
 * ENOMEM. Fast where files already list names in order. No name is in two files, so the order is total. */
uint32_t *plan_sort_names(const struct plan *plan);
