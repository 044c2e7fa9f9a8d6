/* SPDX-License-Identifier: Apache-2.0
 *
 * Output of a connection: clients that do not read, descriptors in flight, and the two ways of closing.
 */
#include "tests/unit/conn_fixture.h"

#include "daemon/base/log/log.h"

/* Bytes of a frame before the text of 256 to 65535 bytes: msgpack's map of one pair, the key, the length. */
#define BEFORE_TEXT (FRAME_HEADER + 1 + 2 + 3)

/* A frame of the daemon with `len` bytes of text. */
static void reply(size_t len, char c, const int *v, size_t n)
{
        struct fds fds = {.n = n};
        char *text = must_alloc(len);
        memset(text, c, len);
        for (size_t i = 0; i < n; i++)
                fds.v[i] = v[i];
        conn_send(conn, &fds, PAIRS(kstrn("t", text, len)));
}

static size_t read_bytes(unsigned char *to, size_t len)
{
        size_t used = 0;
        while (used < len && read_some(to, &used, len))
                uv_run(&core_loop, UV_RUN_NOWAIT);
        return used;
}

/* ---- clients that do not read ---- */

/* Fills the kernel's buffer and then ours beyond its limit: the number of replies. */
static unsigned flood(size_t len)
{
        unsigned n = 0;
        while (!(conn->blocked & CONN_BLOCK_OUTPUT)) {
                reply(len, (char)('a' + n % 26), NULL, 0);
                n++;
        }
        return n;
}

CORE_FIXTURE(begin, end);

TEST(a_client_that_does_not_read_is_not_read_until_it_has_received_every_byte)
{
        unsigned n = flood(16 * KiB);
        ck_assert_uint_gt(conn->output.amount, OUTPUT_LIMIT);
        ck_assert(!conn_writable(conn));
        send_frame("request");
        core_settle();
        ck_assert_uint_eq(frames, 0);
        size_t one = BEFORE_TEXT + 16 * KiB, total = n * one;
        unsigned char *got = must_alloc(total);
        ck_assert_uint_eq(read_bytes(got, total), total);
        core_until(frames == 1);
        for (unsigned i = 0; i < n; i++)
                for (size_t k = BEFORE_TEXT; k < one; k += 997)
                        ck_assert_int_eq(got[i * one + k], 'a' + (int)(i % 26));
        ck_assert_uint_eq(conn->output.amount, 0);
        ck_assert(conn_writable(conn));
        ck_assert_uint_gt(drains, 0);
}

static void answer(void)
{
        reply(8 * KiB, 'r', NULL, 0);
}

/* The number of requests is unlimited; the output queue stays bounded. */
TEST(a_client_that_never_reads_cannot_grow_the_daemons_memory)
{
        unsigned char data[64];
        size_t n = put_frame(data, "ask");
        on_frame = answer;
        for (int i = 0; i < 2000; i++) {
                ssize_t sent = send(client, data, n, MSG_NOSIGNAL);
                core_settle();
                if (sent < 0)
                        break;
                ck_assert_int_eq(sent, (ssize_t)n);
        }
        ck_assert(conn->blocked & CONN_BLOCK_OUTPUT);
        ck_assert_uint_le(conn->output.amount, OUTPUT_LIMIT + 9 * KiB);
        unsigned before = frames;
        core_settle();
        ck_assert_uint_eq(frames, before);
}

TEST(a_paused_client_that_disconnects_is_closed)
{
        flood(16 * KiB);
        close(client);
        core_until(closed);
}

/* ---- descriptors ---- */

/* The kernel may still hold the message: the count decreases when the peer has read it. */
TEST(descriptors_are_counted_until_they_are_read)
{
        int fds[3], got[3];
        size_t n_got = 0;
        char buffer[64];
        for (size_t i = 0; i < 3; i++)
                fds[i] = must(eventfd(0, EFD_CLOEXEC));
        reply(4, 'f', fds, 3);
        ck_assert_uint_eq(conn_fds_in_flight(conn), 3);
        reply(4, 'g', fds, 1);
        ck_assert_uint_eq(conn_fds_in_flight(conn), 4);
        ck_assert_int_gt(frame_recv_fds(client, buffer, sizeof(buffer), got, &n_got, 3, &(bool){false}), 0);
        ck_assert_uint_eq(n_got, 3);
        n_got = 0;
        ck_assert_int_gt(frame_recv_fds(client, buffer, sizeof(buffer), got, &n_got, 3, &(bool){false}), 0);
        ck_assert_uint_eq(n_got, 1);
        ck_assert_uint_eq(conn_fds_in_flight(conn), 0);
}

