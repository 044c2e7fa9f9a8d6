/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of a store that cannot be used: empty ones, and ones without an end. s3_test loads models.
 */
#include "tests/lib/endpoint.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/source/s3/endpoint.h"
#include "daemon/source/source.h"

#define SECOND UINT64_C(1000000000)

static struct endpoint store;
static struct sources sources;
static struct sidecar_list list;
static struct error error;
static const char *body;

static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        (void)e, (void)request;
        reply->body = format_text("%s", body);
}

static void begin(void)
{
        const struct http_opts opts = {.connect_timeout_ns = 60 * SECOND,
                                       .stall_ns = 60 * SECOND,
                                       .backoff_ns = SECOND / 1000,
                                       .retry_after_ns = SECOND,
                                       .tries = 2,
                                       .threads = 1};
        log_set_level(LOG_LEVEL_ERROR);
        store.answer = answer;
        endpoint_start(&store);
        const struct s3_endpoint_opts rest = {.endpoint = store.url, .is_unsigned = true};
        ck_assert_int_eq(s3_endpoints_new(&sources.s3, &rest, NULL, 0, NULL, &error), 0);
        ck_assert_int_eq(http_new(&sources.http, &opts, &error), 0);
}

static void end(void)
{
        sidecar_list_deinit(&list);
        http_free(sources.http);
        s3_endpoints_free(sources.s3);
}

static void assert_fails(const char *text)
{
        ck_assert_int_eq(source_list_sidecars(&sources, "s3://bucket/m/", &list, &error), STREAMER_EFAILED);
        ck_assert_str_eq(error.text, text);
}

FIXTURE(.each = {begin, end});

TEST(an_empty_answer_to_a_list_fails_the_source)
{
        body = "";
        assert_fails("an empty answer to a list (s3://bucket/m/)");
        ck_assert_uint_eq(store.requests, 1);
}

/* Sixteen of them for the files beside the weights. */
TEST(a_list_without_an_end_fails_the_source)
{
        body = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
               "</ListBucketResult>";
        assert_fails("more than 16 pages of keys (s3://bucket/m/)");
        ck_assert_uint_eq(store.requests, 16);
}
