/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection: frames cut however they arrive, framing that is broken, clients that stall, flood
 * or never read, descriptors on their way, and the two ways of closing.
 *
 * The client's end of a socket pair is driven from the test; time is the `now` given to conn_tick.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/serve/conn.h"
#include "tests/lib/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define SECOND UINT64_C(1000000000)
#define OUTPUT_LIMIT (256 * KiB)

static const struct conn_limits limits = {.output = OUTPUT_LIMIT, .frame_timeout_ns = 10 * SECOND};

static struct conn *conn;
static int client; /* -1: closed */
static unsigned frames, drains;
static char bodies[4096]; /* of the frames, one after another, each with a "|" */
static bool closed;
static void (*on_frame)(void); /* what else a frame makes the session do */

static void frame(struct conn *c, const void *data, size_t len)
{
        ck_assert_ptr_eq(c, conn);
        frames++;
        size_t used = strlen(bodies);
        if (used + len + 2 < sizeof(bodies)) {
                memcpy(bodies + used, data, len);
                memcpy(bodies + used + len, "|", 2);
        }
        if (on_frame != NULL)
                on_frame();
}

static void drained(struct conn *c)
{
        ck_assert_ptr_eq(c, conn);
        drains++;
}

static void on_closed(struct conn *c)
{
        ck_assert_ptr_eq(c, conn);
        ck_assert(!closed);
        closed = true;
}

static const struct conn_ops ops = {.frame = frame, .drained = drained, .closed = on_closed};

static void begin(void)
{
        int ends[2];
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
        client = ends[0];
        must(fcntl(client, F_SETFL, O_NONBLOCK));
        conn = conn_new_consume_fd(&core_loop, ends[1], &ops, &limits);
        ck_assert_ptr_nonnull(conn);
}

static void end(void)
{
        if (!closed)
                conn_close(conn, false);
        core_until(closed);
        if (client >= 0)
                close(client);
}

/* ---- the client's side ---- */

static size_t put_frame(unsigned char *to, const char *body)
{
        size_t len = strlen(body);
        frame_put_header(to, len);
        memcpy(to + FRAME_HEADER, body, len);
        return FRAME_HEADER + len;
}

static void send_bytes(const void *data, size_t len)
{
        ck_assert_int_eq(must(send(client, data, len, MSG_NOSIGNAL)), (ssize_t)len);
}

/* Whatever is there to be read; false at the end of the stream. */
static bool read_some(unsigned char *to, size_t *used, size_t cap)
{
        ssize_t n = recv(client, to + *used, cap - *used, 0);
        if (n < 0 && errno == EAGAIN)
                return true;
        if (n > 0)
                *used += (size_t)n;
        return n > 0;
}

/* Reads all until the daemon closes. */
static size_t read_to_end(unsigned char *to, size_t cap)
{
        size_t used = 0;
        while (read_some(to, &used, cap))
                uv_run(&core_loop, UV_RUN_NOWAIT);
        return used;
}

static size_t read_bytes(unsigned char *to, size_t len)
{
        size_t used = 0;
        while (used < len && read_some(to, &used, len))
                uv_run(&core_loop, UV_RUN_NOWAIT);
        return used;
}

/* A frame of the daemon with `len` bytes of text. */
static void reply(size_t len, char c, const int *fds, size_t n_fds)
{
        struct writer w;
        char *text = must_alloc(len);
        memset(text, c, len);
        conn_writer(&w);
        writer_strn(&w, text, len);
        free(text);
        conn_send(conn, &w, fds, n_fds);
}

/* The text of an error frame that ends the connection. */
static void ends_with_error(const char *text)
{
        unsigned char buffer[4096];
        size_t n = read_to_end(buffer, sizeof(buffer) - 1);
        ck_assert_uint_gt(n, FRAME_HEADER);
        struct message message;
        const char *s;
        size_t len;
        uint64_t id;
        ck_assert_int_eq(message_decode(&message, buffer + FRAME_HEADER, n - FRAME_HEADER), 0);
        const msgpack_object *map = &message.unpacked.data;
        ck_assert(object_str_eq(map, "code", "protocol"));
        ck_assert(object_u64(map, "id", &id) && id == 0);
        ck_assert(object_str(map, "text", &s, &len));
        ck_assert_msg(memmem(s, len, text, strlen(text)) != NULL, "%.*s", (int)len, s);
        message_deinit(&message);
        core_until(closed);
}

