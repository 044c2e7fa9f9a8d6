/* SPDX-License-Identifier: Apache-2.0
 *
 * msgpack from strangers: what is well-formed, what a request may hold, and in which words it is
 * refused. Requests are written as bytes where no writer would produce them.
 */
#include "proto/codec.h"
#include "proto/codes.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

/* ---- well-formed bytes ---- */

#define CHECK(bytes) check_bytes((bytes), sizeof(bytes) - 1)

static bool check_bytes(const char *bytes, size_t len)
{
        const char *why = NULL;
        int rc = codec_check(bytes, len, &why);
        ck_assert(rc == 0 || why != NULL);
        return rc == 0;
}

START_TEST(each_kind_of_value_is_walked_over)
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
END_TEST

START_TEST(the_tag_that_msgpack_never_uses_is_refused)
{
        ck_assert(!CHECK("\xc1"));
        ck_assert(!CHECK("\x91\xc1"));
}
END_TEST

START_TEST(nothing_and_trailing_bytes_are_refused)
{
        ck_assert(!check_bytes("", 0));
        ck_assert(!CHECK("\x01\x02"));
        ck_assert(!CHECK("\x80\x00"));
}
END_TEST

START_TEST(values_that_are_cut_short_are_refused)
{
        static const char whole[] = "\x86\xa1k\xd9\x01x\xa1l\xc4\x01x\xa1m\xcf"
                                    "12345678\xa1n\xc7\x01\x05x\xa1o\xdc\x00\x01\xc0\xa1p\xcb"
                                    "12345678";
        ck_assert(CHECK(whole));
        for (size_t len = 0; len < sizeof(whole) - 1; len++)
                ck_assert_msg(!check_bytes(whole, len), "cut at %zu", len);
}
END_TEST

START_TEST(lengths_that_lie_are_refused)
{
        ck_assert(!CHECK("\xdb\xff\xff\xff\xffx"));
        ck_assert(!CHECK("\xc6\xff\xff\xff\xffx"));
        ck_assert(!CHECK("\xc9\xff\xff\xff\xff\x05x"));
        ck_assert(!CHECK("\xdd\xff\xff\xff\xff\xc0"));
        ck_assert(!CHECK("\xdf\xff\xff\xff\xff\xc0\xc0"));
        ck_assert(!CHECK("\xdf\x80\x00\x00\x00\xc0\xc0"));
}
END_TEST

static size_t nested(char *out, size_t depth)
{
        memset(out, 0x91, depth);
        out[depth] = 0;
        return depth + 1;
}

START_TEST(depth_is_limited)
{
        char bytes[100];
        ck_assert(check_bytes(bytes, nested(bytes, CODEC_DEPTH)));
        ck_assert(!check_bytes(bytes, nested(bytes, CODEC_DEPTH + 1)));
        ck_assert(!check_bytes(bytes, nested(bytes, 99)));
}
END_TEST

START_TEST(the_number_of_values_can_be_limited)
{
        const char *why;
        ck_assert_int_eq(codec_check_limited("\x93\x01\x02\x03", 4, 4, &why), 0);
        ck_assert_int_eq(codec_check_limited("\x93\x01\x02\x03", 4, 3, &why), -1);
        ck_assert_str_eq(why, "too many values");
}
END_TEST

START_TEST(utf8_is_strict)
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
END_TEST

/* ---- requests ---- */

static struct request request;
static char text[256];

static int decode_bytes(const char *bytes, size_t len)
{
        text[0] = 0;
        return request_decode(&request, bytes, len, text, sizeof(text));
}
#define DECODE(bytes) decode_bytes((bytes), sizeof(bytes) - 1)

#define REFUSED(bytes, why)                                                                                            \
        do {                                                                                                           \
                ck_assert_int_eq(DECODE(bytes), STREAMER_EINVAL);                                                      \
                ck_assert_str_eq(text, why);                                                                           \
                ck_assert_ptr_null(request.memory);                                                                    \
        } while (0)

/* Keys and values as they are packed; ID and VERB save half of each line below. */
#define ID "\xa2id\x07"
#define VERB(packed) "\xa4verb" packed
#define LOAD VERB("\xa4load")
#define SHOW VERB("\xa4show")

static void round_trip(const struct request *sent)
{
        msgpack_sbuffer buf;
        msgpack_sbuffer_init(&buf);
        ck_assert_int_eq(request_encode(sent, &buf), 0);
        int rc = decode_bytes(buf.data, buf.size);
        ck_assert_msg(rc == 0, "%s", text);
        msgpack_sbuffer_destroy(&buf);
        ck_assert_int_eq((int)request.verb, (int)sent->verb);
        ck_assert_uint_eq(request.id, sent->id);
}

