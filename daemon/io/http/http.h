/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP(S). This directory is the only user of libcurl and is independent of stores: an http_access provides the
 * credentials of each try.
 *
 *   http_fetch()  for workers: several requests at once, each retried on its own, until all are done
 *   transfer.h    for the reader's network threads: requests whose bytes are stored at their destination
 *
 * Failure. Temporary failures (no connection, a reset, no byte for `stall`, 408, 421, 425, 429, 5xx, a body that does
 * not match its range) are retried after a pause, up to `tries`; 429, 503 and a lost connection to a server that has
 * answered before also until `patience` is over. Other failures (other statuses, certificates, refused redirects, a
 * replaced object) are final. A body is accepted only if it is exactly what was requested.
 *
 * Redirects are followed here, not by libcurl: never from https to http. Credentials are sent to the first origin
 * (scheme, host and port), and to it no more once a redirect has led elsewhere, which would choose what they are used
 * for. Plain http is allowed for loopback and for the hosts that the settings name.
 */
#pragma once

#include "daemon/base/error.h"

#include <stdint.h>
#include <time.h>

struct http_opts {
        uint64_t connect_timeout_ns; /* for name, connection and handshake */
        uint64_t stall_ns;           /* without a byte */
        uint64_t backoff_ns;         /* pause before the second try, at most; doubled for each further one */
        uint64_t retry_after_ns;     /* the longest pause that a server may ask for, and of all pauses */
        uint64_t patience_ns;        /* with a server that is overloaded or being started, beyond `tries` */
        unsigned tries, redirects, threads;
        uint64_t request_max;           /* bytes of one request of a load; at least a block */
        const char *ca;                 /* certificates in PEM, instead of the system's; NULL */
        const char *const *allow_plain; /* hosts, or host:port */
        size_t n_allow_plain;
};

/* Shared by threads. */
struct http {
        struct http_opts opts;
        bool stopping; /* atomic: the process ends, and fetches end soon, with STREAMER_ECANCELED */
        void *share;   /* CURLSH: sessions of TLS */
};

/* On the first thread. Borrows the strings of opts until http_free(). STREAMER_EINVAL: the CA file cannot be read. */
int http_new(struct http **http, const struct http_opts *opts, struct error *error);
struct http *http_free(struct http *http);

/* ---- headers ---- */

#define HTTP_HEADERS_MAX 96

struct http_headers {
        struct curl_slist *lines; /* "Name: value" */
        size_t n;
        uint64_t credentials; /* the number of those that authorize() has added: others have another one */
        char *query; /* "a=1&b=2", which authorize() adds to the URL that is sent; may be a secret; NULL: none */
};

/* Refuses line breaks (STREAMER_EINVAL), and more than HTTP_HEADERS_MAX. */
int http_headers_add(struct http_headers *headers, const char *name, const char *value, struct error *error);
bool http_headers_append(struct http_headers *headers, const char *line);            /* a copy; false: no memory */
const char *http_headers_find(const struct http_headers *headers, const char *name); /* NULL: none */
/* The n-th of several with this name, from 0. */
const char *http_headers_find_nth(const struct http_headers *headers, const char *name, size_t n);
void http_headers_deinit(struct http_headers *headers); /* accepts a zeroed one */

/* ---- requests and answers ---- */

struct http_access;

/* All borrowed, until the request is done. */
struct http_request {
        const char *method;                 /* NULL: GET */
        const char *url;                    /* percent-encoded, sent as it is */
        const char *shown;                  /* what messages call it: no secret, no query */
        uint64_t offset, len;               /* a Range, where len > 0 */
        uint64_t size;                      /* of the object, which has this range; 0: unknown */
        const char *if_match;               /* an ETag, or the version as the next has it; NULL: none */
        const char *match_parameter;        /* of the query, which asks for that version; NULL: If-Match does */
        const struct http_headers *headers; /* more of them; NULL: none. Not sent to another origin */
        const void *body;
        size_t body_len;
        struct http_access *access; /* NULL: no credentials */
        bool plain_ok;              /* plain http is permitted (metadata services) */
        bool direct;                /* not by the environment's proxy */
        bool has_private_query;     /* the URL's was given by a user, and may be a secret */
};

struct http_answer {
        int status; /* 0: none was received; 206: it is the requested range, not the whole */
        struct http_headers headers;
        uint64_t total; /* size of the whole object, UINT64_MAX where it is unknown */
        char *body;     /* NUL-terminated */
        size_t body_len;
        char *redirect_url; /* target of the last redirect; NULL: none, or it is the origin's that the hops had left */
        char *condition;    /* what the server said of the version (412), without which it was asked again; or NULL */
        uint64_t credentials; /* of the request, as in its headers */
};
void http_answer_deinit(struct http_answer *answer); /* accepts a zeroed one */

/* ---- credentials ---- */

enum http_authorized {
        HTTP_AUTHORIZED,
        HTTP_AUTHORIZED_LATER, /* the credentials are being fetched: ask again soon */
};

enum http_refusal {
        HTTP_REFUSAL_STAYS, /* with the error of HTTP */
        HTTP_REFUSAL_RETRY, /* with other credentials, or since the provider knows it as temporary */
};

/* Embedded by a provider of credentials; its functions are called on any thread and return soon. */
struct http_access_ops {
        /* Before each try: adds to its headers. An enum http_authorized, or an error. Not called once a redirect has
         * led to another origin. */
        int (*authorize)(struct http_access *access, const struct http_request *request, struct http_headers *headers,
                         struct error *error);
        /* A final status: an enum http_refusal, or the code of `error`, which it has set. NULL: the error of HTTP
         * stays. */
        int (*refused)(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                       struct error *error);
        void (*free)(struct http_access *access);
};

