/* SPDX-License-Identifier: Apache-2.0
 *
 * A verdict reached inside a callback of libcurl (a wrong range, a sink that fails) ends the transfer by refusing its
 * bytes, and is stored until libcurl reports the end.
 *
 * Credentials are sent to the first origin only. A handle keeps nothing of the try before, except its connection:
 * handles are reused by other loads, which may have other certificates.
 */
#include "daemon/io/http/transfer.h"

#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <curl/curl.h>
#include <errno.h>
#include <inttypes.h>
#include <strings.h>
#include <sys/random.h>

#define BODY_KEPT (8 * KiB) /* of an answer that is no success */
#define BODY_READ MiB       /* of it, before the connection is closed */
#define HEADER_LINE_MAX 8192u
#define CREDENTIALS_PAUSE (50 * MS)
#define BROKEN_TRIES 3 /* with the shorter pause */
#define KEEPALIVE_S 30L
#define ANSWER_RATE (16 * KiB) /* bytes a second that extend the time of an answer that is no block of a load */

/* ---- states ---- */

#define BIT(state) (1u << HTTP_##state)

static const unsigned may_follow[] = {
        [HTTP_IDLE] = BIT(WAITING) | BIT(REQUESTED) | BIT(DECIDED),
        [HTTP_WAITING] = BIT(WAITING) | BIT(REQUESTED) | BIT(DECIDED) | BIT(IDLE),
        [HTTP_REQUESTED] = BIT(HEADERS) | BIT(DECIDED) | BIT(IDLE),
        [HTTP_HEADERS] = BIT(REQUESTED) | BIT(RECEIVING) | BIT(DISCARDING) | BIT(DECIDED) | BIT(IDLE),
        [HTTP_RECEIVING] = BIT(PAUSED) | BIT(DECIDED) | BIT(IDLE),
        [HTTP_PAUSED] = BIT(RECEIVING) | BIT(DECIDED) | BIT(IDLE),
        [HTTP_DISCARDING] = BIT(WAITING) | BIT(REQUESTED) | BIT(DECIDED) | BIT(IDLE),
        [HTTP_DECIDED] = BIT(IDLE),
};

static void set_state(struct http_transfer *t, enum http_state state)
{
        change_state(t->state, state, may_follow);
        require((t->state == HTTP_IDLE) == (t->loop == NULL));
}

/* `error` is set, unless it is HTTP_OK. The first decision counts. */
static void decide(struct http_transfer *t, enum http_outcome verdict)
{
        if (t->state == HTTP_DECIDED)
                return;
        t->verdict = verdict;
        set_state(t, HTTP_DECIDED);
}

static const char *header(const struct http_transfer *t, const char *name)
{
        return http_headers_find(&t->answer.headers, name);
}

uint64_t http_transfer_answered_ns(const struct http_transfer *t)
{
        curl_off_t asked_us = 0, answered_us = 0;
        curl_easy_getinfo(t->easy, CURLINFO_PRETRANSFER_TIME_T, &asked_us);
        curl_easy_getinfo(t->easy, CURLINFO_STARTTRANSFER_TIME_T, &answered_us);
        return answered_us > asked_us ? (uint64_t)(answered_us - asked_us) * 1000 : 0;
}

uint64_t http_transfer_silent_ns(const struct http_transfer *t, uint64_t now)
{
        curl_off_t sent_us = 0;
        if (!t->in_multi || t->state == HTTP_PAUSED ||
            curl_easy_getinfo(t->easy, CURLINFO_PRETRANSFER_TIME_T, &sent_us) != CURLE_OK || sent_us <= 0)
                return 0;
        uint64_t since = t->moved_ns + (t->answer.status == 0 ? (uint64_t)sent_us * 1000 : 0);
        return now > since ? now - since : 0;
}

/* ---- received headers ---- */

static void decide_wrong_range(struct http_transfer *t, const char *what, const char *value)
{
        error_set(&t->error, STREAMER_EFAILED, "%s: %s (bytes %" PRIu64 " to %" PRIu64 " of %s)", what, value ?: "none",
                  t->request.offset, t->request.offset + t->request.len - 1, t->request.shown);
        decide(t, HTTP_RETRY);
}

