/* SPDX-License-Identifier: Apache-2.0
 *
 * Input of a connection: frames in any pieces, invalid frames, clients that stall.
 */
#include "tests/unit/conn_fixture.h"

#include "daemon/base/fallback/peer.h"

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
        core_until(closed);
}

/* ---- frames ---- */

CORE_FIXTURE(begin, end);

TEST(frames_may_be_split_at_every_byte)
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

TEST(an_unidentified_peer_is_identified_by_its_first_bytes)
{
        conn->caller_unknown = true;
        conn->pid = 0;
        conn->caller = (struct caller){.uid = (uid_t)-1, .gid = (gid_t)-1};
        peer_cred_enable(conn->fd);
        for (unsigned i = 0; i < 2; i++)
                send_frame("x");
        core_until(frames == 2);
        ck_assert_int_eq(conn->pid, getpid());
        ck_assert_uint_eq(conn->caller.uid, geteuid());
        ck_assert_uint_eq(conn->caller.gid, getegid());
}

/* Frames sent at once, and the expected bodies[]. */
static void send_hundred(char want[1024])
{
        char body[12];
        for (int i = 0; i < 100; i++) {
                snprintf(body, sizeof(body), "%d", i);
                send_frame(body);
                strcat(strcat(want, body), "|");
        }
}

TEST(the_largest_frame_is_accepted)
{
        unsigned char *data = must_alloc(FRAME_HEADER + FRAME_MAX);
        frame_put_header(data, FRAME_MAX);
        for (size_t sent = 0; sent < FRAME_HEADER + FRAME_MAX;) {
                ssize_t n = send(client, data + sent, FRAME_HEADER + FRAME_MAX - sent, MSG_NOSIGNAL);
                sent += n > 0 ? (size_t)n : 0;
                uv_run(&core_loop, UV_RUN_NOWAIT);
        }
        core_until(frames == 1);
}

static void take_long(void)
{
        uint64_t until = now_ns() + SECOND / 2000;
        while (now_ns() < until)
                ;
}

/* The test's thread may lose the processor, but never takes more than the turn allows. */
TEST(a_flood_is_handled_in_slices_and_in_order)
{
        char want[1024] = "";
        uv_run(&core_loop, UV_RUN_NOWAIT); /* ends the time in which the connection began */
        send_hundred(want);
        on_frame = take_long;
        for (unsigned before = 0; frames < 100; before = frames) {
                uv_run(&core_loop, UV_RUN_NOWAIT);
                ck_assert_uint_gt(frames, before);
                ck_assert_uint_le(frames - before, 4);
        }
        ck_assert_str_eq(bodies, want);
}

TEST(a_flood_of_a_disconnected_client_is_handled_completely)
{
        for (int i = 0; i < 30; i++)
                send_frame("x");
        on_frame = take_long;
        close(client);
        core_until(closed);
        ck_assert_uint_eq(frames, 30);
}

/* ---- long frames ---- */

static void begin_short(void)
{
        begin();
        conn->in.max = CONN_SHORT_FRAME;
}

CORE_FIXTURE(begin_short, end);

TEST(a_client_that_is_not_admitted_sends_short_frames_alone)
{
        static unsigned char data[FRAME_HEADER + CONN_SHORT_FRAME + 1];
        frame_put_header(data, CONN_SHORT_FRAME);
        send_bytes(data, FRAME_HEADER + CONN_SHORT_FRAME);
        core_until(frames == 1);
        frame_put_header(data, CONN_SHORT_FRAME + 1);
        ck_assert_uint_le(conn->in.cap, FRAME_FIRST_CAP);
        send_bytes(data, sizeof(data));
        ends_with_error("length 4093 is not between 1 and 4092");
        ck_assert_uint_eq(frames, 1);
}

static struct quotas users;

static void begin_charged(void)
{
        begin();
        quotas_init(&users);
        must(quota_hold(&users, 1000, &conn->input, QUOTA_INPUT, 0));
        conn->input_share = 32 * KiB;
}

CORE_FIXTURE(begin_charged, end);

TEST(an_incomplete_frame_is_charged_until_it_is_complete)
{
        unsigned char *data = must_alloc(FRAME_HEADER + 20 * KiB);
        frame_put_header(data, 20 * KiB);
        send_bytes(data, FRAME_HEADER + 19 * KiB);
        core_settle();
        ck_assert_uint_ge(quotas_held(&users, 1000, QUOTA_INPUT), 19 * KiB);
        send_bytes(data + FRAME_HEADER + 19 * KiB, KiB);
        core_until(frames == 1);
        send_frame("short");
        core_until(frames == 2);
        core_settle();
        ck_assert_uint_eq(quotas_held(&users, 1000, QUOTA_INPUT), 0);
}

