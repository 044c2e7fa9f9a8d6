/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials from two endpoints:
 *
 *   container     GET from the container's endpoint, with a token    > JSON
 *   instance      PUT for a token, GET the role's name, GET its keys > JSON
 *
 * A token file is read again each time: its writer replaces it before it expires. The addresses of containers and
 * instances are link-local: no proxy is used for them. Requests to an instance's metadata fail within a second or two,
 * since most machines have none.
 */
#include "daemon/source/aws/providers.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/aws_config.h"

#include <arpa/inet.h>
#include <string.h>

#define ANSWER_MAX (64 * KiB)
#define CONTAINER_ENDPOINT "http://169.254.170.2"
#define INSTANCE_ENDPOINT "http://169.254.169.254"
#define INSTANCE_ENDPOINT_6 "http://[fd00:ec2::254]"
#define SECOND UINT64_C(1000000000)

/* ---- lifecycle ---- */

/* In the environment as a number; else the default. */
static unsigned env_number(const char *name, unsigned max, unsigned otherwise)
{
        const char *text = aws_env(name);
        unsigned long value = text != NULL ? strtoul(text, NULL, 10) : 0;
        return value >= 1 && value <= max ? (unsigned)value : otherwise;
}

int aws_metadata_init(struct aws_metadata *services, const struct http_opts *http, struct error *error)
{
        uint64_t near = env_number("AWS_METADATA_SERVICE_TIMEOUT", 60, 1) * SECOND;
        const struct http_opts near_opts = {.connect_timeout_ns = near,
                                            .stall_ns = near,
                                            .backoff_ns = SECOND / 10,
                                            .retry_after_ns = SECOND,
                                            .tries = env_number("AWS_METADATA_SERVICE_NUM_ATTEMPTS", 10, 2),
                                            .threads = 1};
        /* All tries end before those who wait lose patience. */
        const struct http_opts container_opts = {.connect_timeout_ns = 5 * SECOND,
                                                 .stall_ns = 5 * SECOND,
                                                 .backoff_ns = SECOND / 2,
                                                 .retry_after_ns = 2 * SECOND,
                                                 .tries = 4,
                                                 .threads = 1};
        struct http_opts far_opts = {.connect_timeout_ns = 5 * SECOND,
                                     .stall_ns = 5 * SECOND,
                                     .backoff_ns = SECOND / 2,
                                     .retry_after_ns = 2 * SECOND,
                                     .tries = 3,
                                     .threads = 1};
        *services = (struct aws_metadata){.near = NULL};
        if (http != NULL) {
                far_opts.ca = http->ca;
                far_opts.allow_plain = http->allow_plain;
                far_opts.n_allow_plain = http->n_allow_plain;
        }
        int r = http_new(&services->near, &near_opts, error);
        if (r == 0)
                r = http_new(&services->container, &container_opts, error);
        if (r == 0)
                r = http_new(&services->far, &far_opts, error);
        if (r < 0)
                aws_metadata_deinit(services);
        return r;
}

void aws_metadata_stop(struct aws_metadata *services)
{
        http_stop(services->near);
        http_stop(services->container);
        http_stop(services->far);
}

void aws_metadata_deinit(struct aws_metadata *services)
{
        services->near = http_free(services->near);
        services->container = http_free(services->container);
        services->far = http_free(services->far);
}

/* ---- asking ---- */

int aws_fetch(struct http *http, struct http_fetch *fetch, struct error *error)
{
        fetch->max_body = ANSWER_MAX;
        fetch->any_status = fetch->secret = true;
        int r = http_fetch(http, fetch, 1, error);
        if (r == 0 && fetch->answer.body == NULL && (fetch->answer.body = strdup("")) == NULL)
                r = error_set(error, STREAMER_ENOMEM, "no memory");
        return r;
}