/* A range may be cut by the object's end, nowhere else. */
static void check_range(struct http_transfer *t)
{
        const char *value = header(t, "Content-Range");
        const struct http_request *r = &t->request;
        struct http_content_range range;
        if (value == NULL || http_content_range(value, &range) < 0 || range.first != r->offset ||
            (range.last != r->offset + r->len - 1 && range.last + 1 != range.total) ||
            range.last > r->offset + r->len - 1) {
                decide_wrong_range(t, "wrong Content-Range", value);
                return;
        }
        t->expect = range.last - range.first + 1;
        t->answer.total = range.total;
        /* A longer body may be another one, whose first bytes would be taken for the range. */
        uint64_t length;
        const char *said = header(t, "Content-Length");
        if (said != NULL && (http_number(said, &length) < 0 || length != t->expect))
                decide_wrong_range(t, "Content-Length differs from Content-Range", said);
}

static void check_whole(struct http_transfer *t)
{
        const char *said = header(t, "Content-Length");
        const struct http_request *r = &t->request;
        bool bodyless = r->method != NULL && strcmp(r->method, "HEAD") == 0;
        t->answer.total = t->expect = UINT64_MAX;
        if (said != NULL && http_number(said, &t->answer.total) == 0)
                t->expect = t->answer.total;
        if (bodyless)
                t->expect = 0;
        if (r->len == 0)
                return;
        /* The server does not support ranges, and sends the whole: the range is cut out. */
        t->before = r->offset;
        t->expect = r->len;
        if (t->answer.total != UINT64_MAX && t->answer.total < r->offset + r->len)
                t->expect = t->answer.total > r->offset ? t->answer.total - r->offset : 0;
}

static bool is_redirect(const struct http_transfer *t)
{
        const struct http_access *access = t->request.access;
        int status = t->answer.status;
        return ((status >= 301 && status <= 303) || status == 307 || status == 308) && header(t, "Location") != NULL &&
               (access == NULL || !access->no_redirects);
}

static void check_headers(struct http_transfer *t)
{
        int status = t->answer.status;
        if (status < 200) {
                set_state(t, HTTP_REQUESTED);
                return;
        }
        if (status >= 300) {
                set_state(t, HTTP_DISCARDING);
                return;
        }
        t->answer.condition = t->condition;
        t->condition = NULL;
        if (status == 206 && t->request.len > 0)
                check_range(t);
        else
                check_whole(t);
        if (t->state == HTTP_DECIDED)
                return;
        enum http_outcome outcome = t->accept != NULL ? t->accept(t) : HTTP_OK;
        if (outcome == HTTP_OK)
                set_state(t, HTTP_RECEIVING);
        else
                decide(t, outcome);
}

static void take_status_line(struct http_transfer *t, const char *line, size_t len)
{
        const char *space = memchr(line, ' ', len);
        http_answer_deinit(&t->answer);
        t->answer.total = UINT64_MAX;
        set_state(t, HTTP_HEADERS);
        if (space == NULL)
                return;
        t->answer.status = atoi(space + 1);
        snprintf(t->reason, sizeof(t->reason), "%.*s", (int)(len - (size_t)(space + 1 - line)), space + 1);
}

/* An answer without one of its headers would be another answer, so one with too many, too long or folded ones (RFC
 * 9112, 5.2) is none. False: the error is set. */
static bool accepts_line(struct http_transfer *t, const char *line, size_t len)
{
        bool many = t->answer.headers.n == HTTP_HEADERS_MAX;
        if (len > 0 && (line[0] == ' ' || line[0] == '\t'))
                error_set(&t->error, STREAMER_EFAILED, "the server's answer has a header of several lines (%s)",
                          t->request.shown);
        else if (many || len > HEADER_LINE_MAX)
                error_set(&t->error, STREAMER_EFAILED, "the server's answer has %s %u %s (%s)",
                          many ? "more than" : "a header of more than", many ? HTTP_HEADERS_MAX : HEADER_LINE_MAX,
                          many ? "headers" : "bytes", t->request.shown);
        else
                return true;
        return false;
}

static void header_line(struct http_transfer *t, const char *line, size_t len)
{
        struct http_headers *headers = &t->answer.headers;
        const char *colon = memchr(line, ':', len);
        if (!accepts_line(t, line, len)) {
                decide(t, HTTP_FAILED);
                return;
        }
        if (colon == NULL || colon == line)
                return;
        const char *value = colon + 1, *end = line + len;
        while (value < end && (*value == ' ' || *value == '\t'))
                value++;
        cleanup_free char *copy = format_new("%.*s: %.*s", (int)(colon - line), line, (int)(end - value), value);
        if (copy == NULL || !http_headers_append(headers, copy)) {
                t->answer.status = 0;
                error_no_memory(&t->error);
                decide(t, HTTP_FAILED);
        }
}

