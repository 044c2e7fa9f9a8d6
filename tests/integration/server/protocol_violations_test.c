/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients that violate the protocol: invalid messages, broken and partial frames, unread replies. None affects
 * another client or the daemon.
 */
#include "tests/lib/loop_time.h"
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include "proto/frame.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

static struct wire wire;

static void begin(void)
{
        struct rlimit files;
        must(getrlimit(RLIMIT_NOFILE, &files));
        files.rlim_cur = files.rlim_max; /* for all that a client may take */
        must(setrlimit(RLIMIT_NOFILE, &files));
        fixture_begin((const char *const[]){"--device", "host=64MiB", NULL});
}

static void end(void)
{
        loop_time_print_fixture("hostile clients");
        fixture_end();
}

/* Clients that stall are opened with their group: the time until the daemon closes them (limits.frame_timeout, 10 s)
 * passes during other tests. */
#define END_MS 60000
static struct wire incomplete, silent;

static void begin_frames(void)
{
        static const unsigned char half[] = {0, 0, 0, 100, 0x83};

        begin();
        wire_open(&silent, &test_daemon);
        wire_open(&incomplete, &test_daemon);
        wire_hello(&incomplete);
        wire_send(&incomplete, half, sizeof(half));
}

static void end_frames(void)
{
        wire_close(&silent);
        wire_close(&incomplete);
        end();
}

/* A greedy client may leave resources in use until its process has exited. */
static void end_greed(void)
{
        loop_time_print_fixture("greedy clients");
}

static void open_wire(void)
{
        wire_open(&wire, &test_daemon);
}

static void end_test(void)
{
        wire_close(&wire);
        fixture_still_serves();
}

/* ---- messages: refused, the connection continues ---- */

static void refused(const char *code)
{
        bool ok = wire_read_code(&wire, code);

        ck_assert_msg(ok, "not refused as \"%s\"", code);
}

FIXTURE(.all = {begin, end}, .each = {open_wire, end_test});

TEST(an_unknown_verb)
{
        wire_hello(&wire);
        wire_verb(&wire, "frobnicate", 2, NULL, NULL);
        refused("unsupported");
        wire_verb(&wire, "ping", 3, NULL, NULL);
        ck_assert(wire_read(&wire));
}

TEST(a_field_that_the_verb_does_not_have)
{
        wire_hello(&wire);
        wire_verb(&wire, "ping", 2, "volume", "11");
        refused("unsupported");
}

TEST(a_field_of_a_wrong_type)
{
        struct writer w;

        wire_hello(&wire);
        writer_init(&w);
        writer_map(&w, 3);
        writer_kstr(&w, "verb", "show");
        writer_ku64(&w, "id", 2);
        writer_ku64(&w, "model", 7);
        wire_frame(&wire, w.buf.data, w.buf.size);
        refused("invalid");
        writer_deinit(&w);
}

TEST(a_missing_field)
{
        wire_hello(&wire);
        wire_verb(&wire, "show", 2, NULL, NULL);
        refused("invalid");
}

TEST(a_name_that_is_too_long)
{
        char *name = must_alloc(PROTO_NAME_MAX + 2);

        memset(name, 'a', PROTO_NAME_MAX + 1);
        wire_hello(&wire);
        wire_verb(&wire, "show", 2, "model", name);
        refused("invalid");
}

TEST(a_name_that_is_no_utf8)
{
        wire_hello(&wire);
        wire_verb(&wire, "show", 2, "model", "\xff\xfe");
        refused("invalid");
}

TEST(a_verb_before_hello)
{
        wire_verb(&wire, "list", 1, NULL, NULL);
        ck_assert(wire_read(&wire));
        ck_assert(!object_get(&wire.reply.unpacked.data, "models"));
}

TEST(a_protocol_version_that_does_not_exist_yet)
{
        struct request hello = {.verb = VERB_hello, .id = 1, .u.hello = {.min = 77, .max = 78}};

        wire_request(&wire, &hello);
        ck_assert(wire_read(&wire));
        ck_assert(!object_get(&wire.reply.unpacked.data, "protocol"));
}

/* ---- frames: the connection ends ---- */

