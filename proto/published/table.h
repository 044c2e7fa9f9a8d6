/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of a published model: the engine's tensors, which lie in storages, and its attributes. One flat, versioned,
 * little-endian block, written by the publisher's library into the published memory itself and so hashed and sealed
 * with it. The daemon reads the storages, from which it makes the manifest; the library that attaches reads all of it.
 *
 *   header | storages | tensors | attributes | numbers (shapes and strides) | strings
 *
 * Both validate the whole table once, with the function below: who wrote it is not trusted. Of the storages: each is
 * aligned, inside its segment, and overlaps neither another nor the table. Of the tensors: each name is unique, each
 * element lies inside its storage, and tensors that overlap have the same alias number. Texts may be shared, but they
 * are short, and so is their sum: validation takes a time that follows from the table's size.
 *
 * The header holds its own size and that of an item of each section; later versions append members.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PUBLISHED_MAGIC "strmpub1"
#define PUBLISHED_VERSION 1u
#define PUBLISHED_ALIGN 256u
#define PUBLISHED_MAX_SIZE (UINT64_C(256) << 20)
#define PUBLISHED_MAX_TEXT 65536u              /* bytes of a text */
#define PUBLISHED_MAX_TEXTS PUBLISHED_MAX_SIZE /* of all, each as often as it is used */
#define PUBLISHED_MAX_RANK 64u
#define PUBLISHED_MAX_ITEM 16u
#define PUBLISHED_MAX_STORAGES 1000000u /* their records are named in byte order */

/* Records of the manifest: storage i, six digits or more, and the table; all U8. */
#define PUBLISHED_STORAGE_NAME "streamerd.storage.%06llu"
#define PUBLISHED_TABLE_NAME "streamerd.table"
/* Pairs of the manifest's metadata. No tensor and no metadata of a client begins with PUBLISHED_OWN. */
#define PUBLISHED_OWN "streamerd."
#define PUBLISHED_BASE "streamerd.base"                   /* its source */
#define PUBLISHED_BASE_DIGEST "streamerd.base_digest"     /* its digest, where it is known */
#define PUBLISHED_BASE_IDENTITY "streamerd.base_identity" /* of its files */
#define PUBLISHED_BASE_ANSWERS "streamerd.base_answers"   /* of a URL with a query: of its files' versions alone */
#define PUBLISHED_KEY "streamerd.key."                    /* and the name of a field */

struct published_header {
        char magic[8];
        uint32_t version;
        uint32_t header_size; /* bytes of this struct, a multiple of 8 as each size of an item */
        uint64_t size;        /* bytes of the whole table */
        uint64_t storages_off, n_storages;
        uint64_t tensors_off, n_tensors;
        uint64_t attributes_off, n_attributes;
        uint64_t numbers_off, n_numbers; /* uint64_t each */
        uint64_t strings_off, strings_len;
        uint32_t storage_size, tensor_size, attribute_size;
        uint32_t reserved;
};

struct published_storage {
        uint64_t offset; /* in the segment */
        uint64_t bytes;
        uint32_t segment;
        uint32_t reserved;
};

struct published_tensor {
        uint64_t name_off, dtype_off; /* in strings, NUL-terminated there */
        uint32_t name_len, dtype_len;
        uint64_t numbers_off; /* index into numbers: `rank` dimensions, then `rank` strides in elements */
        uint32_t rank;
        uint32_t item; /* bytes of an element */
        uint64_t storage;
        uint64_t offset; /* in the storage, bytes */
        uint32_t kind, flags, alias;
        uint32_t reserved;
};

struct published_attribute {
        uint64_t name_off, value_off; /* in strings, NUL-terminated there */
        uint32_t name_len, value_len;
};

/* ---- reading ---- */

/* Borrows the bytes. */
struct published_view {
        const struct published_header *header;
        const unsigned char *storages, *tensors, *attributes;
        const uint64_t *numbers;
        const char *strings;
};

/* Item i, which is below the header's count. */
static inline const struct published_storage *published_storage(const struct published_view *view, uint64_t i)
{
        return (const void *)(view->storages + i * view->header->storage_size);
}

static inline const struct published_tensor *published_tensor(const struct published_view *view, uint64_t i)
{
        return (const void *)(view->tensors + i * view->header->tensor_size);
}

static inline const struct published_attribute *published_attribute(const struct published_view *view, uint64_t i)
{
        return (const void *)(view->attributes + i * view->header->attribute_size);
}

/* Where the table lies, and the segments. */
struct published_place {
        const uint64_t *segment_sizes;
        size_t n_segments;
        struct published_storage table;
        const bool *stop; /* atomic: validation is given up, which is a failure; NULL: never */
};

/* Validates all of it: 0, -1 with a text, or -2 where there is no memory. `base` is aligned to 8 bytes and does not
 * change meanwhile. A view that was opened may be used without further checks. */
int published_open(struct published_view *view, const void *base, size_t size, const struct published_place *place,
                   char *text, size_t text_size);

/* The bytes from the first to behind the last element; 0 without elements. False: they exceed 2^64. */
bool published_extent(uint32_t rank, const uint64_t *shape, const uint64_t *strides, uint32_t item, uint64_t *bytes);

/* ---- writing ---- */

/* A table in the making: items are appended to each section. */
struct published_writer {
        struct published_section {
                unsigned char *data;
                size_t used, capacity;
        } storages, tensors, attributes, numbers, strings;
        bool failed; /* no memory */
};
void published_writer_deinit(struct published_writer *writer); /* accepts a zeroed one */

struct published_text {
        const char *name, *dtype;
};
void published_add_storage(struct published_writer *writer, const struct published_storage *storage);
/* Fills in the offsets and lengths of the texts and numbers. */
void published_add_tensor(struct published_writer *writer, const struct published_tensor *tensor,
                          const struct published_text *text, const uint64_t *shape, const uint64_t *strides);
void published_add_attribute(struct published_writer *writer, const char *name, const char *value);

/* The size of the finished table; and the table, into that many bytes, aligned to 8. */
uint64_t published_size(const struct published_writer *writer);
void published_finish(const struct published_writer *writer, void *to);