/* Link-local addresses, where plain http is what is spoken. */
static int fetch_near(struct http *http, struct http_fetch *fetch, struct error *error)
{
        fetch->request.plain_ok = strncmp(fetch->request.url, "http://", 7) == 0;
        return aws_fetch(http, fetch, error);
}

int aws_read_token(const char *path, char **token, struct error *error)
{
        cleanup_free char *setting = format_new("file:%s", path);
        return setting != NULL ? secret_read(setting, token, error) : error_set(error, STREAMER_ENOMEM, "no memory");
}

/* ---- container ---- */

/* "localhost" is taken by its name: what it resolves to is this machine's own business. */
static bool trusted_host(const char *host)
{
        static const char *const hosts[] = {"localhost", "::1", "169.254.170.2", "169.254.170.23", "fd00:ec2::23"};
        struct in_addr address;
        for (size_t i = 0; i < ARRAY_SIZE(hosts); i++)
                if (strcmp(host, hosts[i]) == 0)
                        return true;
        return inet_pton(AF_INET, host, &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

int aws_container_uri(char **uri, struct error *error)
{
        const char *relative = aws_env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
        const char *full = aws_env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
        struct http_url url;
        *uri = NULL;
        if (relative == NULL && full == NULL)
                return 0;
        if (relative != NULL && relative[0] != '/')
                return error_set(error, STREAMER_EFAILED,
                                 "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI does not begin with '/'");
        if (relative == NULL && http_url_parse(&url, full) < 0)
                return error_set(error, STREAMER_EFAILED, "AWS_CONTAINER_CREDENTIALS_FULL_URI is not an http(s) URL");
        if (relative == NULL && !url.tls && !trusted_host(url.host))
                return error_set(error, STREAMER_EFAILED,
                                 "AWS_CONTAINER_CREDENTIALS_FULL_URI: plain http is for loopback and the addresses of "
                                 "ECS and EKS, not for %s",
                                 url.host);
        *uri = format_new("%s%s", relative != NULL ? CONTAINER_ENDPOINT : "", relative ?: full);
        return *uri != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

static int container_headers(struct http_headers *headers, struct error *error)
{
        const char *file = aws_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        const char *given = aws_env("AWS_CONTAINER_AUTHORIZATION_TOKEN");
        char *token = NULL;
        int r = file != NULL ? aws_read_token(file, &token, error) : 0;
        if (r == 0 && (token ?: given) != NULL)
                r = http_headers_add(headers, "Authorization", token ?: given, error);
        secret_free(token);
        return r;
}

int aws_container(struct aws_metadata *services, struct aws_keys *keys, struct error *error)
{
        static const char from[] = "container endpoint";
        struct http_headers headers = {.n = 0};
        cleanup_free char *uri = NULL;
        int r = aws_container_uri(&uri, error);
        if (r < 0 || uri == NULL)
                return r;
        struct http_fetch fetch = {.request = {.url = uri, .shown = from, .headers = &headers}};
        r = container_headers(&headers, error);
        if (r == 0)
                r = fetch_near(services->container, &fetch, error);
        if (r == 0)
                r = fetch.answer.status == 200
                            ? aws_keys_parse_json(keys, fetch.answer.body, fetch.answer.body_len, from, error)
                            : error_set(error, STREAMER_EPERM, "the %s answers %d", from, fetch.answer.status);
        http_fetch_deinit(&fetch);
        http_headers_deinit(&headers);
        return r < 0 ? r : 1;
}

/* ---- instance ---- */

static int instance_fetch(struct aws_metadata *services, struct http_fetch *fetch, const char *method, const char *path,
                          struct error *error)
{
        const char *named = aws_env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
        const char *mode = aws_env("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
        const char *endpoint = named
                                       ?: mode != NULL && strcasecmp(mode, "ipv6") == 0 ? INSTANCE_ENDPOINT_6
                                                                                        : INSTANCE_ENDPOINT;
        size_t len = strlen(endpoint);
        while (len > 0 && endpoint[len - 1] == '/')
                len--;
        cleanup_free char *url = format_new("%.*s%s", (int)len, endpoint, path);
        if (url == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        fetch->request.method = method;
        fetch->request.url = url;
        fetch->request.shown = "instance metadata";
        int r = fetch_near(services->near, fetch, error);
        fetch->request.url = NULL;
        return r;
}

/* The session of IMDSv2; there is no way back to the first version, which answers whoever can make
 * this machine ask. */
static int instance_session(struct aws_metadata *services, struct http_headers *headers, struct error *why,
                            struct error *error)
{
        struct http_headers ttl = {.n = 0};
        struct http_fetch fetch = {.request = {.headers = &ttl}};
        int r = http_headers_add(&ttl, "X-aws-ec2-metadata-token-ttl-seconds", "21600", error);
        int asked = r == 0 ? instance_fetch(services, &fetch, "PUT", "/latest/api/token", why) : r;
        if (r == 0 && asked == 0 && fetch.answer.status != 200)
                error_set(why, STREAMER_EFAILED, "instance metadata answers %d to a request for a token (IMDSv2)",
                          fetch.answer.status);
        bool have = r == 0 && asked == 0 && fetch.answer.status == 200;
        if (have)
                r = http_headers_add(headers, "X-aws-ec2-metadata-token", fetch.answer.body, error);
        http_fetch_deinit(&fetch);
        http_headers_deinit(&ttl);
        return r < 0 ? r : have;
}

static int instance_role(struct aws_metadata *services, const struct http_headers *session, char role[128],
                         struct error *why, struct error *error)
{
        struct http_fetch fetch = {.request = {.headers = session}};
        int r = instance_fetch(services, &fetch, NULL, "/latest/meta-data/iam/security-credentials/", error);
        if (r == 0 && fetch.answer.status != 200) {
                error_set(why, STREAMER_EFAILED, "this instance has no role (its metadata answer %d)",
                          fetch.answer.status);
        } else if (r == 0) {
                size_t len = strcspn(fetch.answer.body, "\r\n");
                bool plain = len > 0 && len < 128 && strcspn(fetch.answer.body, "/?# ") >= len;
                r = plain ? 1 : error_set(error, STREAMER_EFAILED, "the instance's role has no valid name");
                snprintf(role, 128, "%.*s", (int)(plain ? len : 0), fetch.answer.body);
        }
        http_fetch_deinit(&fetch);
        return r;
}

static int instance_keys(struct aws_metadata *services, const struct http_headers *session, const char *role,
                         struct aws_keys *keys, struct error *error)
{
        struct http_fetch fetch = {.request = {.headers = session}};
        char path[256], from[200];
        snprintf(path, sizeof(path), "/latest/meta-data/iam/security-credentials/%s", role);
        snprintf(from, sizeof(from), "instance role %s", role);
        int r = instance_fetch(services, &fetch, NULL, path, error);
        if (r == 0)
                r = fetch.answer.status == 200
                            ? aws_keys_parse_json(keys, fetch.answer.body, fetch.answer.body_len, from, error)
                            : error_set(error, STREAMER_EPERM, "instance metadata answer %d for role %s",
                                        fetch.answer.status, role);
        http_fetch_deinit(&fetch);
        return r < 0 ? r : 1;
}

int aws_instance(struct aws_metadata *services, struct aws_keys *keys, struct error *why, struct error *error)
{
        const char *disabled = aws_env("AWS_EC2_METADATA_DISABLED");
        struct http_headers session = {.n = 0};
        char role[128];
        if (disabled != NULL && strcasecmp(disabled, "true") == 0)
                return 0;
        int r = instance_session(services, &session, why, error);
        if (r == 1)
                r = instance_role(services, &session, role, why, error);
        if (r == 1)
                r = instance_keys(services, &session, role, keys, error);
        http_headers_deinit(&session);
        return r;
}
