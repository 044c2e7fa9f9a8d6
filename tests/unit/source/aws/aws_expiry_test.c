/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials that expire or that a store rejects: when they are refreshed, which are used until then, and which files
 * are read again.
 */
#include "tests/unit/aws_fixture.h"

/* ---- expiry ---- */

FIXTURE(.each = {begin, end});

TEST(keys_are_refreshed_before_they_expire)
{
        life = 8;
        set_container();
        assert_keys("AK1", "thesecret", "T1", "container endpoint");
        AWAIT(strcmp(good_keys()->access, "AK1") != 0);
        ck_assert_int_gt(keys.expires, time(NULL));
}

/* A lifetime of one second; a second refresh if it passes before the end. */
TEST(expired_keys_are_an_error_and_refreshed_after_a_pause)
{
        uint64_t began = clock_ns();
        life = -10;
        set_container();
        for (int i = 0; i < 100; i++)
                assert_fails(STREAMER_EFAILED, "expired on receipt: is this machine's clock right? (container");
        ck_assert_uint_le(service.requests, 2 + (clock_ns() - began) / 1000000000);
}

TEST(long_lived_keys_are_fetched_once)
{
        set_container();
        for (int i = 0; i < 100; i++)
                ck_assert_int_eq(get(), 0);
        ck_assert_uint_eq(service.requests, 1);
}

/* While one fetch hangs, callers get the old keys at once and no other fetch begins. */
TEST(one_refresh_runs_at_a_time_and_no_load_waits_for_it)
{
        life = 60;
        set_container();
        ck_assert_int_eq(get(), 0);
        hang = true;
        ck_assert(renewal_refused(credentials, keys.number + 1));
        ck_assert(renewal_refused(credentials, keys.number));
        for (int i = 0; i < 100; i++)
                ck_assert_int_eq(renewal_get(credentials, &keys, &error), 1);
        ck_assert_uint_le(service.requests, 2);
}

TEST(keys_rejected_by_the_store_are_replaced)
{
        set_container();
        ck_assert_int_eq(get(), 0);
        uint64_t old = keys.number;
        ck_assert(renewal_refused(credentials, old));
        assert_keys("AK2", "thesecret", "T2", "container endpoint");
        for (int i = 0; i < 3; i++) {
                ck_assert(renewal_refused(credentials, old)); /* of a request that was under way */
                assert_keys("AK2", "thesecret", "T2", "container endpoint");
        }
        ck_assert_uint_eq(service.requests, 2);
}

TEST(unchanged_keys_are_rejected_once)
{
        setenv("AWS_ACCESS_KEY_ID", "A", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "thesecret", 1);
        ck_assert_int_eq(get(), 0);
        ck_assert(renewal_refused(credentials, keys.number));
        ck_assert_int_eq(get(), 0);
        ck_assert(!renewal_refused(credentials, keys.number));
}

TEST(files_are_reread_when_the_store_rejects_the_keys)
{
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[default]\naws_access_key_id=F1\naws_secret_access_key=s\n");
        assert_keys("F1", "s", "", "profile 'default'");
        write_file("AWS_SHARED_CREDENTIALS_FILE", "[default]\naws_access_key_id=F2\naws_secret_access_key=t\n");
        ck_assert(renewal_refused(credentials, keys.number));
        assert_keys("F2", "t", "", "profile 'default'");
}

static void await_request(unsigned number)
{
        AWAIT((credential_deinit(&keys), renewal_get(credentials, &keys, &error), service.requests >= number));
}

TEST(a_failed_refresh_keeps_unexpired_keys)
{
        life = 6;
        set_container();
        ck_assert_int_eq(get(), 0);
        status = 500;
        await_request(2);
        assert_keys("AK1", "thesecret", "T1", "container endpoint");
}

TEST(rejected_keys_wait_for_a_retried_refresh)
{
        set_container();
        ck_assert_int_eq(get(), 0);
        uint64_t old = keys.number;
        status = 503;
        ck_assert(renewal_refused(credentials, old));
        await_request(5); /* all of the first fetch have failed */
        ck_assert_int_eq(renewal_get(credentials, &keys, &error), 1);
        ck_assert(renewal_refused(credentials, old));
        status = 200;
        assert_keys("AK2", "thesecret", "T2", "container endpoint");
}

/* An instance's, because the time that a request to it may take can be set: here a minute. */
TEST(exit_does_not_wait_for_a_hanging_service)
{
        serve(answer_container);
        hang = true;
        unsetenv("AWS_EC2_METADATA_DISABLED");
        setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url, 1);
        setenv("AWS_METADATA_SERVICE_TIMEOUT", "60", 1);
        open_with(&(struct aws_credentials_opts){.profile = NULL});
        await_request(1);
        uint64_t begun = clock_ns();
        credentials = renewal_free(credentials);
        ck_assert_uint_lt(clock_ns() - begun, UINT64_C(20) * 1000000000);
}

/* ---- token files ---- */

static void answer_any_token(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *token = endpoint_header(request, "Authorization") ?: strstr(request->body, "WebIdentityToken=");
        strcat(requests_seen, format_text("%s\n", token));
        if (strncmp(token, "bearer", 6) == 0)
                answer_json(reply);
        else
                answer_xml(reply);
}

/* The writer of the first token writes the next before it expires. */
TEST(a_containers_token_file_is_read_each_time)
{
        set_container();
        service.answer = answer_any_token;
        ck_assert_int_eq(get(), 0);
        file_write(getenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"), "bearer next\n", 12);
        ck_assert(renewal_refused(credentials, keys.number));
        assert_keys("AK2", "thesecret", "T2", "container endpoint");
        ck_assert_str_eq(requests_seen, "bearer thetoken\nbearer next\n");
}

TEST(a_web_identitys_token_file_is_read_each_time)
{
        char *path = set_sts();
        service.answer = answer_any_token;
        setenv("AWS_WEB_IDENTITY_TOKEN_FILE", path, 1);
        setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
        ck_assert_int_eq(get(), 0);
        file_write(path, "next", 4);
        ck_assert(renewal_refused(credentials, keys.number));
        assert_keys("AK2", "thesecret", "T", "web identity as arn:aws:iam::1:role/r");
        ck_assert_str_eq(requests_seen, "WebIdentityToken=a.b%2Bc\nWebIdentityToken=next\n");
}