/* After the headers: a trailer of the body, which is no header. */
static size_t on_header(char *line, size_t size, size_t n, void *context)
{
        struct http_transfer *t = context;
        size_t len = size * n, whole = len;
        t->moved_ns = now_ns();
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r'))
                len--;
        bool end = len == 0;
        while (len > 0 && line[len - 1] == ' ')
                len--;
        if (t->state == HTTP_REQUESTED && len >= 5 && strncasecmp(line, "HTTP/", 5) == 0)
                take_status_line(t, line, len);
        else if (t->state == HTTP_HEADERS && end)
                check_headers(t);
        else if (t->state == HTTP_HEADERS)
                header_line(t, line, len);
        return t->state == HTTP_DECIDED ? 0 : whole;
}

/* ---- received bytes ---- */

/* What a server says about its refusal. */
static size_t keep_body(struct http_transfer *t, const unsigned char *data, size_t n)
{
        struct http_answer *a = &t->answer;
        t->received += n;
        if (t->received > BODY_READ)
                return 0;
        if (a->body == NULL && (a->body = calloc(1, BODY_KEPT + 1)) == NULL)
                return n;
        size_t room = BODY_KEPT - a->body_len, kept = n < room ? n : room;
        memcpy(a->body + a->body_len, data, kept);
        a->body_len += kept;
        return n;
}

/* Of n bytes the first are skipped: those that the caller took before a pause, and of a whole those before the range.
 */
static size_t pass_on(struct http_transfer *t, const unsigned char *data, size_t n)
{
        size_t again = t->passed_again < n ? (size_t)t->passed_again : n;
        size_t before = t->before < n - again ? (size_t)t->before : n - again;
        size_t skipped = again + before, rest = n - skipped;
        uint64_t left = t->expect - t->received;
        size_t wanted = rest < left ? rest : (size_t)left;
        t->passed_again -= again;
        t->before -= before;
        if (wanted < rest && t->answer.status == 206) {
                decide_wrong_range(t, "more bytes than its range", header(t, "Content-Range"));
                return 0;
        }
        t->taken = 0;
        switch (wanted > 0 ? t->bytes(t, data + skipped, wanted) : HTTP_MORE) {
        case HTTP_PAUSE:
                require(t->taken <= wanted);
                t->passed_again += skipped + t->taken; /* libcurl passes all n bytes again */
                t->received += t->taken;
                set_state(t, HTTP_PAUSED);
                metric_add(METRIC_PAUSES, 1);
                return CURL_WRITEFUNC_PAUSE;
        case HTTP_BROKEN:
                decide(t, HTTP_FAILED);
                return 0;
        case HTTP_ENOUGH:
                decide(t, HTTP_OK);
                return 0;
        default:
                t->received += wanted;
        }
        /* Without ranges the rest of the whole is of no use. */
        bool cut = t->answer.status != 206 && t->request.len > 0 && t->before == 0 && t->received == t->expect;
        if (!cut)
                return n;
        decide(t, HTTP_OK);
        return 0;
}

static size_t on_bytes(char *data, size_t size, size_t n, void *context)
{
        struct http_transfer *t = context;
        t->moved_ns = now_ns();
        if (t->state == HTTP_RECEIVING)
                return pass_on(t, (const unsigned char *)data, size * n);
        if (t->state == HTTP_DISCARDING)
                return keep_body(t, (const unsigned char *)data, size * n);
        return 0;
}

/* ---- the headers and options of a try ---- */

static bool same_origin(const struct http_transfer *t)
{
        struct http_url first;
        return http_url_parse(&first, t->request.url) == 0 && http_same_origin(&first, &t->at);
}

/* The request is for one version. It is repeated without that once the server has refused it. */
static bool has_condition(const struct http_transfer *t)
{
        return t->request.if_match != NULL && t->condition == NULL;
}

