/* SPDX-License-Identifier: Apache-2.0
 *
 * A manifest of three tensors in two segments, written and read; and with one invalid value, which is detected when the
 * manifest is opened or when the record is read.
 */
#include "proto/manifest.h"
#include "tests/lib/suite.h"

enum { ALPHA, BETA, GAMMA, N };

static unsigned char *base;
static size_t size;
static struct manifest_header *header;
static struct manifest_segment *segments;
static struct manifest_record *records;
static struct manifest_pair *metadata;
static uint64_t *shapes;
static char *strings;

static const struct manifest_counts counts = {
        .n_records = N, .n_shapes = 4, .strings_len = 11 + 10, .n_segments = 2, .n_metadata = 1};

static void set_pointers(void)
{
        segments = (void *)(base + header->segments_off);
        records = (void *)(base + header->records_off);
        metadata = (void *)(base + header->metadata_off);
        shapes = (void *)(base + header->shapes_off);
        strings = (char *)base + header->strings_off;
}

static void begin(void)
{
        size = (size_t)manifest_size(&counts);
        base = must_alloc(size);
        header = manifest_init(base, &counts);
        set_pointers();
        segments[0].size = 64;
        segments[1].size = 4;
        memcpy(strings, "a\0bb\0ccccc\0format\0pt", 21);
        memcpy(shapes, (uint64_t[]){2, 3, 4, 0}, sizeof(uint64_t) * 4);
        records[ALPHA] = (struct manifest_record){
                .name_off = 0, .name_len = 1, .dtype = DTYPE_F32, .rank = 2, .offset = 8, .bytes = 24};
        records[BETA] = (struct manifest_record){
                .name_off = 2, .name_len = 2, .dtype = DTYPE_U8, .shape_off = 2, .rank = 1, .segment = 1, .bytes = 4};
        records[GAMMA] = (struct manifest_record){
                .name_off = 5, .name_len = 5, .dtype = DTYPE_BF16, .shape_off = 3, .rank = 1, .offset = 64};
        metadata[0] = (struct manifest_pair){.key_off = 11, .key_len = 6, .value_off = 18, .value_len = 2};
}

static bool opens(void)
{
        struct manifest_view view;
        const char *why = NULL;
        int rc = manifest_open(&view, base, size, &why);
        ck_assert(rc == 0 || why != NULL);
        return rc == 0;
}

static struct manifest_view view_of(void)
{
        struct manifest_view view;
        const char *why;
        ck_assert_int_eq(manifest_open(&view, base, size, &why), 0);
        return view;
}

static bool holds(uint64_t i)
{
        struct manifest_view view = view_of();
        const char *why = NULL;
        int rc = manifest_check(&view, i, &why);
        ck_assert(rc == 0 || why != NULL);
        return rc == 0;
}

static int64_t find(const char *name)
{
        struct manifest_view view = view_of();
        const char *why;
        return manifest_find(&view, name, strlen(name), &why);
}

/* ---- valid manifests ---- */

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

/* ---- an invalid header ---- */

#define REFUSED_WITH(field, value)                                                                                     \
        do {                                                                                                           \
                __typeof__(header->field) field_was = header->field;                                                   \
                header->field = (__typeof__(header->field))(value);                                                    \
                ck_assert_msg(!opens(), "%s = %s", #field, #value);                                                    \
                header->field = field_was;                                                                             \
                ck_assert(opens());                                                                                    \
        } while (0)

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
