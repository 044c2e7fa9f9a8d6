/* SPDX-License-Identifier: Apache-2.0
 *
 * The manifest: the table of a model's tensors as one flat, versioned, little-endian block, built
 * once for a model and device in a memfd that clients map. A client checks the header and the
 * bounds of the sections once (O(1)) and each record as it is used, and looks names up by binary
 * search, so that an attach costs the same for 100 tensors and for 100,000.
 *
 * The header holds its own size and that of an item of each section. Later versions append members: readers
 * step by these sizes and accept larger ones. The version changes where an older reader would be wrong.
 *
 *   header | segments | records, sorted by name in byte order | metadata | shapes | strings
 *
 * Two fields are filled in after the table is built, by the daemon only: a record's digest (before
 * its index enters the arrival log) and the header's digest (before the model is ready).
 *
 * The arrival log is a second memfd: a header, then `capacity` record indexes, uint32_t each, in
 * order of arrival. `count` is stored with release order after the indexes it covers. Its header, too,
 * may be larger than this version's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MANIFEST_MAGIC "strmman1"
#define MANIFEST_VERSION 2u
#define MANIFEST_MAX_SEGMENTS 64u
#define MANIFEST_MAX_SIZE (UINT64_C(1) << 30)
#define ARRIVAL_MAGIC "strmarr1"

#define MANIFEST_HAS_METADATA 1u /* the checkpoint has metadata, though it may have no pairs */

struct manifest_header {
        char magic[8];
        uint32_t version;
        uint32_t header_size; /* bytes of this struct, a multiple of 8 as each size of an item */
        uint64_t size;        /* bytes of the whole table */
        uint64_t generation;
        uint64_t data_bytes; /* sum of the tensors' bytes */
        uint64_t segments_off;
        uint64_t records_off;
        uint64_t n_records;
        uint64_t metadata_off; /* n_metadata x struct manifest_pair */
        uint64_t shapes_off;
        uint64_t n_shapes; /* uint64_t each */
        uint64_t strings_off;
        uint64_t strings_len;
        uint32_t n_segments;
        uint32_t segment_size; /* bytes of a struct manifest_segment */
        uint32_t record_size;  /* bytes of a struct manifest_record */
        uint32_t n_metadata;
        uint32_t pair_size;       /* bytes of a struct manifest_pair */
        uint32_t flags;           /* MANIFEST_*; earlier versions wrote 0 */
        unsigned char digest[16]; /* model digest; zero until ready */
};

struct manifest_segment {
        uint64_t size;
        uint64_t reserved;
};

struct manifest_record {
        uint64_t name_off; /* in strings; NUL-terminated there */
        uint32_t name_len;
        uint32_t dtype;     /* enum dtype */
        uint64_t shape_off; /* index into shapes */
        uint32_t rank;
        uint32_t segment;
        uint64_t offset; /* in the segment */
        uint64_t bytes;
        unsigned char digest[16];
};

struct manifest_pair {
        uint64_t key_off, value_off; /* in strings, NUL-terminated there */
        uint32_t key_len, value_len;
};

struct arrival_header {
        char magic[8];
        uint64_t capacity;
        uint64_t count;       /* atomic */
        uint32_t header_size; /* bytes of this struct, a multiple of 8; the indexes follow */
        uint32_t reserved;
};

/* safetensors dtypes: name, number in manifests (as enum streamer_dtype of the library), bits of an element. A number
 * is never reused. Shapes of F4 and F6 count elements. */
// clang-format off
#define DTYPES(X) \
        X(BOOL, 1, 8) X(U8, 2, 8) X(I8, 3, 8) \
        X(U16, 4, 16) X(I16, 5, 16) X(U32, 6, 32) X(I32, 7, 32) X(U64, 8, 64) X(I64, 9, 64) \
        X(F16, 10, 16) X(BF16, 11, 16) X(F32, 12, 32) X(F64, 13, 64) X(C64, 14, 64) \
        X(F8_E4M3, 15, 8) X(F8_E5M2, 16, 8) X(F8_E8M0, 17, 8) X(F8_E4M3FNUZ, 18, 8) X(F8_E5M2FNUZ, 19, 8) \
        X(F6_E2M3, 20, 6) X(F6_E3M2, 21, 6) X(F4, 22, 4)
