/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of a network thread: how long it waits.
 */
#include "daemon/io/http/transfer.h"

#include "tests/lib/ports.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/socket.h>

#define LONG_MS 20000u
#define SOON UINT64_C(15000000000)

static struct http_loop loop;

static void begin(void)
{
        struct error error = {0};
        ck_assert_int_eq(http_loop_init(&loop, &error), 0);
}

static void end(void)
{
        http_loop_deinit(&loop);
}

FIXTURE(.all = {begin, end});

/* Each iteration polls the sockets twice: it must not sleep after the first poll has consumed the wake. */
TEST(a_wake_before_the_wait_ends_it)
{
        uint64_t began = clock_ns();
        http_loop_wake(&loop);
        http_loop_run(&loop, LONG_MS);
        ck_assert_uint_lt(clock_ns() - began, SOON);
}

TEST(without_a_wake_the_loop_waits_for_its_timeout)
{
        uint64_t began = clock_ns();
        http_loop_wake(&loop);
        http_loop_run(&loop, 50);
        http_loop_run(&loop, 50);
        ck_assert_uint_ge(clock_ns() - began, UINT64_C(49000000));
}

/* ---- a transfer ---- */

static void on_done(struct http_transfer *t, enum http_outcome outcome)
{
        ck_assert_int_eq(outcome, HTTP_OK);
        t->received = 1;
}

static enum http_sink no_bytes(struct http_transfer *t, const unsigned char *data, size_t n)
{
        return HTTP_MORE;
}

/* Runs the loop until a request has arrived; the connection that it came on. */
static int take_request(int listener)
{
        char request[4096] = "";
        int fd;
        while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) < 0)
                http_loop_run(&loop, 10);
        for (size_t n = 0; strstr(request, "\r\n\r\n") == NULL;) {
                ssize_t more = read(fd, request + n, sizeof(request) - 1 - n);
                n += more > 0 ? (size_t)more : 0;
                if (more < 0)
                        http_loop_run(&loop, 10);
        }
        return fd;
}

/* Its answer is here when the loop polls for the first time. */
TEST(the_end_of_a_transfer_ends_the_wait)
{
        static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        const struct http_opts opts = {.connect_timeout_ns = 60000000000, .stall_ns = 60000000000, .tries = 1};
        struct error error;
        unsigned port;
        struct http_transfer t = {.buffer_size = 65536, .bytes = no_bytes, .done = on_done};
        int listener = listen_on_loopback(1, &port);
        must(fcntl(listener, F_SETFL, O_NONBLOCK));
        ck_assert_int_eq(http_new(&t.http, &opts, &error), 0);
        t.request = (struct http_request){.url = format_text("http://127.0.0.1:%u/", port), .shown = "x"};
        http_loop_add(&loop, &t, NULL);
        int fd = take_request(listener);
        must((int)write(fd, answer, sizeof(answer) - 1));
        uint64_t began = clock_ns();
        http_loop_run(&loop, LONG_MS);
        ck_assert_uint_lt(clock_ns() - began, SOON);
        ck_assert_uint_eq(t.received, 1);
}
