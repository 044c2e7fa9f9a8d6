/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests of worker threads: responses that must be refused, and cancellation.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/fake_resolver.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/http/transfer.h"
#include "daemon/io/remote/http_object.h"
#include "daemon/source/web/http_auth.h"

#include <curl/curl.h>
#include <netdb.h>

static struct http *http;
static struct endpoint endpoint;

static struct error error;

/* ---- slow name lookups: libcurl calls this function ---- */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool asked, known;

static int resolve(const char *name, const char *service, struct addrinfo **found)
{
        pthread_mutex_lock(&mutex);
        asked = true;
        pthread_cond_broadcast(&changed);
        while (!known)
                pthread_cond_wait(&changed, &mutex);
        pthread_mutex_unlock(&mutex);
        return EAI_NONAME;
}

BEFORE_ALL()
{
        fake_getaddrinfo = resolve;
}

static void *cancel_on_request(void *arg)
{
        pthread_mutex_lock(&mutex);
        while (!asked)
                pthread_cond_wait(&changed, &mutex);
        pthread_mutex_unlock(&mutex);
        __atomic_store_n((bool *)arg, true, __ATOMIC_RELAXED);
        return NULL;
}

/* ---- fixture ---- */

static const struct http_opts opts = {.connect_timeout_ns = 60 * SECOND,
                                      .stall_ns = 60 * SECOND,
                                      .backoff_ns = SECOND / 1000,
                                      .retry_after_ns = SECOND,
                                      .tries = 4,
                                      .threads = 1};

static void before(void)
{
        log_set_level(LOG_LEVEL_ERROR);
        ck_assert_int_eq(http_new(&http, &opts, &error), 0);
}

static void after(void)
{
        http_free(http);
}

static const char *serve(typeof(endpoint.answer) answer)
{
        endpoint = (struct endpoint){.answer = answer};
        endpoint_start(&endpoint);
        return endpoint.url;
}

/* ---- names ---- */

FIXTURE(.each = {before, after});

TEST(an_unanswered_name_lookup_does_not_delay_shutdown)
{
        struct http_fetch fetch = {.request = {.url = "https://name.example/", .shown = "x"}, .max_body = 10};
        pthread_t thread;
        bool given_up = false;
        http_reuse_begin(&given_up);
        must(pthread_create(&thread, NULL, cancel_on_request, &given_up));
        uint64_t began = now_ns();
        ck_assert_int_eq(http_fetch(http, &fetch, 1, &error), STREAMER_ECANCELED);
        ck_assert_uint_lt(now_ns() - began, 20 * SECOND);
        pthread_join(thread, NULL);
        http_reuse_end();
        pthread_mutex_lock(&mutex);
        known = true;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
}

/* ---- several at once ---- */

static _Atomic unsigned served[2];

/* "/STATUS". */
static void answer_status(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->status = atoi(request->path + 1);
        served[reply->status == 403]++;
}

static struct http_fetch fetch_of(int status, bool probes)
{
        return (struct http_fetch){.request = {.url = format_text("%s/%d", endpoint.url, status), .shown = "x"},
                                   .max_body = 10,
                                   .probes = probes};
}

TEST(a_probe_is_tried_once_and_fails_none_of_the_others)
{
        serve(answer_status);
        struct http_fetch fetches[] = {fetch_of(403, true), fetch_of(503, true), fetch_of(204, false)};
        ck_assert_int_eq(http_fetch(http, fetches, 3, &error), 0);
        ck_assert_int_eq(fetches[0].error.code, STREAMER_EPERM);
        ck_assert_int_eq(fetches[0].answer.status, 403);
        ck_assert_int_eq(fetches[1].error.code, STREAMER_EFAILED);
        ck_assert_int_eq(fetches[1].answer.status, 503);
        ck_assert_int_eq(fetches[2].error.code, 0);
        ck_assert_uint_eq(served[1], 1);
        ck_assert_uint_eq(served[0], 2);
        for (size_t i = 0; i < 3; i++)
                http_fetch_deinit(&fetches[i]);
}

/* ---- pauses ---- */

#define DRAWS 200

/* The longest of many first delays after this error, with settings that limit a delay to ten seconds. The time that the
 * test itself loses only shortens one. */
static uint64_t longest_pause(int status, uint64_t received, bool stalled, unsigned made)
{
        const struct http_opts slow = {.backoff_ns = 10 * SECOND, .retry_after_ns = 10 * SECOND, .tries = 5};
        struct http *patient;
        uint64_t longest = 0;
        ck_assert_int_eq(http_new(&patient, &slow, &error), 0);
        for (int i = 0; i < DRAWS; i++) {
                struct http_transfer t = {.http = patient,
                                          .answer = {.status = status},
                                          .received = received,
                                          .cause = stalled ? HTTP_STALLED : HTTP_BROKE};
                struct http_retry retry = {.made = made};
                ck_assert(http_retry(&t, &retry));
                uint64_t now = now_ns(), pause = retry.at_ns > now ? retry.at_ns - now : 0;
                longest = pause > longest ? pause : longest;
        }
        http_free(patient);
        return longest;
}

