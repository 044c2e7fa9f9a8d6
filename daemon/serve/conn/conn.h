/* SPDX-License-Identifier: Apache-2.0
 *
 * A client's connection: receives and sends frames, whose contents it does not interpret. Belongs to the loop thread.
 *
 *         conn_close(flush)
 *   open --------------------> draining ----> ended
 *      \                                      /
 *       +--- client closes ---> peer closed -+
 *
 * A failure, or conn_close() without `flush`, ends the connection in any state.
 *
 *   open         reads requests, sends replies and events
 *   peer closed  reads what the client sent before it closed, such as the detach of a lease; sends nothing
 *   draining     reads nothing; sends what is queued, then ends
 *   ended        reads and sends nothing; is freed on a later turn of the loop
 *
 * While it is open it is read unless something blocks it (enum conn_block). It is either polled, or it is in its user's
 * queue and waits for a turn (turns.h), with the events that it is served for then.
 *
 * Replies to requests that were received together are sent together: a client that has sent several, such as hello and
 * attach, wakes once.
 *
 * No call blocks, and memory is bounded: a client that does not read its replies is not read either, and receives no
 * events; the largest frame is short until the session accepts long ones. conn_block() and conn_close() only mark:
 * requests are passed on, and the connection ends, in a later turn of the loop. Input is received by plain recv(), so
 * the kernel drops descriptors that clients send.
 */
#pragma once

#include "daemon/base/list.h"
#include "daemon/base/quota.h"
#include "daemon/base/thread/poll_set.h"
#include "daemon/serve/conn/turns.h"
#include "daemon/source/roots/caller.h"
#include "proto/codec.h"
#include "proto/frame.h"

struct conn_limits {
        uint64_t output;           /* 4 MiB of unsent replies, at which reading pauses */
        uint64_t frame_timeout_ns; /* 10 s: half a frame for longer ends the connection */
};

/* In this order: requests are read in the first two; from draining on, it closes. */
enum conn_state {
        CONN_OPEN,
        CONN_PEER_CLOSED,
        CONN_DRAINING,
        CONN_ENDED,
};

/* Why requests are not read just now. */
enum conn_block {
        CONN_BLOCK_OUTPUT = 1,   /* unsent replies are at their limit */
        CONN_BLOCK_REQUESTS = 2, /* the session has too many unanswered ones */
};

/* Bytes of the longest frame before conn_accept_long_frames(). */
#define CONN_SHORT_FRAME (FRAME_FIRST_CAP - FRAME_HEADER)

struct conn;

struct conn_ops {
        /* A complete frame; the caller is known from the first one on. */
        void (*frame)(struct conn *conn, const void *data, size_t len);
        /* All that was unsent has been sent. */
        void (*drained)(struct conn *conn);
        /* The last call; the conn is freed afterwards. */
        void (*closed)(struct conn *conn);
};

#define CONN_MAGIC 0x636f6e6eu

struct conn {
        unsigned magic;   /* CONN_MAGIC */
        struct list link; /* the server's */
        const struct conn_ops *ops;
        const struct conn_limits *limits;
        struct turns *turns;
        void *context;
        enum conn_state state;
        unsigned blocked; /* of enum conn_block */
        struct poll_set *polls;
        struct polled poll; /* events 0: it is not polled */
        int fd;
        struct turn turn;     /* its place in its user's queue */
        struct list in_timed; /* in turns->timed, while something of it has a time limit, or is unsent */
        uint32_t due;         /* events that it is served for then */
        struct frame_reader in;
        uint64_t waiting_since; /* a frame (or the first one) is incomplete since; 0: none */
        struct list out;        /* of struct out_frame */
        bool corked;            /* more requests have been received, whose replies are sent together with the next */
        bool held;              /* what is unsent was never tried: it was corked */
        /* Bytes of these, and of a long frame that is incomplete: charged to the client's user by the owner, who sets
         * the user's shares. */
        struct quota_charge output, input;
        uint64_t output_share; /* beyond it a connection has one frame unsent */
        uint64_t input_share;  /* beyond it a connection ends */
        uint64_t sent;         /* bytes, ever */
        /* Descriptors that the client may not have received yet: older and newer ones, and the value of `sent` after
         * the last of them. */
        struct conn_fds {
                unsigned n;
                uint64_t end;
        } older_fds, newer_fds;
        bool caller_unknown;    /* no user and no role: the kernel identifies the client with its first bytes */
        pid_t pid;              /* 0: in another PID namespace */
        uint64_t since_boot_ns; /* when it was accepted */
        struct caller caller;
};

/* Takes over fd, which is non-blocking. NULL on failure (fd is closed). */
struct conn *conn_new_consume_fd(struct poll_set *polls, int fd, const struct conn_ops *ops,
                                 const struct conn_limits *limits, struct turns *turns);
/* Its owner is ready for its calls: serves what has been sent already, and polls from then on. May free it. */
void conn_begin(struct conn *conn);
/* Its client is a user that may send requests: from now on frames have up to FRAME_MAX bytes. */
void conn_accept_long_frames(struct conn *conn);

/* Descriptors of a frame, borrowed: they are duplicated where the frame must wait. */
struct fds {
        int v[FRAME_FDS_MAX];
        size_t n;
};

/* Sends a map as one frame, with descriptors (NULL: none), which the pairs may add to. A failure closes the connection.
 */
void conn_send(struct conn *conn, const struct fds *fds, const struct pair *pairs, size_t n);

/* Does the user have more unsent bytes than its share? */
bool conn_output_full(const struct conn *conn);
/* Is nothing unsent? Only then does a client that has requested nothing receive a frame. */
bool conn_idle(const struct conn *conn);
/* Do its unsent bytes leave capacity for events that are to precede a reply? */
bool conn_writable(const struct conn *conn);

/* Reads no requests while anything blocks it. Afterwards reading resumes in a later turn. */
void conn_block(struct conn *conn, enum conn_block why, bool block);

/* Its turn (turns_start). */
void conn_serve(struct turn *turn, uint64_t until_ns);

/* Ends the connection: at once, or with `flush` when what is queued was sent. */
void conn_close(struct conn *conn, bool flush);

/* About once a second: ends clients that began a frame and wait, and sends what the kernel refused. False: nothing has
 * a time limit. */
bool conns_tick(struct turns *turns, uint64_t now);

/* Descriptors that the client may not have received yet. Asks the kernel how much the client has not read; the result
 * may include some that the client has just received. */
unsigned conn_fds_in_flight(struct conn *conn);