/* ---- frames ---- */

START_TEST(frames_may_be_cut_at_every_byte)
{
        unsigned char data[64];
        size_t n = put_frame(data, "first");
        n += put_frame(data + n, "x");
        n += put_frame(data + n, "third frame");
        for (size_t cut = 1; cut < n; cut++) {
                frames = 0;
                bodies[0] = '\0';
                send_bytes(data, cut);
                core_settle();
                send_bytes(data + cut, n - cut);
                core_until(frames == 3);
                ck_assert_str_eq(bodies, "first|x|third frame|");
        }
}
END_TEST

START_TEST(frames_may_come_byte_by_byte)
{
        unsigned char data[64];
        size_t n = put_frame(data, "ab");
        n += put_frame(data + n, "cd");
        for (size_t i = 0; i < n; i++) {
                send_bytes(data + i, 1);
                core_settle();
        }
        ck_assert_str_eq(bodies, "ab|cd|");
}
END_TEST

START_TEST(many_frames_in_one_read_come_in_order)
{
        unsigned char data[4096];
        char body[8], want[1024] = "";
        size_t n = 0;
        for (int i = 0; i < 100; i++) {
                snprintf(body, sizeof(body), "%d", i);
                n += put_frame(data + n, body);
                strcat(strcat(want, body), "|");
        }
        send_bytes(data, n);
        core_until(frames == 100);
        ck_assert_str_eq(bodies, want);
}
END_TEST

START_TEST(the_largest_frame_is_taken)
{
        unsigned char *data = must_alloc(FRAME_HEADER + FRAME_MAX);
        frame_put_header(data, FRAME_MAX);
        for (size_t sent = 0; sent < FRAME_HEADER + FRAME_MAX;) {
                ssize_t n = send(client, data + sent, FRAME_HEADER + FRAME_MAX - sent, MSG_NOSIGNAL);
                sent += n > 0 ? (size_t)n : 0;
                uv_run(&core_loop, UV_RUN_NOWAIT);
        }
        core_until(frames == 1);
        free(data);
}
END_TEST

/* ---- framing that is broken ---- */

START_TEST(a_length_over_the_limit_ends_the_connection)
{
        send_bytes("\x00\x10\x00\x01", 4);
        ends_with_error("length 1048577 is not between 1 and 1048576");
        ck_assert_uint_eq(frames, 0);
}
END_TEST

START_TEST(a_length_of_zero_ends_the_connection)
{
        send_bytes("\0\0\0\0", 4);
        ends_with_error("length 0 is not between");
}
END_TEST

START_TEST(frames_before_a_broken_one_are_taken_and_none_after)
{
        unsigned char data[64];
        size_t n = put_frame(data, "good");
        memcpy(data + n, "\xff\xff\xff\xff", 4);
        n += 4;
        n += put_frame(data + n, "never");
        send_bytes(data, n);
        ends_with_error("is not between");
        ck_assert_str_eq(bodies, "good|");
}
END_TEST

START_TEST(a_client_that_goes_in_the_middle_of_a_frame_is_closed)
{
        send_bytes("\0\0\0\x09half", 8);
        core_settle();
        close(client);
        client = -1;
        core_until(closed);
        ck_assert_uint_eq(frames, 0);
}
END_TEST

START_TEST(requests_that_came_before_the_client_went_are_taken)
{
        unsigned char data[64];
        send_bytes(data, put_frame(data, "last"));
        close(client);
        client = -1;
        core_until(closed);
        ck_assert_str_eq(bodies, "last|");
}
END_TEST

/* ---- clients that stall ---- */

START_TEST(half_a_frame_has_its_time)
{
        unsigned char data[64];
        size_t n = put_frame(data, "whole");
        send_bytes(data, n);
        send_bytes(data, n - 1);
        core_until(frames == 1);
        core_settle();
        uint64_t since = now_ns();
        conn_tick(conn, since + 9 * SECOND);
        core_settle();
        ck_assert(!closed);
        send_bytes(data + n - 1, 1);
        core_until(frames == 2);
        conn_tick(conn, since + 3600 * SECOND);
        core_settle();
        ck_assert(!closed);
}
END_TEST

