/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials from two metadata endpoints:
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

#include <arpa/inet.h>

#define ANSWER_MAX (64 * KiB)
#define CONTAINER_ENDPOINT "http://169.254.170.2"
#define INSTANCE_ENDPOINT "http://169.254.169.254"
#define INSTANCE_ENDPOINT_6 "http://[fd00:ec2::254]"
#define ROLES_PATH "/latest/meta-data/iam/security-credentials/"
#define SECOND UINT64_C(1000000000)

/* ---- lifecycle ---- */

/* A number in the environment; else the default. */
static unsigned env_number(const char *name, unsigned max, unsigned fallback)
{
        const char *text = aws_env(name);
        unsigned long value = text != NULL ? strtoul(text, NULL, 10) : 0;
        return value >= 1 && value <= max ? (unsigned)value : fallback;
}

int aws_clients_init(struct aws_clients *clients, const struct http_opts *http, struct error *error)
{
        uint64_t timeout = env_number("AWS_METADATA_SERVICE_TIMEOUT", 60, 1) * SECOND;
        const struct http_opts instance = {.connect_timeout_ns = timeout,
                                           .stall_ns = timeout,
                                           .backoff_ns = SECOND / 10,
                                           .retry_after_ns = SECOND,
                                           .tries = env_number("AWS_METADATA_SERVICE_NUM_ATTEMPTS", 10, 2),
                                           .threads = 1};
        /* All tries end before callers of aws_credentials_get() get an error. */
        const struct http_opts others = {.connect_timeout_ns = 5 * SECOND,
                                         .stall_ns = 5 * SECOND,
                                         .backoff_ns = SECOND / 2,
                                         .retry_after_ns = 2 * SECOND,
                                         .tries = 4,
                                         .threads = 1,
                                         .ca = http != NULL ? http->ca : NULL,
                                         .allow_plain = http != NULL ? http->allow_plain : NULL,
                                         .n_allow_plain = http != NULL ? http->n_allow_plain : 0};
        *clients = (struct aws_clients){.instance = NULL};
        int r = http_new(&clients->instance, &instance, error) ?: http_new(&clients->others, &others, error);
        if (r < 0)
                aws_clients_deinit(clients);
        return r;
}

void aws_clients_stop(struct aws_clients *clients)
{
        store_relaxed(&clients->instance->stopping, true);
        store_relaxed(&clients->others->stopping, true);
}

void aws_clients_deinit(struct aws_clients *clients)
{
        clients->instance = http_free(clients->instance);
        clients->others = http_free(clients->others);
}

/* ---- requests ---- */

int aws_fetch(struct http *http, struct http_fetch *fetch, struct error *error)
{
        fetch->max_body = ANSWER_MAX;
        fetch->any_status = true;
        int r = http_fetch(http, fetch, 1, error);
        if (r == 0 && fetch->answer.body == NULL && (fetch->answer.body = strdup("")) == NULL)
                r = error_no_memory(error);
        return r;
}

/* With one header more, unless its value is NULL. These endpoints may be asked without TLS. */
static int fetch_with_header(struct http *http, const struct http_request *request, const char *name, const char *value,
                             struct http_answer *answer, struct error *error)
{
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        struct http_fetch fetch = {.request = *request};
        fetch.request.headers = &headers;
        fetch.request.plain_ok = strncmp(request->url, "http://", 7) == 0;
        int r = value != NULL ? http_headers_add(&headers, name, value, error) : 0;
        r = r ?: aws_fetch(http, &fetch, error);
        *answer = fetch.answer;
        return r;
}

/* ---- container ---- */

/* "localhost" is trusted by name: this machine determines what it resolves to. */
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
        return *uri != NULL ? 0 : error_no_memory(error);
}