/* It always has a frame to read. What it has read counts for a few more frames at most. */
TEST(descriptors_of_a_busy_client_are_counted_until_they_are_read)
{
        int fds[3], got[3];
        char buffer[4 * KiB];
        for (size_t i = 0; i < 3; i++)
                fds[i] = must(eventfd(0, EFD_CLOEXEC));
        reply(2 * KiB, 'f', fds, 3);
        for (unsigned i = 0; i < 200; i++) {
                size_t n_got = 0;
                reply(2 * KiB, 'f', fds, 3);
                ck_assert_uint_ge(conn_fds_in_flight(conn), 6);
                ck_assert_uint_le(conn_fds_in_flight(conn), 3 * 20);
                ck_assert_int_gt(frame_recv_fds(client, buffer, sizeof(buffer), got, &n_got, 3, &(bool){false}),
                                 2 * KiB);
                ck_assert_uint_eq(n_got, 3);
                for (size_t k = 0; k < n_got; k++)
                        close(got[k]);
        }
}

TEST(queued_descriptors_stay_open)
{
        int fd = must(eventfd(7, EFD_CLOEXEC)), got[1] = {-1};
        size_t n_got = 0;
        unsigned n = flood(16 * KiB);
        reply(4, 'f', &fd, 1);
        close(fd);
        unsigned char *sink = must_alloc(n * 17 * KiB);
        read_bytes(sink, n * (BEFORE_TEXT + 16 * KiB));
        core_settle();
        ck_assert_int_gt(frame_recv_fds(client, sink, 64, got, &n_got, 1, &(bool){false}), 0);
        ck_assert_uint_eq(n_got, 1);
        eventfd_t value;
        must(eventfd_read(got[0], &value));
        ck_assert_uint_eq(value, 7);
}

TEST(descriptors_that_were_never_sent_are_closed_with_the_connection)
{
        int fd = must(eventfd(0, EFD_CLOEXEC));
        unsigned before = process_fds(getpid());
        flood(16 * KiB);
        reply(4, 'f', &fd, 1);
        ck_assert_uint_eq(process_fds(getpid()), before + 1);
        conn_close(conn, false);
        core_until(closed);
        ck_assert_uint_eq(process_fds(getpid()), before - 1); /* and the connection's own */
}

TEST(descriptors_that_a_client_sends_are_dropped)
{
        unsigned char data[64];
        int fd = must(eventfd(0, EFD_CLOEXEC));
        size_t n = put_frame(data, "gift");
        unsigned before = process_fds(getpid());
        ck_assert_int_eq(frame_send_fds(client, data, n, &fd, 1), (ssize_t)n);
        core_until(frames == 1);
        ck_assert_uint_eq(process_fds(getpid()), before);
}

/* ---- replies to requests that came together ---- */

static unsigned n_unsent; /* replies that were corked when the last request was handled */

static void answer_short(void)
{
        n_unsent = (unsigned)list_length(&conn->out);
        reply(16, (char)('a' + frames), NULL, 0);
}

/* A connection's turn has a time limit: where the machine stops it in between, the rest is answered in the next. */
TEST(replies_to_requests_that_came_together_are_sent_with_the_last)
{
        unsigned char data[64], got[256];
        size_t n = put_frame(data, "one"), len = 3 * (FRAME_HEADER + 1 + 2 + 1 + 16);
        n += put_frame(data + n, "two");
        n += put_frame(data + n, "three");
        on_frame = answer_short;
        for (int tries = 0; n_unsent != 2; tries++) {
                ck_assert_int_lt(tries, 1000);
                frames = 0;
                send_bytes(data, n);
                core_until(frames == 3);
                ck_assert(list_empty(&conn->out));
                ck_assert_uint_eq(read_bytes(got, len), len);
                ck_assert(memchr(got, 'b', len) < memchr(got, 'c', len));
                ck_assert(memchr(got, 'c', len) < memchr(got, 'd', len));
        }
        /* One that comes alone is answered at once. */
        send_frame("four");
        core_until(frames == 4);
        ck_assert_uint_eq(n_unsent, 0);
}

static uint32_t watched; /* what the connection was polled for when the last request was handled */

static void answer_and_look(void)
{
        watched = conn->poll.events;
        reply(16, 'a', NULL, 0);
}

