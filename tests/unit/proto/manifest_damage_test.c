/* SPDX-License-Identifier: Apache-2.0
 *
 * A manifest with one invalid value: it is detected when the manifest is opened or when the record is read.
 */
#include "tests/unit/manifest_fixture.h"

/* ---- an invalid header ---- */

#define REFUSED_WITH(field, value)                                                                                     \
        do {                                                                                                           \
                __typeof__(header->field) field_was = header->field;                                                   \
                header->field = (__typeof__(header->field))(value);                                                    \
                ck_assert_msg(!opens(), "%s = %s", #field, #value);                                                    \
                header->field = field_was;                                                                             \
                ck_assert(opens());                                                                                    \
        } while (0)

FIXTURE(.each = {begin, NULL});

TEST(a_table_shorter_than_a_header_is_refused)
{
        size = sizeof(struct manifest_header) - 1;
        ck_assert(!opens());
        size = 0;
        ck_assert(!opens());
}

TEST(an_invalid_header_is_refused)
{
        REFUSED_WITH(magic[0], 'x');
        REFUSED_WITH(version, 0);
        REFUSED_WITH(version, MANIFEST_VERSION + 1);
        REFUSED_WITH(header_size, sizeof(struct manifest_header) - 8);
        REFUSED_WITH(header_size, UINT32_MAX);
        REFUSED_WITH(record_size, 0);
        REFUSED_WITH(record_size, sizeof(struct manifest_record) + 8);
        REFUSED_WITH(size, size + 1);
        REFUSED_WITH(size, UINT64_MAX);
        REFUSED_WITH(size, 0);
        REFUSED_WITH(size, sizeof(struct manifest_header) - 1);
        REFUSED_WITH(segments_off, size);
        REFUSED_WITH(segments_off, UINT64_MAX - 7);
        REFUSED_WITH(records_off, size);
        REFUSED_WITH(records_off, UINT64_MAX - 7);
        REFUSED_WITH(metadata_off, UINT64_MAX - 7);
        REFUSED_WITH(shapes_off, UINT64_MAX - 7);
        REFUSED_WITH(strings_off, UINT64_MAX - 7);
        REFUSED_WITH(strings_off, (size + 8) / 8 * 8);
        REFUSED_WITH(segments_off, 0);
        REFUSED_WITH(records_off, header->segments_off);
        REFUSED_WITH(metadata_off, header->records_off);
        REFUSED_WITH(shapes_off, header->records_off);
        REFUSED_WITH(strings_off, header->shapes_off);
        REFUSED_WITH(segments_off, header->segments_off + 4);
        REFUSED_WITH(records_off, header->records_off + 1);
        REFUSED_WITH(metadata_off, header->metadata_off + 2);
        REFUSED_WITH(shapes_off, header->shapes_off + 4);
        REFUSED_WITH(strings_off, header->strings_off + 1);
        REFUSED_WITH(n_records, N + 1);
        REFUSED_WITH(n_records, UINT64_MAX);
        REFUSED_WITH(n_records, UINT64_MAX / sizeof(struct manifest_record) + 2); /* wraps to a small sum */
        REFUSED_WITH(n_shapes, 5);
        REFUSED_WITH(n_shapes, UINT64_MAX);
        REFUSED_WITH(strings_len, header->strings_len + 1);
        REFUSED_WITH(strings_len, UINT64_MAX);
        REFUSED_WITH(n_metadata, 2);
        REFUSED_WITH(n_metadata, UINT32_MAX);
        REFUSED_WITH(n_segments, 3);
        REFUSED_WITH(n_segments, MANIFEST_MAX_SEGMENTS + 1);
        REFUSED_WITH(n_segments, UINT32_MAX);
}

/* ---- an invalid record ---- */

#define CORRUPT_WITH(i, field, value)                                                                                  \
        do {                                                                                                           \
                __typeof__(records[i].field) field_was = records[i].field;                                             \
                records[i].field = (__typeof__(records[i].field))(value);                                              \
                ck_assert_msg(!holds(i), "%s = %s", #field, #value);                                                   \
                records[i].field = field_was;                                                                          \
                ck_assert(holds(i));                                                                                   \
        } while (0)

TEST(an_invalid_record_is_corrupt)
{
        CORRUPT_WITH(BETA, name_off, header->strings_len);
        CORRUPT_WITH(BETA, name_off, UINT64_MAX);
        CORRUPT_WITH(BETA, name_len, header->strings_len - 2);
        CORRUPT_WITH(BETA, name_len, UINT32_MAX);
        CORRUPT_WITH(BETA, name_len, 1);
        CORRUPT_WITH(BETA, name_len, 3);
        CORRUPT_WITH(ALPHA, dtype, 0);
        CORRUPT_WITH(ALPHA, dtype, DTYPE_END);
        CORRUPT_WITH(ALPHA, dtype, UINT32_MAX);
        CORRUPT_WITH(ALPHA, shape_off, 3);
        CORRUPT_WITH(ALPHA, shape_off, UINT64_MAX);
        CORRUPT_WITH(ALPHA, rank, 5);
        CORRUPT_WITH(ALPHA, rank, UINT32_MAX);
        CORRUPT_WITH(ALPHA, bytes, 20);
        CORRUPT_WITH(ALPHA, bytes, 0);
        CORRUPT_WITH(ALPHA, rank, 1);
        CORRUPT_WITH(ALPHA, dtype, DTYPE_F16);
        CORRUPT_WITH(GAMMA, bytes, 2);
        CORRUPT_WITH(ALPHA, segment, 2);
        CORRUPT_WITH(ALPHA, segment, UINT32_MAX);
        CORRUPT_WITH(ALPHA, segment, 1);
        CORRUPT_WITH(ALPHA, offset, 41);
        CORRUPT_WITH(ALPHA, offset, UINT64_MAX);
        CORRUPT_WITH(GAMMA, offset, 65);
}

TEST(a_shape_that_overflows_is_corrupt_even_before_a_zero)
{
        shapes[0] = UINT64_C(1) << 63;
        shapes[1] = 2;
        records[ALPHA].bytes = 0; /* 2^64 elements overflow to this value */
        ck_assert(!holds(ALPHA));
}

TEST(a_zero_before_large_dimensions_is_an_empty_tensor)
{
        shapes[0] = 0;
        shapes[1] = UINT64_C(1) << 63;
        records[ALPHA].bytes = 0;
        ck_assert(holds(ALPHA));
}

TEST(packed_elements_must_fill_whole_bytes)
{
        records[BETA].dtype = DTYPE_F4;
        records[BETA].bytes = 2;
        ck_assert(holds(BETA));
        shapes[2] = 5;
        ck_assert(!holds(BETA));
}

TEST(a_search_stops_at_a_corrupt_name)
{
        records[BETA].name_off = UINT64_MAX;
        ck_assert_int_eq(find("a"), -2);
}

TEST(corrupt_metadata_is_absent)
{
        struct manifest_view view = view_of();
        metadata[0].value_off = header->strings_len;
        ck_assert_ptr_null(manifest_metadata(&view, "format"));
        metadata[0].value_off = 18;
        metadata[0].value_len = 3;
        ck_assert_ptr_null(manifest_metadata(&view, "format"));
        metadata[0].value_len = 2;
        metadata[0].key_off = UINT64_MAX - 2;
        ck_assert_ptr_null(manifest_metadata(&view, "format"));
}
