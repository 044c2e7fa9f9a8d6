/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of a published model: what is written is read; everything out of bounds, and every overlap that is not
 * declared, is refused with its name.
 */
#include "proto/published/table.h"
#include "tests/lib/suite.h"

static const uint64_t segments[] = {8192, 256, 1 << 20};
#define TABLE_SEGMENT 2

static struct published_writer writer;
static struct published_view view;
static char text[300];
static unsigned char *bytes;
static uint64_t size;

static void storage(uint32_t segment, uint64_t offset, uint64_t n)
{
        const struct published_storage s = {.segment = segment, .offset = offset, .bytes = n};
        published_add_storage(&writer, &s);
}

/* Of 4-byte elements; a row of n. */
static void row(const char *name, uint64_t in, uint64_t offset, uint64_t n, uint32_t alias)
{
        const uint64_t shape[] = {n}, strides[] = {1};
        const struct published_tensor t = {.rank = 1, .item = 4, .storage = in, .offset = offset, .alias = alias};
        const struct published_text names = {name, "float32"};
        published_add_tensor(&writer, &t, &names, shape, strides);
}

static int open_at(uint32_t segment, uint64_t offset)
{
        size = published_size(&writer);
        bytes = must_alloc(size);
        published_finish(&writer, bytes);
        const struct published_place place = {segments, 3, {.segment = segment, .offset = offset, .bytes = size}, NULL};
        return published_open(&view, bytes, size, &place, text, sizeof(text));
}

static int open_it(void)
{
        return open_at(TABLE_SEGMENT, 0);
}

static void refused(const char *why)
{
        ck_assert_int_eq(open_it(), -1);
        ck_assert_msg(strstr(text, why) != NULL, "%s", text);
}

TEST(what_is_written_is_read)
{
        const uint64_t shape[] = {2, 3}, strides[] = {1, 2};
        const struct published_tensor t = {
                .rank = 2, .item = 8, .storage = 1, .offset = 8, .kind = 2, .flags = 5, .alias = 9};
        const struct published_text names = {"b.T", "int64"};
        storage(0, 256, 400);
        storage(0, 1024, 56);
        row("a", 0, 0, 100, 0);
        published_add_tensor(&writer, &t, &names, shape, strides);
        published_add_attribute(&writer, "scale", "0.5");
        ck_assert_msg(open_it() == 0, "%s", text);
        ck_assert_uint_eq(view.header->n_storages, 2);
        const struct published_tensor *read = published_tensor(&view, 1);
        ck_assert_str_eq(view.strings + read->name_off, "b.T");
        ck_assert_str_eq(view.strings + read->dtype_off, "int64");
        ck_assert_uint_eq(view.numbers[read->numbers_off + 1], 3);
        ck_assert_uint_eq(view.numbers[read->numbers_off + 3], 2);
        ck_assert_uint_eq(read->flags, 5);
        ck_assert_uint_eq(read->alias, 9);
        ck_assert_uint_eq(published_storage(&view, 1)->offset, 1024);
        ck_assert_str_eq(view.strings + published_attribute(&view, 0)->value_off, "0.5");
}

TEST(an_empty_table_is_valid)
{
        ck_assert_int_eq(open_it(), 0);
}

/* ---- storages ---- */

static const struct place_row {
        uint32_t segment;
        uint64_t offset, bytes;
        const char *why; /* NULL: it is valid */
} places[] = {
        {0, 0, 8192, NULL},
        {0, 8192, 0, NULL},
        {1, 0, 256, NULL},
        {0, 0, 8193, "storage 0"},
        {0, 256, UINT64_MAX, "storage 0"},
        {0, UINT64_MAX - 255, 512, "storage 0"},
        {0, 128, 1, "not aligned"},
        {3, 0, 1, "storage 0"},
        {UINT32_MAX, 0, 0, "storage 0"},
        {TABLE_SEGMENT, 0, 1, "overlap"},
        {TABLE_SEGMENT, 4096, 1, NULL},
};

TEST(a_storage_lies_in_its_segment, EACH(places))
{
        storage(places[_i].segment, places[_i].offset, places[_i].bytes);
        if (places[_i].why == NULL)
                ck_assert_msg(open_it() == 0, "%s", text);
        else
                refused(places[_i].why);
}

TEST(storages_do_not_overlap)
{
        storage(0, 1024, 1024);
        storage(0, 0, 1024);
        storage(0, 1024, 0); /* an empty one overlaps nothing */
        ck_assert_int_eq(open_it(), 0);
        storage(0, 256, 1);
        refused("storages 1 and 3 overlap");
}

TEST(the_table_lies_in_its_segment)
{
        ck_assert_int_eq(open_at(0, 0), 0);
        ck_assert_int_eq(open_at(0, 8), -1);
        ck_assert_int_eq(open_at(1, 256), -1);
        ck_assert_int_eq(open_at(3, 0), -1);
}

/* ---- tensors ---- */

static const struct overlap_row {
        uint64_t offset_a, n_a, offset_b, n_b;
        uint32_t a, b;
        bool valid;
} overlaps[] = {
        {0, 10, 40, 10, 0, 0, true},  /* neighbours */
        {0, 10, 36, 10, 0, 0, false}, /* the last element */
        {0, 10, 36, 10, 1, 1, true},  {0, 10, 36, 10, 1, 2, false}, {0, 10, 36, 10, 1, 0, false},
        {0, 10, 36, 10, 0, 1, false}, {0, 10, 0, 10, 0, 0, false},  {36, 10, 0, 10, 0, 0, false},
        {0, 100, 40, 1, 0, 0, false}, {0, 0, 0, 10, 0, 0, true},    {40, 0, 0, 100, 0, 0, true},
        {0, 10, 40, 10, 1, 1, true},
};