START_TEST(a_request_survives_the_wire)
{
        const char *devices[] = {"cuda:0", "host"};
        struct request sent = {
                .verb = VERB_load,
                .id = UINT64_MAX,
                .u.load = {.source = "/m/\xc3\xa4", .name = "org/name", .devices = {devices, 2}, .dry_run = true}};
        round_trip(&sent);
        ck_assert_str_eq(request.u.load.source, "/m/\xc3\xa4");
        ck_assert_str_eq(request.u.load.name, "org/name");
        ck_assert_uint_eq(request.u.load.devices.n, 2);
        ck_assert_str_eq(request.u.load.devices.v[0], "cuda:0");
        ck_assert_str_eq(request.u.load.devices.v[1], "host");
        ck_assert(request.u.load.dry_run);
        ck_assert(!request.u.load.watch);
        ck_assert_ptr_null(request.u.load.verify);
        request_deinit(&request);
}
END_TEST

START_TEST(every_verb_is_encoded_with_its_required_fields)
{
        for (unsigned v = 0; v < VERB_COUNT; v++) {
                const struct verb_desc *d = verb_desc((enum verb)v);
                struct request sent = {.verb = (enum verb)v, .id = v};
                for (size_t i = 0; i < d->n_fields; i++)
                        if (d->fields[i].required && d->fields[i].type == FIELD_STR)
                                *(const char **)(void *)((char *)&sent.u + d->fields[i].offset) = "x";
                ck_assert_ptr_eq(verb_find(d->name, strlen(d->name)), d);
                round_trip(&sent);
                request_deinit(&request);
        }
        ck_assert_ptr_null(verb_desc(VERB_COUNT));
        ck_assert_ptr_null(verb_find("loa", 3));
}
END_TEST

START_TEST(absent_fields_are_not_sent)
{
        struct request sent = {.verb = VERB_list, .id = 1};
        msgpack_sbuffer buf;
        msgpack_sbuffer_init(&buf);
        request_encode(&sent, &buf);
        ck_assert_uint_eq((unsigned char)buf.data[0], 0x82);
        msgpack_sbuffer_destroy(&buf);
}
END_TEST

START_TEST(bytes_that_are_no_msgpack_are_refused)
{
        REFUSED("\x81", "malformed request: a length reaches behind the end");
        REFUSED("\x80\x80", "malformed request: trailing bytes");
        ck_assert_int_eq((int)request.verb, (int)VERB_COUNT);
}
END_TEST

START_TEST(a_request_is_a_map_with_words_as_keys)
{
        REFUSED("\x92\xa4load\x07", "a request must be a map");
        REFUSED("\x83" LOAD ID "\x01\x02", "a request's keys must be strings");
        REFUSED("\x83" LOAD ID "\xc4\x01x\x02", "a request's keys must be strings");
}
END_TEST

START_TEST(a_request_has_a_verb_and_an_id)
{
        REFUSED("\x80", "a request must have a verb");
        REFUSED("\x82" ID VERB("\x01"), "a request must have a verb");
        REFUSED("\x81" LOAD, "load: a request must have an id, an integer");
        REFUSED("\x82" LOAD "\xa2id\xff", "load: a request must have an id, an integer");
}
END_TEST

START_TEST(an_unknown_verb_is_named_in_safe_characters)
{
        REFUSED("\x82" ID VERB("\xa3lod"), "unknown verb 'lod'");
        REFUSED("\x82" ID VERB("\xa4\x1b[m\xff"), "unknown verb '\\x1b[m\\xff'");
        ck_assert_uint_eq(request.id, 7);
}
END_TEST

START_TEST(an_error_keeps_id_and_verb)
{
        ck_assert_int_eq(DECODE("\x82" ID LOAD), STREAMER_EINVAL);
        ck_assert_uint_eq(request.id, 7);
        ck_assert_int_eq((int)request.verb, (int)VERB_load);
}
END_TEST

START_TEST(an_unknown_field_is_named)
{
        REFUSED("\x83" LOAD ID "\xa6sourec\xa1x", "load: unknown field 'sourec'");
        REFUSED("\x83" LOAD ID "\xa1\n\xa1x", "load: unknown field '\\x0a'");
}
END_TEST

START_TEST(a_duplicate_field_is_named)
{
        REFUSED("\x84" LOAD ID "\xa6source\xa1x\xa6source\xa1y", "load: duplicate field 'source'");
        REFUSED("\x83" ID LOAD LOAD, "load: duplicate field 'verb'");
        REFUSED("\x83" LOAD ID ID, "load: duplicate field 'id'");
}
END_TEST

START_TEST(a_missing_field_is_named)
{
        REFUSED("\x82" LOAD ID, "load: field 'source' is missing");
}
END_TEST

