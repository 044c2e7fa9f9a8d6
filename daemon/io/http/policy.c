/* SPDX-License-Identifier: Apache-2.0
 *
 * Decisions about requests and answers, as functions of values: which URLs may be requested, which redirects are
 * followed, whether and when a failure is retried.
 *
 * A URL with a user and password is refused: it would be written to logs and shells' histories, and the settings
 * contain credentials by host.
 */
#include "daemon/io/http/transfer.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <curl/curl.h>
#include <errno.h>
#include <strings.h>

#define BROKEN_PAUSE (SECOND / 20)
#define ONE_SLOWING (SECOND / 2)
#define URL_MAX 8192u

/* ---- URLs ---- */

/* "host", "host:port", "[v6]:port" up to `end`. */
static int parse_authority(struct http_url *url, const char *text, const char *end)
{
        const char *from = text, *stop, *rest;
        if (*from == '[') {
                from++;
                stop = memchr(from, ']', (size_t)(end - from));
                rest = stop != NULL ? stop + 1 : NULL;
        } else {
                stop = memchr(from, ':', (size_t)(end - from)) ?: end;
                rest = stop;
        }
        size_t len = stop != NULL ? (size_t)(stop - from) : 0;
        if (len == 0 || len >= sizeof(url->host))
                return -1;
        for (size_t i = 0; i < len; i++)
                url->host[i] = (char)tolower((unsigned char)from[i]);
        url->host[len] = '\0';
        /* An IPv6 address, with or without a zone; whether it is valid is found when it is connected to. */
        size_t v6 = strspn(url->host, "0123456789abcdef:.");
        bool is_v6 = memchr(url->host, ':', v6) != NULL && (url->host[v6] == '\0' || url->host[v6] == '%');
        if (*text == '[' && !is_v6)
                return -1;
        if (rest == end)
                return 0;
        if (*rest != ':' || !isdigit((unsigned char)rest[1]) || end - rest > 6)
                return -1;
        char *after;
        url->port = (unsigned)strtoul(rest + 1, &after, 10);
        return after == end && url->port > 0 && url->port < 65536 ? 0 : -1;
}

int http_url_parse(struct http_url *url, const char *text)
{
        bool tls = strncasecmp(text, "https://", 8) == 0;
        if ((!tls && strncasecmp(text, "http://", 7) != 0) || strlen(text) > URL_MAX)
                return -1;
        for (const char *c = text; *c != '\0'; c++)
                if (!isascii(*c) || !isgraph(*c))
                        return -1;
        const char *authority = text + (tls ? 8 : 7);
        const char *end = authority + strcspn(authority, "/?#");
        *url = (struct http_url){.tls = tls, .port = tls ? 443 : 80, .path = end};
        if (memchr(authority, '@', (size_t)(end - authority)) != NULL)
                return -1;
        return parse_authority(url, authority, end);
}

bool http_url_below_localhost(const struct http_url *url)
{
        static const char local[] = ".localhost";
        size_t len = strlen(url->host), end = sizeof(local) - 1;
        return len > end && strcmp(url->host + len - end, local) == 0;
}

