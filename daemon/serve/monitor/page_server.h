/* SPDX-License-Identifier: Apache-2.0
 *
 * A small HTTP server: one request for each connection, GET and HEAD, with TLS where the listener has a guard with it.
 *
 *   accepted > handshake > reading > asking > writing > draining > closed
 *
 * All of it but the answers is the work of one thread, which waits in poll() for all connections: handshakes, whose
 * cryptography takes longer than a turn of the loop may, the guard's files, clients that send nothing or read nothing.
 * The loop makes the answers, so that one says that the loop turns; nothing of a connection reaches it before its
 * request is complete and permitted.
 *
 * A connection lasts some seconds at most. Of those of a listener, the oldest one gives way to a new one, except while
 * the loop makes its answer; if it makes those of all, new ones wait. So a client that holds connections open keeps
 * nobody from the pages. Listeners have connections of their own.
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/base/thread/wake.h"
#include "daemon/serve/monitor/page_guard.h"
#include "daemon/serve/monitor/page_request.h"

#include <stdint.h>

struct page_answer {
        unsigned status;
        const char *type; /* NULL: plain text */
        const char *text; /* of a constant, or `owned` */
        char *owned;      /* malloc'd; NULL: none */
};

struct page_server;

struct page_server_opts {
        struct wake *wake;
        /* Called on the loop's thread. */
        void (*answer)(void *context, const struct page_request *request, struct page_answer *answer);
        void *context;
};

struct page_listener_opts {
        const char *setting;      /* for errors: "metrics" */
        const char *address;      /* listen_parse() */
        struct page_guard *guard; /* which the listener owns, also if it fails; NULL: none */
        bool health_only;         /* page_request_is_health() alone */
};

int page_server_new(struct page_server **server, const struct page_server_opts *opts, struct error *error);
#define PAGE_LISTENERS_MAX 2
int page_server_listen(struct page_server *server, const struct page_listener_opts *opts, struct error *error);
int page_server_start(struct page_server *server, struct error *error);
/* When the loop has ended: closes the listeners and their socket files. False: the thread hangs in a file of a guard,
 * and the server is not to be freed. Accepts NULL. */
bool page_server_stop(struct page_server *server, uint64_t deadline_ns);
/* After it has stopped, and no posted callback will run. Accepts NULL. */
struct page_server *page_server_free(struct page_server *server);
