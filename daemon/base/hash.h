/* SPDX-License-Identifier: Apache-2.0
 *
 * Content identity: XXH3-128 in its canonical (big-endian) form.
 *
 *   leaf    1 MiB of a tensor counted from its start, the last one shorter
 *   tensor  over its leaves' digests in order (an empty tensor: over nothing)
 *   model   over all tensors in byte order of names, see hash_model()
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct manifest_view;

#define DIGEST_SIZE 16

/* Lower-case hexadecimal digits of `n` bytes, and NUL. */
void hex_encode(char *out, const unsigned char *bytes, size_t n);
/* Of 2 * n digits of either case, and no more. False: the text is another one. */
bool hex_decode(unsigned char *bytes, const char *text, size_t n);

/* One-shot; uses the widest vectors the CPU has. */
void hash_bytes(const void *data, size_t len, unsigned char digest[DIGEST_SIZE]);

/* For hash tables of the loop's thread: keyed with random bytes of this process, so that nobody can choose keys that
 * collide. */
uint64_t hash_text(const char *text);

/* A running hash over several pieces. */
struct hash {
        _Alignas(64) unsigned char state[576];
};
void hash_init(struct hash *hash);
void hash_update(struct hash *hash, const void *data, size_t len);
void hash_final(const struct hash *hash, unsigned char digest[DIGEST_SIZE]);

/* The digest of a model whose manifest has the digests of all tensors: of each tensor the u64 length of its name, the
 * name, u64 length of the dtype's code, the code, u64 rank, u64 dimensions, the digest; integers little-endian. */
void hash_model(const struct manifest_view *manifest, unsigned char digest[DIGEST_SIZE]);
