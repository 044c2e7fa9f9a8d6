/* SPDX-License-Identifier: Apache-2.0
 *
 * The contents of requests, the errors of invalid ones, and the page that documents them. Requests are written as
 * bytes if no writer would produce them.
 */
#include "proto/codec.h"
#include "proto/codes.h"
#include "tests/lib/suite.h"

static struct request request;
static char text[256];

static int decode_bytes(const char *bytes, size_t len)
{
        text[0] = 0;
        return request_decode(&request, bytes, len, text, sizeof(text));
}
#define DECODE(bytes) decode_bytes((bytes), sizeof(bytes) - 1)

#define UNKNOWN(bytes, why)                                                                                            \
        do {                                                                                                           \
                ck_assert_int_eq(DECODE(bytes), STREAMER_EUNSUPPORTED);                                                \
                ck_assert_str_eq(text, why);                                                                           \
        } while (0)

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
        ck_assert_int_eq((int)request.verb, (int)sent->verb);
        ck_assert_uint_eq(request.id, sent->id);
}

TEST(a_request_survives_the_wire)
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
}

TEST(every_verb_is_encoded_with_its_required_fields)
{
        for (unsigned v = 0; v < VERB_COUNT; v++) {
                const struct verb_desc *d = verb_desc((enum verb)v);
                struct request sent = {.verb = (enum verb)v, .id = v};
                for (size_t i = 0; i < d->n_fields; i++)
                        if (d->fields[i].required && d->fields[i].type == FIELD_STR)
                                *(const char **)(void *)((char *)&sent.u + d->fields[i].offset) = "x";
                ck_assert_ptr_eq(verb_find(d->name, strlen(d->name)), d);
                round_trip(&sent);
        }
        ck_assert_ptr_null(verb_desc(VERB_COUNT));
        ck_assert_ptr_null(verb_find("loa", 3));
}

TEST(absent_fields_are_not_sent)
{
        struct request sent = {.verb = VERB_list, .id = 1};
        msgpack_sbuffer buf;
        msgpack_sbuffer_init(&buf);
        request_encode(&sent, &buf);
        ck_assert_uint_eq((unsigned char)buf.data[0], 0x82);
}

TEST(an_invalid_request_is_refused_with_the_reason)
{
        REFUSED("\x81", "malformed request: a length reaches behind the end");
        REFUSED("\x80\x80", "malformed request: trailing bytes");
        ck_assert_int_eq((int)request.verb, (int)VERB_COUNT);
        REFUSED("\x92\xa4load\x07", "a request must be a map");
        REFUSED("\x83" LOAD ID "\x01\x02", "a request's keys must be strings");
        REFUSED("\x83" LOAD ID "\xc4\x01x\x02", "a request's keys must be strings");
        REFUSED("\x80", "a request must have a verb");
        REFUSED("\x82" ID VERB("\x01"), "a request must have a verb");
        REFUSED("\x81" LOAD, "load: a request must have an id, an integer");
        REFUSED("\x82" LOAD "\xa2id\xff", "load: a request must have an id, an integer");
        REFUSED("\x84" LOAD ID "\xa6source\xa1x\xa6source\xa1y", "load: duplicate field 'source'");
        REFUSED("\x83" ID LOAD LOAD, "load: duplicate field 'verb'");
        REFUSED("\x83" LOAD ID ID, "load: duplicate field 'id'");
        REFUSED("\x82" LOAD ID, "load: field 'source' is missing");
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
        REFUSED("\x83" LOAD ID "\xa6source\xa3"
                "a\0b",
                "load: field 'source' holds a NUL");
        REFUSED("\x83" LOAD ID "\xa6source\xa2\xc3(", "load: field 'source' is not valid UTF-8: \\xc3(");
        REFUSED("\x83" LOAD ID "\xa7"
                "devices\x91\xa1\0",
                "load: field 'devices', item 0 holds a NUL");
}

TEST(an_unknown_verb_is_named_in_safe_characters)
{
        UNKNOWN("\x82" ID VERB("\xa3lod"), "unknown verb 'lod'");
        UNKNOWN("\x82" ID VERB("\xa4\x1b[m\xff"), "unknown verb '\\x1b[m\\xff'");
        ck_assert_uint_eq(request.id, 7);
}

TEST(an_error_has_the_id_and_verb_of_its_request)
{
        ck_assert_int_eq(DECODE("\x82" ID LOAD), STREAMER_EINVAL);
        ck_assert_uint_eq(request.id, 7);
        ck_assert_int_eq((int)request.verb, (int)VERB_load);
}

/* It is sent before either side knows the other's features. */
TEST(hello_may_have_unknown_fields)
{
        ck_assert_int_eq(DECODE("\x85" ID VERB("\xa5hello") "\xa3min\x02"
                                                            "\xa3max\x09"
                                                            "\xa5later\x81\xa1x\xc3"),
                         0);
        ck_assert_uint_eq(request.u.hello.max, 9);
}

