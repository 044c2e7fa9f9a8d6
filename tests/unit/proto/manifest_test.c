/* SPDX-License-Identifier: Apache-2.0
 *
 * The manifest, written and read.
 */
#include "tests/unit/manifest_fixture.h"

/* ---- valid requests ---- */

FIXTURE(.each = {begin, NULL});

TEST(a_table_is_read_as_it_was_laid_out)
{
        ck_assert(opens());
        for (uint64_t i = 0; i < N; i++)
                ck_assert(holds(i));
        ck_assert(!holds(N));
        struct manifest_view view = view_of();
        ck_assert_str_eq(view.strings + manifest_record(&view, GAMMA)->name_off, "ccccc");
        ck_assert_uint_eq(view.header->size, size);
}

TEST(a_mapping_may_be_longer_than_the_table)
{
        base = must_realloc(base, size + 4096);
        header = (void *)base;
        size += 4096;
        ck_assert(opens());
}

TEST(names_are_found_by_binary_search)
{
        ck_assert_int_eq(find("a"), ALPHA);
        ck_assert_int_eq(find("bb"), BETA);
        ck_assert_int_eq(find("ccccc"), GAMMA);
}

TEST(missing_names_are_not_found)
{
        static const char *const names[] = {"", "A", "aa", "b", "bbb", "bc", "cccc", "cccccc", "z"};
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                ck_assert_int_eq(find(names[i]), -1);
}

TEST(bytes_of_names_are_compared_unsigned)
{
        memcpy(strings + 5, "\xc3\xa4zzz", 5);
        ck_assert_int_eq(find("\xc3\xa4zzz"), GAMMA);
}

TEST(metadata_is_found_by_its_key)
{
        struct manifest_view view = view_of();
        ck_assert_str_eq(manifest_metadata(&view, "format"), "pt");
        ck_assert_ptr_null(manifest_metadata(&view, "forma"));
        ck_assert_ptr_null(manifest_metadata(&view, ""));
}

TEST(a_model_without_tensors_is_a_table_too)
{
        struct manifest_view view;
        const char *why;
        struct manifest_counts none = {0};
        uint64_t n = manifest_size(&none);
        void *empty = must_alloc((size_t)n);
        manifest_init(empty, &none);
        ck_assert_int_eq(manifest_open(&view, empty, (size_t)n, &why), 0);
        ck_assert_int_eq(manifest_find(&view, "a", 1, &why), -1);
}

TEST(empty_tensors_need_no_segment)
{
        struct manifest_counts one = {.n_records = 1, .n_shapes = 1, .strings_len = 2};
        struct manifest_view view;
        const char *why;
        uint64_t n = manifest_size(&one);
        unsigned char *p = must_alloc((size_t)n);
        struct manifest_header *h = manifest_init(p, &one);
        struct manifest_record *r = (void *)(p + h->records_off);
        *r = (struct manifest_record){.name_len = 1, .dtype = DTYPE_F32, .rank = 1};
        p[h->strings_off] = 'x';
        ck_assert_int_eq(manifest_open(&view, p, (size_t)n, &why), 0);
        ck_assert_int_eq(manifest_check(&view, 0, &why), 0);
        r->segment = 1;
        ck_assert_int_eq(manifest_check(&view, 0, &why), -1);
}

TEST(a_table_over_the_limit_has_no_size)
{
        struct manifest_counts c = counts;
        c.n_records = MANIFEST_MAX_SIZE / sizeof(struct manifest_record);
        ck_assert_uint_eq(manifest_size(&c), 0);
        c.n_records = UINT64_MAX / 8;
        ck_assert_uint_eq(manifest_size(&c), 0);
        c = counts;
        c.n_shapes = UINT64_MAX;
        ck_assert_uint_eq(manifest_size(&c), 0);
        c = counts;
        c.strings_len = UINT64_MAX;
        ck_assert_uint_eq(manifest_size(&c), 0);
        c = counts;
        c.n_segments = MANIFEST_MAX_SEGMENTS + 1;
        ck_assert_uint_eq(manifest_size(&c), 0);
}
