/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_fd() and streamer_process(), against a scripted daemon: the descriptor is readable while something is
 * pending, whatever calls were made in between, and not otherwise.
 */
#include "tests/unit/attach_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#define OP 5
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

/* ---- events ---- */

static void put_change(struct fake_daemon *f, uint64_t generation)
{
        fake_event(f, "model", 1);
        writer_ku64(&f->message, "generation", generation);
        fake_done(f);
}

static void send_two_changes_and_a_reply(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_subscribe);
        fake_ok(f);
        fake_expect(f, VERB_ping);
        put_change(f, 1);
        put_change(f, 2);
        fake_reply(f, 0);
        fake_done(f);
        fake_send(f, NULL, 0);
        ck_assert(fake_ends(f));
}

FIXTURE(.each = {begin, NULL});

/* The call empties the socket: an epoll loop must see both events all the same. */
TEST(an_epoll_loop_sees_two_events_that_a_call_has_read)
{
        char *text;
        struct epoll_event event = {.events = EPOLLIN};
        client = fake_connect(&fake, send_two_changes_and_a_reply);
        int loop = must(epoll_create1(EPOLL_CLOEXEC));
        ck_assert_int_eq(streamer_subscribe(client, NULL), 0);
        must(epoll_ctl(loop, EPOLL_CTL_ADD, streamer_fd(client), &event));
        CALL_GIVES(client, "ping", NULL, "{}");
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(must(epoll_wait(loop, &event, 1, LONG_MS)), 1);
                ck_assert_int_eq(streamer_process(client), 1);
                ck_assert_int_eq(streamer_event_next(client, 0, &text), 0);
                streamer_free(text);
        }
        ck_assert_int_eq(must(epoll_wait(loop, &event, 1, 0)), 0);
        nothing_is_pending(client);
        close(loop);
        fake_disconnect(&fake, client);
}

/* ---- operations ---- */

static void accept_load(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_load);
        fake_reply(f, 2);
        writer_ku64(&f->message, "op", OP);
        writer_kstr(&f->message, "name", "m");
        fake_done(f);
}

static void put_state(struct fake_daemon *f, const char *state)
{
        fake_event(f, "op", 2);
        writer_ku64(&f->message, "op", OP);
        writer_kstr(&f->message, "state", state);
        fake_done(f);
}

static void end_a_load(struct fake_daemon *f)
{
        accept_load(f);
        put_state(f, "loading");
        fake_send(f, NULL, 0);
        fake_pause(f);
        put_state(f, "ready");
        fake_send(f, NULL, 0);
        fake_expect(f, VERB_ping);
        fake_ok(f);
        ck_assert(fake_ends(f));
}

static streamer_op *load(void (*script)(struct fake_daemon *f))
{
        streamer_op *op;
        streamer_load_opts opts = STREAMER_LOAD_OPTS_INIT;
        opts.source = "/m";
        client = fake_connect(&fake, script);
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
        streamer_op *op = load(end_a_load);
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
        streamer_op_free(op);
        fake_disconnect(&fake, client);
}

TEST(a_freed_operation_is_not_pending)
{
        streamer_op *op = load(end_a_load);
        fake_resume(&fake);
        CALL_GIVES(client, "ping", NULL, "{}");
        ck_assert(readable(client, 0));
        streamer_op_free(op);
        nothing_is_pending(client);
        fake_disconnect(&fake, client);
}

/* ---- leases ---- */

static void arrive(struct fake_daemon *f)
{
        fake_event(f, "lease", 2);
        writer_ku64(&f->message, "lease", FAKE_LEASE);
        writer_kstr(&f->message, "state", "loading");
        fake_done(f);
        fake_send(f, NULL, 0);
}

static void load_slowly(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        m.loading = true;
        fake_model_attach(f, &m, f->request.id);
        fake_pause(f);
        fake_model_arrive(&m, 0);
        fake_model_arrive(&m, 1);
        arrive(f);
        fake_pause(f);
        fake_model_arrive(&m, 2);
        arrive(f);
        fake_model_ready(f);
        fake_model_detach(f);
}

TEST(tensors_that_arrived_are_pending_until_they_were_returned)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_lease *lease = attach(load_slowly, 0);
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
        finish(lease);
}

static void send_a_state_of_tomorrow(struct fake_daemon *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        m.loading = true;
        fake_model_attach(f, &m, f->request.id);
        fake_event(f, "lease", 3);
        writer_ku64(&f->message, "lease", FAKE_LEASE);
        writer_kstr(&f->message, "state", "compacting");
        writer_kstr(&f->message, "digest", FAKE_DIGEST);
        fake_done(f);
        fake_send(f, NULL, 0);
        fake_expect(f, VERB_ping);
        fake_ok(f);
        fake_model_detach(f);
}

TEST(an_unknown_state_is_not_ready)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_lease *lease = attach(send_a_state_of_tomorrow, 0);
        CALL_GIVES(client, "ping", NULL, "{}");
        ck_assert_str_eq(streamer_digest(lease), "");
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ETIMEOUT);
        finish(lease);
}

/* ---- the connection ---- */

static void restart(struct fake_daemon *f)
{
        fake_hello(f);
        fake_close(f);
        fake_hello(f);
        fake_expect(f, VERB_ping);
        fake_ok(f);
        fake_pause(f);
        fake_close(f);
}

TEST(the_descriptor_is_the_same_after_a_reconnection)
{
        client = fake_connect(&fake, restart);
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
        close(loop);
        fake_disconnect(&fake, client);
}
