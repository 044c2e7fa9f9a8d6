/* SPDX-License-Identifier: Apache-2.0
 *
 * Instance metadata, ECS and STS as credential services: their order, and slow, dead and invalid endpoints. No error
 * contains a secret.
 */
#include "tests/unit/aws_fixture.h"

#include <sys/syscall.h>

/* ---- containers ---- */

FIXTURE(.each = {begin, end});

TEST(a_container_with_its_token_file)
{
        set_container();
        assert_keys("AK1", "thesecret", "T1", "container endpoint");
        ck_assert_str_eq(requests_seen, "GET /v1/credentials?a=b\n");
        ck_assert_int_gt(keys.expires, time(NULL) + 3000);
}

static void answer_late(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        if (e->requests < 3)
                reply->status = 503;
        else
                answer_container(e, request, reply);
}

/* As agents on a node do when many containers begin at once. */
TEST(a_container_endpoint_that_is_not_ready_yet)
{
        set_container();
        service.answer = answer_late;
        assert_keys("AK1", "thesecret", "T1", "container endpoint");
}

TEST(a_container_with_its_token)
{
        set_container();
        unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "bearer thetoken", 1);
        assert_keys("AK1", "thesecret", "T1", "container endpoint");
}

TEST(a_container_that_refuses_ends_the_chain)
{
        set_container();
        setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "thesecret", 1);
        unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        assert_fails(STREAMER_EPERM, "the container endpoint answers 401");
}

#define NO_PATH "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI does not begin with '/'"
#define NO_URL "AWS_CONTAINER_CREDENTIALS_FULL_URI is not an http(s) URL"
#define PLAIN                                                                                                          \
        "AWS_CONTAINER_CREDENTIALS_FULL_URI: plain http is for loopback and the addresses of ECS and EKS, not for "

static const struct {
        const char *full, *relative, *uri; /* NULL: refused */
        const char *why;
} uris[] = {
        {NULL, "/v2/credentials/x", "http://169.254.170.2/v2/credentials/x", NULL},
        {NULL, "v2", NULL, NO_PATH},
        {NULL, "@evil/", NULL, NO_PATH},
        {"http://127.0.0.1/x", NULL, "http://127.0.0.1/x", NULL},
        {"http://127.9.9.9:80/x", NULL, "http://127.9.9.9:80/x", NULL},
        {"http://localhost:8080/x", NULL, "http://localhost:8080/x", NULL},
        {"http://[::1]/x", NULL, "http://[::1]/x", NULL},
        {"http://169.254.170.23/v1/credentials", NULL, "http://169.254.170.23/v1/credentials", NULL},
        {"http://[fd00:ec2::23]/x", NULL, "http://[fd00:ec2::23]/x", NULL},
        {"https://example.com/x", NULL, "https://example.com/x", NULL},
        {"http://example.com/x", NULL, NULL, PLAIN "example.com"},
        {"http://127.0.0.1.example.com/x", NULL, NULL, PLAIN "127.0.0.1.example.com"},
        {"http://127.0.0.1@example.com/x", NULL, NULL, NO_URL},
        {"http://169.254.169.254/x", NULL, NULL, PLAIN "169.254.169.254"},
        {"ftp://127.0.0.1/x", NULL, NULL, NO_URL},
        {"thesecret", NULL, NULL, NO_URL},
};

TEST(a_container_endpoint_must_be_a_permitted_host, EACH(uris))
{
        char *uri;
        if (uris[_i].full != NULL)
                setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", uris[_i].full, 1);
        if (uris[_i].relative != NULL)
                setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", uris[_i].relative, 1);
        ck_assert_int_eq(aws_container_uri(&uri, &error), uris[_i].uri != NULL ? 0 : STREAMER_EFAILED);
        ck_assert_pstr_eq(uri, uris[_i].uri);
        if (uris[_i].why != NULL)
                ck_assert_str_eq(error.text, uris[_i].why);
}

TEST(a_token_that_no_header_may_hold_is_not_sent)
{
        set_container();
        unsetenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "bearer thesecret\r\nX: y", 1);
        assert_fails(STREAMER_EINVAL, "a header that cannot be sent: Authorization");
        ck_assert_uint_eq(service.requests, 0);
}

/* ---- STS ---- */

static void set_web_identity(void)
{
        setenv("AWS_WEB_IDENTITY_TOKEN_FILE", set_sts(), 1);
        setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
}