START_TEST(a_field_of_a_wrong_type_is_named)
{
        REFUSED("\x83" LOAD ID "\xa6source\x01", "load: field 'source' must be a string");
        REFUSED("\x83" LOAD ID "\xa6source\xc0", "load: field 'source' must be a string");
        REFUSED("\x83" LOAD ID "\xa6source\xc4\x01x", "load: field 'source' must be a string");
        REFUSED("\x83" LOAD ID "\xa7"
                "dry_run\x01",
                "load: field 'dry_run' must be true or false");
        REFUSED("\x83" LOAD ID "\xa7"
                "devices\xa4host",
                "load: field 'devices' must be a list of strings");
        REFUSED("\x83" LOAD ID "\xa7"
                "devices\x92\xa4host\x01",
                "load: field 'devices', item 1 must be a string");
        REFUSED("\x83" SHOW ID "\xa6offset\xff", "show: field 'offset' must be an integer, 0 or larger");
        REFUSED("\x83" SHOW ID "\xa6offset\xcb"
                "12345678",
                "show: field 'offset' must be an integer, 0 or larger");
}
END_TEST

START_TEST(a_string_holds_utf8_and_no_nul)
{
        REFUSED("\x83" LOAD ID "\xa6source\xa3"
                "a\0b",
                "load: field 'source' holds a NUL");
        REFUSED("\x83" LOAD ID "\xa6source\xa2\xc3(", "load: field 'source' is not valid UTF-8");
        REFUSED("\x83" LOAD ID "\xa7"
                "devices\x91\xa1\0",
                "load: field 'devices', item 0 holds a NUL");
}
END_TEST

/* {verb: "show", id: 7, model: len x 'm'} */
static size_t show_model(char *out, size_t len)
{
        static const char head[] = "\x83" SHOW ID "\xa5model\xda";
        size_t n = sizeof(head) - 1;
        memcpy(out, head, n);
        out[n++] = (char)(len >> 8);
        out[n++] = (char)len;
        memset(out + n, 'm', len);
        return n + len;
}

START_TEST(a_string_may_be_as_long_as_its_limit_and_no_longer)
{
        char bytes[PROTO_NAME_MAX + 100];
        ck_assert_int_eq(decode_bytes(bytes, show_model(bytes, PROTO_NAME_MAX)), 0);
        ck_assert_uint_eq(strlen(request.u.show.model), PROTO_NAME_MAX);
        request_deinit(&request);
        ck_assert_int_eq(decode_bytes(bytes, show_model(bytes, PROTO_NAME_MAX + 1)), STREAMER_EINVAL);
        ck_assert_str_eq(text, "show: field 'model' is longer than 1024 bytes");
}
END_TEST

/* {verb: "load", id: 7, source: "s", devices: n x "d"} */
static size_t load_devices(char *out, size_t n)
{
        static const char head[] = "\x84" LOAD ID "\xa6source\xa1s\xa7"
                                   "devices\xdc";
        size_t at = sizeof(head) - 1;
        memcpy(out, head, at);
        out[at++] = (char)(n >> 8);
        out[at++] = (char)n;
        for (size_t i = 0; i < n; i++) {
                out[at++] = '\xa1';
                out[at++] = 'd';
        }
        return at;
}

START_TEST(a_list_may_be_as_long_as_its_limit_and_no_longer)
{
        char bytes[2048];
        ck_assert_int_eq(decode_bytes(bytes, load_devices(bytes, 64)), 0);
        ck_assert_uint_eq(request.u.load.devices.n, 64);
        ck_assert_str_eq(request.u.load.devices.v[63], "d");
        request_deinit(&request);
        ck_assert_int_eq(decode_bytes(bytes, load_devices(bytes, 65)), STREAMER_EINVAL);
        ck_assert_str_eq(text, "load: field 'devices' holds too many strings");
        ck_assert_int_eq(decode_bytes(bytes, load_devices(bytes, 900)), STREAMER_EINVAL);
        ck_assert_str_eq(text, "malformed request: too many values");
}
END_TEST

