/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_fd() and streamer_process(), against a scripted daemon: the descriptor is readable while something is
 * pending, whatever calls were made in between, and not otherwise.
 */
#include "tests/unit/client_fixture.h"

#include <fcntl.h>
#include <sys/epoll.h>

#define LONG_MS 20000

static bool readable(streamer_client *c, int timeout_ms)
{
        struct pollfd p = {.fd = streamer_fd(c), .events = POLLIN};
        ck_assert_int_ge(p.fd, 0);
        return must(poll(&p, 1, timeout_ms)) == 1;
}

static void nothing_is_pending(streamer_client *c)
{
        ck_assert_int_eq(streamer_process(c), 0);
        ck_assert(!readable(c, 0));
}

CLIENT_FIXTURE();

/* ---- events ---- */

/* The call empties the socket: an epoll loop must see both events all the same. */
TEST(an_epoll_loop_sees_two_events_that_a_call_has_read)
{
        char *text;
        struct epoll_event event = {.events = EPOLLIN};
        client = fake_connect(&fake, "hello\n> subscribe\n<\n"
                                     "> ping\n* model generation=1\n* model generation=2\n<\nend\n");
        int loop = must(epoll_create1(EPOLL_CLOEXEC));
        ck_assert_int_eq(streamer_subscribe(client, NULL), 0);
        must(epoll_ctl(loop, EPOLL_CTL_ADD, streamer_fd(client), &event));
        CALL_GIVES(client, "ping", NULL, "{}");
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(must(epoll_wait(loop, &event, 1, LONG_MS)), 1);
                ck_assert_int_eq(streamer_process(client), 1);
                ck_assert_int_eq(streamer_event_next(client, 0, &text), 0);
        }
        ck_assert_int_eq(must(epoll_wait(loop, &event, 1, 0)), 0);
        nothing_is_pending(client);
}

/* ---- operations ---- */

#define END_A_LOAD                                                                                                     \
        "hello\n> load\n< op=5 name=m\n* op op=5 state=loading\npause\n"                                               \
        "* op op=5 state=ready\n> ping\n<\nend\n"

static streamer_op *load(const char *text)
{
        streamer_op *op;
        streamer_load_opts opts = STREAMER_LOAD_OPTS_INIT;
        opts.source = "/m";
        client = fake_connect(&fake, text);
        ck_assert_int_eq(streamer_load(client, &opts, &op), 0);
        return op;
}

static void process_until(streamer_client *c, int want)
{
        while (streamer_process(c) != want)
                ck_assert(readable(c, LONG_MS));
}

TEST(the_end_of_a_load_is_pending_until_it_was_reported, .to = 2)
{
        streamer_op *op = load(END_A_LOAD);
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        fake_resume(&fake);
        if (_i == 0) { /* by streamer_process() */
                process_until(client, 1);
                nothing_is_pending(client);
                ck_assert_int_eq(streamer_op_wait(op, 0, NULL), 0);
                CALL_GIVES(client, "ping", NULL, "{}");
        } else { /* returned by the waiting call, after another call has read the event */
                CALL_GIVES(client, "ping", NULL, "{}");
                ck_assert(readable(client, 0));
                ck_assert_int_eq(streamer_op_wait(op, 0, NULL), 0);
        }
        nothing_is_pending(client);
}

TEST(a_freed_operation_is_not_pending)
{
        streamer_op *op = load(END_A_LOAD);
        fake_resume(&fake);
        CALL_GIVES(client, "ping", NULL, "{}");
        ck_assert(readable(client, 0));
        streamer_op_free(op);
        nothing_is_pending(client);
}

/* ---- leases ---- */

TEST(tensors_that_arrived_are_pending_until_they_were_returned)
{
        m.loading = true;
        attach("hello\n" FAKE_ATTACH "pause\n"
               "arrive 0\narrive 1\n* lease lease=7 state=loading\npause\n"
               "arrive 2\n* lease lease=7 state=loading\n" FAKE_READY FAKE_DETACH,
               0);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ETIMEOUT);
        nothing_is_pending(client);
        fake_resume(&fake);
        ck_assert(readable(client, LONG_MS));
        ck_assert_int_eq(streamer_process(client), 1);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), 0);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), 0);
        nothing_is_pending(client);
        fake_resume(&fake);
        for (int rc; (rc = streamer_tensor_next(lease, 0, &t)) != STREAMER_EEND;)
                if (rc == STREAMER_ETIMEOUT)
                        process_until(client, 1);
        ck_assert_str_eq(streamer_digest(lease), FAKE_DIGEST);
        nothing_is_pending(client);
}

TEST(an_unknown_state_is_not_ready)
{
        m.loading = true;
        attach("hello\n" FAKE_ATTACH "* lease lease=7 state=compacting digest=" FAKE_DIGEST "\n> ping\n<\n" FAKE_DETACH,
               0);
        CALL_GIVES(client, "ping", NULL, "{}");
        ck_assert_str_eq(streamer_digest(lease), "");
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ETIMEOUT);
}

/* ---- the connection ---- */

TEST(the_descriptor_is_the_same_after_a_reconnection)
{
        client = fake_connect(&fake, "hello\nclose\nhello\n> ping\n<\npause\nclose\n");
        int fd = streamer_fd(client);
        struct epoll_event event = {.events = EPOLLIN};
        int loop = must(epoll_create1(EPOLL_CLOEXEC));
        must(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event));
        ck_assert_int_eq(must(epoll_wait(loop, &event, 1, LONG_MS)), 1);
        ck_assert_int_eq(streamer_process(client), 1); /* the loss */
        ck_assert_int_eq(streamer_process(client), STREAMER_EUNREACHABLE);
        ck_assert_int_eq(must(epoll_wait(loop, &event, 1, 0)), 0);
        CALL_GIVES(client, "ping", NULL, "{}");
        ck_assert_int_eq(streamer_fd(client), fd);
        nothing_is_pending(client);
        fake_resume(&fake); /* lost again: the epoll set has the new socket */
        ck_assert_int_eq(must(epoll_wait(loop, &event, 1, LONG_MS)), 1);
        ck_assert_int_eq(streamer_process(client), 1);
}