static void ends_without_a_word(struct wire *w)
{
        struct pollfd fd = {.fd = w->fd, .events = POLLIN};

        ck_assert_int_eq(must(poll(&fd, 1, END_MS)), 1);
        wire_ends(w);
}

FIXTURE(.all = {begin_frames, end_frames}, .each = {open_wire, end_test});

TEST(a_frame_over_the_limit)
{
        static const unsigned char header[] = {0, 0x10, 0, 1};

        wire_hello(&wire);
        wire_send(&wire, header, sizeof(header));
        ends_without_a_word(&wire);
}

TEST(a_frame_of_no_bytes)
{
        static const unsigned char header[] = {0, 0, 0, 0};

        wire_hello(&wire);
        wire_send(&wire, header, sizeof(header));
        ends_without_a_word(&wire);
}

TEST(a_frame_of_garbage, .to = 10)
{
        static unsigned char garbage[100000];
        uint64_t z = 88172645463325252u + (uint64_t)_i;

        for (size_t i = 0; i < sizeof(garbage); i++) {
                z ^= z << 13, z ^= z >> 7, z ^= z << 17;
                garbage[i] = (unsigned char)z;
        }
        /* As a frame, and as the stream itself; the daemon may answer or end it. */
        wire_frame(&wire, garbage, sizeof(garbage));
        wire_send(&wire, garbage, sizeof(garbage));
        shutdown(wire.fd, SHUT_WR);
        wire_ends(&wire);
}

TEST(a_message_that_claims_to_be_huge, .to = 4)
{
        /* map32, array32, str32, bin32 of 2^32 - 1 entries, in a frame of five bytes */
        static const unsigned char claims[][5] = {{0xdf, 255, 255, 255, 255},
                                                  {0xdd, 255, 255, 255, 255},
                                                  {0xdb, 255, 255, 255, 255},
                                                  {0xc6, 255, 255, 255, 255}};
        process_peak_memory_reset(test_daemon.pid);
        uint64_t size = process_peak_size(test_daemon.pid), memory = process_peak_memory(test_daemon.pid);

        wire_frame(&wire, claims[_i], 5);
        shutdown(wire.fd, SHUT_WR);
        wire_ends(&wire);
        ck_assert_uint_lt(process_peak_size(test_daemon.pid), size + (16 << 20));
        ck_assert_uint_lt(process_peak_memory(test_daemon.pid), memory + (4 << 20));
}

TEST(a_message_of_great_depth)
{
        static unsigned char deep[100000];

        memset(deep, 0x91, sizeof(deep)); /* arrays of one */
        wire_frame(&wire, deep, sizeof(deep));
        shutdown(wire.fd, SHUT_WR);
        wire_ends(&wire);
}

TEST(an_incomplete_frame)
{
        ends_without_a_word(&incomplete);
}

TEST(a_connection_without_hello)
{
        ends_without_a_word(&silent);
}

TEST(a_frame_received_byte_by_byte_is_served)
{
        struct request ping = {.verb = VERB_ping, .id = 9};
        unsigned char frame[FRAME_HEADER + 256];
        msgpack_sbuffer buf;

        wire_hello(&wire);
        msgpack_sbuffer_init(&buf);
        request_encode(&ping, &buf);
        frame_put_header(frame, buf.size);
        memcpy(frame + FRAME_HEADER, buf.data, buf.size);
        for (size_t i = 0; i < FRAME_HEADER + buf.size; i++)
                wire_send(&wire, frame + i, 1);
        ck_assert(wire_read(&wire));
        msgpack_sbuffer_destroy(&buf);
}

/* ---- greedy clients ---- */

/* Sends requests until the daemon takes no more, reading nothing. */
static size_t send_until_full(const char *verb, const char *key, const char *value)
{
        size_t sent = 0;
        struct writer w;
        unsigned char frame[FRAME_HEADER + 512];

        must(fcntl(wire.fd, F_SETFL, O_NONBLOCK));
        for (; sent < 200000; sent++) {
                writer_init(&w);
                writer_map(&w, key ? 3 : 2);
                writer_kstr(&w, "verb", verb);
                writer_ku64(&w, "id", sent + 2);
                if (key)
                        writer_kstr(&w, key, value);
                frame_put_header(frame, w.buf.size);
                memcpy(frame + FRAME_HEADER, w.buf.data, w.buf.size);
                ssize_t n = send(wire.fd, frame, FRAME_HEADER + w.buf.size, MSG_NOSIGNAL);
                writer_deinit(&w);
                if (n < 0)
                        break;
        }
        return sent;
}