/* The hop's URL with the version that is asked for, and what authorize() adds. NULL: no memory. */
static char *url_to_send(const struct http_transfer *t)
{
        const struct http_request *r = &t->request;
        bool matches = has_condition(t) && r->match_parameter != NULL && !t->left_origin;
        const char *query = t->sent.query, *first = strchr(t->url, '?') != NULL ? "&" : "?";
        if (!matches && query == NULL)
                return strdup(t->url);
        if (!matches)
                return format_new("%s%s%s", t->url, first, query);
        return format_new("%s%s%s=%s%s%s", t->url, first, r->match_parameter, r->if_match, query != NULL ? "&" : "",
                          query ?: "");
}

/* As http_access_ops.authorize answers. */
static int add_headers(struct http_transfer *t)
{
        const struct http_request *r = &t->request;
        struct http_headers *sent = &t->sent;
        int e = 0;
        http_headers_deinit(sent);
        bool gzip = r->len > 0 && r->access != NULL && r->access->takes_gzip;
        /* Without Accept-Encoding, the server may choose any encoding. */
        bool ok = http_headers_append(sent, "Accept:") && http_headers_append(sent, "Expect:") &&
                  http_headers_append(sent, gzip ? "Accept-Encoding: gzip" : "Accept-Encoding: identity");
        if (has_condition(t) && r->match_parameter == NULL) {
                char line[HTTP_ETAG_MAX + 16];
                snprintf(line, sizeof(line), "If-Match: %s", r->if_match);
                ok = ok && http_headers_append(sent, line);
        }
        t->left_origin = t->left_origin || !same_origin(t);
        if (!t->left_origin) {
                for (struct curl_slist *l = r->headers != NULL ? r->headers->lines : NULL; l != NULL; l = l->next)
                        ok = ok && http_headers_append(sent, l->data);
                if (r->access != NULL && r->access->ops->authorize != NULL)
                        e = r->access->ops->authorize(r->access, r, sent, &t->error);
        }
        return ok || e < 0 ? e : error_no_memory(&t->error);
}

/* False: no memory. A request without one of its options would be another request: without its range, or with another
 * body. */
static struct curl_slist to_localhost = {.data = (char[]){"::localhost:"}};

#define SET(easy, ok, option, value) ((ok) = curl_easy_setopt(easy, option, value) == CURLE_OK && (ok))

