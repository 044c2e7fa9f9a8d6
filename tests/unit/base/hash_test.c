/* SPDX-License-Identifier: Apache-2.0
 *
 * Content identity: a known value, and independence of the pieces. Every test that attaches compares a model's digest
 * with a computation of its own.
 */
#include "daemon/base/hash.h"
#include "tests/lib/suite.h"

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

TEST(the_digest_of_no_bytes_is_the_published_one)
{
        unsigned char digest[DIGEST_SIZE];
        char text[33];
        hash_bytes("", 0, digest);
        hex_encode(text, digest, DIGEST_SIZE);
        ck_assert_str_eq(text, "99aa06d3014798d86001c324468d497f");
}

TEST(a_digest_is_independent_of_the_pieces)
{
        size_t n = 5000;
        unsigned char *data = bytes_new(n), whole[DIGEST_SIZE], pieces[DIGEST_SIZE];
        struct hash hash;
        hash_bytes(data, n, whole);
        for (size_t cut = 0; cut <= n; cut += 1 + cut / 7) {
                hash_init(&hash);
                hash_update(&hash, data, cut);
                hash_update(&hash, data + cut, n - cut);
                hash_final(&hash, pieces);
                ck_assert_mem_eq(whole, pieces, DIGEST_SIZE);
        }
}
