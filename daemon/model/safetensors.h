/* SPDX-License-Identifier: Apache-2.0
 *
 * The header of a safetensors file: bytes in, tensors or a precise error out. Pure: no I/O, no
 * threads, no clock.
 *
 * The parser works on the caller's copy of the header text and writes into it: escaped strings are
 * unescaped in place (never longer than escaped) and end with a NUL where their closing quote was,
 * so names and metadata are pointers into the text and cost nothing. Shapes stay text and are read
 * on demand. So memory is the header plus at most 128 bytes a tensor.
 */
#ifndef DAEMON_MODEL_SAFETENSORS_H
#define DAEMON_MODEL_SAFETENSORS_H

#include "daemon/model/st_rule.h"

#include <stddef.h>
#include <stdint.h>

#define ST_HEADER_MAX UINT64_C(100000000)
#define ST_PREFIX 8u /* bytes of the little-endian header length */
#define ST_RANK_MAX 1024u

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
        char *text;                /* borrowed; size bytes */
        size_t size;               /* n */
        uint64_t data_start;       /* 8 + n */
        struct st_tensor *tensors; /* in order of (begin, end) */
        size_t n_tensors;
        struct st_pair *metadata;
        size_t n_metadata;
};

/* Reads the 8-byte prefix: 0 with *n, or a rule broken (error filled). */
int st_parse_prefix(const unsigned char prefix[8], uint64_t file_size, uint64_t *n, struct st_error *error);

/* Parses n bytes of header at text (borrowed, modified). 0, or -1 with *error. On success the caller
 * calls st_header_deinit(), and keeps text as long as the header is used. */
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
/* As st_parse; every other key of the file is ignored. A file name must be a plain name: not empty,
 * no '/', no NUL, not "." or "..". (Sub-folders: refused, as HF's own loaders write plain names.) */
int st_index_parse(struct st_index *index, char *text, size_t n, struct st_error *error);
void st_index_deinit(struct st_index *index);
const struct st_index_entry *st_index_find(const struct st_index *index, const char *name, size_t len); /* NULL */
static inline const char *st_index_file(const struct st_index *x, size_t i)
{
        return x->text + x->files[i];
}

#endif