static bool set_options(struct http_transfer *t)
{
        CURL *easy = t->easy;
        const struct http_opts *opts = &t->http->opts;
        const struct http_request *r = &t->request;
        const char *ca = r->access != NULL && r->access->ca != NULL ? r->access->ca : opts->ca;
        const char *method = r->method ?: "GET";
        bool head = strcmp(method, "HEAD") == 0, ok = true;
        cleanup_with(secret_free_p) char *url = url_to_send(t);
        curl_easy_reset(easy);
        if (url == NULL)
                return false;
        SET(easy, ok, CURLOPT_URL, url); /* http or https: http_url_allowed() */
        SET(easy, ok, CURLOPT_SHARE, t->http->share);
        SET(easy, ok, CURLOPT_PATH_AS_IS, 1L);
        SET(easy, ok, CURLOPT_NOSIGNAL, 1L);
        /* A proxy's answer to CONNECT is not the object's. */
        SET(easy, ok, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
        /* Else the end of a request waits for its host's name to be resolved, without a limit. */
        SET(easy, ok, CURLOPT_QUICK_EXIT, 1L);
#endif
        SET(easy, ok, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        SET(easy, ok, CURLOPT_USERAGENT, "streamerd/" STREAMERD_VERSION);
        SET(easy, ok, CURLOPT_CONNECTTIMEOUT_MS, (long)(opts->connect_timeout_ns / MS));
        SET(easy, ok, CURLOPT_TCP_KEEPALIVE, 1L);
        SET(easy, ok, CURLOPT_TCP_KEEPIDLE, KEEPALIVE_S);
        SET(easy, ok, CURLOPT_BUFFERSIZE, (long)t->buffer_size);
        SET(easy, ok, CURLOPT_FRESH_CONNECT, t->fresh ? 1L : 0L);
        if (ca != NULL) {
                SET(easy, ok, CURLOPT_CAINFO, ca);
                SET(easy, ok, CURLOPT_CAPATH, NULL);
        }
        /* The environment's proxy is for hosts outside. */
        if (http_url_loopback(&t->at) || r->plain_ok || r->direct)
                SET(easy, ok, CURLOPT_NOPROXY, "*");
        /* A name below "localhost" is this host's, whatever a name server says. */
        if (http_url_below_localhost(&t->at))
                SET(easy, ok, CURLOPT_CONNECT_TO, &to_localhost);
        SET(easy, ok, CURLOPT_HTTPHEADER, t->sent.lines);
        SET(easy, ok, CURLOPT_NOBODY, head ? 1L : 0L);
        if (r->body != NULL) {
                SET(easy, ok, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->body_len);
                SET(easy, ok, CURLOPT_POSTFIELDS, r->body);
        }
        SET(easy, ok, CURLOPT_CUSTOMREQUEST, head ? NULL : method);
        if (r->len > 0) {
                char range[64];
                snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, r->offset, r->offset + r->len - 1);
                SET(easy, ok, CURLOPT_RANGE, range);
        }
        SET(easy, ok, CURLOPT_HEADERFUNCTION, on_header);
        SET(easy, ok, CURLOPT_HEADERDATA, t);
        SET(easy, ok, CURLOPT_WRITEFUNCTION, on_bytes);
        SET(easy, ok, CURLOPT_WRITEDATA, t);
        SET(easy, ok, CURLOPT_PRIVATE, t);
        return ok;
}

/* ---- a try begins ---- */

void http_transfer_begin(struct http_transfer *t)
{
        require(t->loop != NULL && !t->in_multi);
        http_answer_deinit(&t->answer);
        t->answer.total = t->expect = UINT64_MAX;
        t->reason[0] = '\0';
        t->received = t->before = t->passed_again = 0;
        t->cause = HTTP_BROKE;
        t->begun_ns = t->moved_ns = now_ns();
        t->error = (struct error){0};
        t->start_ns = 0;
        int r = t->url != NULL ? http_url_allowed(&t->http->opts, &t->request, t->url, &t->at, &t->error)
                               : error_no_memory(&t->error);
        if (r == 0)
                r = add_headers(t);
        if (r == HTTP_AUTHORIZED_LATER) {
                t->start_ns = now_ns() + CREDENTIALS_PAUSE;
                set_state(t, HTTP_WAITING);
                return;
        }
        if (r == 0) {
                t->easy = t->easy ?: curl_easy_init();
                t->in_multi =
                        t->easy != NULL && set_options(t) && curl_multi_add_handle(t->loop->multi, t->easy) == CURLM_OK;
                r = t->in_multi ? 0 : error_no_memory(&t->error);
        }
        if (r < 0)
                decide(t, HTTP_FAILED);
        else
                set_state(t, HTTP_REQUESTED);
}

void http_loop_add(struct http_loop *loop, struct http_transfer *t, const char *redirect_url)
{
        require(t->state == HTTP_IDLE && t->loop == NULL);
        t->hops = 0;
        t->left_origin = false;
        free(t->condition);
        t->condition = NULL;
        free(t->url);
        t->url = strdup(redirect_url ?: t->request.url);
        t->loop = loop;
        list_append(&loop->transfers, &t->link);
        http_transfer_begin(t);
}

void http_transfer_resume(struct http_transfer *t)
{
        t->moved_ns = now_ns();
        set_state(t, HTTP_RECEIVING);
        /* libcurl passes the stored bytes on at once. A decision on them is its return value here, and is reported
         * nowhere else: the next turn ends the transfer. */
        curl_easy_pause(t->easy, CURLPAUSE_CONT);
}

static void remove_from_multi(struct http_transfer *t)
{
        if (t->in_multi)
                require(curl_multi_remove_handle(t->loop->multi, t->easy) == CURLM_OK);
        t->in_multi = false;
}

void http_transfer_cancel(struct http_transfer *t)
{
        remove_from_multi(t);
        if (t->loop == NULL)
                return;
        list_remove(&t->link);
        t->loop = NULL;
        set_state(t, HTTP_IDLE);
}

void http_transfer_deinit(struct http_transfer *t)
{
        http_transfer_cancel(t);
        curl_easy_cleanup(t->easy);
        http_headers_deinit(&t->sent);
        http_answer_deinit(&t->answer);
        free(t->condition);
        free(t->url);
        *t = (struct http_transfer){.state = HTTP_IDLE};
}

/* ---- a try ends ---- */

/* As http_access_ops.refused answers. */
static int report_refusal(struct http_transfer *t)
{
        struct http_access *access = t->request.access;
        if (access == NULL || access->ops->refused == NULL || t->left_origin)
                return HTTP_REFUSAL_STAYS;
        t->answer.credentials = t->sent.credentials;
        return access->ops->refused(access, &t->request, &t->answer, &t->error);
}

/* A 416 for a range that the object has is another server's, or of a broken one. */
static bool is_retried(const struct http_transfer *t)
{
        const struct http_request *r = &t->request;
        return http_status_retry(t->answer.status) ||
               (t->answer.status == 416 && r->len > 0 && r->offset + r->len <= r->size);
}

static const char *query_of(const char *url)
{
        const char *query = url != NULL ? strchr(url, '?') : NULL;
        return query != NULL ? query + 1 : NULL;
}

/* What is said of a refusal is read by others than the one whose request it was. A redirect's query is its server's, of
 * the request's own only a user's, and of what authorize() adds only a signature: others are the daemon's. */
static void remove_secrets(struct http_transfer *t)
{
        const struct http_request *r = &t->request;
        bool own = t->url == NULL || strcmp(t->url, r->url) == 0;
        cleanup_free char *added = t->sent.query != NULL ? format_new("?%s", t->sent.query) : NULL;
        bool is_signed = added != NULL ? http_url_is_signed(added) : t->sent.query != NULL; /* no memory */
        const char *queries[] = {r->has_private_query || http_url_is_signed(r->url) ? query_of(r->url) : NULL,
                                 own ? NULL : query_of(t->url), is_signed ? t->sent.query : NULL};
        http_quote(t->reason, queries, ARRAY_SIZE(queries));
        if (t->answer.body != NULL) {
                http_quote(t->answer.body, queries, ARRAY_SIZE(queries));
                t->answer.body_len = strlen(t->answer.body);
        }
        for (struct curl_slist *line = t->answer.headers.lines; line != NULL; line = line->next)
                http_quote(line->data, queries, ARRAY_SIZE(queries));
}

static enum http_outcome describe_refusal(struct http_transfer *t)
{
        int status = t->answer.status;
        char excerpt[256] = "";
        remove_secrets(t);
        if (t->answer.body != NULL)
                http_excerpt(excerpt, sizeof(excerpt), t->answer.body);
        bool more = excerpt[0] != '\0' && strcasecmp(excerpt, t->reason) != 0;
        int code = STREAMER_EFAILED;
        if (status == 401 || status == 403)
                code = STREAMER_EPERM;
        else if (status == 404 || status == 410)
                code = STREAMER_ENOENT;
        error_set(&t->error, code, "the server answers %s%s%s (%s)", t->reason, more ? ": " : "", more ? excerpt : "",
                  t->request.shown);
        if (is_retried(t))
                return HTTP_RETRY;
        return report_refusal(t) == HTTP_REFUSAL_RETRY ? HTTP_RETRY : HTTP_FAILED;
}

static enum http_outcome status_outcome(struct http_transfer *t)
{
        enum http_outcome outcome = describe_refusal(t);
        if (t->answer.status == 412 && t->request.if_match != NULL) {
                cleanup_free char *said = strdup(t->error.text);
                error_set(&t->error, STREAMER_EFAILED, "the object was replaced while it was read: %s", said ?: "412");
        }
        t->error.unreachable = http_status_is_outage(t->answer.status);
        return outcome;
}

/* The first 412: without If-Match the answer's ETag tells whether the object was replaced, or the server's comparison
 * is wrong. True: it is under way. */
static bool repeat_without_condition(struct http_transfer *t)
{
        if (t->answer.status != 412 || t->request.if_match == NULL || t->condition != NULL)
                return false;
        describe_refusal(t);
        t->condition = strdup(t->error.text);
        if (t->condition == NULL)
                return false;
        http_transfer_begin(t);
        return t->state != HTTP_DECIDED;
}

/* A retry does not change certificates and settings. */
static bool is_temporary(CURLcode code)
{
        switch (code) {
        case CURLE_PEER_FAILED_VERIFICATION:
        case CURLE_SSL_CACERT_BADFILE:
        case CURLE_SSL_ISSUER_ERROR:
        case CURLE_SSL_CERTPROBLEM:
        case CURLE_UNSUPPORTED_PROTOCOL:
        case CURLE_URL_MALFORMAT:
        case CURLE_OUT_OF_MEMORY:
                return false;
        default:
                return true;
        }
}

static enum http_outcome curl_outcome(struct http_transfer *t, CURLcode code)
{
        long proxy = 0;
        if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST ||
            code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_OPERATION_TIMEDOUT)
                t->cause = HTTP_UNREACHED;
        curl_easy_getinfo(t->easy, CURLINFO_HTTP_CONNECTCODE, &proxy);
        if (proxy >= 300)
                error_set(&t->error, STREAMER_EFAILED, "the proxy answers %ld (%s)", proxy, t->request.shown);
        else if (code == CURLE_COULDNT_RESOLVE_HOST)
                error_set(&t->error, STREAMER_EFAILED, "cannot resolve host %s (%s)", t->at.host, t->request.shown);
        else if (code == CURLE_COULDNT_RESOLVE_PROXY)
                error_set(&t->error, STREAMER_EFAILED, "cannot resolve the proxy's host (%s)", t->request.shown);
        else if (t->state == HTTP_RECEIVING || t->state == HTTP_PAUSED)
                error_set(&t->error, STREAMER_EFAILED, "%s after %" PRIu64 " bytes (%s)", curl_easy_strerror(code),
                          t->received, t->request.shown);
        else
                error_set(&t->error, STREAMER_EFAILED, "%s (%s)", curl_easy_strerror(code), t->request.shown);
        return is_temporary(code) ? HTTP_RETRY : HTTP_FAILED;
}