TEST(a_user_with_too_many_incomplete_frames_loses_the_connection)
{
        struct quota_charge others = {.user = NULL};
        must(quota_hold(&users, 1000, &others, QUOTA_INPUT, 30 * KiB));
        unsigned char *data = must_alloc(FRAME_HEADER + 20 * KiB), reply[1024];
        frame_put_header(data, 20 * KiB);
        send_bytes(data, FRAME_HEADER + 5 * KiB);
        size_t n = read_to_end(reply, sizeof(reply) - 1);
        reply[n] = '\0';
        ck_assert_ptr_nonnull(memmem(reply, n, "of 32768 bytes of incomplete requests", 37));
        core_until(closed);
        quota_discharge(&others);
}

CORE_FIXTURE(begin, end);

/* ---- broken framing ---- */

static const struct {
        unsigned char header[4];
        const char *text;
} invalid[] = {
        {{0, 0x10, 0, 1}, "length 1048577 is not between 1 and 1048576"},
        {{0, 0, 0, 0}, "length 0 is not between"},
        {{0xff, 0xff, 0xff, 0xff}, "length 4294967295 is not between"},
};

TEST(frames_before_an_invalid_one_are_handled_and_none_after, EACH(invalid))
{
        unsigned char data[64];
        size_t n = put_frame(data, "good");
        memcpy(data + n, invalid[_i].header, 4);
        n += 4;
        n += put_frame(data + n, "never");
        send_bytes(data, n);
        ends_with_error(invalid[_i].text);
        ck_assert_str_eq(bodies, "good|");
}

TEST(a_client_that_disconnects_within_a_frame_is_closed)
{
        send_bytes("\0\0\0\x09half", 8);
        core_settle();
        close(client);
        core_until(closed);
        ck_assert_uint_eq(frames, 0);
}

/* ---- clients that stall ---- */

TEST(an_incomplete_frame_has_a_deadline)
{
        unsigned char data[64];
        size_t n = put_frame(data, "whole");
        send_bytes(data, n);
        send_bytes(data, n - 1);
        core_until(frames == 1);
        core_settle();
        uint64_t since = conn->waiting_since;
        ck_assert_uint_gt(since, 0);
        conns_tick(&turns, since + 9 * SECOND);
        core_settle();
        ck_assert(!closed);
        send_bytes(data + n - 1, 1);
        core_until(frames == 2);
        conns_tick(&turns, since + 3600 * SECOND);
        core_settle();
        ck_assert(!closed);
}

TEST(a_silent_client_is_closed)
{
        conns_tick(&turns, conn->waiting_since + 9 * SECOND);
        core_settle();
        ck_assert(!closed);
        conns_tick(&turns, now_ns() + 11 * SECOND);
        ends_with_error("did not come in time");
}

TEST(an_idle_client_between_frames_may_be_idle_for_ever)
{
        send_frame("hello");
        core_until(frames == 1);
        conns_tick(&turns, now_ns() + 100000 * SECOND);
        core_settle();
        ck_assert(!closed);
}

TEST(slowly_sent_bytes_do_not_extend_the_deadline)
{
        unsigned char data[64];
        size_t n = put_frame(data, "a frame that comes very slowly");
        for (size_t i = 0; i < n - 1; i++) {
                send_bytes(data + i, 1);
                core_settle();
        }
        conns_tick(&turns, now_ns() + 11 * SECOND);
        ends_with_error("did not come in time");
}

static void hold_conn(void)
{
        conn_block(conn, CONN_BLOCK_REQUESTS, true);
}

TEST(a_held_client_is_neither_read_nor_timed)
{
        on_frame = hold_conn;
        send_frame("one");
        send_frame("two");
        core_until(frames == 1);
        core_settle();
        conns_tick(&turns, now_ns() + 100 * SECOND);
        core_settle();
        ck_assert(!closed);
        ck_assert_uint_eq(frames, 1);
        on_frame = NULL;
        conn_block(conn, CONN_BLOCK_REQUESTS, false);
        ck_assert_uint_eq(frames, 1); /* not inside this call */
        core_until(frames == 2);
        ck_assert_str_eq(bodies, "one|two|");
}

TEST(a_held_client_is_not_charged_for_the_time_it_could_not_send)
{
        unsigned char data[64];
        size_t n = put_frame(data, "one"), m;
        m = n + put_frame(data + n, "two");
        on_frame = hold_conn;
        send_bytes(data, m - 1);
        core_until(frames == 1);
        core_settle();
        conn->waiting_since -= 100 * SECOND; /* it was held for long */
        send_bytes(data + m - 1, 1);
        on_frame = NULL;
        conn_block(conn, CONN_BLOCK_REQUESTS, false);
        conns_tick(&turns, now_ns()); /* before the loop has looked */
        core_until(frames == 2 || closed);
        ck_assert_str_eq(bodies, "one|two|");
}
