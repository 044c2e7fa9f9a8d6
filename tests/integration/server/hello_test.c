/* SPDX-License-Identifier: Apache-2.0
 *
 * The first exchange of a connection: what hello's reply leaves out, and requests that are sent together with hello.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

static struct wire wire;

static void open_wire(void)
{
        wire_open(&wire, &test_daemon);
}

static void end_test(void)
{
        wire_close(&wire);
        fixture_still_serves();
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {open_wire, end_test});

static struct request hello_of(uint64_t features)
{
        return (struct request){
                .verb = VERB_hello,
                .id = 1,
                .u.hello = {.min = PROTOCOL_MIN, .max = PROTOCOL_MAX, .client = "test", .features = features}};
}

static const struct {
        uint64_t number;
        bool listed;
} known[] = {{0, true}, {1, true}, {UINT64_MAX, true}};

TEST(a_client_without_the_daemons_features_gets_them, EACH(known))
{
        const struct request hello = hello_of(known[_i].number);
        wire_request(&wire, &hello);
        wire_read_ok(&wire);
        const msgpack_object *features = object_get(&wire.reply.unpacked.data, "features");
        ck_assert(features != NULL && features->type == MSGPACK_OBJECT_ARRAY);
        ck_assert_uint_gt(features->via.array.size, 100);
        ck_assert_uint_ne(wire_number(&wire, "features_number"), 0);
}

TEST(a_client_that_has_the_daemons_features_does_not_get_them_again)
{
        const struct request first = hello_of(0);
        wire_request(&wire, &first);
        wire_read_ok(&wire);
        uint64_t number = wire_number(&wire, "features_number");
        wire_close(&wire);
        wire_open(&wire, &test_daemon);
        const struct request second = hello_of(number);
        wire_request(&wire, &second);
        wire_read_ok(&wire);
        ck_assert_ptr_null(object_get(&wire.reply.unpacked.data, "features"));
        ck_assert_uint_eq(wire_number(&wire, "features_number"), number);
        ck_assert_uint_eq(number, features_number); /* the library was built of the same sources */
        wire_verb(&wire, "ping", 2, NULL, NULL);
        wire_read_ok(&wire);
}

/* Two requests in one write. */
static void send_together(const struct request *a, const struct request *b)
{
        size_t n, m;
        char *first = wire_frames(a, 1, &n), *second = wire_frames(b, 1, &m), both[4096];
        ck_assert_uint_le(n + m, sizeof(both));
        memcpy(both, first, n);
        memcpy(both + n, second, m);
        ck_assert(wire_send(&wire, both, n + m));
        free(first);
        free(second);
}

TEST(hello_and_attach_may_be_one_write)
{
        const struct request hello = hello_of(features_number);
        const struct request attach = {.verb = VERB_attach, .id = 2, .u.attach = {.model = "witness"}};
        send_together(&hello, &attach);
        wire_read_ok(&wire);
        ck_assert_uint_eq(wire_number(&wire, "id"), 1);
        wire_read_ok(&wire);
        ck_assert_uint_eq(wire_number(&wire, "id"), 2);
        const struct request detach = {
                .verb = VERB_detach, .id = 3, .u.detach = {.lease = wire_number(&wire, "lease")}};
        wire_request(&wire, &detach);
        wire_read_ok(&wire);
}

TEST(what_follows_a_hello_that_is_refused_is_not_carried_out)
{
        struct request hello = hello_of(0);
        const struct request unload = {.verb = VERB_unload, .id = 2, .u.unload = {.model = "witness"}};
        hello.u.hello.min = hello.u.hello.max = PROTOCOL_MAX + 1;
        send_together(&hello, &unload);
        wire_read_error(&wire, "protocol", "the daemon is older");
        wire_read_to_end(&wire);
}