TEST(a_broken_reply_is_retried_almost_at_once)
{
        ck_assert_uint_lt(longest_pause(206, 1, false, 0), SECOND);
        ck_assert_uint_lt(longest_pause(206, 1, false, 1), SECOND); /* and again */
        ck_assert_uint_lt(longest_pause(206, 1, false, 2), SECOND);
}

TEST(other_failures_back_off_longer)
{
        ck_assert_uint_gt(longest_pause(206, 1, false, 3), 2 * SECOND); /* and again and again */
        ck_assert_uint_gt(longest_pause(206, 0, false, 0), 2 * SECOND); /* not a byte */
        ck_assert_uint_gt(longest_pause(0, 0, false, 0), 2 * SECOND);   /* no connection */
        ck_assert_uint_gt(longest_pause(206, 1, true, 0), 2 * SECOND);
        ck_assert_uint_gt(longest_pause(500, 100, false, 0), 2 * SECOND);
        ck_assert_uint_gt(longest_pause(503, 100, false, 0), 2 * SECOND);
}

/* ---- rate limits ---- */

static void answer_limited(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->status = e->requests == 1 ? 429 : 200;
        reply->headers = format_text("RateLimit: \"api\";r=0;t=1\r\nRetry-After: 60\r\n");
}

/* Although there is only one try, and no patience. */
TEST(a_used_up_rate_limit_is_waited_for)
{
        struct http_opts hasty = opts;
        struct http_fetch fetch = {.request = {.shown = "x", .url = serve(answer_limited)}, .max_body = 10};
        struct http *impatient;
        hasty.tries = 1;
        ck_assert_int_eq(http_new(&impatient, &hasty, &error), 0);
        uint64_t began = now_ns();
        ck_assert_msg(http_fetch(impatient, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_uint_ge(now_ns() - began, SECOND);
        ck_assert_uint_eq(endpoint.requests, 2);
        http_free(impatient);
}

static void answer_no_range(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->status = e->requests == 1 ? 416 : 200;
        reply->headers = format_text("Content-Range: bytes */1\r\n");
}

/* A server that has another file under the name for a moment. */
TEST(a_range_that_the_object_has_is_asked_for_again)
{
        struct http_fetch fetch = {
                .request = {.shown = "x", .url = serve(answer_no_range), .offset = 10, .len = 10, .size = 100},
                .max_body = 10};
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        fetch.request.size = 15;
        endpoint.requests = 0;
        FAILS_WITH(error, http_fetch(http, &fetch, 1, &error), STREAMER_EFAILED, "the server answers 416");
        ck_assert_uint_eq(endpoint.requests, 1);
}

/* ---- certificates ---- */

static void answer_anything(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
}

/* Even an empty setting would leave libcurl without the system's. */
TEST(the_systems_certificates_are_the_default)
{
        struct http_access access = {.ops = &(const struct http_access_ops){.authorize = NULL}, .refs = 1, .ca = "/x"};
        struct http_fetch fetch = {.request = {.shown = "x", .access = &access}, .max_body = 10};
        fetch.request.url = serve(answer_anything);
        fake_resolver_certificates = 0;
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(fake_resolver_certificates, 2);
        http_fetch_deinit(&fetch);
        access.ca = NULL;
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(fake_resolver_certificates, 2);
}

/* ---- encodings ---- */

static char content[4096];

static void answer_encoded(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        bool again = e->requests > 1;
        endpoint_range(request, reply, content, sizeof(content));
        reply->headers = format_text("%s%s", reply->headers ?: "", again ? "Content-Encoding: gzip\r\n" : "");
}

static void answer_plain(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *accepted = endpoint_header(request, "Accept-Encoding"),
                   *us = endpoint_header(request, "User-Agent");
        if (accepted != NULL && strcmp(accepted, "identity") == 0 && us != NULL && strncmp(us, "streamerd/", 10) == 0)
                endpoint_range(request, reply, content, sizeof(content));
        else
                reply->status = 406;
}

TEST(no_content_encoding_is_requested_and_the_daemon_names_itself)
{
        struct http_fetch fetch = {.request = {.shown = "x"}, .max_body = sizeof(content)};
        fetch.request.url = serve(answer_plain);
        ck_assert_msg(http_fetch(http, &fetch, 1, &error) == 0, "%s", error.text);
}

/* An object that can be opened; reading a range of it fails. */
static void range_is_refused(typeof(endpoint.answer) answer, const char *text)
{
        struct object object;
        unsigned char bytes[100];
        const struct object_url url = {.url = serve(answer), .shown = "the-object"};
        ck_assert_msg(object_http_open(http, &url, 1, &object, &error) == 0, "%s", error.text);
        FAILS_WITH(error, object_read_range(&object, 1000, sizeof(bytes), bytes, &error), STREAMER_EFAILED, text);
}

TEST(an_encoded_range_is_refused)
{
        /* An empty header: none of the first bytes are used. */
        range_is_refused(answer_encoded, "the server sends it encoded: gzip (the-object)");
}

/* ---- size ---- */

/* One byte more than its Content-Range says, but for the first request. */
static void answer_longer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        endpoint_range(request, reply, content, sizeof(content));
        reply->size += strncmp(endpoint_header(request, "Range"), "bytes=0-", 8) != 0;
}

TEST(a_range_with_a_longer_body_is_refused)
{
        range_is_refused(answer_longer,
                         "Content-Length differs from Content-Range: 101 (bytes 1000 to 1099 of the-object)");
}

static void answer_unknown_size(struct endpoint *e, const struct endpoint_request *request,
                                struct endpoint_reply *reply)
{
        unsigned long last;
        const char *range = endpoint_header(request, "Range");
        if (range == NULL || sscanf(range, "bytes=0-%lu", &last) != 1)
                die("no range is asked for");
        reply->status = 206;
        reply->headers = format_text("Content-Range: bytes 0-%lu/*\r\n", last);
        reply->size = last + 1;
        reply->body = must_alloc(last + 1);
}

TEST(an_object_of_unknown_size_is_refused)
{
        struct object object;
        const struct object_url url = {.url = serve(answer_unknown_size), .shown = "the-object"};
        FAILS_SAYING(error, object_http_open(http, &url, 1, &object, &error), STREAMER_EFAILED,
                     "the server does not tell its size (the-object)");
        ck_assert_ptr_null(object.ops);
}

/* ---- credentials ---- */

static int not_yet(struct http_access *access, const struct http_request *request, struct http_headers *more,
                   struct error *why)
{
        return 1;
}

TEST(a_request_waits_for_its_credentials_until_the_stall_limit)
{
        const struct http_access_ops ops = {.authorize = not_yet};
        struct http_access access = {.ops = &ops, .refs = 1};
        struct http_opts hasty = opts;
        struct http_fetch fetch = {.request = {.shown = "the-object", .access = &access}, .max_body = 10};
        struct http *impatient;
        hasty.stall_ns = SECOND * 3 / 10;
        hasty.tries = 1;
        ck_assert_int_eq(http_new(&impatient, &hasty, &error), 0);
        fetch.request.url = serve(answer_anything);
        FAILS_WITH(error, http_fetch(impatient, &fetch, 1, &error), STREAMER_EFAILED,
                   "no byte for 0.3 s, no credentials yet (the-object)");
        ck_assert_uint_eq(endpoint.requests, 0);
        http_free(impatient);
}

/* ---- replaced credentials ---- */

static void answer_second_token(struct endpoint *e, const struct endpoint_request *request,
                                struct endpoint_reply *reply)
{
        char *authorization = endpoint_header(request, "Authorization");
        if (authorization == NULL || strcmp(authorization, "Bearer the-second") != 0)
                reply->status = 401;
}

static void answer_when_written(struct endpoint *e, const struct endpoint_request *request,
                                struct endpoint_reply *reply)
{
        static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
        static unsigned answered;
        pthread_mutex_lock(&one_at_a_time);
        if (++answered == 3)
                file_write(suite_path("token"), "the-second\n", 11);
        pthread_mutex_unlock(&one_at_a_time);
        answer_second_token(e, request, reply);
}

static int fetch_with(char *token_file, const char *then)
{
        const struct web_host host = {.host = endpoint.url, .token_file = token_file};
        struct http_access *access;
        file_write(token_file, "the-first\n", 10);
        ck_assert_int_eq(web_auth(&host, 1, endpoint.url, &access, &error), 0);
        file_write(token_file, then, strlen(then));
        struct http_fetch fetches[3];
        for (int i = 0; i < 3; i++)
                fetches[i] = (struct http_fetch){.request = {.url = endpoint.url, .shown = "x", .access = access},
                                                 .max_body = 10};
        return http_fetch(http, fetches, 3, &error);
}

/* In the second row the file is truncated and not yet rewritten when the server rejects the old token. */
static const struct {
        const char *then; /* the file's contents after the first token was read */
        void (*answer)(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply);
        int code;
        const char *text;
        unsigned most; /* requests; 0: any number */
} tokens[] = {
        {"the-second\n", answer_second_token, 0, "", 0},
        {"", answer_when_written, 0, "", 0},
        {"", answer_second_token, STREAMER_EPERM, "given up after 4 tries", 0},
        {"the-first\n", answer_second_token, STREAMER_EPERM, "", 3},
};

TEST(a_token_that_is_refused_is_reread, EACH(tokens))
{
        serve(tokens[_i].answer);
        FAILS_WITH(error, fetch_with(suite_path("token"), tokens[_i].then), tokens[_i].code, tokens[_i].text);
        ck_assert_msg(strstr(error.text, "the-first") == NULL, "%s", error.text);
        ck_assert(tokens[_i].most == 0 || endpoint.requests <= tokens[_i].most);
}
