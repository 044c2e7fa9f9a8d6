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

TEST(hexadecimal_digits_of_either_case_are_read)
{
        unsigned char bytes[4] = {0};
        ck_assert(hex_decode(bytes, "00fFA19b", 4));
        ck_assert_mem_eq(bytes, "\x00\xff\xa1\x9b", 4);
}

static const char *const no_digits[] = {"", "00ff", "00ffa19", "00ffa19b0", "00ffa19g", " 0ffa19b", "0x00ffa1"};

TEST(other_texts_are_no_hexadecimal_digits, EACH(no_digits))
{
        unsigned char bytes[4];
        ck_assert(!hex_decode(bytes, no_digits[_i], 4));
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