START_TEST(integers_keep_64_bits)
{
        ck_assert_int_eq(DECODE("\x83" ID VERB("\xa6"
                                               "detach") "\xa5lease\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
                         0);
        ck_assert_uint_eq(request.u.detach.lease, UINT64_MAX);
        request_deinit(&request);
}
END_TEST

START_TEST(a_short_place_for_the_text_is_enough)
{
        char tiny[4];
        ck_assert_int_eq(request_decode(&request, "\x80", 1, tiny, sizeof(tiny)), STREAMER_EINVAL);
        ck_assert_str_eq(tiny, "a r");
        ck_assert_int_eq(request_decode(&request, "\x80", 1, tiny, 0), STREAMER_EINVAL);
}
END_TEST

/* ---- replies ---- */

START_TEST(a_reply_is_read_as_it_was_written)
{
        struct writer w;
        struct message m;
        uint64_t u;
        bool b;
        const char *s;
        size_t len;
        writer_init(&w);
        writer_reply(&w, 9, 5);
        writer_ku64(&w, "large", UINT64_MAX);
        writer_kbool(&w, "flag", true);
        writer_key(&w, "digest");
        writer_hex(&w, (const unsigned char[]){0x0f, 0xa0}, 2);
        writer_kstr(&w, "nothing", NULL);
        writer_key(&w, "list");
        writer_array(&w, 2);
        writer_i64(&w, -5);
        writer_bin(&w, "\0\1", 2);
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
        ck_assert_int_eq((int)object_get(o, "nothing")->type, MSGPACK_OBJECT_NIL);
        ck_assert_int_eq(object_get(o, "list")->via.array.ptr[0].via.i64, -5);
        message_deinit(&m);
}
END_TEST

START_TEST(an_error_carries_code_and_text)
{
        struct writer w;
        struct message m;
        bool ok;
        writer_init(&w);
        writer_error(&w, 3, STREAMER_EBUSY, "unload: two leases");
        ck_assert_int_eq(message_decode(&m, w.buf.data, w.buf.size), 0);
        writer_deinit(&w);
        ck_assert(object_bool(&m.unpacked.data, "ok", &ok) && !ok);
        ck_assert(object_str_eq(&m.unpacked.data, "code", "in-use"));
        ck_assert(object_str_eq(&m.unpacked.data, "text", "unload: two leases"));
        message_deinit(&m);
}
END_TEST

START_TEST(look_ups_miss_what_is_absent_or_of_another_type)
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
END_TEST

START_TEST(a_message_that_is_no_map_or_broken_is_refused)
{
        struct message m;
        ck_assert_int_eq(message_decode(&m, "\x01", 1), STREAMER_EPROTO);
        ck_assert_int_eq(message_decode(&m, "\x81\xa1k", 3), STREAMER_EPROTO);
}
END_TEST

int main(void)
{
        suite_begin("codec");
        TCase *bytes = suite_group("bytes", NULL, NULL, 10);
        tcase_add_test(bytes, each_kind_of_value_is_walked_over);
        tcase_add_test(bytes, the_tag_that_msgpack_never_uses_is_refused);
        tcase_add_test(bytes, nothing_and_trailing_bytes_are_refused);
        tcase_add_test(bytes, values_that_are_cut_short_are_refused);
        tcase_add_test(bytes, lengths_that_lie_are_refused);
        tcase_add_test(bytes, depth_is_limited);
        tcase_add_test(bytes, the_number_of_values_can_be_limited);
        tcase_add_test(bytes, utf8_is_strict);
        TCase *requests = suite_group("requests", NULL, NULL, 10);
        tcase_add_test(requests, a_request_survives_the_wire);
        tcase_add_test(requests, every_verb_is_encoded_with_its_required_fields);
        tcase_add_test(requests, absent_fields_are_not_sent);
        tcase_add_test(requests, bytes_that_are_no_msgpack_are_refused);
        tcase_add_test(requests, a_request_is_a_map_with_words_as_keys);
        tcase_add_test(requests, a_request_has_a_verb_and_an_id);
        tcase_add_test(requests, an_unknown_verb_is_named_in_safe_characters);
        tcase_add_test(requests, an_error_keeps_id_and_verb);
        tcase_add_test(requests, an_unknown_field_is_named);
        tcase_add_test(requests, a_duplicate_field_is_named);
        tcase_add_test(requests, a_missing_field_is_named);
        tcase_add_test(requests, a_field_of_a_wrong_type_is_named);
        tcase_add_test(requests, a_string_holds_utf8_and_no_nul);
        tcase_add_test(requests, a_string_may_be_as_long_as_its_limit_and_no_longer);
        tcase_add_test(requests, a_list_may_be_as_long_as_its_limit_and_no_longer);
        tcase_add_test(requests, integers_keep_64_bits);
        tcase_add_test(requests, a_short_place_for_the_text_is_enough);
        TCase *replies = suite_group("replies", NULL, NULL, 10);
        tcase_add_test(replies, a_reply_is_read_as_it_was_written);
        tcase_add_test(replies, an_error_carries_code_and_text);
        tcase_add_test(replies, look_ups_miss_what_is_absent_or_of_another_type);
        tcase_add_test(replies, a_message_that_is_no_map_or_broken_is_refused);
        return suite_run();
}
