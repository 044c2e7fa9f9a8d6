/* SPDX-License-Identifier: Apache-2.0
 *
 * A small HTTP server on loopback, for services that no package provides. A function of the test answers each
 * request, in its own thread. One request per connection, no TLS.
 */
#pragma once

#include "tests/lib/base.h"

struct MHD_Connection;

struct endpoint_request {
        const char *method, *path; /* as received, with its query */
        const char *body;
        struct MHD_Connection *connection; /* its headers */
};

/* Zeroed: status 200 without a body. */
struct endpoint_reply {
        int status;
        char *headers; /* "Name: value\r\n" each */
        char *body;    /* freed */
        size_t size;   /* 0: strlen(body) */
        bool hang;     /* sends nothing */
};

struct endpoint {
        void (*answer)(struct endpoint *endpoint, const struct endpoint_request *request, struct endpoint_reply *reply);
        _Atomic unsigned requests; /* requests received */
        char url[64];              /* "http://127.0.0.1:PORT" */
};

/* Set `answer` before. It ends with the test's process; its threads use `endpoint` until then. */
void endpoint_start(struct endpoint *endpoint);

/* A header's value, or NULL; never freed. */
char *endpoint_header(const struct endpoint_request *request, const char *name);

/* Answers 200, or 206 for a Range, with `size` bytes. */
void endpoint_range(const struct endpoint_request *request, struct endpoint_reply *reply, const void *data,
                    size_t size);
/* Forwards the request to the server at this loopback port, and returns its answer. */
void endpoint_forward(const struct endpoint_request *request, struct endpoint_reply *reply, unsigned port);
