/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection of the proxy; private to the proxy's files:
 *
 *   proxy.c       start, stop, and the requests of tests
 *   proxy_conn.c  one connection: reads a request, forwards it, and returns the answer
 *   proxy_rule.c  which rule applies to a request, and how it changes the bytes
 *   proxy_pace.c  when bytes are forwarded: at once, delayed, held, or a few at a time
 */
#ifndef TESTS_LIB_PROXY_CONN_H
#define TESTS_LIB_PROXY_CONN_H

#include "tests/lib/proxy.h"

#include <uv.h>

struct proxy_loop {
        uv_loop_t loop;
        uv_tcp_t listener;
        uv_async_t stop, release, cut;
        struct conn *held; /* newest first */
        struct proxy *proxy;
};

struct bytes {
        char *data; /* NUL-terminated */
        size_t n, cap;
};

struct conn {
        struct proxy *proxy;
        uv_tcp_t client, server;
        uv_timer_t timer;
        uv_connect_t connecting;
        uv_write_t asking, answering;
        struct bytes request;
        struct proxy_rule rule;
        enum proxy_what what;
        unsigned handles;
        bool asks;    /* a request to the server is in progress and counted */
        bool repeats; /* as of proxy_asked_again() */
        bool server_open, closing;

        /* Bytes of the answer that have been read and not forwarded, at most PROXY_AHEAD. */
        struct bytes out;
        size_t sent;           /* of that */
        size_t head;           /* length of the answer's head; 0: incomplete */
        uint64_t body, length; /* bytes forwarded; Content-Length, UINT64_MAX: none */
        uint64_t limit;        /* body bytes before the rule's cut; UINT64_MAX: none */
        bool bodiless;         /* no body follows (HEAD) */
        bool ended, writing;
        bool again; /* reads the next request when the server's connection is closed */

        /* Pace: */
        bool waits;
        unsigned releases; /* of the proxy, when the request was received */
        bool metered;
        uint64_t credit; /* bytes that may be sent before the next tick */
        uint64_t window;
        struct conn *next_held;
};

#define PROXY_AHEAD (256u * 1024)

/* ---- proxy_conn.c ---- */

void bytes_add(struct bytes *b, const char *data, size_t n);
void proxy_conn_accept(struct proxy_loop *own);
void proxy_conn_close(struct conn *c);
void proxy_conn_reset(struct conn *c);
/* Sends what may be sent now, reads more when the buffer is empty, and ends the answer. */
void proxy_conn_pump(struct conn *c);

/* ---- proxy_rule.c ---- */

static inline bool has_byte(const struct proxy_asked *asked, uint64_t byte)
{
        return asked->first <= byte && byte <= asked->last;
}

const char *find_header(const struct bytes *b, const char *name); /* "\r\nName: " */
void rule_choose(struct conn *c);
/* True: the rule answers it without the server. */
bool rule_answers(struct conn *c);
/* Replaces the answer by the rule's status. */
void rule_answer_status(struct conn *c);
void rule_for_request(struct conn *c);
void rule_for_head(struct conn *c);
/* Changes the last n bytes read, which belong to the body; may remove or replace some. */
void rule_for_body(struct conn *c, size_t n);
void rule_log_held(struct conn *c);

/* ---- proxy_pace.c ---- */

void pace_begin(struct conn *c); /* at the head of the answer */
void pace_end(struct conn *c);
size_t pace_allows(const struct conn *c, size_t n);
void pace_sent(struct conn *c, size_t n);
void pace_release(struct proxy_loop *own); /* releases held answers */
void pace_forget(struct conn *c);          /* the connection is closed */

#endif