START_TEST(half_a_frame_that_stays_half_ends_the_connection)
{
        unsigned char data[64];
        size_t n = put_frame(data, "whole");
        send_bytes(data, n);
        send_bytes(data, n - 1);
        core_until(frames == 1);
        core_settle();
        conn_tick(conn, now_ns() + 11 * SECOND);
        ends_with_error("did not come in time");
}
END_TEST

START_TEST(a_client_that_never_says_anything_is_closed)
{
        conn_tick(conn, now_ns() + 9 * SECOND);
        core_settle();
        ck_assert(!closed);
        conn_tick(conn, now_ns() + 11 * SECOND);
        ends_with_error("did not come in time");
}
END_TEST

START_TEST(an_idle_client_between_frames_may_be_idle_for_ever)
{
        unsigned char data[64];
        send_bytes(data, put_frame(data, "hello"));
        core_until(frames == 1);
        conn_tick(conn, now_ns() + 100000 * SECOND);
        core_settle();
        ck_assert(!closed);
}
END_TEST

START_TEST(dripping_bytes_buys_no_time)
{
        unsigned char data[64];
        size_t n = put_frame(data, "a frame that comes very slowly");
        for (size_t i = 0; i < n - 1; i++) {
                send_bytes(data + i, 1);
                core_settle();
        }
        conn_tick(conn, now_ns() + 11 * SECOND);
        ends_with_error("did not come in time");
}
END_TEST

static void hold(void)
{
        conn_hold(conn, true);
}

START_TEST(a_client_that_is_held_is_not_read_nor_timed)
{
        unsigned char data[64];
        size_t n = put_frame(data, "one");
        n += put_frame(data + n, "two");
        on_frame = hold;
        send_bytes(data, n);
        core_until(frames == 1);
        core_settle();
        conn_tick(conn, now_ns() + 100 * SECOND);
        core_settle();
        ck_assert(!closed);
        ck_assert_uint_eq(frames, 1);
        on_frame = NULL;
        conn_hold(conn, false);
        ck_assert_str_eq(bodies, "one|two|");
}
END_TEST

START_TEST(what_a_held_client_could_not_send_is_not_held_against_it)
{
        unsigned char data[64];
        size_t n = put_frame(data, "one"), m;
        m = n + put_frame(data + n, "two");
        on_frame = hold;
        send_bytes(data, m - 1);
        core_until(frames == 1);
        core_settle();
        conn->waiting_since -= 100 * SECOND; /* it was held for long */
        send_bytes(data + m - 1, 1);
        on_frame = NULL;
        conn_hold(conn, false);
        conn_tick(conn, now_ns()); /* before the loop has looked */
        core_until(frames == 2 || closed);
        ck_assert_str_eq(bodies, "one|two|");
}
END_TEST

/* ---- clients that do not read ---- */

/* Fills the kernel's buffer and then ours beyond its limit: the number of replies. */
static unsigned flood(size_t len)
{
        unsigned n = 0;
        while (!conn->paused) {
                reply(len, (char)('a' + n % 26), NULL, 0);
                n++;
        }
        return n;
}

START_TEST(a_client_that_does_not_read_is_not_read)
{
        unsigned char data[64];
        flood(16 * KiB);
        ck_assert_uint_gt(conn->out_bytes, OUTPUT_LIMIT);
        ck_assert(!conn_writable(conn));
        send_bytes(data, put_frame(data, "request"));
        core_settle();
        ck_assert_uint_eq(frames, 0);
        ck_assert(!closed);
}
END_TEST

START_TEST(reading_again_resumes_it_and_every_byte_arrives)
{
        unsigned char data[64];
        unsigned n = flood(16 * KiB);
        send_bytes(data, put_frame(data, "request"));
        core_settle();
        size_t one = FRAME_HEADER + 3 + 16 * KiB, total = n * one; /* msgpack: str 16 and its length */
        unsigned char *got = must_alloc(total);
        ck_assert_uint_eq(read_bytes(got, total), total);
        core_until(frames == 1);
        for (unsigned i = 0; i < n; i++)
                for (size_t k = FRAME_HEADER + 3; k < one; k += 997)
                        ck_assert_int_eq(got[i * one + k], 'a' + (int)(i % 26));
        ck_assert_uint_eq(conn->out_bytes, 0);
        ck_assert(conn_writable(conn));
        ck_assert_uint_gt(drains, 0);
        free(got);
}
END_TEST

