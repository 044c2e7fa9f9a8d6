/* SPDX-License-Identifier: Apache-2.0
 *
 * Both are a POST of a form, answered in XML:
 *
 *   AssumeRoleWithWebIdentity  the token in a file, which is read again each time; unsigned
 *   AssumeRole                 signed with other keys, which may be of a session themselves
 */
#include "daemon/source/aws/providers.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/s3/s3_reply.h"

#include <string.h>

#define FORM "application/x-www-form-urlencoded"
#define VERSION "2011-06-15"
#define PARAMS_MAX 6

/* ---- where ---- */

static const char *region_of(const struct aws_config *config)
{
        return aws_env("AWS_REGION") ?: aws_env("AWS_DEFAULT_REGION") ?: aws_config_get(config, "region");
}

static char *sts_endpoint(const struct aws_config *config)
{
        const char *named = aws_env("AWS_ENDPOINT_URL_STS") ?: aws_env("AWS_ENDPOINT_URL")
                                    ?: aws_config_endpoint(config, "sts");
        const char *region = region_of(config);
        if (named != NULL || region == NULL)
                return strdup(named ?: "https://sts.amazonaws.com/");
        return format_new("https://sts.%s.amazonaws.com%s/", region, strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
}

/* ---- asking ---- */

struct question {
        const struct aws_config *config;
        struct aws_param params[PARAMS_MAX];
        size_t n;
        const struct aws_keys *by; /* NULL: unsigned */
        const char *from;          /* for messages */
};

static void add_param(struct question *q, const char *name, const char *value)
{
        if (value != NULL)
                q->params[q->n++] = (struct aws_param){name, value};
}

static const char *session_name(const struct aws_config *config)
{
        return aws_env("AWS_ROLE_SESSION_NAME") ?: aws_config_get(config, "role_session_name") ?: "streamerd";
}

static int sign(struct http_headers *headers, const struct question *q, const char *url, const char *form,
                struct error *error)
{
        const struct sigv4_sign_request request = {.method = "POST",
                                                   .url = url,
                                                   .region = region_of(q->config) ?: "us-east-1",
                                                   .when = time(NULL),
                                                   .service = "sts",
                                                   .type = FORM,
                                                   .body = form};
        return aws_sign_headers(headers, &request, q->by, error);
}

static int sts_refused(const struct http_fetch *fetch, const char *from, struct error *error)
{
        struct s3_fault fault;
        s3_fault_parse(&fault, fetch->answer.body, fetch->answer.body_len);
        return error_set(error, STREAMER_EPERM, "STS answers %d%s%s%s%s (%s)", fetch->answer.status,
                         fault.code[0] != '\0' ? " " : "", fault.code, fault.message[0] != '\0' ? ": " : "",
                         fault.message, from);
}

static int post(struct aws_metadata *services, struct aws_keys *keys, const struct question *q, const char *url,
                const char *form, struct error *error)
{
        static const struct http_access_ops nobody = {.authorize = NULL};
        struct http_access access = {
                .ops = &nobody, .refs = 1, .ca = aws_env("AWS_CA_BUNDLE") ?: aws_config_get(q->config, "ca_bundle")};
        struct http_headers headers = {.n = 0};
        struct http_fetch fetch = {.request = {.method = "POST",
                                               .access = &access,
                                               .url = url,
                                               .shown = q->from,
                                               .headers = &headers,
                                               .body = form,
                                               .body_len = strlen(form)}};
        int r = http_headers_add(&headers, "Content-Type", FORM, error);
        if (r == 0 && q->by != NULL)
                r = sign(&headers, q, url, form, error);
        if (r == 0)
                r = aws_fetch(services->far, &fetch, error);
        if (r == 0)
                r = fetch.answer.status == 200
                            ? aws_keys_parse_xml(keys, fetch.answer.body, fetch.answer.body_len, q->from, error)
                            : sts_refused(&fetch, q->from, error);
        http_fetch_deinit(&fetch);
        http_headers_deinit(&headers);
        return r < 0 ? r : 1;
}

static int ask(struct aws_metadata *services, struct aws_keys *keys, struct question *q, struct error *error)
{
        cleanup_free char *url = sts_endpoint(q->config);
        char *form = aws_query(q->params, q->n);
        int r = url != NULL && form != NULL ? post(services, keys, q, url, form, error)
                                            : error_set(error, STREAMER_ENOMEM, "no memory");
        secret_free(form);
        return r;
}

/* ---- web identity ---- */

static int by_token(struct aws_metadata *services, struct aws_keys *keys, const struct aws_config *config,
                    const char *file, const char *role, struct error *error)
{
        char *token = NULL, from[300];
        if (role == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "a web identity token file without a role (AWS_ROLE_ARN, role_arn)");
        snprintf(from, sizeof(from), "web identity as %s", role);
        struct question q = {.config = config, .from = from};
        int r = aws_read_token(file, &token, error);
        if (r < 0)
                return r;
        add_param(&q, "Action", "AssumeRoleWithWebIdentity");
        add_param(&q, "RoleArn", role);
        add_param(&q, "RoleSessionName", session_name(config));
        add_param(&q, "Version", VERSION);
        add_param(&q, "WebIdentityToken", token);
        r = ask(services, keys, &q, error);
        secret_free(token);
        return r;
}

int aws_web_identity_of_profile(struct aws_metadata *services, struct aws_keys *keys, const struct aws_config *config,
                                struct error *error)
{
        const char *file = aws_config_get(config, "web_identity_token_file");
        return file != NULL ? by_token(services, keys, config, file, aws_config_get(config, "role_arn"), error) : 0;
}

int aws_web_identity(struct aws_metadata *services, struct aws_keys *keys, const struct aws_config *config,
                     struct error *error)
{
        const char *file = aws_env("AWS_WEB_IDENTITY_TOKEN_FILE");
        return file != NULL ? by_token(services, keys, config, file, aws_env("AWS_ROLE_ARN"), error)
                            : aws_web_identity_of_profile(services, keys, config, error);
}

/* ---- roles ---- */

int aws_assume_role(struct aws_metadata *services, struct aws_keys *keys, const struct aws_config *config,
                    const struct aws_keys *by, struct error *error)
{
        const char *role = aws_config_get(config, "role_arn");
        char from[400];
        snprintf(from, sizeof(from), "role %s, by %s", role, by->from);
        struct question q = {.config = config, .by = by, .from = from};
        add_param(&q, "Action", "AssumeRole");
        add_param(&q, "RoleArn", role);
        add_param(&q, "RoleSessionName", session_name(config));
        add_param(&q, "ExternalId", aws_config_get(config, "external_id"));
        add_param(&q, "DurationSeconds", aws_config_get(config, "duration_seconds"));
        add_param(&q, "Version", VERSION);
        return ask(services, keys, &q, error);
}