bool http_url_loopback(const struct http_url *url)
{
        struct in_addr v4;
        struct in6_addr v6;
        if (strcmp(url->host, "localhost") == 0 || http_url_below_localhost(url))
                return true;
        if (inet_pton(AF_INET, url->host, &v4) == 1)
                return ntohl(v4.s_addr) >> 24 == 127;
        return inet_pton(AF_INET6, url->host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool http_host_matches(const struct http_url *url, const char *pattern)
{
        char host[sizeof(url->host) + 8];
        bool v6 = strchr(url->host, ':') != NULL;
        snprintf(host, sizeof(host), v6 ? "[%s]:%u" : "%s:%u", url->host, url->port);
        return strcasecmp(pattern, url->host) == 0 || strcasecmp(pattern, host) == 0;
}

int http_origin_parse(struct http_url *origin, const char *text)
{
        char url[512];
        bool has_scheme = strstr(text, "://") != NULL;
        bool bare_v6 = !has_scheme && text[0] != '[' && strchr(text, ':') != strrchr(text, ':');
        int n = snprintf(url, sizeof(url), "%s%s%s%s", has_scheme ? "" : "https://", bare_v6 ? "[" : "", text,
                         bare_v6 ? "]" : "");
        return n < (int)sizeof(url) && http_url_parse(origin, url) == 0 && origin->path[0] == '\0' ? 0 : -1;
}

bool http_same_origin(const struct http_url *a, const struct http_url *b)
{
        return a->tls == b->tls && a->port == b->port && strcmp(a->host, b->host) == 0;
}

void http_origin_text(char out[HTTP_ORIGIN_TEXT], const struct http_url *url)
{
        bool v6 = strchr(url->host, ':') != NULL;
        snprintf(out, HTTP_ORIGIN_TEXT, "http%s://%s%s%s:%u", url->tls ? "s" : "", v6 ? "[" : "", url->host,
                 v6 ? "]" : "", url->port);
}

char *http_url_encode(const char *text, const char *keep)
{
        char *out = malloc(3 * strlen(text) + 1);
        if (out != NULL)
                percent_encode(out, text, keep);
        return out;
}

char *http_url_join(const char *base, const char *reference)
{
        if (strncasecmp(reference, "http://", 7) == 0 || strncasecmp(reference, "https://", 8) == 0)
                return strdup(reference);
        if (reference[0] == '\0')
                return strndup(base, strcspn(base, "?#"));
        if (reference[strcspn(reference, ":/?#")] == ':') {
                errno = EINVAL;
                return NULL;
        }
        char *text = NULL, *joined = NULL;
        CURLU *url = curl_url();
        CURLUcode code = url != NULL ? CURLUE_OK : CURLUE_OUT_OF_MEMORY;
        code = code ?: curl_url_set(url, CURLUPART_URL, base, 0);
        code = code ?: curl_url_set(url, CURLUPART_URL, reference, 0);
        code = code ?: curl_url_get(url, CURLUPART_URL, &text, 0);
        if (code == CURLUE_OK)
                joined = strdup(text);
        curl_free(text);
        curl_url_cleanup(url);
        if (joined == NULL)
                errno = code == CURLUE_OK || code == CURLUE_OUT_OF_MEMORY ? ENOMEM : EINVAL;
        return joined;
}

static bool has_parameter(const char *query, const char *name)
{
        size_t len = strlen(name);
        for (const char *at = query; at != NULL; at = strchr(at, '&')) {
                at += at != query;
                if (strncasecmp(at, name, len) == 0 && at[len] == '=')
                        return true;
        }
        return false;
}

static bool is_one_of(const char *parameter, const char *const *names)
{
        for (; *names != NULL; names++) {
                size_t len = strlen(*names);
                if (strncasecmp(parameter, *names, len) == 0 && (parameter[len] == '=' || (*names)[len - 1] == '-'))
                        return true;
        }
        return false;
}

/* A parameter of the query that belongs to a signature; some names do only if that is there, too: others may mean the
 * content. */
static bool is_of_signature(const char *query, const char *parameter)
{
        static const char *const amazon[] = {"X-Amz-", "X-Goog-", NULL};
        static const char *const azure[] = {"sv",    "sr",    "st",  "se",  "sp",  "sip", "spr", "sig",
                                            "skoid", "sktid", "skt", "ske", "sks", "skv", NULL};
        static const char *const links[] = {"Expires",        "Signature",      "Key-Pair-Id", "Policy",
                                            "AWSAccessKeyId", "GoogleAccessId", NULL};
        if (is_one_of(parameter, amazon))
                return true;
        if (is_one_of(parameter, azure))
                return has_parameter(query, "sig") && has_parameter(query, "sv");
        return is_one_of(parameter, links) && has_parameter(query, "Signature") &&
               (has_parameter(query, "Key-Pair-Id") || has_parameter(query, "AWSAccessKeyId") ||
                has_parameter(query, "GoogleAccessId"));
}

bool http_url_is_signed(const char *url)
{
        const char *query = strchr(url, '?');
        for (const char *at = query; at != NULL; at = strchr(at + 1, '&'))
                if (is_of_signature(query + 1, at + 1))
                        return true;
        return false;
}

char *http_url_without_signature(const char *url)
{
        char *text = strdup(url), *query = text != NULL ? strchr(text, '?') : NULL;
        if (query == NULL)
                return text;
        const char *signed_query = strchr(url, '?') + 1, *from = signed_query;
        char *to = query;
        for (size_t len; *from != '\0'; from += len + (from[len] == '&')) {
                len = strcspn(from, "&");
                if (is_of_signature(signed_query, from))
                        continue;
                *to = to == query ? '?' : '&';
                to++;
                memcpy(to, from, len);
                to += len;
        }
        *to = '\0';
        return text;
}

int http_url_allowed(const struct http_opts *opts, const struct http_request *request, const char *text,
                     struct http_url *url, struct error *error)
{
        if (http_url_parse(url, text) < 0)
                return error_set(error, STREAMER_EINVAL, "not a URL that can be asked for (%s)", request->shown);
        if (url->tls || request->plain_ok || http_url_loopback(url))
                return 0;
        for (size_t i = 0; i < opts->n_allow_plain; i++)
                if (http_host_matches(url, opts->allow_plain[i]))
                        return 0;
        return error_set(error, STREAMER_EPERM,
                         "plain http is refused: anyone on the way can read and change it; http.allow_plain in the "
                         "settings permits it for a host (%s, host %s)",
                         request->shown, url->host);
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

int http_content_range(const char *value, struct http_content_range *range)
{
        const char *at = strncasecmp(value, "bytes ", 6) == 0 ? value + 6 + strspn(value + 6, " ") : "";
        if ((at = number(at, &range->first)) == NULL || *at++ != '-' || (at = number(at, &range->last)) == NULL ||
            *at++ != '/')
                return -1;
        range->total = UINT64_MAX;
        if (strcmp(at, "*") != 0 && http_number(at, &range->total) < 0)
                return -1;
        return range->first <= range->last && range->last < range->total ? 0 : -1;
}

/* Without W/ and quotes. */
static const char *opaque_tag(const char *etag, size_t *len)
{
        etag += strncmp(etag, "W/", 2) == 0 ? 2 : 0;
        *len = strlen(etag);
        bool quoted = *len >= 2 && etag[0] == '"' && etag[*len - 1] == '"';
        *len -= quoted ? 2 : 0;
        return quoted ? etag + 1 : etag;
}

bool http_etag_valid(const char *etag)
{
        size_t len;
        opaque_tag(etag, &len);
        return len > 0;
}

bool http_etag_same(const char *a, const char *b)
{
        size_t a_len, b_len;
        a = opaque_tag(a, &a_len);
        b = opaque_tag(b, &b_len);
        return a_len == b_len && memcmp(a, b, a_len) == 0;
}

bool http_etag_equal(const char *a, const char *b)
{
        return http_etag_same(a, b) && (strncmp(a, "W/", 2) == 0) == (strncmp(b, "W/", 2) == 0);
}

bool http_etag_strong(const char *etag)
{
        size_t len = strlen(etag);
        return etag[0] == '"' && len > 2 && len <= HTTP_ETAG_MAX;
}

time_t http_date(const char *value)
{
        struct tm tm = {0};
        const char *rest = strptime(value, "%Y-%m-%dT%H:%M:%S", &tm);
        if (rest == NULL)
                return curl_getdate(value, NULL);
        return rest[0] == '.' || strcmp(rest, "Z") == 0 ? timegm(&tm) : -1;
}

bool http_status_slow_down(int status)
{
        return status == 429 || status == 503;
}

bool http_status_is_outage(int status)
{
        return status == 0 || (status >= 500 && status <= 599);
}

bool http_status_is_refusal(int status)
{
        return status == 401 || status == 403 || status == 404 || status == 410;
}

bool http_status_retry(int status)
{
        return status == 408 || status == 421 || status == 425 || status == 429 ||
               (status >= 500 && status <= 599 && status != 501 && status != 505);
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
        if (retry_after == NULL)
                return 0;
        if (http_number(retry_after, &seconds) < 0) {
                time_t then = http_date(retry_after), now = time(NULL);
                seconds = then > now ? (uint64_t)(then - now) : 0;
        }
        return seconds < 86400 ? seconds * SECOND : 86400 * SECOND;
}

uint64_t http_pause(const struct http_opts *opts, unsigned tries, const char *retry_after, bool broken, uint64_t draw)
{
        uint64_t first = broken && opts->backoff_ns > BROKEN_PAUSE ? BROKEN_PAUSE : opts->backoff_ns;
        uint64_t most = backoff(first, tries, opts->retry_after_ns);
        uint64_t asked = broken ? 0 : asked_pause(retry_after);
        if (asked > opts->retry_after_ns)
                asked = opts->retry_after_ns;
        /* Clients that were given the same time must not all retry at that moment. */
        uint64_t jitter = most > 0 ? draw % (most + 1) : 0;
        return asked > 0 ? asked + jitter / 4 : jitter;
}

/* Of the items of '"api";r=0;t=55, "day";r=900;t=3600' those without a request left (r). */
uint64_t http_rate_limit(const char *value)
{
        uint64_t most = 0;
        for (const char *item = value; *item != '\0'; item += strspn(item, ", ")) {
                const char *end = item + strcspn(item, ",");
                uint64_t left = UINT64_MAX, reset = 0;
                for (const char *at = item; (at = memchr(at, ';', (size_t)(end - at))) != NULL;) {
                        at += 1 + strspn(at + 1, " ");
                        if (strncmp(at, "r=", 2) == 0)
                                number(at + 2, &left);
                        else if (strncmp(at, "t=", 2) == 0)
                                number(at + 2, &reset);
                }
                if (left == 0 && reset > most)
                        most = reset;
                item = end;
        }
        return most < HTTP_RATE_WINDOW / SECOND ? most * SECOND : HTTP_RATE_WINDOW;
}

bool http_halve_concurrency(unsigned *n, uint64_t *slowed_ns, uint64_t now)
{
        if (*slowed_ns > 0 && now - *slowed_ns < ONE_SLOWING)
                return false;
        *slowed_ns = now;
        *n = *n > 1 ? *n / 2 : 1;
        return true;
}