TEST(an_unknown_field_is_named)
{
        UNKNOWN("\x83" LOAD ID "\xa6sourec\xa1x", "load: unknown field 'sourec'");
        UNKNOWN("\x83" LOAD ID "\xa1\n\xa1x", "load: unknown field '\\x0a'");
}

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

/* They are multiplied by a million, and added to the clock. */
TEST(every_duration_has_an_end)
{
        unsigned n = 0;
        for (unsigned v = 0; v < VERB_COUNT; v++) {
                const struct verb_desc *d = verb_desc((enum verb)v);
                for (size_t i = 0; i < d->n_fields; i++) {
                        const char *unit = strstr(d->fields[i].name, "_ms");
                        if (unit == NULL || unit[3] != '\0')
                                continue;
                        ck_assert_msg(d->fields[i].limit == PROTO_DURATION_MAX, "%s: %s", d->name, d->fields[i].name);
                        n++;
                }
        }
        ck_assert_uint_eq(n, 7);
}

TEST(a_request_that_is_too_long_is_refused)
{
#define WAIT "\x84" VERB("\xa4wait") ID "\xa5model\xa1m\xaatimeout_ms"
        ck_assert_int_eq(DECODE(WAIT "\xcf\0\0\0\x07\x5c\xd7\x88\0"), 0);
        ck_assert_uint_eq(request.u.wait.timeout_ms, PROTO_DURATION_MAX);
        REFUSED(WAIT "\xcf\0\0\0\x07\x5c\xd7\x88\x01", "wait: field 'timeout_ms' is too large");
        REFUSED(WAIT "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", "wait: field 'timeout_ms' is too large");
}

TEST(a_string_may_be_as_long_as_its_limit_and_no_longer)
{
        char bytes[PROTO_NAME_MAX + 100];
        ck_assert_int_eq(decode_bytes(bytes, show_model(bytes, PROTO_NAME_MAX)), 0);
        ck_assert_uint_eq(strlen(request.u.show.model), PROTO_NAME_MAX);
        ck_assert_int_eq(decode_bytes(bytes, show_model(bytes, PROTO_NAME_MAX + 1)), STREAMER_EINVAL);
        ck_assert_str_eq(text, "show: field 'model' is longer than 1024 bytes");
}

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

TEST(a_list_may_be_as_long_as_its_limit_and_no_longer)
{
        char bytes[2048];
        ck_assert_int_eq(decode_bytes(bytes, load_devices(bytes, 64)), 0);
        ck_assert_uint_eq(request.u.load.devices.n, 64);
        ck_assert_str_eq(request.u.load.devices.v[63], "d");
        ck_assert_int_eq(decode_bytes(bytes, load_devices(bytes, 65)), STREAMER_EINVAL);
        ck_assert_str_eq(text, "load: field 'devices' holds too many strings");
        ck_assert_int_eq(decode_bytes(bytes, load_devices(bytes, 900)), STREAMER_EINVAL);
        ck_assert_str_eq(text, "malformed request: too many values");
}

TEST(a_small_buffer_for_the_text_suffices)
{
        char tiny[4];
        ck_assert_int_eq(request_decode(&request, "\x80", 1, tiny, sizeof(tiny)), STREAMER_EINVAL);
        ck_assert_str_eq(tiny, "a r");
        ck_assert_int_eq(request_decode(&request, "\x80", 1, tiny, 0), STREAMER_EINVAL);
}

static char *field_row(const struct verb_desc *v, size_t i)
{
        static const char *const types[] = {"str", "u64", "bool", "list"};
        const struct field_desc *f = &v->fields[i];
        char *verb = i == 0 ? format_text("`%s` ", v->name) : format_text("%s", "");
        char *limit = f->limit ? format_text("%llu ", (unsigned long long)f->limit) : format_text("%s", "");
        char *row = format_text("| %s| `%s` | %s |%s | %s|\n", verb, f->name, types[f->type], f->required ? " yes" : "",
                                limit);
        return row;
}

/* Searches the rows in order, so that the page has the table's order. */
static const char *after_row(const char *page, char *row)
{
        const char *found = strstr(page, row);
        ck_assert_msg(found != NULL, "docs/protocol.md lacks or misplaces: %s", row);
        return found;
}

TEST(the_page_of_the_protocol_lists_every_field)
{
        size_t size;
        char *text_of_page = file_read("docs/protocol.md", &size);
        const char *page = text_of_page;
        for (unsigned v = 0; v < VERB_COUNT; v++) {
                const struct verb_desc *d = verb_desc((enum verb)v);
                if (d->n_fields == 0)
                        page = after_row(page, format_text("| `%s` | | | | |\n", d->name));
                for (size_t i = 0; i < d->n_fields; i++)
                        page = after_row(page, field_row(d, i));
        }
}