static enum http_outcome outcome_of(struct http_transfer *t, CURLcode code)
{
        if (t->state == HTTP_DECIDED)
                return t->verdict;
        if (t->state == HTTP_DISCARDING)
                return status_outcome(t);
        if (code != CURLE_OK || t->state != HTTP_RECEIVING)
                return curl_outcome(t, code != CURLE_OK ? code : CURLE_GOT_NOTHING);
        if (t->expect != UINT64_MAX && t->received != t->expect) {
                error_set(&t->error, STREAMER_EFAILED, "short body: %" PRIu64 " of %" PRIu64 " bytes (%s)", t->received,
                          t->expect, t->request.shown);
                return HTTP_RETRY;
        }
        return HTTP_OK;
}

/* Refuses redirects from https to http, and too many of them. True: the next hop is under way. */
static bool follow(struct http_transfer *t)
{
        struct http_url to;
        char shown[REDACTED_SOURCE] = "";
        char *next = http_url_join(t->url, header(t, "Location"));
        const char *why = NULL;
        if (next == NULL ? errno != ENOMEM : http_url_parse(&to, next) < 0)
                why = "to an invalid URL"; /* no memory is reported as the hop begins */
        else if (next != NULL && t->at.tls && !to.tls)
                why = "from https to plain http";
        else if (++t->hops > t->http->opts.redirects)
                why = "of more than http.redirects steps";
        if (why != NULL) {
                if (next != NULL)
                        redact_source(shown, next);
                error_set(&t->error, STREAMER_EFAILED, "a redirect %s is refused: %s (%s)", why, shown,
                          t->request.shown);
                free(next);
                decide(t, HTTP_FAILED);
                return false;
        }
        free(t->url);
        t->url = next;
        http_transfer_begin(t);
        return t->state != HTTP_DECIDED;
}

