/* SPDX-License-Identifier: Apache-2.0
 *
 * Decisions about requests and answers, as functions of values: which URLs may be requested, which redirects are
 * followed, whether and when a failure is retried.
 */
#pragma once

#include "daemon/io/http/http.h"

/* ---- URLs ---- */

bool http_url_loopback(const struct http_url *url);
bool http_host_matches(const struct http_url *url, const char *pattern); /* "host" or "host:port" */
/* A redirect's Location, or a file beside an index; "": the base without its query. malloc'd; NULL, with errno: EINVAL
 * (another scheme), ENOMEM. */
char *http_url_join(const char *base, const char *reference);

/* Parses a URL. STREAMER_EINVAL (no URL), STREAMER_EPERM (plain http to a host that is not named). */
int http_url_allowed(const struct http_opts *opts, const struct http_request *request, const char *text,
                     struct http_url *url, struct error *error);

/* ---- answers ---- */

struct http_content_range {
        uint64_t first, last, total; /* total: UINT64_MAX where it is '*' */
};
/* "bytes 0-99/1000"; 0 or -1. */
int http_content_range(const char *value, struct http_content_range *range);
int http_number(const char *value, uint64_t *n); /* digits alone */

/* Strong by RFC 9110: may go into If-Match. One that is too long for a header may not. */
#define HTTP_ETAG_MAX 512u
bool http_etag_strong(const char *etag);

bool http_status_retry(int status);     /* 408, 429, 5xx but not 501 and 505 */
bool http_status_slow_down(int status); /* 429, 503 */

/* One line of an answer's body: the title of a page, or the text's beginning. */
void http_excerpt(char *out, size_t size, const char *body);

/* ---- another try ---- */

/* Full jitter: anything from 0 to backoff x 2^(tries made - 1), or the server's Retry-After and a little more; at most
 * retry_after_ns. `draw` is a random number. `broken`: the connection broke after it sent bytes, which says little
 * about the server, which may have ended a process or lost a route: it is retried almost at once, 50 ms later at most,
 * and twice that each time that it breaks again. */
uint64_t http_pause(const struct http_opts *opts, unsigned tries, const char *retry_after, bool broken, uint64_t draw);

/* The server asks to slow down: halves *n, at least one remains. It may answer all requests in flight so, of which one
 * counts: false if *n was halved a moment ago, at *slowed_ns (0: never). */
bool http_halve_concurrency(unsigned *n, uint64_t *slowed_ns, uint64_t now);
