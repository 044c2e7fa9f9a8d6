/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of a store that cannot be used: empty ones, and ones without an end. s3_test loads models.
 */
#include "tests/unit/answer_fixture.h"

#include "daemon/source/s3/endpoint.h"

static struct sidecar_list list;

static void begin(void)
{
        start_server();
        const struct s3_endpoint_opts rest = {.endpoint = server.url, .is_unsigned = true};
        ck_assert_int_eq(s3_endpoints_new(&sources.s3, &rest, NULL, 0, NULL, &error), 0);
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
        ck_assert_uint_eq(server.requests, 1);
}

/* Sixteen of them for the files beside the weights. */
TEST(a_list_without_an_end_fails_the_source)
{
        body = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
               "</ListBucketResult>";
        assert_fails("more than 16 pages of keys (s3://bucket/m/)");
        ck_assert_uint_eq(server.requests, 16);
}
