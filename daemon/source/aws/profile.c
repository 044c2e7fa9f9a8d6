/* SPDX-License-Identifier: Apache-2.0
 *
 * A profile with a role names the credentials to assume it with:
 *
 *   role_arn + source_profile           keys of that profile > AssumeRole > keys of the role
 *   role_arn + credential_source        keys of the environment, the container or the instance > the same
 *   role_arn + web_identity_token_file  a token > AssumeRoleWithWebIdentity > the same; the environment may name both
 *
 * Refused with a message that names them: a source_profile without keys of its own, such as another role;
 * credential_process (the daemon runs no programs that a file names), SSO and mfa_serial (which need a person).
 *
 * STS takes a POST of a form and answers in XML. AssumeRole is signed with other keys, which may be of a session
 * themselves. A token is in a file, which is read again each time, and its request is unsigned.
 */
#include "daemon/source/aws/providers.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/s3/s3_reply.h"

#define VERSION "2011-06-15"

struct sts_request {
        const struct aws_config *config;
        struct aws_param params[6];
        const struct aws_keys *signer; /* NULL: unsigned */
        const char *origin;            /* of the returned keys, for messages */
};

/* ---- static keys ---- */

/* Both keys, or neither. `names`: of the two settings. */
static int keys_of_pair(struct aws_keys *keys, const char *access, const char *secret, const char *token,
                        const char *origin, const char *names, struct error *error)
{
        if (access == NULL && secret == NULL)
                return 0;
        if (access == NULL || secret == NULL)
                return error_set(error, STREAMER_EPERM, "%s: of %s one is set without the other", origin, names);
        int r = aws_keys_init(keys, access, secret, token, origin, error);
        return r < 0 ? r : 1;
}

int aws_environment(struct aws_keys *keys, struct error *error)
{
        return keys_of_pair(keys, aws_env("AWS_ACCESS_KEY_ID"), aws_env("AWS_SECRET_ACCESS_KEY"),
                            aws_env("AWS_SESSION_TOKEN"), "environment", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                            error);
}

static int static_keys(struct aws_keys *keys, const struct aws_config *config, struct error *error)
{
        char origin[160];
        snprintf(origin, sizeof(origin), "profile '%.120s'", config->profile);
        return keys_of_pair(keys, aws_config_get(config, "aws_access_key_id"),
                            aws_config_get(config, "aws_secret_access_key"),
                            aws_config_get(config, "aws_session_token"), origin,
                            "aws_access_key_id and aws_secret_access_key", error);
}

/* Settings that need a program or a person. */
static int refuse_unsupported(const struct aws_config *config, struct error *error)
{
        static const char *const settings[] = {"credential_process", "sso_session", "sso_start_url"};
        for (size_t i = 0; i < ARRAY_SIZE(settings); i++)
                if (aws_config_get(config, settings[i]) != NULL)
                        return error_set(error, STREAMER_EUNSUPPORTED,
                                         "profile '%s' has %s, which is not supported: keys, and role_arn with "
                                         "source_profile, credential_source or web_identity_token_file, are",
                                         config->profile, settings[i]);
        return 0;
}

/* ---- STS ---- */

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
        const struct aws_sign_request sign = {
                .method = "POST", .url = url, .region = region ?: "us-east-1", .when = time(NULL), .form = form};
        if (url == NULL || form == NULL)
                return error_no_memory(error);
        int r = http_headers_add(&headers, "Content-Type", AWS_FORM, error);
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

static int web_identity(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config,
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

/* Keys for the profile's role_arn, requested with other keys. */
static int assume_role(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config,
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

/* ---- roles ---- */

/* An unknown text of the file is not repeated: it may be anything. */
static int keys_of_source(struct aws_clients *clients, struct aws_keys *keys, const char *source, struct error *error)
{
        struct error why = {.code = 0};
        int r;
        if (strcmp(source, "Environment") == 0)
                r = aws_environment(keys, error);
        else if (strcmp(source, "EcsContainer") == 0)
                r = aws_container(clients, keys, error);
        else if (strcmp(source, "Ec2InstanceMetadata") == 0)
                r = aws_instance(clients, keys, &why, error);
        else
                return error_set(error, STREAMER_EFAILED,
                                 "credential_source is none of Environment, EcsContainer and Ec2InstanceMetadata");
        return r
                       ?: error_set(error, STREAMER_EPERM, "credential_source %s has no credentials%s%s", source,
                                    why.code != 0 ? ": " : "", why.text);
}

/* A profile that another one names, or itself. */
static int keys_of_profile(struct aws_keys *keys, const struct aws_config *named_by, const char *name,
                           struct error *error)
{
        struct aws_config config = *named_by; /* the same files */
        config.profile = (char *)(uintptr_t)name;
        if (!aws_config_has_profile(&config))
                return error_set(error, STREAMER_EPERM,
                                 "source_profile '%s' of profile '%s' is in none of the shared files", name,
                                 named_by->profile);
        return static_keys(keys, &config, error) ?: refuse_unsupported(&config, error)
                      ?: error_set(error, STREAMER_EPERM,
                                  "source_profile '%s' has no keys (aws_access_key_id), and roles are not chained",
                                  name);
}

static int keys_of_role(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config,
                        struct error *error)
{
        const char *profile = aws_config_get(config, "source_profile");
        const char *source = aws_config_get(config, "credential_source");
        cleanup_with(aws_keys_deinit) struct aws_keys signer = {.access = NULL};
        if (aws_config_get(config, "role_arn") == NULL)
                return 0;
        if (profile == NULL && source == NULL) {
                if (aws_config_get(config, "web_identity_token_file") != NULL)
                        return 0;
                /* Static keys of the profile are not used: it asks for a role. */
                return refuse_unsupported(config, error)
                               ?: error_set(error, STREAMER_EFAILED,
                                            "profile '%s' has role_arn without source_profile, credential_source or "
                                            "web_identity_token_file",
                                            config->profile);
        }
        if (profile != NULL && source != NULL)
                return error_set(error, STREAMER_EFAILED, "profile '%s' has source_profile and credential_source",
                                 config->profile);
        if (aws_config_get(config, "mfa_serial") != NULL)
                return error_set(error, STREAMER_EUNSUPPORTED, "profile '%s' has mfa_serial, which is not supported",
                                 config->profile);
        int r = profile != NULL ? keys_of_profile(&signer, config, profile, error)
                                : keys_of_source(clients, &signer, source, error);
        return r == 1 ? assume_role(clients, keys, config, &signer, error) : r;
}

int aws_profile(struct aws_clients *clients, struct aws_keys *keys, const struct aws_config *config, bool environment,
                struct error *error)
{
        if (config->named && !aws_config_has_profile(config))
                return error_set(error, STREAMER_EPERM, "profile '%s' is in none of the shared files", config->profile);
        return keys_of_role(clients, keys, config, error)
                       ?: web_identity(clients, keys, config, environment, error)
                       ?: static_keys(keys, config, error)
                       ?: refuse_unsupported(config, error);
}
