/* SPDX-License-Identifier: Apache-2.0
 *
 * The headers and libcurl's options of a try. Credentials are sent to the first origin only. A handle keeps nothing of
 * the try before, except its connection: handles are reused by other loads, which may have other certificates.
 */
#include "daemon/io/http/transfer.h"

#include "daemon/base/util.h"
#include "daemon/io/http/policy.h"

#include <curl/curl.h>
#include <inttypes.h>

#define MS UINT64_C(1000000)
#define KEEPALIVE_S 30L

/* ---- headers ---- */

bool http_transfer_same_origin(const struct http_transfer *t)
{
        struct http_url first, now;
        return http_url_parse(&first, t->request.url) == 0 && http_url_parse(&now, t->url) == 0 &&
               first.tls == now.tls && first.port == now.port && strcmp(first.host, now.host) == 0;
}

static bool add_line(struct http_transfer *t, const char *line)
{
        struct curl_slist *lines = curl_slist_append(t->lines, line);
        if (lines != NULL)
                t->lines = lines;
        return lines != NULL;
}

static bool add_lines(struct http_transfer *t, const struct http_headers *headers)
{
        bool ok = true;
        for (size_t i = 0; headers != NULL && i < headers->n; i++)
                ok = ok && add_line(t, headers->lines[i]);
        return ok;
}

void http_options_free_headers(struct http_transfer *t)
{
        for (struct curl_slist *l = t->lines; l != NULL; l = l->next)
                explicit_bzero(l->data, strlen(l->data));
        curl_slist_free_all(t->lines);
        t->lines = NULL;
}

int http_options_add_headers(struct http_transfer *t)
{
        const struct http_request *r = &t->request;
        struct http_headers more = {.n = 0};
        int e = 0;
        http_options_free_headers(t);
        /* Without Accept-Encoding, the server may choose any encoding. */
        bool ok = add_line(t, "Accept:") && add_line(t, "Expect:") && add_line(t, "Accept-Encoding: identity");
        if (r->if_match != NULL) {
                char line[HTTP_ETAG_MAX + 16];
                snprintf(line, sizeof(line), "If-Match: %s", r->if_match);
                ok = ok && add_line(t, line);
        }
        if (http_transfer_same_origin(t)) {
                ok = ok && add_lines(t, r->headers);
                if (r->access != NULL && r->access->ops->authorize != NULL)
                        e = r->access->ops->authorize(r->access, r, &more, &t->error);
                ok = ok && add_lines(t, &more);
                t->by = more.by;
                http_headers_deinit(&more);
        }
        return ok || e < 0 ? e : error_no_memory(&t->error);
}

/* A request without one of its options would be another request: without its range, or with another body. */
#define SET(option, value) (ok = curl_easy_setopt(easy, option, value) == CURLE_OK && ok)

bool http_options_set(struct http_transfer *t)
{
        CURL *easy = t->easy;
        const struct http_opts *opts = http_opts(t->http);
        const struct http_request *r = &t->request;
        const char *ca = r->access != NULL && r->access->ca != NULL ? r->access->ca : opts->ca;
        const char *method = r->method ?: "GET";
        bool head = strcmp(method, "HEAD") == 0, ok = true;
        struct http_url url;
        curl_easy_reset(easy);
        SET(CURLOPT_URL, t->url);
        SET(CURLOPT_SHARE, http_share(t->http));
        SET(CURLOPT_PATH_AS_IS, 1L);
        SET(CURLOPT_NOSIGNAL, 1L);
        /* A proxy's answer to CONNECT is not the object's. */
        SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
        /* Else the end of a request waits for its host's name to be resolved, without a limit. */
        SET(CURLOPT_QUICK_EXIT, 1L);
#endif
        SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
#if LIBCURL_VERSION_NUM >= 0x075500
        SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
        SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
        SET(CURLOPT_USERAGENT, "streamerd/" STREAMERD_VERSION);
        SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(opts->connect_timeout_ns / MS));
        SET(CURLOPT_TCP_KEEPALIVE, 1L);
        SET(CURLOPT_TCP_KEEPIDLE, KEEPALIVE_S);
        SET(CURLOPT_BUFFERSIZE, (long)t->buffer_size);
        SET(CURLOPT_FRESH_CONNECT, t->fresh ? 1L : 0L);
        if (ca != NULL) {
                SET(CURLOPT_CAINFO, ca);
                SET(CURLOPT_CAPATH, NULL);
        }
        /* The environment's proxy is for hosts outside. */
        if (http_url_parse(&url, t->url) == 0 && (http_url_loopback(&url) || r->plain_ok))
                SET(CURLOPT_NOPROXY, "*");
        SET(CURLOPT_HTTPHEADER, t->lines);
        SET(CURLOPT_NOBODY, head ? 1L : 0L);
        if (r->body != NULL) {
                SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_len);
                SET(CURLOPT_POSTFIELDS, r->body);
        }
        SET(CURLOPT_CUSTOMREQUEST, head ? NULL : method);
        if (r->len > 0) {
                char range[64];
                snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, r->offset, r->offset + r->len - 1);
                SET(CURLOPT_RANGE, range);
        }
        return ok;
}
