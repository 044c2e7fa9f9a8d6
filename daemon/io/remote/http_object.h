/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects that are read over HTTP(S), of whatever store: size and version come from the first answer,
 * which also brings the first bytes, so that size, version and header of an ordinary file cost one
 * round for all files of a model.
 *
 * The version is the size and the ETag; where a server sends none, the size and Last-Modified, which
 * notices a replacement only where the time differs by a second. A strong ETag goes with each request
 * (If-Match), and every answer is compared with it.
 */
#ifndef DAEMON_IO_REMOTE_HTTP_OBJECT_H
#define DAEMON_IO_REMOTE_HTTP_OBJECT_H

#include "daemon/io/http/http.h"
#include "daemon/io/object.h"

extern const struct object_ops object_http_ops;

/* What to open; borrowed. */
struct object_url {
        const char *url;            /* percent-encoded */
        const char *shown;          /* object.path: for messages */
        const char *etag;           /* it must have (from a listing), or NULL */
        struct http_access *access; /* referenced, or NULL */
        uint64_t header;            /* bytes that it begins with and that will do, roughly; 0: not known */
        bool text;                  /* not safetensors: read whole, by object_http_text() */
        bool atomic;                /* replaced at once or not at all: an ETag denotes all of its bytes */
        bool optional;              /* it need not be there: object.ops is NULL then */
};

/* Asks for n at once. STREAMER_ENOENT (404, 410), STREAMER_EPERM (401, 403), STREAMER_EFAILED. On failure
 * none is left open. */
int object_http_open(struct http *http, const struct object_url *urls, size_t n, struct object *objects,
                     struct error *error);

/* The same in two steps, for who asks for something else in the same round: the fetch is one of those that
 * are made between them. After a failure of either the object is deinited by the caller. */
int object_http_prepare(struct http *http, const struct object_url *url, struct object *object,
                        struct http_fetch *fetch, struct error *error);
int object_http_finish(struct object *object, const struct http_fetch *fetch, struct error *error);

bool object_http_has_etag(const struct object *object, const char *etag);

/* All of a small object, NUL-terminated. STREAMER_EFAILED where it is larger than max. What came of it when
 * it was opened is not asked for again; it is given up. */
struct text;
int object_http_text(struct object *object, uint64_t max, struct text *text, struct error *error);

#endif
