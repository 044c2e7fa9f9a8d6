/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection of the proxy's, as its own files see it:
 *
 *   proxy.c       its life, what tests ask of it
 *   proxy_conn.c  one connection: a request comes, goes to the server, and bytes come back
 *   proxy_rule.c  which rule a request falls under, and what that does to bytes that pass
 *   proxy_pace.c  when bytes go on to the client: at once, later, held, a few at a time
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
        bool asks; /* the server, and is counted as one that does */
        bool server_open, closing;

        /* Of the answer: what has been read of it and is still to go on, no more than PROXY_AHEAD. */
        struct bytes out;
        size_t sent;           /* of that */
        size_t head;           /* its length; 0: it is not whole yet */
        uint64_t body, length; /* bytes that were passed; that were promised, UINT64_MAX: nothing was */
        uint64_t limit;        /* of the body: the rule's end comes after it; UINT64_MAX: none */
        bool bodiless;         /* what was promised does not come (HEAD) */
        bool ended, writing;
        bool again; /* the next request is read when the server is closed */

        /* When it goes on: */
        bool waits;
        bool metered;
        uint64_t credit; /* bytes that may go before the next tick */
        uint64_t window;
        struct conn *next_held;
};

#define PROXY_AHEAD (256u * 1024)

/* ---- proxy_conn.c ---- */

void bytes_add(struct bytes *b, const char *data, size_t n);
void proxy_conn_accept(struct proxy_loop *own);
void proxy_conn_close(struct conn *c);
void proxy_conn_reset(struct conn *c);
/* Sends what may be sent now, reads on where nothing is left, ends the answer. */
void proxy_conn_pump(struct conn *c);

/* ---- proxy_rule.c ---- */

static inline bool has_byte(const struct proxy_asked *asked, uint64_t byte)
{
        return asked->first <= byte && byte <= asked->last;
}

const char *find_header(const struct bytes *b, const char *name); /* "\r\nName: " */
void rule_choose(struct conn *c);
/* True: it is answered without the server. */
bool rule_answers(struct conn *c);
void rule_for_request(struct conn *c);
void rule_for_head(struct conn *c);
/* The last n bytes that were read, which are of the body: fewer, perhaps, or others. */
void rule_for_body(struct conn *c, size_t n);
void rule_note_held(struct conn *c);

/* ---- proxy_pace.c ---- */

void pace_begin(struct conn *c); /* with the head of the answer */
void pace_end(struct conn *c);
size_t pace_allows(const struct conn *c, size_t n);
void pace_sent(struct conn *c, size_t n);
void pace_release(struct proxy_loop *own); /* those that are held */
void pace_forget(struct conn *c);          /* it is closed */

#endif
