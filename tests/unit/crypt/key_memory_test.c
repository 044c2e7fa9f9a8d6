/* SPDX-License-Identifier: Apache-2.0
 *
 * The memory for keys: pieces do not overlap, are wiped, and are ordinary memory where it is full.
 */
#include "daemon/crypt/key_memory.h"

#include "tests/lib/suite.h"

#define MANY 3000u

TEST(before_it_is_opened_memory_is_ordinary)
{
        char *piece = key_memory_alloc(32);
        ck_assert_ptr_nonnull(piece);
        key_memory_free(piece, 32);
        key_memory_free(NULL, 32);
}

TEST(what_is_freed_is_wiped)
{
        key_memory_open();
        key_memory_open();
        unsigned char *piece = key_memory_alloc(1000), *next = key_memory_alloc(32);
        memset(piece, 7, 1000);
        memset(next, 9, 32);
        key_memory_free(piece, 1000);
        for (unsigned i = 0; i < 1000; i++)
                ck_assert_uint_eq(piece[i], 0);
        ck_assert_uint_eq(next[0], 9);
        ck_assert_ptr_eq(key_memory_alloc(32), piece);
}

static void fill_with_its_number(unsigned char *piece, unsigned i, size_t size)
{
        memset(piece, (int)(i % 251), size);
}

TEST(pieces_do_not_overlap_and_a_full_arena_is_no_error)
{
        static unsigned char *pieces[MANY];
        key_memory_open();
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 0; i < MANY; i++) {
                        size_t size = 1 + i * 37 % 2000;
                        if (pieces[i] == NULL) {
                                pieces[i] = key_memory_alloc(size);
                                ck_assert_ptr_nonnull(pieces[i]);
                                fill_with_its_number(pieces[i], i, size);
                        }
                }
                for (unsigned i = 0; i < MANY; i++) {
                        size_t size = 1 + i * 37 % 2000;
                        for (size_t k = 0; k < size; k++)
                                ck_assert_uint_eq(pieces[i][k], i % 251);
                        if (i % 3 == round) {
                                key_memory_free(pieces[i], size);
                                pieces[i] = NULL;
                        }
                }
        }
}
