/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack from untrusted peers: validation, and reading and writing of replies.
 */
#include "proto/codec.h"
#include "proto/codes.h"
#include "tests/lib/suite.h"

/* ---- well-formed bytes ---- */

static bool check_bytes(const char *bytes, size_t len)
{
        const char *why = NULL;
        int rc = codec_check(bytes, len, &why);
        ck_assert(rc == 0 || why != NULL);
        return rc == 0;
}

#define BYTES(text)                                                                                                    \
        {                                                                                                              \
                (text), sizeof(text) - 1                                                                               \
        }

static const struct {
        const char *bytes;
        size_t len;
} valid[] =
        {
                BYTES("\x00"),
                BYTES("\x7f"),
                BYTES("\x80"),
                BYTES("\x81\xa1k\x01"),
                BYTES("\x92\x01\x02"),
                BYTES("\xa3"
                      "abc"),
                BYTES("\xc0"),
                BYTES("\xc2"),
                BYTES("\xc4\x02xx"),
                BYTES("\xc5\x00\x02xx"),
                BYTES("\xc6\x00\x00\x00\x02xx"),
                BYTES("\xc7\x01\x05x"),
                BYTES("\xc8\x00\x01\x05x"),
                BYTES("\xc9\x00\x00\x00\x01\x05x"),
                BYTES("\xca"
                      "1234"),
                BYTES("\xcb"
                      "12345678"),
                BYTES("\xcc\xff"),
                BYTES("\xcf"
                      "12345678"),
                BYTES("\xd0\xff"),
                BYTES("\xd3"
                      "12345678"),
                BYTES("\xd4\x05x"),
                BYTES("\xd8\x05"
                      "1234567812345678"),
                BYTES("\xd9\x01x"),
                BYTES("\xda\x00\x01x"),
                BYTES("\xdb\x00\x00\x00\x01x"),
                BYTES("\xdc\x00\x01\xc0"),
                BYTES("\xdd\x00\x00\x00\x01\xc0"),
                BYTES("\xde\x00\x01\xa1k\xc0"),
                BYTES("\xdf\x00\x00\x00\x01\xa1k\xc0"),
                BYTES("\xff"),
},
  invalid[] = {
          /* the tag that msgpack never uses, no value, more than one */
          BYTES("\xc1"),
          BYTES("\x91\xc1"),
          BYTES(""),
          BYTES("\x01\x02"),
          BYTES("\x80\x00"),
          /* lengths beyond the end */
          BYTES("\xdb\xff\xff\xff\xffx"),
          BYTES("\xc6\xff\xff\xff\xffx"),
          BYTES("\xc9\xff\xff\xff\xff\x05x"),
          BYTES("\xdd\xff\xff\xff\xff\xc0"),
          BYTES("\xdf\xff\xff\xff\xff\xc0\xc0"),
          BYTES("\xdf\x80\x00\x00\x00\xc0\xc0"),
};

TEST(each_kind_of_value_is_skipped, EACH(valid))
{
        ck_assert(check_bytes(valid[_i].bytes, valid[_i].len));
}

TEST(what_is_not_one_value_is_refused, EACH(invalid))
{
        ck_assert(!check_bytes(invalid[_i].bytes, invalid[_i].len));
}

