/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/http/policy.h"

#include "daemon/base/util.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define SECOND UINT64_C(1000000000)
#define BROKEN_PAUSE (SECOND / 20)
#define ONE_SLOWING (SECOND / 2)

int http_url_allowed(const struct http_opts *opts, const struct http_request *request, const char *text,
                     struct error *error)
{
        struct http_url url;
        if (http_url_parse(&url, text) < 0)
                return error_set(error, STREAMER_EINVAL, "not a URL that can be asked for (%s)", request->shown);
        if (url.tls || request->plain_ok || http_url_loopback(&url))
                return 0;
        for (size_t i = 0; i < opts->n_allow_plain; i++)
                if (http_host_matches(&url, opts->allow_plain[i]))
                        return 0;
        return error_set(error, STREAMER_EPERM,
                         "plain http is refused: anyone on the way can read and change it; http.allow_plain in the "
                         "settings permits it for a host (%s, host %s)",
                         request->shown, url.host);
}

/* ---- answers ---- */

static const char *number(const char *text, uint64_t *n)
{
        char *end;
        errno = 0;
        if (!isdigit((unsigned char)*text))
                return NULL;
        *n = strtoull(text, &end, 10);
        return errno == 0 ? end : NULL;
}

int http_number(const char *value, uint64_t *n)
{
        const char *end = number(value, n);
        return end != NULL && *end == '\0' ? 0 : -1;
}

static const char *after_bytes(const char *value)
{
        return strncasecmp(value, "bytes ", 6) == 0 ? value + 6 + strspn(value + 6, " ") : NULL;
}

int http_content_range(const char *value, struct http_content_range *range)
{
        const char *at = after_bytes(value);
        if (at == NULL || (at = number(at, &range->first)) == NULL || *at++ != '-' ||
            (at = number(at, &range->last)) == NULL || *at++ != '/')
                return -1;
        range->total = UINT64_MAX;
        if (strcmp(at, "*") != 0 && http_number(at, &range->total) < 0)
                return -1;
        return range->first <= range->last && range->last < range->total ? 0 : -1;
}

int http_unsatisfied_range(const char *value, uint64_t *total)
{
        const char *at = after_bytes(value);
        return at != NULL && strncmp(at, "*/", 2) == 0 ? http_number(at + 2, total) : -1;
}

bool http_etag_strong(const char *etag)
{
        size_t len = strlen(etag);
        return etag[0] == '"' && len >= 2 && len <= HTTP_ETAG_MAX;
}

bool http_status_slow_down(int status)
{
        return status == 429 || status == 503;
}

bool http_status_retry(int status)
{
        return status == 408 || status == 429 || (status >= 500 && status <= 599 && status != 501 && status != 505);
}

bool http_status_redirect(int status)
{
        return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

int http_status_code(int status)
{
        if (status == 401 || status == 403)
                return STREAMER_EPERM;
        return status == 404 || status == 410 ? STREAMER_ENOENT : STREAMER_EFAILED;
}

void http_excerpt(char *out, size_t size, const char *body)
{
        const char *title = strcasestr(body, "<title>");
        const char *from = title != NULL ? title + strlen("<title>") : body;
        size_t len = title != NULL ? strcspn(from, "<") : strlen(from), n = 0;
        bool space = false;
        for (size_t i = 0; i < len && n + 2 < size; i++) {
                if (isspace((unsigned char)from[i])) {
                        space = n > 0;
                        continue;
                }
                if (space)
                        out[n++] = ' ';
                space = false;
                out[n++] = from[i];
        }
        out[n] = '\0';
}

/* ---- another try ---- */

/* Seconds, or a date. */
static uint64_t asked_pause(const char *retry_after)
{
        uint64_t seconds;
        struct tm tm = {0};
        if (retry_after == NULL)
                return 0;
        if (http_number(retry_after, &seconds) < 0) {
                if (strptime(retry_after, "%a, %d %b %Y %H:%M:%S GMT", &tm) == NULL)
                        return 0;
                time_t then = timegm(&tm), now = time(NULL);
                seconds = then > now ? (uint64_t)(then - now) : 0;
        }
        return seconds < 86400 ? seconds * SECOND : 86400 * SECOND;
}

uint64_t http_pause(const struct http_opts *opts, unsigned tries, const char *retry_after, uint64_t draw)
{
        uint64_t most = backoff(opts->backoff_ns, tries, opts->retry_after_ns);
        uint64_t asked = asked_pause(retry_after);
        if (asked > opts->retry_after_ns)
                asked = opts->retry_after_ns;
        /* Clients that were given the same time must not all retry at that moment. */
        uint64_t jitter = most > 0 ? draw % (most + 1) : 0;
        return asked > 0 ? asked + jitter / 4 : jitter;
}

uint64_t http_pause_broken(const struct http_opts *opts, unsigned tries, uint64_t draw)
{
        struct http_opts short_pause = *opts;
        if (short_pause.backoff_ns > BROKEN_PAUSE)
                short_pause.backoff_ns = BROKEN_PAUSE;
        return http_pause(&short_pause, tries, NULL, draw);
}

bool http_halve_concurrency(unsigned *n, uint64_t *slowed_ns, uint64_t now)
{
        if (*slowed_ns > 0 && now - *slowed_ns < ONE_SLOWING)
                return false;
        *slowed_ns = now;
        *n = *n > 1 ? *n / 2 : 1;
        return true;
}