int aws_container(struct aws_clients *clients, struct aws_keys *keys, struct error *error)
{
        static const char origin[] = "container endpoint";
        const char *file = aws_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        cleanup_with(secret_free_p) char *token = NULL;
        cleanup_free char *uri = NULL;
        int r = aws_container_uri(&uri, error);
        if (r < 0 || uri == NULL)
                return r;
        if (file != NULL)
                r = secret_read_file(file, &token, error);
        if (r == 0)
                r = fetch_with_header(clients->others, &(struct http_request){.url = uri, .shown = origin},
                                      "Authorization", token ?: aws_env("AWS_CONTAINER_AUTHORIZATION_TOKEN"), &answer,
                                      error);
        if (r == 0)
                r = answer.status == 200 ? aws_keys_parse_json(keys, answer.body, answer.body_len, origin, error)
                                         : error_set(error, STREAMER_EPERM, "the %s answers %d", origin, answer.status);
        return r < 0 ? r : 1;
}

/* ---- instance ---- */

#define SESSION_HEADER "X-aws-ec2-metadata-token"

static int instance_fetch(struct aws_clients *clients, const char *method, const char *path, const char *name,
                          const char *value, struct http_answer *answer, struct error *error)
{
        const char *named = aws_env("AWS_EC2_METADATA_SERVICE_ENDPOINT");
        const char *mode = aws_env("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
        bool ipv6 = mode != NULL && strcasecmp(mode, "ipv6") == 0;
        const char *endpoint = named ?: ipv6 ? INSTANCE_ENDPOINT_6 : INSTANCE_ENDPOINT;
        size_t len = trimmed_len(endpoint, '/');
        cleanup_free char *url = format_new("%.*s%s", (int)len, endpoint, path);
        const struct http_request request = {.method = method, .url = url, .shown = "instance metadata"};
        return url != NULL ? fetch_with_header(clients->instance, &request, name, value, answer, error)
                           : error_no_memory(error);
}

/* 1, or 0 with *why: this instance has none. */
static int instance_role(struct aws_clients *clients, const char *session, char role[128], struct error *why,
                         struct error *error)
{
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        int r = instance_fetch(clients, NULL, ROLES_PATH, SESSION_HEADER, session, &answer, error);
        if (r < 0)
                return r;
        if (answer.status != 200) {
                error_set(why, STREAMER_EFAILED, "this instance has no role (its metadata answer %d)", answer.status);
                return 0;
        }
        size_t len = strcspn(answer.body, "\r\n");
        if (len == 0 || len >= 128 || strcspn(answer.body, "/?# ") < len)
                return error_set(error, STREAMER_EFAILED, "the instance's role has no valid name");
        snprintf(role, 128, "%.*s", (int)len, answer.body);
        return 1;
}

static int instance_keys(struct aws_clients *clients, const char *session, const char *role, struct aws_keys *keys,
                         struct error *error)
{
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        char path[256], origin[200];
        snprintf(path, sizeof(path), ROLES_PATH "%s", role);
        snprintf(origin, sizeof(origin), "instance role %s", role);
        int r = instance_fetch(clients, NULL, path, SESSION_HEADER, session, &answer, error);
        if (r == 0)
                r = answer.status == 200 ? aws_keys_parse_json(keys, answer.body, answer.body_len, origin, error)
                                         : error_set(error, STREAMER_EPERM, "instance metadata answer %d for role %s",
                                                     answer.status, role);
        return r < 0 ? r : 1;
}

/* In a session of IMDSv2. The first version is not used: it discloses keys to any client that can make this machine
 * send a request. */
int aws_instance(struct aws_clients *clients, struct aws_keys *keys, struct error *why, struct error *error)
{
        const char *disabled = aws_env("AWS_EC2_METADATA_DISABLED");
        cleanup_with(http_answer_deinit) struct http_answer session = {.status = 0};
        char role[128];
        if (disabled != NULL && strcasecmp(disabled, "true") == 0)
                return 0;
        int r = instance_fetch(clients, "PUT", "/latest/api/token", SESSION_HEADER "-ttl-seconds", "21600", &session,
                               why);
        if (r == 0 && session.status != 200)
                r = error_set(why, STREAMER_EFAILED, "instance metadata answers %d to a request for a token (IMDSv2)",
                              session.status);
        r = r == 0 ? instance_role(clients, session.body, role, why, error) : 0;
        return r == 1 ? instance_keys(clients, session.body, role, keys, error) : r;
}
