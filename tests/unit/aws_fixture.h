/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the credential tests: configuration files, and endpoints in place of a container's metadata service and
 * STS.
 */
#pragma once

#include "tests/lib/endpoint.h"
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/aws_credentials.h"
#include "daemon/source/aws/providers.h"

static struct renewal *credentials;
static struct credential keys;
static struct error error;
static struct endpoint service;

/* The service's answer; changed by tests. */
static _Atomic int status = 200;
static time_t life = 3600; /* of the returned keys */
static _Atomic bool hang;
static unsigned n_issued;        /* how many it has given out: "AK1", "AK2", ... */
static char requests_seen[4096]; /* methods and paths */

static inline void begin(void)
{
        log_set_level(LOG_LEVEL_ERROR);
        setenv("AWS_CONFIG_FILE", suite_path("config-%d", (int)getpid()), 1);
        setenv("AWS_SHARED_CREDENTIALS_FILE", suite_path("credentials-%d", (int)getpid()), 1);
}

static inline void end(void)
{
        credential_deinit(&keys);
        credentials = renewal_free(credentials);
}

static inline void open_with(const struct aws_credentials_opts *opts)
{
        ck_assert_msg(aws_credentials_new(&credentials, opts, &error) == 0, "%s", error.text);
}

/* Polls until the credentials are available, as the authorization of requests does. */
static inline int get(void)
{
        int r;
        if (credentials == NULL)
                open_with(&(struct aws_credentials_opts){.profile = NULL});
        credential_deinit(&keys);
        while ((r = renewal_get(credentials, &keys, &error)) == 1)
                usleep(1000); /* the pause between two questions, no more */
        return r;
}

static inline const struct credential *good_keys(void)
{
        ck_assert_msg(get() == 0, "%s", error.text);
        return &keys;
}

static inline void assert_keys(const char *access, const char *secret, const char *token, const char *from)
{
        good_keys();
        ck_assert_str_eq(keys.access, access);
        ck_assert_str_eq(keys.secret, secret);
        ck_assert_str_eq(keys.token ?: "", token);
        ck_assert_str_eq(keys.origin, from);
}

static inline void assert_fails(int code, const char *why)
{
        FAILS_WITH(error, get(), code, why);
        ck_assert_ptr_null(strstr(error.text, "thesecret"));
}

static inline void write_file(const char *variable, const char *text)
{
        file_write(getenv(variable), text, strlen(text));
}

/* ---- services ---- */

static inline char *expiration(time_t after)
{
        char *text = must_alloc(32);
        time_t when = time(NULL) + after;
        struct tm tm;
        strftime(text, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&when, &tm));
        return text;
}

static inline void answer_json(struct endpoint_reply *reply)
{
        unsigned n = __atomic_add_fetch(&n_issued, 1, __ATOMIC_SEQ_CST);
        reply->body = format_text("{\"Code\":\"Success\",\"AccessKeyId\":\"AK%u\",\"SecretAccessKey\":\"thesecret\","
                                  "\"Token\":\"T%u\",\"Expiration\":\"%s\"}",
                                  n, n, expiration(life));
}

static inline void note(const struct endpoint_request *request)
{
        strcat(requests_seen, format_text("%s %s\n", request->method, request->path));
}

static inline void serve(void (*answer)(struct endpoint *, const struct endpoint_request *, struct endpoint_reply *))
{
        service.answer = answer;
        endpoint_start(&service);
}

static inline void answer_container(struct endpoint *e, const struct endpoint_request *request,
                                    struct endpoint_reply *reply)
{
        const char *token = endpoint_header(request, "Authorization");
        note(request);
        reply->status = token != NULL && strcmp(token, "bearer thetoken") == 0 ? status : 401;
        reply->hang = hang;
        if (reply->status == 200)
                answer_json(reply);
}

static inline void set_container(void)
{
        char *path = suite_path("token-%d", (int)getpid());
        serve(answer_container);
        file_write(path, "bearer thetoken\n", 16);
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", format_text("%s/v1/credentials?a=b", service.url), 1);
        setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", path, 1);
}

static inline void answer_xml(struct endpoint_reply *reply)
{
        reply->body = format_text("<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult>"
                                  "<Credentials><AccessKeyId>AK%u</AccessKeyId><SecretAccessKey>thesecret"
                                  "</SecretAccessKey><SessionToken>T</SessionToken><Expiration>%s</Expiration>"
                                  "</Credentials></AssumeRoleWithWebIdentityResult>"
                                  "</AssumeRoleWithWebIdentityResponse>",
                                  ++n_issued, expiration(life));
}

static inline void answer_sts(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        note(request);
        reply->status = status;
        reply->hang = hang;
        if (strstr(request->body, "Action=AssumeRoleWithWebIdentity&") == NULL ||
            strstr(request->body, "&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&") == NULL ||
            strstr(request->body, "&WebIdentityToken=a.b%2Bc") == NULL || strstr(request->body, "Version=") == NULL)
                reply->status = 400;
        if (reply->status == 200)
                answer_xml(reply);
        else
                reply->body = format_text("<ErrorResponse><Error><Code>AccessDenied</Code><Message>not you</Message>"
                                          "</Error></ErrorResponse>");
}

static inline char *set_sts(void)
{
        char *path = suite_path("jwt-%d", (int)getpid());
        serve(answer_sts);
        file_write(path, "a.b+c", 5);
        setenv("AWS_ENDPOINT_URL_STS", service.url, 1);
        return path;
}