static void answer(void)
{
        reply(8 * KiB, 'r', NULL, 0);
}

/* As many requests as it likes: what waits here stays bounded. */
START_TEST(a_client_that_asks_and_never_reads_cannot_make_the_daemon_grow)
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
        ck_assert(conn->paused);
        ck_assert_uint_le(conn->out_bytes, OUTPUT_LIMIT + 9 * KiB);
        unsigned before = frames;
        core_settle();
        ck_assert_uint_eq(frames, before);
}
END_TEST

START_TEST(a_paused_client_that_goes_is_closed)
{
        flood(16 * KiB);
        close(client);
        client = -1;
        core_until(closed);
}
END_TEST

/* ---- descriptors ---- */

/* The kernel may still hold the message: the count goes down when it was read. */
START_TEST(descriptors_are_counted_until_they_are_read)
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
        ck_assert_int_gt(frame_recv_fds(client, buffer, sizeof(buffer), got, &n_got, 3), 0);
        ck_assert_uint_eq(n_got, 3);
        n_got = 0;
        ck_assert_int_gt(frame_recv_fds(client, buffer, sizeof(buffer), got, &n_got, 3), 0);
        ck_assert_uint_eq(n_got, 1);
        ck_assert_uint_eq(conn_fds_in_flight(conn), 0);
}
END_TEST

START_TEST(descriptors_that_must_wait_are_kept_open_for_it)
{
        int fd = must(eventfd(7, EFD_CLOEXEC)), got[1] = {-1};
        size_t n_got = 0;
        unsigned n = flood(16 * KiB);
        reply(4, 'f', &fd, 1);
        close(fd);
        unsigned char *sink = must_alloc(n * 17 * KiB);
        read_bytes(sink, n * (FRAME_HEADER + 3 + 16 * KiB));
        core_settle();
        ck_assert_int_gt(frame_recv_fds(client, sink, 64, got, &n_got, 1), 0);
        ck_assert_uint_eq(n_got, 1);
        eventfd_t value;
        must(eventfd_read(got[0], &value));
        ck_assert_uint_eq(value, 7);
        free(sink);
}
END_TEST

START_TEST(descriptors_that_were_never_sent_are_closed_with_the_connection)
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
END_TEST

START_TEST(descriptors_that_a_client_sends_are_dropped)
{
        unsigned char data[64];
        int fd = must(eventfd(0, EFD_CLOEXEC));
        size_t n = put_frame(data, "gift");
        unsigned before = process_fds(getpid());
        ck_assert_int_eq(frame_send_fds(client, data, n, &fd, 1), (ssize_t)n);
        core_until(frames == 1);
        ck_assert_uint_eq(process_fds(getpid()), before);
}
END_TEST

/* ---- closing ---- */

START_TEST(closing_with_flush_sends_what_is_queued_first)
{
        unsigned n = flood(16 * KiB);
        conn_close(conn, true);
        core_settle();
        ck_assert(!closed);
        unsigned char *got = must_alloc((n + 1) * 17 * KiB);
        ck_assert_uint_eq(read_to_end(got, (n + 1) * 17 * KiB), n * (FRAME_HEADER + 3 + 16 * KiB));
        core_until(closed);
        free(got);
}
END_TEST

START_TEST(closing_with_flush_closes_at_once_where_nothing_is_queued)
{
        conn_close(conn, true);
        ck_assert(!closed); /* never inside the call */
        core_until(closed);
}
END_TEST

START_TEST(closing_without_flush_drops_what_is_queued)
{
        unsigned n = flood(16 * KiB);
        conn_close(conn, false);
        core_until(closed);
        unsigned char *got = must_alloc((n + 1) * 17 * KiB);
        ck_assert_uint_lt(read_to_end(got, (n + 1) * 17 * KiB), n * (FRAME_HEADER + 3 + 16 * KiB));
        free(got);
}
END_TEST

START_TEST(a_connection_that_closes_takes_no_more_requests)
{
        unsigned char data[64];
        flood(16 * KiB);
        conn_close(conn, true);
        send_bytes(data, put_frame(data, "late"));
        core_settle();
        ck_assert_uint_eq(frames, 0);
        close(client);
        client = -1;
        core_until(closed);
        ck_assert_uint_eq(frames, 0);
}
END_TEST