TEST(truncated_values_are_refused)
{
        static const char whole[] = "\x86\xa1k\xd9\x01x\xa1l\xc4\x01x\xa1m\xcf"
                                    "12345678\xa1n\xc7\x01\x05x\xa1o\xdc\x00\x01\xc0\xa1p\xcb"
                                    "12345678";
        ck_assert(check_bytes(whole, sizeof(whole) - 1));
        for (size_t len = 0; len < sizeof(whole) - 1; len++)
                ck_assert_msg(!check_bytes(whole, len), "cut at %zu", len);
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

static void write_index(struct writer *w, const void *data, size_t i)
{
        writer_u64(w, i);
}

TEST(a_reply_is_read_as_it_was_written)
{
        struct writer w;
        struct items list;
        struct message m;
        uint64_t u;
        bool b;
        const char *s;
        size_t len;
        writer_init(&w);
        items_init(&list);
        writer_i64(&list.w, -5);
        writer_bin(&list.w, "\0\1", 2);
        list.n = 2;
        writer_pairs(&w,
                     REPLY_PAIRS(9, ku64("large", UINT64_MAX), kif(false, kstr("left out", "")), kbool("flag", true),
                                 khex("digest", ((const unsigned char[]){0x0f, 0xa0}), 2), kstr("nothing", NULL),
                                 kstrn("begins", "text", 2), kcall("called", write_seven, &u), kitems("list", &list),
                                 karray("array", write_index, NULL, 3)));
        ck_assert(!w.failed);
        ck_assert_int_eq(message_decode(&m, w.buf.data, w.buf.size), 0);

        const msgpack_object *o = &m.unpacked.data;
        ck_assert(object_u64(o, "id", &u) && u == 9);
        ck_assert(object_bool(o, "ok", &b) && b);
        ck_assert(object_u64(o, "large", &u) && u == UINT64_MAX);
        ck_assert(object_str(o, "digest", &s, &len) && len == 4 && memcmp(s, "0fa0", 4) == 0);
        ck_assert(object_str_eq(o, "digest", "0fa0"));
        ck_assert(!object_str_eq(o, "digest", "0fa"));
        ck_assert_uint_eq(o->via.map.size, 10);
        ck_assert(object_str_eq(o, "begins", "te"));
        ck_assert(object_u64(o, "called", &u) && u == 7);
        ck_assert_int_eq((int)object_get(o, "nothing")->type, MSGPACK_OBJECT_NIL);
        ck_assert_int_eq(object_get(o, "list")->via.array.ptr[0].via.i64, -5);
        ck_assert_uint_eq(object_get(o, "array")->via.array.size, 3);
        ck_assert_uint_eq(object_get(o, "array")->via.array.ptr[2].via.u64, 2);
}

TEST(texts_of_each_length_are_written_whole)
{
        char text[300];
        memset(text, 'x', sizeof(text));
        for (size_t n = 0; n <= sizeof(text); n++) {
                struct writer w;
                const char *s;
                size_t len;
                for (size_t i = 0; i < n; i++)
                        text[i] = (char)('a' + (i * 7 + n) % 26);
                writer_init(&w);
                writer_pairs(&w, PAIRS(kstrn("text", text, n), kbin("bin", text, n), khex("hex", text, n)));
                ck_assert(!w.failed);
                struct message m;
                ck_assert_int_eq(message_decode(&m, w.buf.data, w.buf.size), 0);
                ck_assert(object_str(&m.unpacked.data, "text", &s, &len));
                ck_assert_uint_eq(len, n);
                ck_assert_int_eq(memcmp(s, text, n), 0);
                ck_assert(object_bin(&m.unpacked.data, "bin", &s, &len));
                ck_assert_uint_eq(len, n);
                ck_assert_int_eq(memcmp(s, text, n), 0);
                ck_assert(object_str(&m.unpacked.data, "hex", &s, &len));
                ck_assert_uint_eq(len, 2 * n);
                message_deinit(&m);
                writer_deinit(&w);
        }
}

TEST(an_error_carries_code_and_text)
{
        struct writer w;
        struct message m;
        bool ok;
        writer_init(&w);
        writer_pairs(&w, ERROR_PAIRS(3, STREAMER_EBUSY, "unload: two leases", false));
        ck_assert_int_eq(message_decode(&m, w.buf.data, w.buf.size), 0);
        ck_assert(object_bool(&m.unpacked.data, "ok", &ok) && !ok);
        ck_assert(object_str_eq(&m.unpacked.data, "code", "in-use"));
        ck_assert(object_str_eq(&m.unpacked.data, "text", "unload: two leases"));
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
}

TEST(a_broken_message_or_one_that_is_no_map_is_refused)
{
        struct message m;
        ck_assert_int_eq(message_decode(&m, "\x01", 1), STREAMER_EPROTO);
        ck_assert_int_eq(message_decode(&m, "\x81\xa1k", 3), STREAMER_EPROTO);
}
