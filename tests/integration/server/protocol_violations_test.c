/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients that violate the protocol: invalid messages, broken and partial frames, unread replies. None affects
 * another client or the daemon.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

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

FIXTURE(.all = {begin, fixture_end}, .each = {open_wire, end_test});

TEST(an_unknown_verb)
{
        wire_hello(&wire);
        wire_verb(&wire, "frobnicate", 2, NULL, NULL);
        ck_assert(wire_read_code(&wire, "unsupported"));
        wire_verb(&wire, "ping", 3, NULL, NULL);
        ck_assert(wire_read(&wire));
}

/* The oldest, and one that does not exist yet. */
static const unsigned versions[] = {1, 77};

TEST(a_protocol_version_that_is_not_supported, EACH(versions))
{
        struct request hello = {
                .verb = VERB_hello, .id = 1, .u.hello = {.min = versions[_i], .max = versions[_i], .client = "old"}};

        wire_request(&wire, &hello);
        ck_assert(wire_read_code(&wire, "protocol"));
        wire_read_to_end(&wire);
}

/* ---- frames: the connection ends ---- */

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
        wire_read_to_end(&wire);
        ck_assert_uint_lt(process_peak_size(test_daemon.pid), size + (16 << 20));
        ck_assert_uint_lt(process_peak_memory(test_daemon.pid), memory + (4 << 20));
}

/* ---- floods ---- */

#define FLOODS 16
#define FLOOD (suite_short() ? 2000u : 10000u) /* requests, all of which are answered */

/* The daemon is stopped while the sockets are filled, so that it finds all floods at once. */
TEST(floods_of_requests_do_not_starve_other_clients)
{
        streamer_client *c = client_open(&test_daemon);
        struct wire floods[FLOODS];
        size_t size;
        const char *frames = wire_frames(&(struct request){.verb = VERB_status, .id = 2}, FLOOD, &size);
        for (int i = 0; i < FLOODS; i++)
                wire_connect(&floods[i], &test_daemon);
        must(kill(test_daemon.pid, SIGSTOP));
        for (int i = 0; i < FLOODS; i++)
                must(send(floods[i].fd, frames, size, MSG_DONTWAIT | MSG_NOSIGNAL));
        must(kill(test_daemon.pid, SIGCONT));
        client_equals(c, "witness", fixture_witness);
        for (int i = 0; i < FLOODS; i++)
                wire_close(&floods[i]);
        streamer_close(c);
}