TEST(a_web_identity_of_the_environment)
{
        set_web_identity();
        assert_keys("AK1", "thesecret", "T", "web identity as arn:aws:iam::1:role/r");
        ck_assert_ptr_nonnull(strstr(requests_seen, "POST /"));
}

TEST(a_web_identity_of_a_profile)
{
        write_file("AWS_CONFIG_FILE", format_text("[default]\nrole_arn = arn:aws:iam::1:role/r\n"
                                                  "web_identity_token_file = %s\n",
                                                  set_sts()));
        assert_keys("AK1", "thesecret", "T", "web identity as arn:aws:iam::1:role/r");
}

/* The request has a token, and the reply has keys. */
TEST(plain_http_to_sts_is_for_loopback_and_hosts_that_are_named)
{
        const char *const hosts[] = {"0.0.0.0"};
        const struct http_opts http = {.allow_plain = hosts, .n_allow_plain = 1};
        set_web_identity();
        setenv("AWS_ENDPOINT_URL_STS", format_text("http://0.0.0.0%s", strrchr(service.url, ':')), 1);
        assert_fails(STREAMER_EPERM, "plain http is refused");
        ck_assert_uint_eq(service.requests, 0);
        credentials = renewal_free(credentials);
        open_with(&(struct aws_credentials_opts){.http = &http});
        assert_keys("AK1", "thesecret", "T", "web identity as arn:aws:iam::1:role/r");
}

TEST(sts_uses_the_common_endpoint_unless_it_has_its_own)
{
        set_web_identity();
        setenv("AWS_ENDPOINT_URL", service.url, 1);
        setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1", 1);
        ck_assert_int_ne(get(), 0);
        credentials = renewal_free(credentials);
        unsetenv("AWS_ENDPOINT_URL_STS");
        assert_keys("AK1", "thesecret", "T", "web identity as arn:aws:iam::1:role/r");
}

TEST(missing_certificates_for_sts_are_named)
{
        set_web_identity();
        setenv("AWS_ENDPOINT_URL_STS", format_text("https%s", strchr(service.url, ':')), 1);
        write_file("AWS_CONFIG_FILE", "[default]\nca_bundle = /nonexistent/ca.pem\n");
        assert_fails(STREAMER_EFAILED, "CA cert");
}

TEST(a_web_identity_that_sts_refuses)
{
        set_web_identity();
        status = 403;
        assert_fails(STREAMER_EPERM, "STS answers 403 AccessDenied: not you");
}

TEST(a_web_identity_without_a_role_or_token)
{
        setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token", 1);
        assert_fails(STREAMER_EFAILED, "a web identity token file without a role (AWS_ROLE_ARN, role_arn)");
        credentials = renewal_free(credentials);
        setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/r", 1);
        assert_fails(STREAMER_EFAILED, "/nonexistent/token");
}

/* ---- instance metadata ---- */

static const char *role = "node-role"; /* the instance's; changed by tests */

static void answer_instance(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        const char *token = endpoint_header(request, "X-aws-ec2-metadata-token");
        note(request);
        reply->hang = hang;
        if (strcmp(request->method, "PUT") == 0) {
                bool ttl = endpoint_header(request, "X-aws-ec2-metadata-token-ttl-seconds") != NULL;
                reply->status = ttl && strcmp(request->path, "/latest/api/token") == 0 ? status : 400;
                reply->body = format_text("session");
        } else if (token == NULL || strcmp(token, "session") != 0) {
                reply->status = 401;
        } else if (strcmp(request->path, "/latest/meta-data/iam/security-credentials/") == 0) {
                reply->body = format_text("%s", role);
        } else if (strcmp(request->path, "/latest/meta-data/iam/security-credentials/node-role") == 0) {
                answer_json(reply);
        } else {
                reply->status = 404;
        }
}

static void set_instance(void)
{
        serve(answer_instance);
        unsetenv("AWS_EC2_METADATA_DISABLED");
        setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", format_text("%s/", service.url), 1);
        setenv("AWS_METADATA_SERVICE_TIMEOUT", "20", 1); /* none is repeated because it was slow */
}

TEST(an_instances_role_by_a_session)
{
        set_instance();
        assert_keys("AK1", "thesecret", "T1", "instance role node-role");
        ck_assert_str_eq(requests_seen, "PUT /latest/api/token\nGET /latest/meta-data/iam/security-credentials/\n"
                                        "GET /latest/meta-data/iam/security-credentials/node-role\n");
}

