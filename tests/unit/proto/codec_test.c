/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack from untrusted peers: validation, and reading and writing of replies.
 */
#include "proto/codec.h"
#include "proto/codes.h"
#include "tests/lib/suite.h"

/* ---- well-formed bytes ---- */

#define CHECK(bytes) check_bytes((bytes), sizeof(bytes) - 1)

static bool check_bytes(const char *bytes, size_t len)
{
        const char *why = NULL;
        int rc = codec_check(bytes, len, &why);
        ck_assert(rc == 0 || why != NULL);
        return rc == 0;
}

TEST(each_kind_of_value_is_skipped)
{
        ck_assert(CHECK("\x00"));
        ck_assert(CHECK("\x7f"));
        ck_assert(CHECK("\x80"));
        ck_assert(CHECK("\x81\xa1k\x01"));
        ck_assert(CHECK("\x92\x01\x02"));
        ck_assert(CHECK("\xa3"
                        "abc"));
        ck_assert(CHECK("\xc0"));
        ck_assert(CHECK("\xc2"));
        ck_assert(CHECK("\xc4\x02xx"));
        ck_assert(CHECK("\xc5\x00\x02xx"));
        ck_assert(CHECK("\xc6\x00\x00\x00\x02xx"));
        ck_assert(CHECK("\xc7\x01\x05x"));
        ck_assert(CHECK("\xc8\x00\x01\x05x"));
        ck_assert(CHECK("\xc9\x00\x00\x00\x01\x05x"));
        ck_assert(CHECK("\xca"
                        "1234"));
        ck_assert(CHECK("\xcb"
                        "12345678"));
        ck_assert(CHECK("\xcc\xff"));
        ck_assert(CHECK("\xcf"
                        "12345678"));
        ck_assert(CHECK("\xd0\xff"));
        ck_assert(CHECK("\xd3"
                        "12345678"));
        ck_assert(CHECK("\xd4\x05x"));
        ck_assert(CHECK("\xd8\x05"
                        "1234567812345678"));
        ck_assert(CHECK("\xd9\x01x"));
        ck_assert(CHECK("\xda\x00\x01x"));
        ck_assert(CHECK("\xdb\x00\x00\x00\x01x"));
        ck_assert(CHECK("\xdc\x00\x01\xc0"));
        ck_assert(CHECK("\xdd\x00\x00\x00\x01\xc0"));
        ck_assert(CHECK("\xde\x00\x01\xa1k\xc0"));
        ck_assert(CHECK("\xdf\x00\x00\x00\x01\xa1k\xc0"));
        ck_assert(CHECK("\xff"));
}

TEST(the_tag_that_msgpack_never_uses_is_refused)
{
        ck_assert(!CHECK("\xc1"));
        ck_assert(!CHECK("\x91\xc1"));
}

TEST(empty_input_and_trailing_bytes_are_refused)
{
        ck_assert(!check_bytes("", 0));
        ck_assert(!CHECK("\x01\x02"));
        ck_assert(!CHECK("\x80\x00"));
}

TEST(truncated_values_are_refused)
{
        static const char whole[] = "\x86\xa1k\xd9\x01x\xa1l\xc4\x01x\xa1m\xcf"
                                    "12345678\xa1n\xc7\x01\x05x\xa1o\xdc\x00\x01\xc0\xa1p\xcb"
                                    "12345678";
        ck_assert(CHECK(whole));
        for (size_t len = 0; len < sizeof(whole) - 1; len++)
                ck_assert_msg(!check_bytes(whole, len), "cut at %zu", len);
}

TEST(wrong_lengths_are_refused)
{
        ck_assert(!CHECK("\xdb\xff\xff\xff\xffx"));
        ck_assert(!CHECK("\xc6\xff\xff\xff\xffx"));
        ck_assert(!CHECK("\xc9\xff\xff\xff\xff\x05x"));
        ck_assert(!CHECK("\xdd\xff\xff\xff\xff\xc0"));
        ck_assert(!CHECK("\xdf\xff\xff\xff\xff\xc0\xc0"));
        ck_assert(!CHECK("\xdf\x80\x00\x00\x00\xc0\xc0"));
}

static size_t nested(char *out, size_t depth)
{
        memset(out, 0x91, depth);
        out[depth] = 0;
        return depth + 1;
}

TEST(depth_is_limited)
{
        char bytes[100];
        ck_assert(check_bytes(bytes, nested(bytes, CODEC_DEPTH)));
        ck_assert(!check_bytes(bytes, nested(bytes, CODEC_DEPTH + 1)));
        ck_assert(!check_bytes(bytes, nested(bytes, 99)));
}

TEST(the_number_of_values_can_be_limited)
{
        const char *why;
        ck_assert_int_eq(codec_check_limited("\x93\x01\x02\x03", 4, 4, &why), 0);
        ck_assert_int_eq(codec_check_limited("\x93\x01\x02\x03", 4, 3, &why), -1);
        ck_assert_str_eq(why, "too many values");
}

