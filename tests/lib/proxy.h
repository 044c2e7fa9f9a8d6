/* SPDX-License-Identifier: Apache-2.0
 *
 * A faulty HTTP proxy between a daemon and a real server.
 *
 *   proxy_start(&p, port_of_the_server);
 *   proxy_rule(&p, &(struct proxy_rule){.fault = PROXY_RESET, .nth = 3, .bytes = 1000});
 *   ... load proxy_url(&p, "/model.safetensors"): the first request of the third block is reset ...
 *   proxy_stop(&p);
 *
 * Threads of the calling process. Requests are classified as openings (a range from byte 0), checks (one byte, or HEAD)
 * and blocks (all others).
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum proxy_fault {
        PROXY_NONE,
        PROXY_RESET,  /* the connection is reset after `bytes` of the body */
        PROXY_SHORT,  /* the connection is closed after `bytes` of the body; the header `text`, if given, is removed */
        PROXY_STALL,  /* sends nothing after `bytes` of the body */
        PROXY_STATUS, /* `status`, with `text` as the body and `header` ("Retry-After: 1") */
        PROXY_WRONG_RANGE, /* a Content-Range of other bytes */
        PROXY_CORRUPT,     /* the byte at `bytes` of the body is changed */
        PROXY_DRIP,        /* `bytes` every 10 ms */
        PROXY_REPLACED,    /* another ETag */
        PROXY_LATENCY,     /* delays the answer by `ms` */
        PROXY_NO_RANGE,    /* Range is not passed on */
        PROXY_REDIRECT,    /* 302 to `text` */
        PROXY_DROP,        /* removes the answer's header `text` */
        PROXY_HOLD,        /* holds the answer until proxy_release(); `status` then replaces it, if given */
        PROXY_WINDOW, /* as TCP slow start: `bytes` after `ms`, doubled each time, over all answers of a connection */
};

enum proxy_what { PROXY_BLOCKS, PROXY_OPENINGS, PROXY_CHECKS, PROXY_ALL };

struct proxy_rule {
        enum proxy_fault fault;
        enum proxy_what what;
        unsigned nth;   /* number of the first matching request, from 1; 0: all */
        unsigned count; /* number of requests from nth on; 0: one */
        unsigned every; /* with nth 0: every n-th request; 0: each */
        uint64_t bytes;
        unsigned ms;
        int status;
        const char *text, *header; /* not copied */
        uint64_t byte;             /* not 0: only requests for blocks with this byte, counted separately */
        unsigned matched;          /* private */
};

#define PROXY_RULES 16
#define PROXY_HELD 64
#define PROXY_ASKED 256

struct proxy {
        unsigned port;
        _Atomic unsigned faults;              /* faults applied */
        _Atomic unsigned accepted, most_open; /* connections: ever, and at a time */
        _Atomic unsigned seen[PROXY_ALL + 1]; /* requests, by class */

        /* private, under the mutex */
        unsigned upstream;
        pthread_t thread;
        int listener;
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        struct conn *conns;
        unsigned open; /* of them */
        struct proxy_rule rules[PROXY_RULES];
        unsigned n_rules;
        unsigned asking[PROXY_ALL]; /* requests in progress, by class */
        unsigned most_asking[PROXY_ALL];
        struct proxy_asked {
                uint64_t first, last;
                uint64_t path;      /* hash */
                uint64_t until;     /* the rule passes the bytes before this one on */
                bool again;         /* see proxy_asked_again() */
        } asked[PROXY_ASKED];       /* of requests for blocks, `seen` of them */
        char held[PROXY_HELD][160]; /* the held requests */
        unsigned n_held;
        unsigned releases;            /* calls of proxy_release() */
        char last_authorization[512]; /* "" if the last request had none */
};

void proxy_start(struct proxy *p, unsigned upstream);
void proxy_stop(struct proxy *p);
void proxy_rule(struct proxy *p, const struct proxy_rule *rule);
void proxy_clear(struct proxy *p); /* rules and counts */
/* The number of requests for blocks that have this byte, without those of proxy_asked_again(). */
unsigned proxy_asked_for(struct proxy *p, uint64_t byte);
/* The number of requests for blocks that have this byte (0: any) and bytes that an earlier request asked for and the
 * rules pass on. A daemon sends them when an answer is late, so their number depends on the speed of all processes. */
unsigned proxy_asked_again(struct proxy *p, uint64_t byte);
/* The maximum of concurrent requests of this class at the server since the last call, without those of
 * proxy_asked_again(). */
unsigned proxy_most_asking(struct proxy *p, enum proxy_what what);
/* The held requests, sorted, one line for each kind: "GET /path first" (an opening), "check", "range" (a
 * block), "GET /path?list" (with a query); "x3" follows a line that stands for three. Without those of
 * proxy_asked_again(). Never freed. */
char *proxy_held(struct proxy *p);
/* The requests that were received before, also those whose answers the server has not begun. */
void proxy_release(struct proxy *p);
/* Resets all connections, also those with an answer in progress; accepts new ones. */
void proxy_cut(struct proxy *p);
/* Never freed. */
const char *proxy_url(const struct proxy *p, const char *path);
