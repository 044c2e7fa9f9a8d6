/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection: frames in, frames out, nothing of their meaning. Belongs to the loop thread.
 *
 *   open --(the client closes, breaks the framing, stalls; conn_close)--> closing --> closed
 *
 * Nothing here blocks and nothing grows without bound: a client that does not read its replies
 * first stops being read (conn.paused), and its events are not sent. One that sends more than its part of a
 * turn of the loop goes on in the next, and so do those that close beyond what a turn has for all (conn.c).
 * Input is taken by plain recv(), so that descriptors somebody sends are dropped by the kernel.
 */
#ifndef DAEMON_SERVE_CONN_H
#define DAEMON_SERVE_CONN_H

#include "daemon/base/list.h"
#include "daemon/load/resolve.h"
#include "proto/codec.h"
#include "proto/frame.h"

#include <uv.h>

struct conn_limits {
        uint64_t output; /* bytes of unsent replies at which reading pauses */
        uint64_t frame_timeout_ns;
};

struct conn;

struct conn_ops {
        /* Whose it is has come with its first bytes (conn_await_caller); before any frame of it. */
        void (*introduced)(struct conn *conn);
        /* A whole frame. */
        void (*frame)(struct conn *conn, const void *data, size_t len);
        /* Unsent output went below half of its limit. */
        void (*drained)(struct conn *conn);
        /* Nothing more will be called; the conn goes when this returns. */
        void (*closed)(struct conn *conn);
};

struct conn {
        struct list link; /* the server's */
        const struct conn_ops *ops;
        const struct conn_limits *limits;
        struct conn_turn *turn;
        void *context;
        uv_poll_t poll;
        int fd, events;
        struct list later; /* in turn->later */
        int due;           /* events that it is served for then */
        struct frame_reader in;
        uint64_t waiting_since; /* a frame (or the first one) is incomplete since; 0: none */
        struct list out;        /* of struct out_frame */
        uint64_t out_bytes;
        unsigned fds_sent; /* descriptors the client may not have received yet */
        bool paused, held, closing, broken, in_frame;
        bool more;              /* frames are left in `in` */
        bool parting;           /* conn_part() */
        bool unknown;           /* whose it is has yet to come, with its first bytes */
        pid_t pid;              /* 0: in another PID namespace */
        uint64_t since_boot_ns; /* it was there */
        struct caller caller;
};

/* What the connections of a loop share: one turn of it, and who waits for the next. */
struct conn_turn {
        uv_prepare_t prepare;
        uv_idle_t idle;    /* runs while somebody waits: the loop does not sleep then */
        struct list later; /* of struct conn, who came first is served first */
        uint64_t until_ns; /* they are served until then; 0: none has been yet */
        bool parting;      /* conn_turn_part() */
};
/* Closed with the loop's other handles. */
void conn_turn_start(struct conn_turn *turn, uv_loop_t *loop);
/* The end of all of them: from now on none is read, nor sent anything, until conn_part() takes leave of it. What was
 * queued before goes out. */
void conn_turn_part(struct conn_turn *turn);

/* Nothing is known of whose it is: its first bytes will tell, or it stays nobody's. For kernels that do not say it. */
void conn_await_caller(struct conn *conn);

/* Takes over fd. NULL on failure (fd is closed). */
struct conn *conn_new_consume_fd(uv_loop_t *loop, int fd, const struct conn_ops *ops, const struct conn_limits *limits,
                                 struct conn_turn *turn);

/* A writer for a frame of this connection: with room for the frame's header. */
void conn_writer(struct writer *writer);

/* Sends what the writer (of conn_writer) holds as one frame and deinits the writer; descriptors are borrowed (they
 * are duplicated where the frame must wait). A failure closes the connection. */
void conn_send(struct conn *conn, struct writer *writer, const int *fds, size_t n_fds);

/* Is there room for events? */
bool conn_writable(const struct conn *conn);

/* After conn_turn_part(): what it is sent now goes out. conn_close() is to follow. */
void conn_part(struct conn *conn);

/* Takes no more requests while set (the session has too many unanswered). */
void conn_hold(struct conn *conn, bool hold);

/* Closes at once; after what is queued has gone out where `flush`. */
void conn_close(struct conn *conn, bool flush);

/* About once a second: ends a client that began a frame and waits. */
void conn_tick(struct conn *conn, uint64_t now);

/* Descriptors in flight, after asking the kernel whether the client has read everything. */
unsigned conn_fds_in_flight(struct conn *conn);

#endif
