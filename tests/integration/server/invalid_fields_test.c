/* SPDX-License-Identifier: Apache-2.0
 *
 * Every field of every verb with each of a list of invalid values. Each request is answered once or its connection
 * closed, another client is still served, and no resident model changes.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

/* ---- nasty values ---- */

#define TEN(s) s s s s s s s s s s
#define HUNDRED(s) TEN(TEN(s))
#define RAW(bytes)                                                                                                     \
        {                                                                                                              \
                bytes, sizeof(bytes) - 1, 0                                                                            \
        }

/* As msgpack; or a text of `n` times its first byte. */
static const struct {
        const char *bytes;
        size_t n;
        bool repeated;
} lies[] = {
        RAW("\xa0"), /* "" */
        RAW("\xa2.."),
        RAW("\xb0../../etc/passwd"),
        RAW("\xae/proc/self/mem"),
        RAW("\xa6%s%n%n"),
        RAW("\xa2\xc3\x28"),     /* no UTF-8 */
        RAW("\xa3\xe2\x80\xae"), /* from right to left */
        RAW("\xa5s3://"),
        RAW("\xa2\n\t"),
        RAW("\xa3"
            "a\0b"),
        {"a", 255, true},
        {"a", 9000, true},
        {"\x7f", 500000, true},
        RAW("\xc0"),                                 /* nil */
        RAW("\xc3"),                                 /* true */
        RAW("\xff"),                                 /* -1 */
        RAW("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), /* UINT64_MAX */
        RAW("\x00"),                                 /* 0 */
        RAW("\xcb\x7e\x37\xe4\x3c\x88\x00\x75\x9c"), /* 1e300 */
        RAW("\xc4\x02\x00\x01"),                     /* bin */
        RAW("\x90"),                                 /* [] */
        RAW("\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x91\x01"),
        RAW("\x81\xa1x\xc3"),                                        /* {"x": true} */
        RAW("\xdc\x00\xc8" HUNDRED("\xa4host") HUNDRED("\xa4host")), /* ["host", ...] */
};
#define N_LIES (sizeof(lies) / sizeof(lies[0]))

static bool is_true(size_t lie)
{
        return lies[lie].bytes[0] == '\xc3';
}

static void put_invalid(struct writer *w, size_t lie)
{
        if (!lies[lie].repeated) {
                msgpack_sbuffer_write(&w->buf, lies[lie].bytes, lies[lie].n);
                return;
        }
        char *text = must_alloc(lies[lie].n);
        memset(text, lies[lie].bytes[0], lies[lie].n);
        writer_strn(w, text, lies[lie].n);
        free(text);
}

/* A valid value for the field that names no existing object. */
static void put_honest(struct writer *w, const struct field_desc *field)
{
        if (field->type == FIELD_U64)
                writer_u64(w, 1);
        else if (field->type == FIELD_BOOL)
                writer_bool(w, false);
        else if (field->type == FIELD_STRLIST)
                writer_array(w, 0);
        else
                writer_str(w, strcmp(field->name, "source") == 0 ? "/nowhere" : "nobody");
}

/* ---- one request ---- */

static void send_invalid(struct wire *wire, const struct verb_desc *verb, size_t field, size_t lie, uint64_t id)
{
        struct writer w;
        size_t n = 3;
        for (size_t i = 0; i < verb->n_fields; i++)
                n += i != field && verb->fields[i].required;
        writer_init(&w);
        writer_map(&w, n);
        writer_kstr(&w, "verb", verb->name);
        writer_ku64(&w, "id", id);
        for (size_t i = 0; i < verb->n_fields; i++) {
                if (i != field && !verb->fields[i].required)
                        continue;
                writer_key(&w, verb->fields[i].name);
                if (i == field)
                        put_invalid(&w, lie);
                else
                        put_honest(&w, &verb->fields[i]);
        }
        wire_frame(wire, w.buf.data, w.buf.size);
        writer_deinit(&w);
}

/* Skips events, which have no id, and the reason of a closed connection, which has id 0 (before hello requests are
 * short). False: the connection was closed. */
static bool is_answered(struct wire *wire, uint64_t id)
{
        uint64_t have;
        while (wire_read(wire)) {
                if (!object_u64(&wire->reply.unpacked.data, "id", &have) || have == 0)
                        continue;
                ck_assert_msg(have == id, "request %ju is answered again", (uintmax_t)have);
                return true;
        }
        return false;
}

static void open_wire(struct wire *wire, const struct verb_desc *verb)
{
        wire_open(wire, &test_daemon);
        if (verb->verb != VERB_hello)
                wire_hello(wire);
}

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(every_field_of_every_verb_may_be_invalid, .to = VERB_COUNT)
{
        const struct verb_desc *verb = verb_desc((enum verb)_i);
        streamer_client *other = client_open(&test_daemon);
        struct wire wire;
        uint64_t id = 1;
        open_wire(&wire, verb);
        for (size_t field = 0; field < verb->n_fields; field++)
                for (size_t lie = 0; lie < N_LIES; lie++) {
                        if ((verb->verb == VERB_shutdown || verb->verb == VERB_publish_find) && is_true(lie))
                                continue; /* is valid; with it a search waits */
                        send_invalid(&wire, verb, field, lie, ++id);
                        if (!is_answered(&wire, id)) {
                                wire_close(&wire);
                                open_wire(&wire, verb);
                        }
                        ck_assert_int_eq(client_call_code(other, "ping", NULL), 0);
                }
        if (verb->verb != VERB_hello) { /* the last request is answered once, too */
                ck_assert(wire_verb(&wire, "ping", ++id, NULL, NULL));
                ck_assert(is_answered(&wire, id));
        }
        client_equals(other, "witness", fixture_witness);
}