FIXTURE(.all = {begin, end_greed}, .each = {open_wire, NULL});

TEST(a_client_that_never_reads_its_replies)
{
        uint64_t before = fixture_memory();

        wire_hello(&wire);
        ck_assert_uint_lt(send_until_full("status", NULL, NULL), 200000);
        for (int i = 0; i < 3; i++)
                fixture_serves();
        ck_assert_uint_lt(fixture_memory(), before + (16 << 20));
}

#define FLOODS 16
#define FLOOD 10000

static size_t many_requests(unsigned char *frames)
{
        size_t size = 0;

        for (unsigned i = 0; i < FLOOD; i++) {
                struct request request = {.verb = VERB_status, .id = i + 2};
                msgpack_sbuffer buf;
                msgpack_sbuffer_init(&buf);
                request_encode(&request, &buf);
                frame_put_header(frames + size, buf.size);
                memcpy(frames + size + FRAME_HEADER, buf.data, buf.size);
                size += FRAME_HEADER + buf.size;
                msgpack_sbuffer_destroy(&buf);
        }
        return size;
}

/* The daemon is stopped while the sockets are filled, so that it finds all floods at once. The loop's time includes
 * time that a virtual machine's host takes. */
#define FLOOD_STALL_MS (4 * LOOP_TARGET_MS)

TEST(floods_of_requests_do_not_starve_other_clients)
{
        struct loop_time loop_time = {0};
        streamer_client *c = client_open(&test_daemon);
        struct wire floods[FLOODS];
        unsigned char *frames = must_alloc(FLOOD * 64);
        size_t size = many_requests(frames);

        for (int i = 0; i < FLOODS; i++) {
                wire_open(&floods[i], &test_daemon);
                wire_hello(&floods[i]);
        }
        must(kill(test_daemon.pid, SIGSTOP));
        for (int i = 0; i < FLOODS; i++)
                must(send(floods[i].fd, frames, size, MSG_DONTWAIT | MSG_NOSIGNAL));
        must(kill(test_daemon.pid, SIGCONT));
        client_equals(c, "witness", fixture_witness);
        for (int i = 0; i < FLOODS; i++)
                wire_close(&floods[i]);
        loop_time_ask(&loop_time, c);
        loop_time_print(&loop_time, "floods");
        ck_assert_uint_lt(loop_time.longest_ns, FLOOD_STALL_MS * UINT64_C(1000000));
        streamer_close(c);
}

TEST(a_client_that_attaches_and_never_takes_its_descriptors)
{
        unsigned before = process_fds(test_daemon.pid);
        streamer_client *c = client_open(&test_daemon);

        wire_hello(&wire);
        send_until_full("attach", "model", "witness");
        client_equals(c, "witness", fixture_witness);
        ck_assert_uint_lt(process_fds(test_daemon.pid), before + 1000);
        wire_close(&wire);
        open_wire();
        /* Its process lives on and may have mapped the memory, so the leases end with the process. */
        ck_assert_uint_gt(client_leases(c), 0);
        streamer_close(c);
}

TEST(descriptors_sent_to_the_daemon_are_dropped)
{
        unsigned before = process_fds(test_daemon.pid);
        int fds[100];

        wire_hello(&wire);
        for (int i = 0; i < 100; i++)
                fds[i] = must(open("/dev/null", O_RDONLY | O_CLOEXEC));
        /* With half a frame, so that the daemon has read them and waits. */
        ck_assert_int_gt(frame_send_fds(wire.fd, "\0\0", 2, fds, 100), 0);
        fixture_serves();
        ck_assert(process_wait_fds(test_daemon.pid, before + 2)); /* when it has noticed the disconnects */
}