TEST(overlaps_are_declared, EACH(overlaps))
{
        const struct overlap_row *r = &overlaps[_i];
        storage(0, 0, 400);
        storage(0, 512, 400);
        row("a", 0, r->offset_a, r->n_a, r->a);
        row("b", 0, r->offset_b, r->n_b, r->b);
        row("c", 1, r->offset_b, r->n_b, 0); /* in another storage nothing overlaps */
        if (r->valid)
                ck_assert_msg(open_it() == 0, "%s", text);
        else
                refused("overlap and are not declared");
}

/* One that begins after the second has ended may still be in the first. */
TEST(a_long_tensor_overlaps_all_that_follow)
{
        storage(0, 0, 400);
        row("long", 0, 0, 100, 1);
        row("short", 0, 0, 2, 1);
        row("later", 0, 200, 2, 1);
        ck_assert_int_eq(open_it(), 0);
        row("last", 0, 396, 1, 0);
        refused("'last' overlap");
}

TEST(names_are_unique)
{
        storage(0, 0, 400);
        row("b", 0, 0, 1, 0);
        row("a", 0, 4, 1, 0);
        row("b", 0, 8, 1, 0);
        refused("two tensors are named 'b'");
}

TEST(names_of_attributes_are_unique)
{
        published_add_attribute(&writer, "a", "1");
        published_add_attribute(&writer, "b", "1");
        published_add_attribute(&writer, "a", "2");
        refused("two attributes are named 'a'");
}

/* A text of so many bytes. */
static char *long_text(size_t n)
{
        char *long_name = must_alloc(n + 1);
        memset(long_name, 'n', n);
        long_name[n] = '\0';
        return long_name;
}

TEST(a_text_is_short)
{
        storage(0, 0, 4);
        row(long_text(PUBLISHED_MAX_TEXT), 0, 0, 0, 0);
        ck_assert_int_eq(open_it(), 0);
        published_add_attribute(&writer, "a", long_text(PUBLISHED_MAX_TEXT + 1));
        refused("attribute 0: a text has more than 65536 bytes");
}

/* Each tensor's name is the same long text. */
static int open_with_shared_text(size_t n, const bool *stop)
{
        storage(0, 0, 4);
        for (size_t i = 0; i < n; i++)
                row("x", 0, 0, 0, 0);
        published_add_attribute(&writer, "a", long_text(PUBLISHED_MAX_TEXT));
        size = published_size(&writer);
        bytes = must_alloc(size);
        published_finish(&writer, bytes);
        const struct published_header *h = (const void *)bytes;
        const struct published_attribute *a = (const void *)(bytes + h->attributes_off);
        for (size_t i = 0; i < n; i++) {
                struct published_tensor *t = (void *)(bytes + h->tensors_off + i * sizeof(*t));
                t->name_off = a->value_off;
                t->name_len = a->value_len;
        }
        const struct published_place place = {segments, 3, {.segment = TABLE_SEGMENT, .bytes = size}, stop};
        return published_open(&view, bytes, size, &place, text, sizeof(text));
}

TEST(a_shared_text_counts_as_often_as_it_is_used)
{
        ck_assert_int_eq(open_with_shared_text(4097, NULL), -1);
        ck_assert_str_eq(text, "its texts have more than 268435456 bytes");
}

TEST(validation_is_given_up)
{
        bool stop = true;
        ck_assert_int_eq(open_with_shared_text(1, &stop), -1);
        ck_assert_str_eq(text, "given up");
}

TEST(a_tensor_has_a_name)
{
        storage(0, 0, 400);
        row("", 0, 0, 1, 0);
        refused("tensor 0");
}

#define BIG (UINT64_C(1) << 62)

static const struct extent_row {
        uint32_t rank;
        uint64_t shape[3], strides[3];
        uint32_t item;
        bool fits;
        uint64_t bytes;
} extents[] = {
        {0, {0}, {0}, 4, true, 4},
        {1, {5}, {1}, 4, true, 20},
        {1, {5}, {0}, 4, true, 4},
        {2, {3, 4}, {4, 1}, 2, true, 24},
        {2, {4, 3}, {1, 4}, 2, true, 24},
        {2, {3, 4}, {100, 1}, 2, true, 408},
        {2, {0, 4}, {UINT64_MAX, 1}, 2, true, 0},
        {2, {BIG, 0}, {BIG, BIG}, 2, true, 0},
        {2, {BIG, BIG}, {0, 0}, 16, true, 16},
        {1, {BIG}, {8}, 1, false, 0},
        {1, {2}, {UINT64_MAX}, 1, false, 0},
        {2, {BIG, BIG}, {4, 4}, 1, false, 0},
        {1, {BIG}, {1}, 8, false, 0},
};

TEST(an_extent_ends_behind_the_last_element, EACH(extents))
{
        const struct extent_row *r = &extents[_i];
        uint64_t n = 1;
        ck_assert(published_extent(r->rank, r->shape, r->strides, r->item, &n) == r->fits);
        if (r->fits)
                ck_assert_uint_eq(n, r->bytes);
}