// clang-format on

enum dtype {
#define X(name, number, bits) DTYPE_##name = number,
        DTYPES(X)
#undef X
};
#define DTYPE_END 23 /* above the highest number */

const char *dtype_name(unsigned dtype);       /* NULL if unknown */
unsigned dtype_bits(unsigned dtype);          /* 0 if unknown */
int dtype_find(const char *name, size_t len); /* -1 if unknown */
unsigned dtype_align(unsigned dtype);         /* bytes: the element's own size, at least 1 */

/* Reading side (the client). All checks are here. A view borrows the mapping. */
struct manifest_view {
        const unsigned char *base;
        const struct manifest_header *header;
        const unsigned char *segments, *records, *metadata; /* manifest_segment(), _record(), _pair() */
        const uint64_t *shapes;
        const char *strings;
};

/* Item i, which is below the header's count. */
static inline const struct manifest_segment *manifest_segment(const struct manifest_view *view, uint64_t i)
{
        return (const void *)(view->segments + i * view->header->segment_size);
}

static inline const struct manifest_record *manifest_record(const struct manifest_view *view, uint64_t i)
{
        return (const void *)(view->records + i * view->header->record_size);
}

static inline const struct manifest_pair *manifest_pair(const struct manifest_view *view, uint64_t i)
{
        return (const void *)(view->metadata + i * view->header->pair_size);
}

/* 0, or -1 with *why set to a constant text. O(1). `size` is the mapping's size. */
int manifest_open(struct manifest_view *view, const void *base, size_t size, const char **why);

/* 0 if record i holds together: name, shape and bytes inside their sections, NUL at the name's end,
 * known dtype, offset + bytes inside its segment; else -1 with *why. O(rank). */
int manifest_check(const struct manifest_view *view, uint64_t i, const char **why);

/* Index of the record with this name; -1 if none; -2 with *why if a record on the way is corrupt. */
int64_t manifest_find(const struct manifest_view *view, const char *name, size_t len, const char **why);

/* Whether the checkpoint has metadata: {} differs from none. */
static inline bool manifest_has_metadata(const struct manifest_view *view)
{
        return view->header->n_metadata > 0 || (view->header->flags & MANIFEST_HAS_METADATA);
}

const char *manifest_metadata(const struct manifest_view *view, const char *key);

/* Key and value of pair i, which exists; false if one is out of bounds. */
bool manifest_pair_get(const struct manifest_view *view, uint64_t i, const char **key, const char **value);

/* The indexes of an arrival log that was mapped with `size` bytes; NULL if it is none, or has no room for as many. */
const uint32_t *arrival_entries(const struct arrival_header *log, uint64_t size, uint64_t n_records);

/* ---- any flat table of sections: manifests, and those of published models ---- */

/* The size of an item: this version's, or a larger one. */
bool manifest_is_size(uint32_t size, size_t least);
/* A section of n items lies between *end and the table's end; *end moves behind it. */
bool manifest_section(uint64_t off, uint64_t n, uint64_t item, uint64_t size, uint64_t *end);
/* A text in a section of `total` bytes, NUL at its end and nowhere before; NULL if it is not. */
const char *manifest_text(const char *strings, uint64_t total, uint64_t off, uint64_t len);

/* Writing side (the daemon): sizes first, then fill into one block that the caller has mapped,
 * zeroed, of manifest_size() bytes. */
struct manifest_counts {
        uint64_t n_records, n_shapes, strings_len; /* strings_len counts every NUL */
        uint32_t n_segments, n_metadata;
};
/* 0 if the sum overflows or exceeds MANIFEST_MAX_SIZE. */
uint64_t manifest_size(const struct manifest_counts *counts);
/* Lays out the sections and fills the header; everything else is the caller's to fill. */
struct manifest_header *manifest_init(void *base, const struct manifest_counts *counts);

/* Appends texts, each with its NUL, and pairs of metadata to a manifest; zeroed but for the header. */
struct manifest_fill {
        struct manifest_header *header;
        uint64_t used, n_pairs;
};
/* Its offset in the strings. */
uint64_t manifest_add_text(struct manifest_fill *fill, const char *text, size_t len);
void manifest_add_pair(struct manifest_fill *fill, const char *key, size_t key_len, const char *value,
                       size_t value_len);
