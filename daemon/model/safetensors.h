/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a safetensors file: bytes in, tensors or a precise error out. Pure.
 *
 * The parser unescapes the caller's copy of the text in place, so names and metadata are pointers into it. Shapes stay
 * text and are read on demand. So memory is the header plus at most 128 bytes a tensor.
 */
#pragma once

#include "daemon/base/json/json.h"

#define ST_HEADER_MAX UINT64_C(100000000)
#define ST_PREFIX 8u /* bytes of the little-endian header length */
#define ST_RANK_MAX 1024u

/* ---- rules ---- */

/* The rules that a header or an index can break; each has a short name for messages and tests. Those of the text itself
 * are first, as in enum json_fault; TOO_MANY is of tensors and pairs of metadata, too. */
#define ST_RULES(X)                                                                                                    \
        X(OK, "ok")                                                                                                    \
        X(NOT_JSON, "not-json")                                                                                        \
        X(NOT_UTF8, "not-utf8")                                                                                        \
        X(DUPLICATE_KEY, "duplicate-key")                                                                              \
        X(TOO_DEEP, "too-deep")                                                                                        \
        X(TOO_MANY, "too-many")                                                                                        \
        X(NO_MEMORY, "no-memory")                                                                                      \
        X(FILE_TOO_SMALL, "file-too-small")         /* fewer than 8 bytes */                                           \
        X(HEADER_TOO_LARGE, "header-too-large")     /* n > 100,000,000 */                                              \
        X(HEADER_BEYOND_FILE, "header-beyond-file") /* 8 + n > file size */                                            \
        X(NUL_IN_NAME, "nul-in-name")                                                                                  \
        X(BAD_METADATA, "bad-metadata") /* not string > string */                                                      \
        X(BAD_ENTRY, "bad-entry")       /* not an object, field missing or of a wrong type */                          \
        X(UNKNOWN_DTYPE, "unknown-dtype")                                                                              \
        X(BAD_SHAPE, "bad-shape")             /* negative, fraction, overflow, rank */                                 \
        X(BAD_OFFSETS, "bad-offsets")         /* not two, begin > end, overflow */                                     \
        X(SIZE_MISMATCH, "size-mismatch")     /* end - begin is not shape x bits / 8 */                                \
        X(NOT_WHOLE_BYTES, "not-whole-bytes") /* bits % 8 != 0 */                                                      \
        X(HOLE_OR_OVERLAP, "hole-or-overlap")                                                                          \
        X(FILE_SIZE, "file-size") /* 8 + n + last end != file size */

enum st_rule {
#define X(name, text) ST_##name,
        ST_RULES(X)
#undef X
};
_Static_assert((int)ST_NO_MEMORY == JSON_NO_MEMORY && (int)ST_FILE_TOO_SMALL == JSON_FAULTS, "the faults of a text");
const char *st_rule_name(enum st_rule rule);

struct st_error { /* beside struct error: tests compare its rule and offset with another parser's */
        enum st_rule rule;
        uint64_t offset; /* in the file, of the byte where it was noticed */
        char text[400];  /* "rule: tensor 'name': detail (header offset N)", control bytes escaped */
};

/* "rule: detail", for a rule that is broken before the text is read. Returns -1. */
int rule_refuse(struct st_error *error, enum st_rule rule, const char *detail);

/* "rule: tensor 'name': detail (header offset N)" from the text's first fault; without the middle part
 * where `tensor` is NULL. The text begins `start` bytes into its file. */
void rule_report(struct st_error *error, const struct json *j, uint64_t start, const struct json_string *tensor);

/* ---- a file's header ---- */

struct st_tensor {
        uint32_t name; /* offset in text; NUL-terminated there */
        uint32_t name_len;
        uint32_t shape; /* offset in text, of '[' */
        uint16_t rank;
        uint8_t dtype;       /* enum dtype of proto/manifest.h */
        uint64_t begin, end; /* in the data section */
};

/* Keys hold no NUL, values may. */
struct st_pair {
        uint32_t key, key_len, value, value_len; /* offsets in text, NUL-terminated there */
};

struct st_header {
        char *text;                /* borrowed; n bytes */
        uint64_t data_start;       /* 8 + n */
        struct st_tensor *tensors; /* in order of (begin, end) */
        size_t n_tensors;
        struct st_pair *metadata;
        size_t n_metadata;
        bool has_metadata; /* an object, which may be empty */
};

/* Reads the 8-byte prefix: 0 with *n, or a rule broken (error filled). */
int st_parse_prefix(const unsigned char prefix[8], uint64_t file_size, uint64_t *n, struct st_error *error);

/* Parses n bytes of header, which st_parse_prefix() has read, at text (borrowed, modified). 0, or -1 with *error. On
 * success the caller calls st_header_deinit(), and keeps text as long as the header is used. */
int st_parse(struct st_header *header, char *text, size_t n, uint64_t file_size, struct st_error *error);
void st_header_deinit(struct st_header *header);

/* The dimensions of a tensor that has been parsed: writes rank numbers. */
void st_shape(const struct st_header *header, const struct st_tensor *tensor, uint64_t *dims);
static inline const char *st_name(const struct st_header *h, const struct st_tensor *t)
{
        return h->text + t->name;
}

/* ---- model.safetensors.index.json ---- */

/* weight_map: tensor name > file name, in the file's order. */
struct st_index_entry {
        uint32_t name, name_len; /* offsets in text */
        uint32_t file;           /* index into files */
};
struct st_index {
        char *text;
        struct st_index_entry *entries;
        size_t n_entries;
        uint32_t *files; /* offsets in text of the distinct file names, in byte order */
        size_t n_files;
        struct nameset names; /* of the entries, for st_index_find */
};
/* As st_parse; every other key of the file is ignored. A file name is relative, without NUL and without
 * empty, "." and ".." components; "./" in front is dropped. */
int st_index_parse(struct st_index *index, char *text, size_t n, struct st_error *error);
void st_index_deinit(struct st_index *index);
const struct st_index_entry *st_index_find(const struct st_index *index, const char *name, size_t len); /* NULL */
static inline const char *st_index_file(const struct st_index *x, size_t i)
{
        return x->text + x->files[i];
}