TEST(utf8_is_strict)
{
        static const struct {
                const char *s;
                bool valid;
        } cases[] = {
                {"", true},
                {"plain", true},
                {"\xc2\x80", true},
                {"\xc3\xa4\xe6\xa8\xa1\xf0\x9f\x98\x80", true},
                {"\xed\x9f\xbf\xee\x80\x80", true},
                {"\xf4\x8f\xbf\xbf", true},
                {"\x80", false},
                {"\xc3", false},
                {"\xc0\xaf", false},
                {"\xc1\xbf", false},
                {"\xe0\x9f\xbf", false},
                {"\xf0\x8f\xbf\xbf", false},
                {"\xed\xa0\x80", false},
                {"\xf4\x90\x80\x80", false},
                {"\xf5\x80\x80\x80", false},
                {"\xe6\xa8", false},
                {"\xe6\xa8z", false},
                {"\xff", false},
        };
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
                ck_assert_msg(codec_utf8(cases[i].s, strlen(cases[i].s)) == cases[i].valid, "case %zu", i);
}

/* ---- replies ---- */

static void write_seven(struct writer *w, const void *data)
{
        ck_assert_ptr_nonnull(data);
        writer_u64(w, 7);
}

TEST(a_reply_is_read_as_it_was_written)
{
        struct writer w, list;
        struct message m;
        uint64_t u;
        bool b;
        const char *s;
        size_t len;
        writer_init(&w);
        writer_init(&list);
        writer_i64(&list, -5);
        writer_bin(&list, "\0\1", 2);
        writer_pairs(&w, REPLY_PAIRS(9, ku64("large", UINT64_MAX), kif(false, kstr("left out", "")),
                                     kbool("flag", true), khex("digest", ((const unsigned char[]){0x0f, 0xa0}), 2),
                                     kstr("nothing", NULL), kstrn("begins", "text", 2),
                                     kcall("called", write_seven, &u), kitems("list", &list, 2)));
        writer_deinit(&list);
        ck_assert(!w.failed);
        ck_assert_int_eq(message_decode(&m, w.buf.data, w.buf.size), 0);
        writer_deinit(&w);

        const msgpack_object *o = &m.unpacked.data;
        ck_assert(object_u64(o, "id", &u) && u == 9);
        ck_assert(object_bool(o, "ok", &b) && b);
        ck_assert(object_u64(o, "large", &u) && u == UINT64_MAX);
        ck_assert(object_str(o, "digest", &s, &len) && len == 4 && memcmp(s, "0fa0", 4) == 0);
        ck_assert(object_str_eq(o, "digest", "0fa0"));
        ck_assert(!object_str_eq(o, "digest", "0fa"));
        ck_assert_uint_eq(o->via.map.size, 9);
        ck_assert(object_str_eq(o, "begins", "te"));
        ck_assert(object_u64(o, "called", &u) && u == 7);
        ck_assert_int_eq((int)object_get(o, "nothing")->type, MSGPACK_OBJECT_NIL);
        ck_assert_int_eq(object_get(o, "list")->via.array.ptr[0].via.i64, -5);
        message_deinit(&m);
}

TEST(an_error_carries_code_and_text)
{
        struct writer w;
        struct message m;
        bool ok;
        writer_init(&w);
        writer_pairs(&w, ERROR_PAIRS(3, STREAMER_EBUSY, "unload: two leases"));
        ck_assert_int_eq(message_decode(&m, w.buf.data, w.buf.size), 0);
        writer_deinit(&w);
        ck_assert(object_bool(&m.unpacked.data, "ok", &ok) && !ok);
        ck_assert(object_str_eq(&m.unpacked.data, "code", "in-use"));
        ck_assert(object_str_eq(&m.unpacked.data, "text", "unload: two leases"));
        message_deinit(&m);
}

TEST(lookups_fail_for_absent_keys_and_other_types)
{
        struct message m;
        uint64_t u;
        bool b;
        const char *s;
        size_t len;
        ck_assert_int_eq(message_decode(&m, "\x81\xa1k\xa1v", 5), 0);
        const msgpack_object *o = &m.unpacked.data;
        ck_assert_ptr_null(object_get(o, "x"));
        ck_assert_ptr_null(object_get(object_get(o, "k"), "x"));
        ck_assert(!object_u64(o, "k", &u));
        ck_assert(!object_bool(o, "k", &b));
        ck_assert(!object_str(o, "kk", &s, &len));
        message_deinit(&m);
}

TEST(a_broken_message_or_one_that_is_no_map_is_refused)
{
        struct message m;
        ck_assert_int_eq(message_decode(&m, "\x01", 1), STREAMER_EPROTO);
        ck_assert_int_eq(message_decode(&m, "\x81\xa1k", 3), STREAMER_EPROTO);
}
