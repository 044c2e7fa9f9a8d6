/* SPDX-License-Identifier: Apache-2.0
 *
 * Content identity: known values, independence of the order of bytes, and a model digest that depends on every
 * difference between models.
 */
#include "daemon/base/hash.h"
#include "proto/manifest.h"
#include "tests/lib/model.h"
#include "tests/lib/suite.h"

#define LEAF ((size_t)1 << 20)

static void hex(char out[2 * DIGEST_SIZE + 1], const unsigned char digest[DIGEST_SIZE])
{
        for (size_t i = 0; i < DIGEST_SIZE; i++)
                snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/* Bytes that no constant and no short period would pass for. */
static unsigned char *bytes_new(size_t n)
{
        unsigned char *p = must_alloc(n);
        uint32_t x = 1;
        for (size_t i = 0; i < n; i++) {
                x = x * 1664525u + 1013904223u;
                p[i] = (unsigned char)(x >> 24);
        }
        return p;
}

/* ---- bytes ---- */

TEST(the_digest_of_no_bytes_is_the_published_one)
{
        unsigned char digest[DIGEST_SIZE];
        char text[33];
        hash_bytes("", 0, digest);
        hex(text, digest);
        ck_assert_str_eq(text, "99aa06d3014798d86001c324468d497f");
}

TEST(a_digest_is_independent_of_the_pieces)
{
        size_t n = 5000;
        unsigned char *data = bytes_new(n), whole[DIGEST_SIZE], pieces[DIGEST_SIZE];
        struct hash *hash = hash_new();
        hash_bytes(data, n, whole);
        for (size_t cut = 0; cut <= n; cut += 1 + cut / 7) {
                hash_reset(hash);
                hash_update(hash, data, cut);
                hash_update(hash, data + cut, n - cut);
                hash_final(hash, pieces);
                ck_assert_mem_eq(whole, pieces, DIGEST_SIZE);
        }
        hash_free(hash);
}

/* ---- models ---- */

TEST(a_models_digest_matches_an_independent_computation)
{
        struct model *m = model_new(5);
        model_add(m, "a", "BF16", (uint64_t[]){3, 5}, 2);
        model_add(m, "b", "F64", NULL, 0);
        model_add(m, "b.longer", "I8", (uint64_t[]){0, 7}, 2);
        model_add(m, "c", "U8", (uint64_t[]){2 * LEAF + 17}, 1);
        struct hash *hash = hash_new();
        for (size_t i = 0; i < m->n; i++) {
                const struct model_tensor *t = &m->tensors[i];
                unsigned char digest[DIGEST_SIZE];
                model_tensor_digest(m, i, digest);
                hash_model_tensor(hash, t->name, strlen(t->name), t->dtype, t->shape, t->rank, digest);
        }
        unsigned char digest[DIGEST_SIZE];
        char got[33], want[33];
        hash_final(hash, digest);
        hex(got, digest);
        model_digest(m, want);
        ck_assert_str_eq(got, want);
        hash_free(hash);
}
