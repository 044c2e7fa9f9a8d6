/* SPDX-License-Identifier: Apache-2.0
 *
 * One request in flight, and a loop that drives many of them on one thread.
 *
 *   idle > waiting > requested > headers > receiving <> paused
 *               ^         ^         \           \
 *               |         |          \           \___ decided > idle (done)
 *               |_________|___________\ discarding _/
 *
 * A redirect is followed, and a refused If-Match is repeated without it, by beginning again: "discarding" to "waiting"
 * or "requested". Every state may become "decided", and "idle" when it is cancelled.
 *
 * The headers of a success are checked before its first byte is passed on: a range must be the requested one, and
 * accept() may refuse it. A transfer is one try; http_retry() decides on more.
 *
 * Each wait has a limit: for the connection (connect_timeout), for the next byte (stall), and for the whole of an
 * answer that is no block of a load: refusals, redirects, lists, headers (both, and ANSWER_RATE).
 */
#pragma once

#include "daemon/base/list.h"
#include "daemon/io/http/http.h"

enum http_outcome { HTTP_OK, HTTP_RETRY, HTTP_FAILED };

enum http_state {
        HTTP_IDLE,       /* in no loop */
        HTTP_WAITING,    /* for credentials, which it asks for again at start_ns */
        HTTP_REQUESTED,  /* no status line yet, or an interim one (1xx) */
        HTTP_HEADERS,    /* are being received */
        HTTP_RECEIVING,  /* a success was accepted: its bytes are passed on */
        HTTP_PAUSED,     /* the same, and the caller takes no bytes at present */
        HTTP_DISCARDING, /* a refusal or a redirect, whose body is no data */
        HTTP_DECIDED,    /* `verdict` is known; the loop's next turn ends it */
};

/* Why a try without a final status has failed. */
enum http_cause { HTTP_BROKE, HTTP_STALLED, HTTP_UNREACHED };

/* What bytes() answers. ENOUGH: the rest is not needed, and the transfer is a success. PAUSE: `taken` of these bytes
 * were taken; the others are passed again after http_transfer_resume(). */
enum http_sink { HTTP_MORE, HTTP_PAUSE, HTTP_ENOUGH, HTTP_BROKEN };

struct http_transfer {
        /* The caller's, before it is added. */
        struct http *http;
        struct http_request request;
        bool fresh;           /* over a connection of its own */
        bool data;            /* blocks of a load: its bytes may take any time, as long as they arrive */
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
        enum http_state state;
        enum http_outcome verdict; /* if decided */
        enum http_cause cause;
        struct list link;
        struct http_loop *loop; /* that it is in; NULL: idle */
        void *easy;             /* CURL */
        bool in_multi;          /* libcurl drives it */
        struct http_headers sent;
        char *url;          /* of the present hop */
        struct http_url at; /* the same, parsed */
        bool left_origin;   /* a hop was at another origin: this one and all later ones get no credentials */
        char *condition;    /* the text of a 412, after which it is repeated without If-Match; NULL: there was none */
        char reason[256];   /* of the status line */
        uint64_t start_ns;  /* when a request that waits for credentials begins again */
        uint64_t begun_ns;  /* the present hop */
        uint64_t expect;    /* bytes of the body that are passed on; UINT64_MAX: unknown */
        uint64_t before;    /* bytes of a whole before the requested range, which are still to come */
        uint64_t passed_again; /* bytes that the caller took before a pause, and that libcurl passes again */
};

static inline bool http_transfer_is_paused(const struct http_transfer *t)
{
        return t->state == HTTP_PAUSED;
}
static inline bool http_transfer_is_idle(const struct http_transfer *t)
{
        return t->state == HTTP_IDLE;
}

/* Takes it out of its loop, if it is in one, without done(). */
void http_transfer_cancel(struct http_transfer *t);
/* The same, and frees what it holds; the struct may be used again. */
void http_transfer_deinit(struct http_transfer *t);

struct http_retry {
        unsigned made;       /* tries */
        uint64_t at_ns;      /* of the next one */
        uint64_t since_ns;   /* of the first that failed, later by the pauses for its rate limit */
        uint64_t limited_ns; /* the sum of these pauses */
        bool known;          /* the server has answered before: it exists, though it may be down for a while */
        bool fresh;          /* the next one needs a connection of its own: this one leads to the wrong server */
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

/* One hop. Verdicts that need no network are left for the loop's next turn. */
void http_transfer_begin(struct http_transfer *t);
/* A limit of time has passed: decides, or leaves a refusal or redirect as it is, whose body alone is missing. */
bool http_transfer_check_time(struct http_transfer *t, uint64_t now);
/* libcurl has ended it with this code, or it is taken from libcurl: CURLE_ABORTED_BY_CALLBACK. */
void http_transfer_finish(struct http_transfer *t, int code);

/* ---- decisions, as functions of values (policy.c) ---- */

bool http_url_below_localhost(const struct http_url *url); /* "x.localhost", which is this host by RFC 6761 */
/* Parses a URL. STREAMER_EINVAL (no URL), STREAMER_EPERM (plain http to a host that is not named). */
int http_url_allowed(const struct http_opts *opts, const struct http_request *request, const char *text,
                     struct http_url *url, struct error *error);

struct http_content_range {
        uint64_t first, last, total; /* total: UINT64_MAX where it is '*' */
};
/* "bytes 0-99/1000"; 0 or -1. */
int http_content_range(const char *value, struct http_content_range *range);

bool http_status_retry(int status); /* 408, 421, 425, 429, 5xx but not 501 and 505 */

/* One line of an answer's body: the title of a page, or the text's beginning. */
void http_excerpt(char *out, size_t size, const char *body);

/* What a server says, in place: without the queries of URLs, and without the values of these ("a=1&b=2"; NULL: none),
 * in whatever encoding. */
void http_quote(char *text, const char *const *queries, size_t n);

/* The pause before another try. Full jitter: anything from 0 to backoff x 2^(tries made - 1), or the server's
 * Retry-After and a little more; at most retry_after_ns. `draw` is a random number. `broken`: the connection broke
 * after it sent bytes, which says little about the server, which may have ended a process or lost a route: it is
 * retried almost at once, 50 ms later at most, and twice that each time that it breaks again. */
uint64_t http_pause(const struct http_opts *opts, unsigned tries, const char *retry_after, bool broken, uint64_t draw);

/* How long the server's header RateLimit says that no request is left, HTTP_RATE_WINDOW at most; 0: it does not. */
#define HTTP_RATE_WINDOW (300 * UINT64_C(1000000000))
uint64_t http_rate_limit(const char *value);
