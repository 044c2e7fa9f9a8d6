/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects that are read over HTTP(S), of any store, and the engine that reads them (http_engine.c).
 *
 * The version is the size and the ETag; if a server sends none, the size and the time of the last change. Every answer
 * is compared with it, and a strong ETag is sent with each request (If-Match). An answer must have the same ETag, of
 * the same strength, and no other time, but in a store whose ETags denote all bytes; it may leave the time out. An
 * answer that contradicts itself is of no version.
 *
 * A version can be trusted if it has a strong ETag, or a time that was over when the answer was made (RFC
 * 9110, 8.8.2.2: within its second an object may change again). An object without such a version is identical with
 * none, not even with itself when it is opened again.
 */
#pragma once

#include "daemon/io/http/http.h"
#include "daemon/io/object.h"

extern const struct object_ops object_http_ops;
extern const struct engine_ops http_engine_ops;

/* What a store says of its objects in the headers of its answers, and how it is asked for one version. */
struct http_dialect {
        const char *version;   /* the header that has it, "ETag" */
        const char *parameter; /* of the query of a request for one version; NULL: If-Match is sent */
        const char *word;      /* the version in messages */
        const char *encoding;  /* the header that says how the bytes are stored: what is encoded cannot be read; NULL */
        void (*take_sum)(struct object *object, const struct http_headers *headers); /* a published digest; NULL */
};

struct disk_cache;

/* What to open; borrowed. */
struct object_url {
        const char *url;                    /* percent-encoded */
        const char *shown;                  /* object.path: for messages */
        const char *etag, *modified;        /* in a listing, or another version of the dialect; NULL: it has none */
        const struct http_dialect *dialect; /* static; NULL: that of web servers and S3 */
        struct http_access *access;         /* referenced, or NULL */
        uint64_t header;                    /* approximate bytes of its header; 0: unknown */
        bool text;                          /* not safetensors: read whole, by object_http_text() */
        bool atomic;                        /* the store replaces objects atomically: an ETag denotes all bytes */
        bool optional;                      /* it may be missing: then object.ops is NULL */
        struct disk_cache *disk;            /* where a copy may be; NULL: none is used or made */
        const char *content;                /* identifies the bytes, whatever their URL; NULL: it and the version do */
};

/* Opens n concurrently. STREAMER_ENOENT (404, 410), STREAMER_EPERM (401, 403), STREAMER_EFAILED. On failure none is
 * left open. */
int object_http_open(struct http *http, const struct object_url *urls, size_t n, struct object *objects,
                     struct error *error);

/* The same in two steps, for callers that request more in the same round: they make the fetch between the two. After a
 * failure of either the caller deinits the object. */
int object_http_prepare(struct http *http, const struct object_url *url, struct object *object,
                        struct http_fetch *fetch, struct error *error);
int object_http_finish(struct object *object, const struct http_fetch *fetch, struct error *error);

/* By its copy alone, without a request. What the copy turns out to lack is requested with `access` (referenced, or
 * NULL). STREAMER_EFAILED: there is none. After a failure the caller deinits the object. */
struct disk_member;
int object_http_open_stored(struct http *http, struct disk_cache *disk, const struct disk_member *member,
                            struct http_access *access, struct object *object, struct error *error);
bool object_http_is_below(const struct object *object, const char *url); /* its URL begins with this one */
/* Of objects that were opened so: each is requested once. STREAMER_EPERM, STREAMER_ENOENT: the store refuses one. 0
 * also if it does not answer, or cannot serve now. */
int object_http_ask(const struct object *const *objects, size_t n, struct error *error);

bool object_http_has_etag(const struct object *object, const char *etag); /* or a weak one that is equal to it */
/* The list had another ETag for it: the object was replaced since then, or the list is wrong. It is open, and its
 * answers agree with each other. */
bool object_http_listed_another(const struct object *object);

/* All of a small object, NUL-terminated. STREAMER_EFAILED if it is larger than max. The bytes received when it was
 * opened are not requested again; they are freed. */
struct text;
int object_http_text(struct object *object, uint64_t max, struct text *text, struct error *error);
