/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of the Hub and of a store that cannot be used, or are unusual: a server gives the same one to each request.
 * hub_test and s3_test load models.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/io/http/http.h"
#include "daemon/source/hf/hf.h"
#include "daemon/source/listing.h"
#include "daemon/source/s3/endpoint.h"
#include "daemon/source/source.h"

static struct endpoint server;
static struct sources sources;
static struct error error;

/* The answer; changed by tests. */
static int status; /* 0: 200 */
static const char *body;

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->status = status;
        reply->body = format_text("%s", body);
}

static void start_server(void)
{
        const struct http_opts opts = {.connect_timeout_ns = 60 * SECOND,
                                       .stall_ns = 60 * SECOND,
                                       .backoff_ns = SECOND / 1000,
                                       .retry_after_ns = SECOND,
                                       .tries = 2,
                                       .threads = 1};
        log_set_level(LOG_LEVEL_ERROR);
        server.answer = answer;
        endpoint_start(&server);
        ck_assert_int_eq(http_new(&sources.http, &opts, &error), 0);
}

/* ---- the Hub ---- */

static struct source_set set;

static void begin_hub(void)
{
        unsetenv("HOME");
        unsetenv("XDG_CACHE_HOME");
        start_server();
}

static void end_hub(void)
{
        source_set_deinit(&set);
        hf_free(sources.hf);
        http_free(sources.http);
}

static void assert_hub_fails(const char *token, int code, const char *text)
{
        ck_assert_int_eq(hf_new(&sources.hf, server.url, NULL, token, &error), 0);
        FAILS_SAYING(error, source_open(&sources, "hf://org/name@main", false, &set, &error), code, text);
}

FIXTURE(.each = {begin_hub, end_hub});

static const struct {
        const char *body, *text;
} answers[] = {
        {"", "an empty answer (hf://org/name@main)"},
        {"<html>", "the answer is not as the Hub's: '{' is expected (hf://org/name@main)"},
        {"{\"sha\":\"0123456789abcdef\",\"siblings\":{}}",
         "the answer is not as the Hub's: '[' is expected (hf://org/name@main)"},
        {"{}", "the answer names no commit (hf://org/name@main)"},
        {"{\"sha\":\"../0123456789abcdef\",\"siblings\":[]}", "the answer names no commit (hf://org/name@main)"},
};

TEST(an_answer_that_is_not_the_hubs_fails_the_source, EACH(answers))
{
        status = 200;
        body = answers[_i].body;
        assert_hub_fails(NULL, STREAMER_EFAILED, answers[_i].text);
}

TEST(a_refusal_says_whether_a_token_was_sent)
{
        status = 403;
        body = "";
        assert_hub_fails(NULL, STREAMER_EPERM, "the Hub answers 403 (hf://org/name@main, without a token)");
        sources.hf = hf_free(sources.hf);
        assert_hub_fails("hf_thetoken", STREAMER_EPERM, "the Hub answers 403 (hf://org/name@main, with a token)");
}

static void answer_restricted(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->status = 403;
        reply->headers =
                format_text("X-Error-Code: GatedRepo\r\nX-Error-Message: Visit the page to ask for access\r\n");
}

TEST(a_refusal_has_the_hubs_own_words)
{
        server.answer = answer_restricted;
        assert_hub_fails(NULL, STREAMER_EPERM,
                         "the Hub answers 403 GatedRepo: Visit the page to ask for access (hf://org/name@main, without "
                         "a token)");
}

static const struct {
        const char *variable, *value;
        bool offline;
} variables[] = {{"HF_HUB_OFFLINE", "1", true},
                 {"HF_HUB_OFFLINE", "yes", true},
                 {"HF_HUB_OFFLINE", "0", false},
                 {"TRANSFORMERS_OFFLINE", "true", true}};

TEST(offline_the_hub_is_not_asked, EACH(variables))
{
        body = "{}";
        setenv(variables[_i].variable, variables[_i].value, 1);
        assert_hub_fails(NULL, STREAMER_EFAILED,
                         variables[_i].offline
                                 ? format_text("the Hub is not asked: %s is set in the daemon's environment "
                                               "(hf://org/name@main)",
                                               variables[_i].variable)
                                 : "the answer names no commit (hf://org/name@main)");
        ck_assert_uint_eq(server.requests, !variables[_i].offline);
}

TEST(an_invalid_endpoint_of_the_environment_fails_loads_alone)
{
        ck_assert_int_eq(hf_new(&sources.hf, "ftp://mirror", "HF_ENDPOINT", NULL, &error), 0);
        FAILS_SAYING(error, source_open(&sources, "hf://org/name@main", false, &set, &error), STREAMER_EINVAL,
                     "HF_ENDPOINT: not http(s)://host[:port], without user and password");
        struct hf *other;
        FAILS_SAYING(error, hf_new(&other, "ftp://own", NULL, NULL, &error), STREAMER_EINVAL,
                     "hf.endpoint: not http(s)://host[:port], without user and password");
        ck_assert_int_eq(hf_new(&other, "hf-mirror.com", "HF_ENDPOINT", NULL, &error), 0);
        hf_free(other);
}

static char *authorization;

static void answer_anything(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        authorization = endpoint_header(request, "Authorization");
        reply->body = format_text("{}");
}