/* Where the machine stops the turn, it is polled before. */
TEST(a_first_exchange_is_answered_before_the_connection_is_polled)
{
        unsigned char data[64];
        size_t n = put_frame(data, "one");
        n += put_frame(data + n, "two");
        watched = EPOLLIN;
        on_frame = answer_and_look;
        for (int tries = 0; watched != 0; tries++) {
                int ends[2];
                ck_assert_int_lt(tries, 1000);
                conn_close(conn, false);
                core_until(closed);
                close(client);
                must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
                client = ends[0];
                conn = conn_new_consume_fd(core_polls, ends[1], &ops, &limits, &turns);
                closed = false;
                frames = 0;
                send_bytes(data, n);
                conn_begin(conn);
                core_until(frames == 2);
        }
        ck_assert_uint_ne(conn->poll.events & EPOLLIN, 0);
}

static void answer_with_a_descriptor(void)
{
        int fd = must(eventfd(7, EFD_CLOEXEC));
        reply(16, (char)('a' + frames), &fd, frames == 2);
        close(fd);
        if (frames == 2)
                ck_assert_uint_eq(conn_fds_in_flight(conn), 1);
}

TEST(a_descriptor_comes_with_its_own_frame_behind_others)
{
        unsigned char data[64];
        char first[64];
        int got[1] = {-1};
        size_t n = put_frame(data, "one"), n_got = 0;
        n += put_frame(data + n, "two");
        n += put_frame(data + n, "three");
        on_frame = answer_with_a_descriptor;
        send_bytes(data, n);
        core_until(frames == 3);
        /* As a client does that reads frame by frame. */
        ck_assert_int_eq(recv(client, first, FRAME_HEADER, 0), FRAME_HEADER);
        size_t len = (unsigned char)first[3];
        ck_assert_int_eq(recv(client, first, len, 0), (ssize_t)len);
        ck_assert_int_gt(frame_recv_fds(client, first, sizeof(first), got, &n_got, 1, &(bool){false}), 0);
        ck_assert_uint_eq(n_got, 1);
        eventfd_t value;
        must(eventfd_read(got[0], &value));
        ck_assert_uint_eq(value, 7);
}

static void answer_at_length(void)
{
        n_unsent = (unsigned)list_length(&conn->out);
        reply(40 * KiB, 'x', NULL, 0);
}

TEST(corked_replies_have_a_limit)
{
        unsigned char data[64], got[4 * KiB];
        size_t n = 0;
        unsigned most = 0;
        for (unsigned i = 0; i < 8; i++)
                n += put_frame(data + n, "a");
        on_frame = answer_at_length;
        send_bytes(data, n);
        for (size_t used = 0; frames < 8; used = 0) {
                uv_run(&core_loop, UV_RUN_NOWAIT);
                most = n_unsent > most ? n_unsent : most;
                read_some(got, &used, sizeof(got));
        }
        ck_assert_uint_le(most, 4);
        ck_assert(!closed);
}

/* ---- closing ---- */

TEST(closing_with_flush_sends_queued_output_and_nothing_else)
{
        unsigned n = flood(16 * KiB);
        conn_close(conn, true);
        reply(16, 'x', NULL, 0);
        core_settle();
        ck_assert(!closed);
        unsigned char *got = must_alloc((n + 1) * 17 * KiB);
        ck_assert_uint_eq(read_to_end(got, (n + 1) * 17 * KiB), n * (BEFORE_TEXT + 16 * KiB));
        core_until(closed);
        ck_assert_uint_eq(drains, 0);
}

TEST(closing_with_flush_closes_at_once_without_queued_output)
{
        conn_close(conn, true);
        ck_assert(!closed); /* never inside the call */
        core_until(closed);
}

TEST(closing_without_flush_drops_queued_output)
{
        unsigned n = flood(16 * KiB);
        conn_close(conn, false);
        core_until(closed);
        unsigned char *got = must_alloc((n + 1) * 17 * KiB);
        ck_assert_uint_lt(read_to_end(got, (n + 1) * 17 * KiB), n * (BEFORE_TEXT + 16 * KiB));
}

TEST(a_connection_that_closes_takes_no_more_requests)
{
        flood(16 * KiB);
        conn_close(conn, true);
        send_frame("late");
        core_settle();
        ck_assert_uint_eq(frames, 0);
        close(client);
        core_until(closed);
        ck_assert_uint_eq(frames, 0);
}

static void close_now(void)
{
        conn_close(conn, false);
}

TEST(a_frame_may_close_its_own_connection)
{
        on_frame = close_now;
        send_frame("bye");
        send_frame("more");
        core_until(closed);
        ck_assert_str_eq(bodies, "bye|");
}

TEST(sending_to_a_closing_connection_has_no_effect)
{
        conn_close(conn, false);
        reply(16, 'x', NULL, 0);
        conn_block(conn, CONN_BLOCK_REQUESTS, true);
        conns_tick(&turns, now_ns() + 100 * SECOND);
        core_until(closed);
}

