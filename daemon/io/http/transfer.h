/* SPDX-License-Identifier: Apache-2.0
 *
 * One request in flight, and a loop that drives many of them on one thread.
 *
 *   added > [authorized later] > connected > headers > accepted > bytes ... > done
 *      \________ redirected: the same again, elsewhere _/
 *
 * The headers of a success are checked before its first byte is passed on: a range must be the requested one, and
 * accept() may refuse it. A transfer is one try; http_retry() decides on more.
 */
#pragma once

#include "daemon/base/list.h"
#include "daemon/io/http/http.h"

enum http_outcome { HTTP_OK, HTTP_RETRY, HTTP_FAILED };

/* What bytes() answers. ENOUGH: the rest is not needed, and the transfer is a success. PAUSE: `taken` of these bytes
 * were taken; the others are passed again after http_transfer_resume(). */
enum http_sink { HTTP_MORE, HTTP_PAUSE, HTTP_ENOUGH, HTTP_BROKEN };

struct http_transfer {
        /* The caller's, before it is added. */
        struct http *http;
        struct http_request request;
        bool fresh;           /* over a connection of its own */
        unsigned buffer_size; /* of libcurl's, for each transfer */
        void *context;
        /* The headers of a success are complete. Not HTTP_OK: `error` is set, and it ends so. May be NULL. */
        enum http_outcome (*accept)(struct http_transfer *t);
        /* Bytes of the body, in order; of a range the requested ones. HTTP_BROKEN: `error` is set. */
        enum http_sink (*bytes)(struct http_transfer *t, const unsigned char *data, size_t n);
        /* Once, never inside a call of the caller's own. The transfer is out of the loop. */
        void (*done)(struct http_transfer *t, enum http_outcome outcome);

        struct http_answer answer;
        struct error error;
        size_t taken;      /* set by bytes() that pauses */
        uint64_t received; /* bytes that were passed on */
        uint64_t moved_ns; /* when a byte was last received */
        unsigned hops;     /* redirects followed */

        /* private */
        struct list link;
        struct http_loop *loop; /* that it is in; NULL: none */
        void *easy;             /* CURL */
        struct http_headers sent;
        char *url; /* of the present hop */
        struct http_url place;
        char reason[256];
        uint64_t start_ns, skip, expect;
        bool in_multi, accepted, redirected, paused, judged, stalled, unreached;
        enum http_outcome verdict;
};

/* Takes it out of its loop, if it is in one, without done(). */
void http_transfer_cancel(struct http_transfer *t);
/* The same, and frees what it holds; the struct may be used again. */
void http_transfer_deinit(struct http_transfer *t);

struct http_retry {
        unsigned made;     /* tries */
        uint64_t at_ns;    /* of the next one */
        uint64_t since_ns; /* of the first that failed */
        bool known;        /* the server has answered before: it exists, though it may be down for a while */
};
/* After a try that ended HTTP_RETRY: true, and when; or false, `error` being the end of it. */
bool http_retry(struct http_transfer *t, struct http_retry *retry);

/* ---- loops ---- */

struct http_loop {
        void *multi; /* CURLM */
        int event;
        struct list transfers;
};

int http_loop_init(struct http_loop *loop, struct error *error);
void http_loop_deinit(struct http_loop *loop); /* none may be in it; accepts a zeroed one */

/* `redirect_url`: a stored target of the URL's redirects, requested instead; NULL: none. */
void http_loop_add(struct http_loop *loop, struct http_transfer *t, const char *redirect_url);
void http_transfer_resume(struct http_transfer *t);
/* From the request to the first byte of the answer; from accept() on. */
uint64_t http_transfer_answered_ns(const struct http_transfer *t);
/* How long it has received no byte, since the request was sent. 0: it is paused, or the request is not sent yet, which
 * has a timeout of its own. */
uint64_t http_transfer_silent_ns(const struct http_transfer *t, uint64_t now);
/* Waits for something to do, timeout_ms at most, and does it. */
void http_loop_run(struct http_loop *loop, unsigned timeout_ms);
/* From any thread: ends the waiting. */
void http_loop_wake(struct http_loop *loop);
/* Closes connections that are kept alive. None may be in it. */
void http_loop_close_idle(struct http_loop *loop);

/* ---- between transfer.c and loop.c ---- */

void http_transfer_set_verdict(struct http_transfer *t, enum http_outcome verdict);
/* One hop. Verdicts that need no network are left for the loop's next turn. */
void http_transfer_begin(struct http_transfer *t);
/* `code` is libcurl's. */
void http_transfer_finish(struct http_transfer *t, int code);

/* ---- decisions, as functions of values (policy.c) ---- */

bool http_url_loopback(const struct http_url *url);
/* Parses a URL. STREAMER_EINVAL (no URL), STREAMER_EPERM (plain http to a host that is not named). */
int http_url_allowed(const struct http_opts *opts, const struct http_request *request, const char *text,
                     struct http_url *url, struct error *error);

struct http_content_range {
        uint64_t first, last, total; /* total: UINT64_MAX where it is '*' */
};
/* "bytes 0-99/1000"; 0 or -1. */
int http_content_range(const char *value, struct http_content_range *range);

bool http_status_retry(int status); /* 408, 429, 5xx but not 501 and 505 */

/* One line of an answer's body: the title of a page, or the text's beginning. */
void http_excerpt(char *out, size_t size, const char *body);

/* The pause before another try. Full jitter: anything from 0 to backoff x 2^(tries made - 1), or the server's
 * Retry-After and a little more; at most retry_after_ns. `draw` is a random number. `broken`: the connection broke
 * after it sent bytes, which says little about the server, which may have ended a process or lost a route: it is
 * retried almost at once, 50 ms later at most, and twice that each time that it breaks again. */
uint64_t http_pause(const struct http_opts *opts, unsigned tries, const char *retry_after, bool broken, uint64_t draw);
