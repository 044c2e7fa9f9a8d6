/* SPDX-License-Identifier: Apache-2.0
 *
 * A service that gives the store's credentials and cannot be asked is an outage of the store; what it refuses is none.
 */
#include "tests/integration/disk_fixture.h"

static struct model *model;
static struct endpoint sts;
static _Atomic int sts_status = 200;

#define ONE "s3://b/one/model.safetensors"
#define ALLOW "http: {backoff: 5ms, tries: 2, patience: 0s}\ndisk_cache: {min_free: 1, offline: allow}\n"

static void answer_sts(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        reply->status = sts_status;
        reply->body = strdup(
                sts_status != 200 ? "<ErrorResponse><Error><Code>X</Code></Error></ErrorResponse>"
                                  : "<R><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
                                    "<SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
                                    "</Credentials></R>");
}

static void begin(void)
{
        model = model_mixed(94, 4 << 20);
        begin_store_with(model);
        unsetenv("RUNAI_STREAMER_S3_UNSIGNED");
        sts.answer = answer_sts;
        endpoint_start(&sts);
        setenv("AWS_ENDPOINT_URL_STS", sts.url, 1);
        setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/a", 1);
        setenv("AWS_WEB_IDENTITY_TOKEN_FILE", suite_file("token", "thetoken"), 1);
        start_with(format_text("%s=64MiB", cache_path()), ALLOW);
        store_behind(ONE, model, 1);
        AWAIT(load_from(ONE, model)[0] == 'd');
        ck_assert(log_wait_for(disk_daemon.log, "a source of 1 objects is stored"));
        stop();
}

static void start_again(void)
{
        start_with(format_text("%s=64MiB", cache_path()), ALLOW);
}

static void assert_stale(void)
{
        client_load(client, ONE, "m");
        client_equals(client, "m", model);
        ck_assert_str_eq(from_of("m"), "disk");
        ck_assert(json_is_true(json_object_get(client_show(client, "m"), "stale")));
}

FIXTURE(.each = {begin, NULL});

TEST(a_token_service_that_cannot_serve_is_an_outage)
{
        sts_status = 503;
        start_again();
        assert_stale();
        ck_assert(log_wait_for(disk_daemon.log, "is used, which may be stale: STS answers 503"));
        stop();
}

TEST(a_token_service_that_cannot_be_reached_is_an_outage)
{
        setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1", 1); /* where nothing listens */
        start_again();
        assert_stale();
        stop();
}

static const int refusals[] = {400, 401, 403, 404, 429};

TEST(what_a_token_service_refuses_is_no_outage, EACH(refusals))
{
        sts_status = refusals[_i];
        start_again();
        client_load_fails(client, ONE, "m", STREAMER_EPERM, format_text("STS answers %d", refusals[_i]));
        stop();
}

TEST(a_named_machines_metadata_that_cannot_be_reached_are_an_outage)
{
        unsetenv("AWS_WEB_IDENTITY_TOKEN_FILE");
        unsetenv("AWS_ROLE_ARN");
        unsetenv("AWS_EC2_METADATA_DISABLED");
        setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1", 1);
        setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1", 1);
        start_again();
        assert_stale();
        stop();
        setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
        start_again();
        client_load_fails(client, ONE, "m", STREAMER_EPERM, "no credentials: ");
        stop();
}
