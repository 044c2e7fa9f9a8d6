/* SPDX-License-Identifier: Apache-2.0
 *
 * Generated models: tables of tensors whose contents are a function of (seed, name), so that any byte can be checked
 * without the file, on any machine, in any order.
 *
 *   struct model *m = model_new(7);
 *   model_add(m, "embed", "BF16", (uint64_t[]){1000, 64}, 2);
 *   model_write(m, path);
 *   ...
 *   model_check(m, 0, tensor.data)
 *
 * The digests are computed here from the contents, independently of the daemon's own code.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_RANK_MAX 8

struct model_tensor {
        char *name;
        const char *dtype;
        uint32_t rank;
        uint64_t shape[MODEL_RANK_MAX];
        uint64_t bytes;
        uint64_t key; /* of its contents */
        bool has_digest;
        unsigned char digest[16]; /* once model_tensor_digest() was called */
};

struct model {
        uint64_t seed;
        struct model_tensor *tensors; /* in file order */
        size_t n, cap;
        uint64_t bytes; /* of all tensors */
        char *metadata; /* text of the `__metadata__` object; NULL if none */
        uint64_t modulus, residue;
};

/* ---- the table ---- */

struct model *model_new(uint64_t seed);
struct model *model_free(struct model *m);

/* `dtype` is not copied. */
void model_add(struct model *m, const char *name, const char *dtype, const uint64_t *shape, uint32_t rank);
/* n tensors of U8 named "PREFIX.000000", ... */
void model_add_many(struct model *m, const char *prefix, size_t n, uint64_t bytes);
/* The data section begins at an offset that is `residue` modulo `modulus` (header padded by spaces). */
void model_place_data(struct model *m, uint64_t modulus, uint64_t residue);
/* JSON text of an object. */
void model_set_metadata(struct model *m, const char *json);
/* A few tensors of several dtypes, sizes and ranks, about `bytes` in all. */
struct model *model_mixed(uint64_t seed, uint64_t bytes);

size_t model_index(const struct model *m, const char *name); /* m->n if not found */

/* ---- files ---- */

/* Writes one safetensors file, with O_DIRECT if the file system permits it. */
void model_write(const struct model *m, const char *path);

/* A folder of n_shards files with model.safetensors.index.json; tensors go round robin. With
 * `stale`, every shard also holds a wrong copy of its left neighbour's first tensor. */
void model_write_sharded(const struct model *m, const char *folder, size_t n_shards, bool stale);
/* The same, with a function that writes shard `s` of them. */
void model_write_sharded_with(const struct model *m, const char *folder, size_t n_shards, bool stale,
                              void (*write_shard)(const struct model *shard, size_t s, const char *path));

/* The text of the file's header, without the 8-byte length; the caller frees. */
char *model_header(const struct model *m, size_t *size);
uint64_t model_data_offset(const struct model *m);

/* Writes a header text and `data_bytes` of contents, for invalid files. */
void model_write_raw(const char *path, const char *header, size_t header_size, uint64_t data_bytes);

/* ---- contents ---- */

/* Bytes [from, from + len) of tensor i. */
void model_contents(const struct model *m, size_t i, uint64_t from, void *to, size_t len);
/* Whether `data` is all of tensor i. */
bool model_check(const struct model *m, size_t i, const void *data);

void model_tensor_digest(const struct model *m, size_t i, unsigned char digest[16]);
void model_digest(const struct model *m, char hex[33]);
