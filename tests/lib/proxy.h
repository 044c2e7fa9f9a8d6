/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP proxy that misbehaves on command, between a daemon and a real server.
 *
 *   proxy_start(&p, port_of_the_server);
 *   proxy_rule(&p, &(struct proxy_rule){.fault = PROXY_RESET, .nth = 3, .bytes = 1000});
 *   ... load proxy_url(&p, "/model.safetensors"): the third block's first request is cut off ...
 *   proxy_stop(&p);
 *
 * A thread of the calling process with a loop of its own. Requests are told apart by what they ask for:
 * openings (a range from byte 0 on), checks (one byte, or HEAD), blocks (all others).
 */
#ifndef TESTS_LIB_PROXY_H
#define TESTS_LIB_PROXY_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum proxy_fault {
        PROXY_NONE,
        PROXY_RESET,       /* the connection is reset after `bytes` of the body */
        PROXY_SHORT,       /* it ends properly, after `bytes` of the body; without the header `text`, if given */
        PROXY_STALL,       /* nothing comes after `bytes` of the body */
        PROXY_STATUS,      /* `status`, with `text` as the body and `header` ("Retry-After: 1") */
        PROXY_WRONG_RANGE, /* a Content-Range of other bytes */
        PROXY_CORRUPT,     /* the byte at `bytes` of the body is another */
        PROXY_DRIP,        /* `bytes` every 10 ms */
        PROXY_REPLACED,    /* another ETag */
        PROXY_LATENCY,     /* `ms` before the answer */
        PROXY_NO_RANGE,    /* Range is not passed on */
        PROXY_REDIRECT,    /* 302 to `text` */
        PROXY_DROP,        /* the answer's header `text` is left out */
        PROXY_HOLD,        /* nothing comes until proxy_release() */
        PROXY_WINDOW,      /* as TCP begins: `bytes` after `ms`, and twice as much each time, in all of a connection's
                              answers */
};

enum proxy_what { PROXY_BLOCKS, PROXY_OPENINGS, PROXY_CHECKS, PROXY_ALL };

struct proxy_rule {
        enum proxy_fault fault;
        enum proxy_what what;
        unsigned nth;   /* of these requests, from 1; 0: every one */
        unsigned count; /* as many from nth on; 0: one */
        unsigned every; /* with nth 0: each so manieth; 0: each */
        uint64_t bytes;
        unsigned ms;
        int status;
        const char *text, *header; /* not copied */
        uint64_t byte;             /* not 0: only of requests for blocks with this byte, which are counted apart */
        unsigned matched;          /* private */
};

#define PROXY_RULES 16
#define PROXY_HELD 64
#define PROXY_ASKED 256

struct proxy {
        unsigned port, upstream;
        pthread_t thread;
        pthread_mutex_t mutex;
        struct proxy_rule rules[PROXY_RULES];
        unsigned n_rules;
        unsigned seen[PROXY_ALL + 1]; /* requests, by what */
        unsigned faults;              /* that were made */
        unsigned open, most_open;     /* connections */
        unsigned accepted;            /* ever */
        unsigned asking[PROXY_ALL];   /* requests that the server is asked, or whose answers go on, by what */
        unsigned most_asking[PROXY_ALL];
        struct proxy_asked {
                uint64_t first, last;
        } asked[PROXY_ASKED];       /* by requests for blocks, as many as proxy_seen() says */
        char held[PROXY_HELD][160]; /* what was asked by those that are held */
        unsigned n_held;
        char last_authorization[512]; /* "" where the last request had none */
        struct proxy_loop *loop;
};

void proxy_start(struct proxy *p, unsigned upstream);
void proxy_stop(struct proxy *p);
void proxy_rule(struct proxy *p, const struct proxy_rule *rule);
void proxy_clear(struct proxy *p); /* rules and counts */
/* Requests for blocks that have this byte. */
unsigned proxy_asked_for(struct proxy *p, uint64_t byte);
unsigned proxy_seen(struct proxy *p, enum proxy_what what);
unsigned proxy_faults(struct proxy *p);
unsigned proxy_accepted(struct proxy *p);
/* The most of these requests that went on to the server side by side, since this was asked last. */
unsigned proxy_most_asking(struct proxy *p, enum proxy_what what);
/* Requests that are held, sorted, a line for each kind: "GET /path first" (an opening), "check", "range" (a
 * block), "GET /path?list" (with a query); "x3" behind those that are three. Never freed. */
char *proxy_held(struct proxy *p);
void proxy_release(struct proxy *p);
/* Resets all connections, those of which an answer is under way, too; new ones are welcome. */
void proxy_cut(struct proxy *p);
/* Never freed. */
const char *proxy_url(const struct proxy *p, const char *path);

#endif
