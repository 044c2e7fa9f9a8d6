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

#define FORM "application/x-www-form-urlencoded"
#define VERSION "2011-06-15"

struct sts_request {
        const struct aws_config *config;
        struct aws_param params[6];
        const struct aws_keys *signer; /* NULL: unsigned */
        const char *origin;            /* of the returned keys, for messages */
};

/* ---- requests ---- */

static char *sts_endpoint(const struct aws_config *config, const char *region)
{
        const char *named = aws_env("AWS_ENDPOINT_URL_STS") ?: aws_env("AWS_ENDPOINT_URL")
                                    ?: aws_config_endpoint(config, "sts");
        if (named != NULL || region == NULL)
                return strdup(named ?: "https://sts.amazonaws.com/");
        return format_new("https://sts.%s.amazonaws.com%s/", region, strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
}

static const char *session_name(const struct aws_config *config)
{
        return aws_env("AWS_ROLE_SESSION_NAME") ?: aws_config_get(config, "role_session_name") ?: "streamerd";
}

static int refused(const struct http_answer *answer, const char *origin, struct error *error)
{
        struct s3_fault fault;
        s3_fault_parse(&fault, answer->body, answer->body_len);
        return error_set(error, STREAMER_EPERM, "STS answers %d%s%s%s%s (%s)", answer->status,
                         fault.code[0] != '\0' ? " " : "", fault.code, fault.message[0] != '\0' ? ": " : "",
                         fault.message, origin);
}

static int post(struct aws_clients *clients, struct aws_keys *keys, struct sts_request *request, struct error *error)
{
        static const struct http_access_ops unsigned_ops = {.authorize = NULL};
        const struct aws_config *config = request->config;
        const char *ca = aws_env("AWS_CA_BUNDLE") ?: aws_config_get(config, "ca_bundle");
        const char *region = aws_env("AWS_REGION") ?: aws_env("AWS_DEFAULT_REGION") ?: aws_config_get(config, "region");
        cleanup_free char *url = sts_endpoint(config, region);
        cleanup_with(secret_free_p) char *form = aws_query(request->params, ARRAY_SIZE(request->params));
        struct http_access access = {.ops = &unsigned_ops, .refs = 1, .ca = ca};
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        cleanup_with(http_fetch_deinit) struct http_fetch fetch = {
                .request = {.method = "POST",
                            .access = &access,
                            .url = url,
                            .shown = request->origin,
                            .headers = &headers,
                            .body = form,
                            .body_len = form != NULL ? strlen(form) : 0}};
        const struct aws_sign_request sign = {.method = "POST",
                                              .url = url,
                                              .region = region ?: "us-east-1",
                                              .when = time(NULL),
                                              .service = "sts",
                                              .type = FORM,
                                              .body = form};
        if (url == NULL || form == NULL)
                return error_no_memory(error);
        int r = http_headers_add(&headers, "Content-Type", FORM, error);
        if (r == 0 && request->signer != NULL)
                r = aws_sign(&headers, &sign, request->signer, error);
        r = r ?: aws_fetch(clients->others, &fetch, error);
        if (r < 0)
                return r;
        const struct http_answer *answer = &fetch.answer;
        if (answer->status != 200)
                return refused(answer, request->origin, error);
        return aws_keys_parse_xml(keys, answer->body, answer->body_len, request->origin, error) ?: 1;
}

/* ---- actions ---- */

int aws_web_identity(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config,
                     bool environment, struct error *error)
{
        const char *file = environment ? aws_env("AWS_WEB_IDENTITY_TOKEN_FILE") : NULL;
        const char *role = file != NULL ? aws_env("AWS_ROLE_ARN") : aws_config_get(config, "role_arn");
        cleanup_with(secret_free_p) char *token = NULL;
        char origin[300];
        if (file == NULL)
                file = aws_config_get(config, "web_identity_token_file");
        if (file == NULL)
                return 0;
        if (role == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "a web identity token file without a role (AWS_ROLE_ARN, role_arn)");
        snprintf(origin, sizeof(origin), "web identity as %s", role);
        int r = secret_read_file(file, &token, error);
        if (r < 0)
                return r;
        struct sts_request request = {.config = config,
                                      .params = {{"Action", "AssumeRoleWithWebIdentity"},
                                                 {"RoleArn", role},
                                                 {"RoleSessionName", session_name(config)},
                                                 {"Version", VERSION},
                                                 {"WebIdentityToken", token}},
                                      .origin = origin};
        return post(clients, keys, &request, error);
}

int aws_assume_role(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config,
                    const struct aws_keys *signer, struct error *error)
{
        const char *role = aws_config_get(config, "role_arn");
        char origin[400];
        snprintf(origin, sizeof(origin), "role %s, by %s", role, signer->origin);
        struct sts_request request = {.config = config,
                                      .params = {{"Action", "AssumeRole"},
                                                 {"RoleArn", role},
                                                 {"RoleSessionName", session_name(config)},
                                                 {"ExternalId", aws_config_get(config, "external_id")},
                                                 {"DurationSeconds", aws_config_get(config, "duration_seconds")},
                                                 {"Version", VERSION}},
                                      .signer = signer,
                                      .origin = origin};
        return post(clients, keys, &request, error);
}