/* The time of an answer that is no block of a load grows with its bytes, so that a slow server is waited for, and one
 * that sends a byte now and then does not keep a thread. */
static bool takes_too_long(const struct http_transfer *t, uint64_t now)
{
        const struct http_opts *opts = &t->http->opts;
        bool endless = t->data && (t->state == HTTP_RECEIVING || t->state == HTTP_PAUSED);
        uint64_t most = opts->connect_timeout_ns + opts->stall_ns + t->received * SECOND / ANSWER_RATE;
        return t->in_multi && !endless && now > t->begun_ns && now - t->begun_ns > most;
}

static bool is_stalled(const struct http_transfer *t, uint64_t now)
{
        return t->state != HTTP_PAUSED && now > t->moved_ns && now - t->moved_ns > t->http->opts.stall_ns;
}

bool http_transfer_check_time(struct http_transfer *t, uint64_t now)
{
        bool stalled = is_stalled(t, now);
        if (t->state == HTTP_DECIDED || (!stalled && !takes_too_long(t, now)))
                return false;
        if (t->state == HTTP_DISCARDING)
                return true; /* the status is known: the rest of its text is of no use */
        if (stalled)
                error_set(&t->error, STREAMER_EFAILED, "no byte for %.1f s%s (%s)",
                          (double)t->http->opts.stall_ns / 1e9, t->in_multi ? "" : ", no credentials yet",
                          t->request.shown);
        else
                error_set(&t->error, STREAMER_EFAILED, "the answer takes too long: %" PRIu64 " bytes in %.1f s (%s)",
                          t->received, (double)(now - t->begun_ns) / 1e9, t->request.shown);
        t->cause = HTTP_STALLED;
        decide(t, HTTP_RETRY);
        return true;
}