TEST(a_token_loses_blanks_around_it)
{
        server.answer = answer_anything;
        assert_hub_fails(" hf_thetoken\r\n", STREAMER_EFAILED, "the answer names no commit (hf://org/name@main)");
        ck_assert_str_eq(authorization, "Bearer hf_thetoken");
}

TEST(a_token_that_no_header_may_hold_is_named)
{
        setenv("HF_TOKEN", "hf_the\ntoken", 1);
        assert_hub_fails("hf_the\ntoken", STREAMER_EFAILED,
                         "HF_TOKEN: the token has a line break or another byte that no header may hold");
        ck_assert_uint_eq(server.requests, 0);
}

/* ---- lists of a store ---- */

static struct listing list;

static void begin_store(void)
{
        start_server();
        const struct s3_endpoint_opts rest = {.endpoint = server.url, .is_unsigned = true};
        ck_assert_int_eq(s3_endpoints_new(&sources.s3, &rest, NULL, 0, NULL, &error), 0);
}

static void end_store(void)
{
        listing_deinit(&list);
        http_free(sources.http);
        s3_endpoints_free(sources.s3);
}

/* A store that lists ETags without their quotes, which it requires in a condition. */
static void answer_bare(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *condition = endpoint_header(request, "If-Match");
        if (strchr(request->path, '?') != NULL) {
                reply->body = format_text("<ListBucketResult><Contents><Key>m/model.safetensors</Key><Size>4</Size>"
                                          "<ETag>e1</ETag></Contents></ListBucketResult>");
        } else if (condition == NULL || strcmp(condition, "\"e1\"") != 0) {
                reply->status = 412;
        } else {
                reply->headers = format_text("ETag: \"e1\"\r\n");
                endpoint_range(request, reply, "four", 4);
        }
}

/* The object has the ETag "e2"; the n-th list (of 1) has the n-th of these, and later ones the last. */
static const char *const *listed;
static _Atomic unsigned n_listed;

static void answer_other(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *condition = endpoint_header(request, "If-Match");
        if (strchr(request->path, '?') != NULL) {
                unsigned n = n_listed++;
                while (n > 0 && listed[n] == NULL)
                        n--;
                reply->body = format_text("<ListBucketResult><Contents><Key>m/model.safetensors</Key><Size>4</Size>"
                                          "<ETag>%s</ETag></Contents></ListBucketResult>",
                                          listed[n]);
        } else if (condition != NULL && strcmp(condition, "\"e2\"") != 0) {
                reply->status = 412;
                reply->body = format_text("<Error><Code>PreconditionFailed</Code></Error>");
        } else {
                reply->headers = format_text("ETag: \"e2\"\r\n");
                endpoint_range(request, reply, "four", 4);
        }
}

/* A range from byte 0 of an object without bytes. */
static void answer_empty(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->status = strchr(request->path, '?') != NULL ? 200 : 416;
        reply->body = reply->status == 200
                              ? format_text("<ListBucketResult><Contents><Key>m/model.safetensors</Key><Size>0</Size>"
                                            "<ETag>e1</ETag></Contents></ListBucketResult>")
                              : format_text("<Error><Code>InvalidRange</Code></Error>");
}

static const char *const empty[] = {"s3://bucket/m/", "s3://bucket/m/model.safetensors"};

static void assert_list_fails(const char *text)
{
        FAILS_SAYING(error, source_list_sidecars(&sources, "s3://bucket/m/", false, &list, &error), STREAMER_EFAILED,
                     text);
}

FIXTURE(.each = {begin_store, end_store});

TEST(an_empty_answer_to_a_list_fails_the_source)
{
        body = "";
        assert_list_fails("an empty answer to a list (s3://bucket/m/)");
        ck_assert_uint_eq(server.requests, 1);
}

/* Sixteen pages, of files beside the weights. */
TEST(a_list_without_an_end_fails_the_source)
{
        body = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
               "</ListBucketResult>";
        assert_list_fails("more than 16 pages of keys (s3://bucket/m/)");
        ck_assert_uint_eq(server.requests, 16);
}

TEST(an_etag_that_is_listed_without_quotes_is_sent_with_them)
{
        server.answer = answer_bare;
        ck_assert_msg(source_open(&sources, "s3://bucket/m/", false, &set, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(set.objects[0].version.size, 4);
}

static const struct {
        const char *listed[4];
        unsigned lists; /* that are requested */
        const char *text;
} lists[] = {
        {{"e2"}, 1, NULL},
        {{"e1", "e2"}, 3, NULL}, /* the object was replaced between list and request: the load begins again */
        {{"e1"}, 2, NULL},       /* the lists of this store are wrong */
        {{"e3", "e4", "e5", "e6"},
         4,
         "the object was replaced while it was read: another ETag than in the list (s3://bucket/m/model.safetensors)"},
};

TEST(an_object_with_another_etag_than_the_list, EACH(lists))
{
        server.answer = answer_other;
        listed = lists[_i].listed;
        FAILS_WITH(error, source_open(&sources, "s3://bucket/m/", false, &set, &error),
                   lists[_i].text != NULL ? STREAMER_EFAILED : 0, lists[_i].text ?: "");
        ck_assert_uint_eq(n_listed, lists[_i].lists);
}

TEST(an_object_without_bytes_is_opened, EACH(empty))
{
        server.answer = answer_empty;
        ck_assert_msg(source_open(&sources, empty[_i], false, &set, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(set.objects[0].version.size, 0);
}