static const char *const bad_roles[] = {"", "\nnode-role", "../node-role", "node-role?x", "node role"};

/* It becomes part of a URL. */
TEST(a_role_whose_name_is_not_valid_is_not_asked_for, EACH(bad_roles))
{
        set_instance();
        role = bad_roles[_i];
        assert_fails(STREAMER_EFAILED, "the instance's role has no valid name");
        ck_assert_ptr_null(strstr(requests_seen, "node"));
}

TEST(instance_metadata_that_are_disabled_are_not_asked)
{
        set_instance();
        setenv("AWS_EC2_METADATA_DISABLED", "TRUE", 1);
        assert_fails(STREAMER_EPERM, "instance metadata: disabled");
        ck_assert_uint_eq(service.requests, 0);
}

/* A hop limit of 1 drops the answer before it reaches a container; there is no fallback to version 1. */
TEST(an_instance_without_session_tokens_provides_no_keys)
{
        set_instance();
        status = 403;
        assert_fails(STREAMER_EPERM, "instance metadata answers 403 to a request for a token (IMDSv2)");
        ck_assert_ptr_null(strstr(requests_seen, "GET"));
}

TEST(a_silent_instance_metadata_service_times_out)
{
        set_instance();
        hang = true;
        setenv("AWS_METADATA_SERVICE_TIMEOUT", "1", 1);
        setenv("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "1", 1);
        uint64_t begun = clock_ns();
        assert_fails(STREAMER_EPERM, "no credentials");
        ck_assert_uint_lt(clock_ns() - begun, UINT64_C(10) * 1000000000);
}

static time_t advanced;

/* The clock of this program, also for the libraries. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
        int r = (int)syscall(SYS_clock_gettime, clock, now);
        now->tv_sec += clock == CLOCK_MONOTONIC ? __atomic_load_n(&advanced, __ATOMIC_SEQ_CST) : 0;
        return r;
}

/* A load waits for half a minute, and not for as long as the service may take. */
TEST(a_silent_provider_fails_loads_before_its_timeout)
{
        set_instance();
        hang = true;
        setenv("AWS_METADATA_SERVICE_TIMEOUT", "60", 1);
        open_with(&(struct aws_credentials_opts){.profile = NULL});
        ck_assert_int_eq(renewal_get(credentials, &keys, &error), 1);
        __atomic_store_n(&advanced, 20, __ATOMIC_SEQ_CST);
        ck_assert_int_eq(renewal_get(credentials, &keys, &error), 1);
        __atomic_store_n(&advanced, 31, __ATOMIC_SEQ_CST);
        assert_fails(STREAMER_EFAILED, "credentials: the provider does not answer");
}

TEST(instance_metadata_bypasses_proxies)
{
        set_instance();
        setenv("http_proxy", "http://127.0.0.1:1", 1);
        assert_keys("AK1", "thesecret", "T1", "instance role node-role");
}

/* ---- order ---- */

static void answer_all(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        if (strncmp(request->path, "/latest/", 8) == 0)
                answer_instance(e, request, reply);
        else if (strncmp(request->path, "/v1/", 4) == 0)
                answer_container(e, request, reply);
        else
                answer_sts(e, request, reply);
}

static void assert_from(const char *from)
{
        ck_assert_msg(get() == 0, "%s", error.text);
        ck_assert_str_eq(keys.origin, from);
        credentials = renewal_free(credentials);
}

TEST(web_identity_precedes_container_precedes_instance)
{
        set_web_identity();
        service.answer = answer_all;
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", format_text("%s/v1/credentials", service.url), 1);
        setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "bearer thetoken", 1);
        setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", service.url, 1);
        setenv("AWS_METADATA_SERVICE_TIMEOUT", "20", 1);
        unsetenv("AWS_EC2_METADATA_DISABLED");
        assert_from("web identity as arn:aws:iam::1:role/r");
        unsetenv("AWS_WEB_IDENTITY_TOKEN_FILE");
        assert_from("container endpoint");
        unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
        assert_from("instance role node-role");
        ck_assert_str_eq(requests_seen, "POST /\nGET /v1/credentials\nPUT /latest/api/token\n"
                                        "GET /latest/meta-data/iam/security-credentials/\n"
                                        "GET /latest/meta-data/iam/security-credentials/node-role\n");
}