static void close_now(void)
{
        conn_close(conn, false);
}

START_TEST(a_frame_may_close_its_own_connection)
{
        unsigned char data[64];
        size_t n = put_frame(data, "bye");
        n += put_frame(data + n, "more");
        on_frame = close_now;
        send_bytes(data, n);
        core_until(closed);
        ck_assert_str_eq(bodies, "bye|");
}
END_TEST

START_TEST(sending_to_a_connection_that_is_closing_is_nothing)
{
        conn_close(conn, false);
        reply(16, 'x', NULL, 0);
        conn_hold(conn, true);
        conn_tick(conn, now_ns() + 100 * SECOND);
        core_until(closed);
}
END_TEST

START_TEST(a_reply_over_the_frames_limit_closes_rather_than_lies)
{
        reply(FRAME_MAX + 1, 'x', NULL, 0);
        core_until(closed);
}
END_TEST

START_TEST(who_is_at_the_other_end_is_known)
{
        ck_assert_int_eq(conn->pid, getpid());
        ck_assert_uint_eq(conn->caller.uid, getuid());
        ck_assert_uint_eq(conn->caller.gid, getgid());
}
END_TEST

int main(void)
{
        suite_begin("conn");
        TCase *in = core_group("frames", begin, end);
        tcase_add_test(in, frames_may_be_cut_at_every_byte);
        tcase_add_test(in, frames_may_come_byte_by_byte);
        tcase_add_test(in, many_frames_in_one_read_come_in_order);
        tcase_add_test(in, the_largest_frame_is_taken);
        tcase_add_test(in, who_is_at_the_other_end_is_known);
        TCase *broken = core_group("framing that is broken", begin, end);
        tcase_add_test(broken, a_length_over_the_limit_ends_the_connection);
        tcase_add_test(broken, a_length_of_zero_ends_the_connection);
        tcase_add_test(broken, frames_before_a_broken_one_are_taken_and_none_after);
        tcase_add_test(broken, a_client_that_goes_in_the_middle_of_a_frame_is_closed);
        tcase_add_test(broken, requests_that_came_before_the_client_went_are_taken);
        TCase *stall = core_group("clients that stall", begin, end);
        tcase_add_test(stall, half_a_frame_has_its_time);
        tcase_add_test(stall, half_a_frame_that_stays_half_ends_the_connection);
        tcase_add_test(stall, a_client_that_never_says_anything_is_closed);
        tcase_add_test(stall, an_idle_client_between_frames_may_be_idle_for_ever);
        tcase_add_test(stall, dripping_bytes_buys_no_time);
        tcase_add_test(stall, a_client_that_is_held_is_not_read_nor_timed);
        tcase_add_test(stall, what_a_held_client_could_not_send_is_not_held_against_it);
        TCase *out = core_group("clients that do not read", begin, end);
        tcase_add_test(out, a_client_that_does_not_read_is_not_read);
        tcase_add_test(out, reading_again_resumes_it_and_every_byte_arrives);
        tcase_add_test(out, a_client_that_asks_and_never_reads_cannot_make_the_daemon_grow);
        tcase_add_test(out, a_paused_client_that_goes_is_closed);
        TCase *fds = core_group("descriptors", begin, end);
        tcase_add_test(fds, descriptors_are_counted_until_they_are_read);
        tcase_add_test(fds, descriptors_that_must_wait_are_kept_open_for_it);
        tcase_add_test(fds, descriptors_that_were_never_sent_are_closed_with_the_connection);
        tcase_add_test(fds, descriptors_that_a_client_sends_are_dropped);
        TCase *closing = core_group("closing", begin, end);
        tcase_add_test(closing, closing_with_flush_sends_what_is_queued_first);
        tcase_add_test(closing, closing_with_flush_closes_at_once_where_nothing_is_queued);
        tcase_add_test(closing, closing_without_flush_drops_what_is_queued);
        tcase_add_test(closing, a_connection_that_closes_takes_no_more_requests);
        tcase_add_test(closing, a_frame_may_close_its_own_connection);
        tcase_add_test(closing, sending_to_a_connection_that_is_closing_is_nothing);
        tcase_add_test(closing, a_reply_over_the_frames_limit_closes_rather_than_lies);
        return suite_run();
}
