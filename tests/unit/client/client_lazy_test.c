/* SPDX-License-Identifier: Apache-2.0
 *
 * STREAMER_CONNECT_LAZY: hello goes with the first request, and its outcome is that request's.
 */
#include "client/channel.h"
#include "tests/unit/client_fixture.h"

#include <sys/socket.h>

#define HELLO "< protocol=%u features=[ping]\n"

CLIENT_FIXTURE();

static void connect_lazily(void)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts),
                                      .socket = fake.socket,
                                      .flags = STREAMER_CONNECT_LAZY,
                                      .timeout_ms = 30000};
        int rc = streamer_connect(&opts, &client);
        ck_assert_msg(rc == 0, "%s", streamer_last_error(NULL));
}

static void start(const char *text)
{
        fake_start(&fake, text);
        connect_lazily();
}

static void expect_both_in_one_message(struct fake_daemon *f)
{
        unsigned char bytes[4096];
        fake_say(f, "accept\n");
        ssize_t n = must(recv(f->fd, bytes, sizeof(bytes), MSG_PEEK));
        size_t hello = FRAME_HEADER + ((size_t)bytes[2] << 8 | bytes[3]);
        ck_assert_uint_gt((size_t)n, hello + FRAME_HEADER);
        ck_assert_uint_eq((size_t)n, hello + FRAME_HEADER + ((size_t)bytes[hello + 2] << 8 | bytes[hello + 3]));
        fake_say(f, format_text("> hello\n" HELLO "> ping\n<\n> ping\n<\nend\n", PROTOCOL_MAX));
}

TEST(hello_and_the_first_request_are_one_message)
{
        fake_start_script(&fake, expect_both_in_one_message);
        connect_lazily();
        CALL_GIVES(client, "ping", NULL, "{}");
        CALL_GIVES(client, "ping", NULL, "{}");
}

TEST(the_first_call_may_attach)
{
        start(SERVE);
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        ck_assert_str_eq(t.name, "a");
}

TEST(the_first_call_may_open)
{
        start(SERVE);
        ck_assert_int_eq(streamer_open(client, "m", NULL, &lease), 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        ck_assert_str_eq(t.name, "a");
}

TEST(a_refused_hello_fails_the_first_call_and_all_later_ones)
{
        start("accept\n> hello\n! denied hello: uid 7 has no role\n> attach\n! protocol hello is first\nend\n");
        FAILS(client, streamer_attach(client, "m", NULL, &lease), STREAMER_EPERM, "hello: uid 7 has no role");
        CALL_FAILS(client, "ping", NULL, STREAMER_EPERM, "hello: uid 7 has no role");
}

TEST(a_refused_hello_fails_an_open)
{
        start("accept\n> hello\n! denied hello: uid 7 has no role\nend\n");
        streamer_op *op;
        FAILS(client, streamer_open_start(client, "m", NULL, &op) ?: streamer_op_lease(op, -1, &lease), STREAMER_EPERM,
              "hello: uid 7 has no role");
        FAILS(client, streamer_op_lease(op, -1, &lease), STREAMER_EPERM, "hello: uid 7 has no role");
        streamer_op_free(op);
}

TEST(a_refused_connection_fails_the_first_call)
{
        /* The reply is to no request, as it would be to the one before hello. */
        start("accept\n> hello\n<1 ok=false code=limit text='connections: 8 are open'\nend\n");
        CALL_FAILS(client, "ping", NULL, STREAMER_ELIMIT, "connections: 8 are open");
}

TEST(another_protocol_fails_the_first_call)
{
        start(format_text("accept\n> hello\n> ping\n<1 protocol=%d\n", PROTOCOL_MAX + 1));
        CALL_FAILS(client, "ping", NULL, STREAMER_EPROTO,
                   format_text("the daemon speaks protocol %u, this library (" STREAMERD_VERSION
                               ") %u: the library is older",
                               PROTOCOL_MAX + 1, PROTOCOL_MAX));
}

/* Such as one that is stopped: the attach itself has no limit of time. */
TEST(a_silent_daemon_times_out)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .timeout_ms = -1};
        start(format_text("accept\npause\n> hello\n" HELLO "> attach\n> ping\n<\nend\n", PROTOCOL_MAX));
        client->timeout_ms = 20; /* for the call that has no reply */
        FAILS(client, streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT,
              format_text("no reply in time: the daemon is stopped or overloaded (pid %d, %s)", (int)getpid(),
                          fake.socket));
        client->timeout_ms = 30000;
        fake_resume(&fake);
        CALL_GIVES(client, "ping", NULL, "{}");
}

TEST(a_connection_that_was_lost_before_is_made_again)
{
        start("accept\nclose\nhello\n> ping\n<\nend\n");
        AWAIT(streamer_process(client) == 1);
        CALL_GIVES(client, "ping", NULL, "{}");
}

TEST(a_connection_that_is_lost_with_the_first_call_is_made_again_by_the_next)
{
        start("accept\n> hello\n> ping\nclose\nhello\n> ping\n<\nend\n");
        CALL_FAILS(client, "ping", NULL, STREAMER_EUNREACHABLE, "the daemon closed the connection");
        CALL_GIVES(client, "ping", NULL, "{}");
}

TEST(what_the_daemon_does_not_support_it_refuses)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = STREAMER_ATTACH_READY};
        start("hello -attach.ready\n> attach ready=true\n! unsupported attach: unknown field 'ready'\nend\n");
        FAILS(client, streamer_attach(client, "m", &opts, &lease), STREAMER_EUNSUPPORTED,
              "attach.ready: the daemon (0.0.fake) is older than this library (" STREAMERD_VERSION
              ") and does not support it");
        FAILS(client, streamer_attach(client, "m", &opts, &lease), STREAMER_EUNSUPPORTED,
              "attach.ready: the daemon (0.0.fake) is older than this library (" STREAMERD_VERSION
              ") and does not support it");
}

TEST(a_client_that_calls_nothing_sends_nothing)
{
        start("accept\nend\n");
        ck_assert_int_ge(streamer_fd(client), 0);
        ck_assert_int_eq(streamer_process(client), 0);
}