void http_transfer_finish(struct http_transfer *t, int code)
{
        require(t->state != HTTP_IDLE);
        remove_from_multi(t);
        if (t->state == HTTP_DISCARDING && (is_redirect(t) ? follow(t) : repeat_without_condition(t)))
                return;
        enum http_outcome outcome = outcome_of(t, (CURLcode)code);
        /* A later request goes to this target at once, and would have the credentials of its origin. The hops withheld
         * them from one that another origin has led back to: it is not stored. */
        if (outcome == HTTP_OK && t->hops > 0 && !(t->left_origin && same_origin(t)))
                t->answer.redirect_url = strdup(t->url);
        /* libcurl 7.88 keeps the buffer of a request whose host was not resolved, and then refuses to set its size: the
         * next try has another handle. */
        if (code != CURLE_OK) {
                curl_easy_cleanup(t->easy);
                t->easy = NULL;
        }
        http_transfer_cancel(t);
        t->done(t, outcome);
}

/* ---- another try ---- */

static enum metric_cause cause_of(const struct http_transfer *t)
{
        if (t->cause == HTTP_STALLED)
                return CAUSE_STALLED;
        if (http_status_slow_down(t->answer.status))
                return CAUSE_SLOW_DOWN;
        return t->answer.status >= 300 ? CAUSE_STATUS : CAUSE_BROKEN;
}

/* What a server says about its rate limit is waited for once, whatever `tries` and `patience` are. */
static uint64_t rate_limit(const struct http_transfer *t, const struct http_retry *retry)
{
        const char *value = header(t, "RateLimit");
        uint64_t limit = value != NULL && t->answer.status == 429 ? http_rate_limit(value) : 0;
        return retry->limited_ns + limit <= HTTP_RATE_WINDOW ? limit : 0;
}

bool http_retry(struct http_transfer *t, struct http_retry *retry)
{
        const struct http_opts *opts = &t->http->opts;
        uint64_t draw = 0, limit = rate_limit(t, retry);
        if (retry->made++ == 0)
                retry->since_ns = now_ns();
        bool temporary = http_status_slow_down(t->answer.status) || (t->cause == HTTP_UNREACHED && retry->known);
        bool patient = limit > 0 || (temporary && now_ns() - retry->since_ns < opts->patience_ns);
        if (retry->made < opts->tries || patient) {
                if (getrandom(&draw, sizeof(draw), GRND_NONBLOCK) < 0)
                        draw = now_ns();
                unsigned made = retry->made < opts->tries ? retry->made : opts->tries;
                bool broken = made <= BROKEN_TRIES && t->received > 0 && cause_of(t) == CAUSE_BROKEN;
                const char *asked = header(t, "Retry-After");
                uint64_t pause = limit + http_pause(opts, made, limit > 0 ? NULL : asked, broken, draw);
                retry->limited_ns += limit;
                retry->since_ns += limit;
                retry->at_ns = now_ns() + pause;
                retry->fresh = t->answer.status == 416 || t->answer.status == 421;
                metric_add_label(METRIC_RETRIES, cause_of(t), 1);
                if (limit > 0)
                        log_info("the server's rate limit is used up: the next request in %" PRIu64 " s (%s)",
                                 limit / SECOND, t->request.shown);
                log_debug("try %u: %s; the next in %" PRIu64 " ms", retry->made, t->error.text, pause / MS);
                return true;
        }
        if (t->answer.status >= 300)
                report_refusal(t);
        error_set(&t->error, t->error.code, "given up after %u tries: %s", retry->made, t->error.text);
        /* An answer that broke off each time is none. */
        t->error.unreachable = t->answer.status < 300 || http_status_is_outage(t->answer.status);
        return false;
}
