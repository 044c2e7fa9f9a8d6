/* SPDX-License-Identifier: Apache-2.0
 *
 * A small HTTP server on loopback, for services that no package brings: a function of the test answers
 * each request, in a thread of the request's own. One request a connection, no TLS.
 */
#ifndef TESTS_LIB_ENDPOINT_H
#define TESTS_LIB_ENDPOINT_H

#include "tests/lib/base.h"

struct endpoint_request {
        const char *method, *path; /* with its query */
        const char *headers;       /* as they came */
        const char *body;
        const char *host; /* "127.0.0.1:PORT" */
};

/* Zeroed: 200 and no body. */
struct endpoint_reply {
        int status;
        char *headers; /* "Name: value\r\n" each; freed */
        char *body;    /* freed */
        size_t size;   /* 0: of the text that body is */
        bool hang;     /* nothing, until the endpoint is stopped */
        bool close;    /* nothing, and the connection is closed */
};

struct endpoint {
        void (*answer)(struct endpoint *endpoint, const struct endpoint_request *request, struct endpoint_reply *reply);
        void *context;
        _Atomic unsigned requests; /* that were answered or are */
        char url[64];              /* "http://127.0.0.1:PORT" */
        int fd, stop[2];
};

/* `answer` and `context` are set. Never stopped: it ends with the test's process, until when its threads use
 * `endpoint`. */
void endpoint_start(struct endpoint *endpoint);

/* A header's value, NULL if there is none; never freed. */
char *endpoint_header(const struct endpoint_request *request, const char *name);

/* 200 or 206 of `size` bytes, as Range asks. */
void endpoint_range(const struct endpoint_request *request, struct endpoint_reply *reply, const void *data,
                    size_t size);
/* Asks the server at this port of loopback the same, and answers as it does. */
void endpoint_forward(const struct endpoint_request *request, struct endpoint_reply *reply, unsigned port);

#endif