static void reply_too_long(void)
{
        reply(FRAME_MAX + 1, 'x', NULL, 0);
}

static void reply_without_a_descriptor(void)
{
        reply(16, 'x', (const int[]){-1}, 1);
}

static void reply_to_closed(void)
{
        close(client);
        reply(16, 'x', NULL, 0);
}

static void (*failure)(void);

/* The log's destination depends on the type of standard error. */
static void log_failure(void)
{
        log_set_level(LOG_LEVEL_WARN);
        log_set_output(&(struct log_output){.format = LOG_FORMAT_PLAIN});
        failure();
}

/* Its client sees an end without a reason. */
TEST(an_unsendable_reply_is_logged, .to = 2)
{
        static void (*const failures[])(void) = {reply_too_long, reply_without_a_descriptor};
        static const char *const reasons[] = {"Message too long", "Bad file descriptor"};
        failure = failures[_i];
        char *said = suite_stderr(log_failure);
        ck_assert_msg(strstr(said, "could not be sent") != NULL && strstr(said, reasons[_i]) != NULL, "%s", said);
        core_until(closed);
}

static bool takes_long, open_at_the_second;

static void answer_the_second_at_length(void)
{
        for (uint64_t until = now_ns() + 2 * TURN_NS; takes_long && frames == 1 && now_ns() < until;)
                ;
        if (frames == 2)
                open_at_the_second = conn->state == CONN_OPEN;
        reply(frames == 2 ? FRAME_MAX + 1 : 16, 'x', NULL, 0);
}

/* What was held back is not sent any more: the client may have closed its end. Where a turn ends after the first
 * frame, what it held is sent, and this end found, before the second: then all that the client sent is handled. */
TEST(an_unsendable_reply_ends_a_connection_with_held_replies, .to = 2)
{
        takes_long = _i == 1;
        unsigned char data[64];
        size_t n = put_frame(data, "one");
        n += put_frame(data + n, "two");
        n += put_frame(data + n, "three");
        on_frame = answer_the_second_at_length;
        send_bytes(data, n);
        must(shutdown(client, SHUT_RDWR));
        core_until(closed);
        ck_assert(!takes_long || !open_at_the_second);
        ck_assert_uint_eq(frames, open_at_the_second ? 2 : 3);
}

TEST(a_client_that_disconnects_is_not_logged)
{
        failure = reply_to_closed;
        ck_assert_str_eq(suite_stderr(log_failure), "");
        core_until(closed);
}

/* ---- several closing connections ---- */

#define CROWD 40

static struct conn *peers[CROWD];
static int clients[CROWD];
static unsigned n_closed;
static bool closed_before_it_asked;

static void peers_frame(struct conn *c, const void *data, size_t len)
{
        frames++;
        closed_before_it_asked = n_closed == 1;
}

static void peers_closed(struct conn *c)
{
        for (uint64_t until = now_ns() + SECOND / 1000; now_ns() < until;)
                ;
        n_closed++;
}

static const struct conn_ops peers_ops = {.frame = peers_frame, .drained = drained, .closed = peers_closed};

static void peers_open(size_t n)
{
        int ends[2];
        for (size_t i = 0; i < n; i++) {
                must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
                clients[i] = ends[0];
                peers[i] = conn_new_consume_fd(core_polls, ends[1], &peers_ops, &limits, &turns);
                ck_assert_ptr_nonnull(peers[i]);
                conn_begin(peers[i]);
        }
        core_settle();
}

/* Each takes a millisecond, and an iteration ends after ten milliseconds. */
static void all_end_in_turns(void)
{
        unsigned iterations = 0;
        for (unsigned before = 0; n_closed < CROWD; before = n_closed, iterations++) {
                uv_run(&core_loop, UV_RUN_NOWAIT);
                ck_assert_uint_le(n_closed - before, 11);
        }
        ck_assert_uint_ge(iterations, 4);
}

TEST(many_connections_that_either_side_closes_end_in_slices, .to = 2)
{
        peers_open(CROWD);
        for (size_t i = 0; i < CROWD; i++)
                if (_i == 0)
                        close(clients[i]);
                else
                        conn_close(peers[i], false);
        ck_assert_uint_eq(n_closed, 0);
        all_end_in_turns();
}

TEST(a_disconnect_is_handled_before_later_requests)
{
        unsigned char data[64];
        peers_open(2);
        close(clients[0]);
        must(send(clients[1], data, put_frame(data, "ask"), MSG_NOSIGNAL));
        core_until(frames == 1);
        ck_assert(closed_before_it_asked);
        close(clients[1]);
        core_until(n_closed == 2);
}
