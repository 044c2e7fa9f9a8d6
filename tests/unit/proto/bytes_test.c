/* SPDX-License-Identifier: Apache-2.0
 *
 * The values of a message, one after the other.
 */
#include "proto/bytes.h"
#include "tests/lib/suite.h"

#define BYTES(text) (text), sizeof(text) - 1

static struct bytes bytes_of(const char *text, size_t n)
{
        return (struct bytes){(const unsigned char *)text, (const unsigned char *)text + n};
}

static const struct {
        const char *text;
        size_t n;
        enum value_kind kind;
        uint64_t number;
} values[] = {
        {BYTES("\x00"), VALUE_U64, 0},
        {BYTES("\x7f"), VALUE_U64, 127},
        {BYTES("\xe0"), VALUE_I64, (uint64_t)-32},
        {BYTES("\xc0"), VALUE_NIL, 0},
        {BYTES("\xc2"), VALUE_BOOL, false},
        {BYTES("\xc3"), VALUE_BOOL, true},
        {BYTES("\xcc\xff"), VALUE_U64, 255},
        {BYTES("\xcd\x01\x02"), VALUE_U64, 0x102},
        {BYTES("\xce\x01\x02\x03\x04"), VALUE_U64, 0x1020304},
        {BYTES("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), VALUE_U64, UINT64_MAX},
        {BYTES("\xd0\x7f"), VALUE_U64, 127},
        {BYTES("\xd0\xff"), VALUE_I64, UINT64_MAX},
        {BYTES("\xd1\x80\x00"), VALUE_I64, (uint64_t)-32768},
        {BYTES("\xd2\xff\xff\xff\xfe"), VALUE_I64, (uint64_t)-2},
        {BYTES("\xd3\x80\x00\x00\x00\x00\x00\x00\x00"), VALUE_I64, UINT64_C(1) << 63},
        {BYTES("\xa2hi"), VALUE_TEXT, 2},
        {BYTES("\xd9\x02hi"), VALUE_TEXT, 2},
        {BYTES("\xda\x00\x02hi"), VALUE_TEXT, 2},
        {BYTES("\xdb\x00\x00\x00\x02hi"), VALUE_TEXT, 2},
        {BYTES("\xc4\x02hi"), VALUE_BIN, 2},
        {BYTES("\xc5\x00\x02hi"), VALUE_BIN, 2},
        {BYTES("\xc6\x00\x00\x00\x02hi"), VALUE_BIN, 2},
        {BYTES("\xc7\x02\x01hi"), VALUE_EXT, 3},
        {BYTES("\xd5\x01hi"), VALUE_EXT, 3},
        {BYTES("\xca\x3f\x80\x00\x00"), VALUE_REAL, 0},
        {BYTES("\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"), VALUE_REAL, 0},
        {BYTES("\x90"), VALUE_ARRAY, 0},
        {BYTES("\xdc\x00\x00"), VALUE_ARRAY, 0},
        {BYTES("\x80"), VALUE_MAP, 0},
        {BYTES("\xde\x00\x00"), VALUE_MAP, 0},
};

TEST(each_kind_of_value_is_read_as_a_whole, EACH(values))
{
        struct bytes bytes = bytes_of(values[_i].text, values[_i].n);
        struct value v = {.number = 0};
        ck_assert(bytes_next(&bytes, &v));
        ck_assert(bytes.at == bytes.end);
        ck_assert_int_eq(v.kind, values[_i].kind);
        if (v.kind == VALUE_REAL)
                ck_assert(v.real == 1.0);
        else
                ck_assert_uint_eq(v.number, values[_i].number);
        if (v.kind == VALUE_TEXT || v.kind == VALUE_BIN)
                ck_assert_mem_eq(v.data, "hi", 2);
}

TEST(a_value_that_is_cut_short_is_none, EACH(values))
{
        for (size_t n = 0; n < values[_i].n; n++) {
                struct bytes bytes = bytes_of(values[_i].text, n);
                struct value v;
                ck_assert(!bytes_next(&bytes, &v));
        }
}

TEST(the_tag_that_means_nothing_is_no_value)
{
        struct bytes bytes = bytes_of(BYTES("\xc1"));
        struct value v;
        ck_assert(!bytes_next(&bytes, &v));
}

TEST(a_value_is_skipped_with_its_members)
{
        struct bytes bytes = bytes_of(BYTES("\x82\xa1k\x92\x01\x81\xa1j\xc0\xa1l\x90\x07"));
        struct value v;
        ck_assert(bytes_skip(&bytes));
        ck_assert(bytes_next(&bytes, &v));
        ck_assert_uint_eq(v.number, 7);
        bytes = bytes_of(BYTES("\x82\xa1k\x92\x01"));
        ck_assert(!bytes_skip(&bytes));
}

TEST(a_key_is_found_behind_others)
{
        struct bytes bytes = bytes_of(BYTES("\x83\xa1k\x92\x01\x02\xa2kk\x03\xa1l\x04"));
        struct value v;
        ck_assert(bytes_next(&bytes, &v));
        struct bytes pairs = bytes;
        ck_assert(bytes_find(&bytes, v.number, "l"));
        ck_assert(bytes_next(&bytes, &v));
        ck_assert_uint_eq(v.number, 4);
        ck_assert(!bytes_find(&pairs, 3, "m"));
}