struct http_access {
        const struct http_access_ops *ops;
        unsigned refs;     /* atomic; 1 when made */
        const char *ca;    /* instead of that of the settings; NULL */
        bool no_redirects; /* they are treated like other answers */
        bool takes_gzip;   /* ranges are requested as they are stored, which may be encoded */
};
struct http_access *http_access_ref(struct http_access *access);   /* accepts NULL */
struct http_access *http_access_unref(struct http_access *access); /* the same; NULL */

/* ---- fetching ---- */

/* In flight at a time: the shards of the largest models in use (some 160) are three rounds. */
#define HTTP_PARALLEL 64u

struct http_fetch {
        struct http_request request;
        uint64_t max_body; /* STREAMER_EFAILED if there is more; with a Range: its length */
        bool fresh;        /* over a connection of its own */
        /* Made for its status alone: tried once (again with other credentials), and its failure, which is in `error`,
         * is none of the others. */
        bool probes;
        unsigned char *to; /* destination of the body, max_body bytes; NULL: answer.body */
        /* Whether an answer that is none by its status (which is known, and no redirect) is a success for this fetch:
         * one that is retried is so after the last try. NULL: no. */
        bool (*accepts)(const struct http_answer *answer);
        /* A success: on the caller's thread, while others are still under way. May be NULL. */
        void (*done)(struct http_fetch *fetch);
        void *context;
        struct http_answer answer;
        uint64_t got;       /* bytes of its body */
        struct error error; /* of this one */
};

bool http_accepts_any(const struct http_answer *answer);    /* every status */
bool http_accepts_empty(const struct http_answer *answer);  /* 416 to a range from byte 0: the object has no bytes */
bool http_accepts_absent(const struct http_answer *answer); /* 404, 410 and the same */

/* Until all are done; on a worker. 0, or the first failure; of several one that is no outage, if there is one. With a
 * Range, a server that does not support ranges is read up to the range's end: see answer.status. */
int http_fetch(struct http *http, struct http_fetch *fetches, size_t n, struct error *error);
static inline void http_fetch_deinit(struct http_fetch *fetch)
{
        http_answer_deinit(&fetch->answer);
}
/* Until http_reuse_end() the fetches of this thread share their connections. They end soon (STREAMER_ECANCELED) once
 * *given_up, which is atomic, has become true. */
void http_reuse_begin(const bool *given_up);
void http_reuse_end(void);

/* ---- URLs ---- */

struct http_url {
        bool tls;
        char host[256]; /* lower case, without brackets */
        unsigned port;
        const char *path; /* in the text: from the first '/', "" if there is none */
};
/* 0, or -1: not http(s)://host[:port][/path], or with user and password in it. */
int http_url_parse(struct http_url *url, const char *text);
bool http_url_loopback(const struct http_url *url);
bool http_host_matches(const struct http_url *url, const char *pattern); /* "host" or "host:port" */

/* An origin: "host", "host:port", or these after "https://" or "http://". Without a scheme it is https, without a port
 * the scheme's own. 0 or -1. */
int http_origin_parse(struct http_url *origin, const char *text);
bool http_same_origin(const struct http_url *a, const struct http_url *b);
#define HTTP_ORIGIN_TEXT 288
void http_origin_text(char out[HTTP_ORIGIN_TEXT], const struct http_url *url); /* "https://host:443" */

/* Percent-encodes all but unreserved characters and those in `keep`. malloc'd. */
char *http_url_encode(const char *text, const char *keep);
/* A redirect's Location, or a file beside an index; "": the base without its query. malloc'd; NULL, with errno: EINVAL
 * (another scheme), ENOMEM. */
char *http_url_join(const char *base, const char *reference);

/* Without the parameters of a signature in the query (X-Amz-*, X-Goog-*, and those of Azure, CloudFront and the older
 * forms), which differ from link to link. malloc'd; NULL: no memory. */
char *http_url_without_signature(const char *url);
bool http_url_is_signed(const char *url); /* it has some */

/* ---- answers ---- */

int http_number(const char *value, uint64_t *n); /* 0; -1: not digits alone */

time_t http_date(const char *value); /* of a header, or as ISO 8601 in UTC; -1: no date */

/* A validator: not "" or W/"". */
bool http_etag_valid(const char *etag);
/* Equal without the mark of weakness and the quotes, which a server may send in one place and not in another. */
bool http_etag_same(const char *a, const char *b);
/* The same text and the same strength: a weak ETag does not guarantee the bytes that a strong one does. */
bool http_etag_equal(const char *a, const char *b);
/* Strong by RFC 9110: may go into If-Match. One that is too long for a header may not. */
#define HTTP_ETAG_MAX 512u
bool http_etag_strong(const char *etag);

bool http_status_slow_down(int status); /* 429, 503 */
/* No answer (0), or any 5xx: the server cannot serve any request now. */
bool http_status_is_outage(int status);
/* 401, 403, 404, 410: this client may not have it, or it does not exist. */
bool http_status_is_refusal(int status);
/* The server asks to slow down: halves *n, at least one remains. It may answer all requests in flight so, of which one
 * counts: false if *n was halved a moment ago, at *slowed_ns (0: never). */
bool http_halve_concurrency(unsigned *n, uint64_t *slowed_ns, uint64_t now);
