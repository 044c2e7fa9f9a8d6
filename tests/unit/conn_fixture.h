/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the connection tests: the test drives the client's end of a socket pair, and passes the time to
 * conns_tick.
 */
#pragma once

#include "tests/lib/core.h"

#include "daemon/serve/conn/conn.h"
#include "tests/lib/kernel_counters.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#define OUTPUT_LIMIT (256 * KiB)

static const struct conn_limits limits = {.output = OUTPUT_LIMIT, .frame_timeout_ns = 10 * SECOND};

static struct turns turns;
static struct conn *conn;
static int client; /* -1: closed */
static unsigned frames, drains;
static char bodies[4096]; /* of the frames, one after another, each with a "|" */
static bool closed;
static void (*on_frame)(void); /* called for each frame */

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
        quota_discharge(&c->input);
        closed = true;
}

static const struct conn_ops ops = {.frame = frame, .drained = drained, .closed = on_closed};

static void begin(void)
{
        int ends[2];
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends));
        client = ends[0];
        turns_start(&turns, &core_loop, conn_serve);
        conn = conn_new_consume_fd(core_polls, ends[1], &ops, &limits, &turns);
        ck_assert_ptr_nonnull(conn);
        conn_accept_long_frames(conn);
        conn_begin(conn);
}

static void end(void)
{
        if (!closed)
                conn_close(conn, false);
        core_until(closed);
        uv_close((uv_handle_t *)&turns.polled, NULL);
        uv_close((uv_handle_t *)&turns.task.idle, NULL);
}

/* ---- the client ---- */

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

static void send_frame(const char *body)
{
        unsigned char data[64];
        send_bytes(data, put_frame(data, body));
}

/* Reads the bytes that are available; false at the end of the stream. */
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
