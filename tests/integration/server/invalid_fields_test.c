/* SPDX-License-Identifier: Apache-2.0
 *
 * Every field of every verb with each of a list of invalid values. Each request is answered once or its connection
 * closed, another client is still served, and no resident model changes.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

/* ---- nasty values ---- */

static void put_text(struct writer *w, size_t len, int c)
{
        char *text = must_alloc(len + 1);

        memset(text, c, len);
        writer_strn(w, text, len);
        free(text);
}

static void put_nested(struct writer *w, unsigned depth)
{
        for (unsigned i = 0; i < depth; i++)
                writer_array(w, 1);
        writer_u64(w, 1);
}

#define N_LIES 24
#define LIE_TRUE 10

static void put_invalid(struct writer *w, unsigned lie)
{
        static const char *const texts[] = {
                "", "..", "../../etc/passwd", "/proc/self/mem", "%s%n%n", "\xc3\x28", "\xe2\x80\xae", "s3://", "\n\t"};

        if (lie < sizeof(texts) / sizeof(texts[0])) {
                writer_str(w, texts[lie]);
                return;
        }
        switch (lie) {
        case 9:
                writer_str(w, NULL);
                break;
        case LIE_TRUE:
                writer_bool(w, true);
                break;
        case 11:
                writer_i64(w, -1);
                break;
        case 12:
                writer_u64(w, UINT64_MAX);
                break;
        case 13:
                writer_u64(w, 0);
                break;
        case 14:
                msgpack_pack_double(&w->pk, 1e300);
                break;
        case 15:
                writer_bin(w, "\0\1", 2);
                break;
        case 16:
                writer_strn(w, "a\0b", 3);
                break;
        case 17:
                put_text(w, 255, 'a');
                break;
        case 18:
                put_text(w, 9000, 'a');
                break;
        case 19:
                put_text(w, 500000, 0x7f);
                break;
        case 20:
                writer_array(w, 0);
                break;
        case 21:
                put_nested(w, 11);
                break;
        case 22:
                writer_map(w, 1);
                writer_kbool(w, "x", true);
                break;
        default:
                writer_array(w, 200);
                for (unsigned i = 0; i < 200; i++)
                        writer_str(w, "host");
        }
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

static void send_invalid(struct wire *wire, const struct verb_desc *verb, size_t field, unsigned lie, uint64_t id)
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

/* Skips events, which have no id, before the reply. False: the connection was closed. */
static bool is_answered(struct wire *wire, uint64_t id)
{
        uint64_t have;

        while (wire_read(wire)) {
                if (!object_u64(&wire->reply.unpacked.data, "id", &have))
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
                for (unsigned lie = 0; lie < N_LIES; lie++) {
                        if ((verb->verb == VERB_shutdown || verb->verb == VERB_publish_find) && lie == LIE_TRUE)
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
        wire_close(&wire);
        client_equals(other, "witness", fixture_witness);
        streamer_close(other);
}
