/* SPDX-License-Identifier: Apache-2.0
 *
 * The providers of credentials. Each returns an enum credential_provided or an error; since CREDENTIAL_NOT_CONFIGURED
 * is 0, "a ?: b" is a's keys or error, and if it is not configured b's:
 *
 *   environment                         keys in variables
 *   role_arn + source_profile           keys of that profile > AssumeRole > keys of the role
 *   role_arn + credential_source        keys of the environment, the container or the instance > the same
 *   role_arn + web_identity_token_file  a token > AssumeRoleWithWebIdentity > the same; the environment may name both
 *   profile                             its keys
 *   container                           GET from the container's endpoint, with a token > JSON
 *   instance                            PUT for a token, GET the role's name, GET its keys > JSON
 *
 * Refused with a message that names them: a source_profile without keys of its own, such as another role;
 * credential_process (the daemon runs no programs that a file names), SSO and mfa_serial (which need a person).
 *
 * STS takes a POST of a form and answers in XML. AssumeRole is signed with other keys, which may be of a session
 * themselves. A token file is read again each time: its writer replaces it before it expires. The addresses of
 * containers and instances are link-local: no proxy is used for them. Requests to an instance's metadata fail within a
 * second or two, since most machines have none.
 */
#include "daemon/source/aws/providers.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/aws_answer.h"
#include "daemon/source/aws/aws_config.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/store/fault.h"

#include <arpa/inet.h>

#define CONTAINER_ENDPOINT "http://169.254.170.2"
#define INSTANCE_ENDPOINT "http://169.254.169.254"
#define INSTANCE_ENDPOINT_6 "http://[fd00:ec2::254]"
#define ROLES_PATH "/latest/meta-data/iam/security-credentials/"
#define STS_VERSION "2011-06-15"

/* ---- lifecycle ---- */

/* A number in the environment; else the default. */
static unsigned env_number(const char *name, unsigned max, unsigned fallback)
{
        const char *text = aws_env(name);
        unsigned long value = text != NULL ? strtoul(text, NULL, 10) : 0;
        return value >= 1 && value <= max ? (unsigned)value : fallback;
}

int aws_clients_init(struct service_clients *clients, const struct http_opts *http, struct error *error)
{
        return service_clients_init(clients, http, env_number("AWS_METADATA_SERVICE_TIMEOUT", 60, 1) * SECOND,
                                    env_number("AWS_METADATA_SERVICE_NUM_ATTEMPTS", 10, 2), error);
}

/* ---- keys in variables and files ---- */

/* Both keys, or neither. `names`: of the two settings. */
static int keys_of_pair(struct credential *keys, const char *access, const char *secret, const char *token,
                        const char *origin, const char *names, struct error *error)
{
        if (access == NULL && secret == NULL)
                return CREDENTIAL_NOT_CONFIGURED;
        if (access == NULL || secret == NULL)
                return error_set(error, STREAMER_EPERM, "%s: of %s one is set without the other", origin, names);
        return credential_init_keys(keys, access, secret, token, origin, error);
}

static int environment_keys(struct credential *keys, struct error *error)
{
        return keys_of_pair(keys, aws_env("AWS_ACCESS_KEY_ID"), aws_env("AWS_SECRET_ACCESS_KEY"),
                            aws_env("AWS_SESSION_TOKEN"), "environment", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                            error);
}

static int profile_keys(struct credential *keys, const struct aws_config *config, struct error *error)
{
        char origin[160];
        snprintf(origin, sizeof(origin), "profile '%.120s'", config->profile);
        return keys_of_pair(keys, aws_config_get(config, "aws_access_key_id"),
                            aws_config_get(config, "aws_secret_access_key"),
                            aws_config_get(config, "aws_session_token"), origin,
                            "aws_access_key_id and aws_secret_access_key", error);
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

static int container(struct service_clients *clients, struct credential *keys, struct error *error)
{
        static const char origin[] = "container endpoint";
        const char *file = aws_env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        cleanup_with(secret_free_p) char *token = NULL;
        cleanup_free char *uri = NULL;
        int r = aws_container_uri(&uri, error);
        if (r < 0 || uri == NULL)
                return r < 0 ? r : CREDENTIAL_NOT_CONFIGURED;
        const struct http_request request = {.url = uri, .shown = origin};
        if (file != NULL)
                r = secret_read_file(file, &token, error);
        r = r
                    ?: service_get(clients->others, &request, "Authorization",
                                   token ?: aws_env("AWS_CONTAINER_AUTHORIZATION_TOKEN"), &answer, error);
        if (r < 0)
                return r;
        if (answer.status != 200) {
                error_set(error, STREAMER_EPERM, "the %s answers %d", origin, answer.status);
                return service_failed(error, answer.status);
        }
        return aws_keys_parse_json(keys, answer.body, answer.body_len, origin, error);
}

/* ---- instance ---- */

#define SESSION_HEADER "X-aws-ec2-metadata-token"
#define METADATA_ENDPOINT "AWS_EC2_METADATA_SERVICE_ENDPOINT"

static int instance_fetch(struct service_clients *clients, const char *method, const char *path, const char *name,
                          const char *value, struct http_answer *answer, struct error *error)
{
        const char *named = aws_env(METADATA_ENDPOINT);
        const char *mode = aws_env("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
        bool ipv6 = mode != NULL && strcasecmp(mode, "ipv6") == 0;
        const char *endpoint = named ?: ipv6 ? INSTANCE_ENDPOINT_6 : INSTANCE_ENDPOINT;
        size_t len = trimmed_len(endpoint, '/');
        cleanup_free char *url = format_new("%.*s%s", (int)len, endpoint, path);
        const struct http_request request = {.method = method, .url = url, .shown = "instance metadata"};
        return url != NULL ? service_get(clients->metadata, &request, name, value, answer, error)
                           : error_no_memory(error);
}

/* In a session of IMDSv2. The first version is not used: it discloses keys to any client that can make this machine
 * send a request. Also CREDENTIAL_NOT_CONFIGURED if nothing answers, with the reason in *why: most machines are no
 * instances.
 */
static int instance(struct service_clients *clients, struct credential *keys, struct error *why, struct error *error)
{
        const char *disabled = aws_env("AWS_EC2_METADATA_DISABLED");
        cleanup_with(http_answer_deinit) struct http_answer session = {.status = 0}, role = {.status = 0},
                                                            answer = {.status = 0};
        char path[256], origin[200];
        if (disabled != NULL && strcasecmp(disabled, "true") == 0)
                return CREDENTIAL_NOT_CONFIGURED;
        int r = instance_fetch(clients, "PUT", "/latest/api/token", SESSION_HEADER "-ttl-seconds", "21600", &session,
                               why);
        if (r == 0 && session.status != 200)
                r = error_set(why, STREAMER_EFAILED, "instance metadata answers %d to a request for a token (IMDSv2)",
                              session.status);
        if (session.status != 0)
                service_failed(why, session.status);
        if (r < 0)
                return CREDENTIAL_NOT_CONFIGURED;
        r = instance_fetch(clients, NULL, ROLES_PATH, SESSION_HEADER, session.body, &role, error);
        if (r < 0)
                return r;
        if (role.status != 200) {
                error_set(why, STREAMER_EFAILED, "this instance has no role (its metadata answer %d)", role.status);
                service_failed(why, role.status);
                return CREDENTIAL_NOT_CONFIGURED;
        }
        size_t len = strcspn(role.body, "\r\n");
        if (len == 0 || len >= 128 || strcspn(role.body, "/?# ") < len)
                return error_set(error, STREAMER_EFAILED, "the instance's role has no valid name");
        role.body[len] = '\0';
        snprintf(path, sizeof(path), ROLES_PATH "%s", role.body);
        snprintf(origin, sizeof(origin), "instance role %s", role.body);
        r = instance_fetch(clients, NULL, path, SESSION_HEADER, session.body, &answer, error);
        if (r < 0)
                return r;
        if (answer.status != 200) {
                error_set(error, STREAMER_EPERM, "instance metadata answer %d for role %s", answer.status, role.body);
                return service_failed(error, answer.status);
        }
        return aws_keys_parse_json(keys, answer.body, answer.body_len, origin, error);
}

/* ---- STS ---- */

/* Keys for a role, requested with the token of a web identity, or else with other keys, which sign the request. */
static int assume_role(struct service_clients *clients, struct credential *keys, const struct aws_config *config,
                       const char *role, const char *token, const struct credential *signer, struct error *error)
{
        static const struct http_access_ops unsigned_ops = {.authorize = NULL};
        const char *region = aws_env("AWS_REGION") ?: aws_env("AWS_DEFAULT_REGION") ?: aws_config_get(config, "region");
        const char *endpoint = aws_env("AWS_ENDPOINT_URL_STS") ?: aws_env("AWS_ENDPOINT_URL")
                                       ?: aws_config_endpoint(config, "sts");
        struct aws_param params[] = {
                {"Action", token != NULL ? "AssumeRoleWithWebIdentity" : "AssumeRole"},
                {"RoleArn", role},
                {"RoleSessionName", aws_env("AWS_ROLE_SESSION_NAME") ?: aws_config_get(config, "role_session_name")
                                            ?: "streamerd"},
                {"Version", STS_VERSION},
                {"WebIdentityToken", token},
                {"ExternalId", token == NULL ? aws_config_get(config, "external_id") : NULL},
                {"DurationSeconds", token == NULL ? aws_config_get(config, "duration_seconds") : NULL}};
        char origin[400];
        snprintf(origin, sizeof(origin), "%s %s%s%s", token != NULL ? "web identity as" : "role", role,
                 signer != NULL ? ", by " : "", signer != NULL ? signer->origin : "");
        cleanup_free char *url = NULL;
        if (endpoint != NULL || region == NULL)
                url = strdup(endpoint ?: "https://sts.amazonaws.com/");
        else
                url = format_new("https://sts.%s.amazonaws.com%s/", region,
                                 strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
        cleanup_with(secret_free_p) char *form = aws_query(params, ARRAY_SIZE(params));
        struct http_access access = {
                .ops = &unsigned_ops, .refs = 1, .ca = aws_env("AWS_CA_BUNDLE") ?: aws_config_get(config, "ca_bundle")};
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        cleanup_with(http_fetch_deinit) struct http_fetch fetch = {.request = {.method = "POST",
                                                                               .access = &access,
                                                                               .url = url,
                                                                               .shown = origin,
                                                                               .headers = &headers,
                                                                               .body = form}};
        if (url == NULL || form == NULL)
                return error_no_memory(error);
        fetch.request.body_len = strlen(form);
        int r = http_headers_add(&headers, "Content-Type", "application/x-www-form-urlencoded", error);
        if (r == 0 && signer != NULL)
                r = aws_sign(&headers, &fetch.request, region ?: "us-east-1", time(NULL), signer, error);
        r = r ?: service_fetch(clients->others, &fetch, error);
        if (r < 0)
                return r;
        const struct http_answer *answer = &fetch.answer;
        if (answer->status == 200)
                return aws_keys_parse_xml(keys, answer->body, answer->body_len, origin, error);
        struct store_fault fault;
        store_fault_parse_xml(&fault, answer->body, answer->body_len);
        error_set(error, STREAMER_EPERM, "STS answers %d%s%s%s%s (%s)", answer->status,
                  fault.code[0] != '\0' ? " " : "", fault.code, fault.message[0] != '\0' ? ": " : "", fault.message,
                  origin);
        return service_failed(error, answer->status);
}

static int web_identity(struct service_clients *clients, struct credential *keys, const struct aws_config *config,
                        bool environment, struct error *error)
{
        const char *file = environment ? aws_env("AWS_WEB_IDENTITY_TOKEN_FILE") : NULL;
        const char *role = file != NULL ? aws_env("AWS_ROLE_ARN") : aws_config_get(config, "role_arn");
        cleanup_with(secret_free_p) char *token = NULL;
        if (file == NULL)
                file = aws_config_get(config, "web_identity_token_file");
        if (file == NULL)
                return CREDENTIAL_NOT_CONFIGURED;
        if (role == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "a web identity token file without a role (AWS_ROLE_ARN, role_arn)");
        int r = secret_read_file(file, &token, error);
        return r ?: assume_role(clients, keys, config, role, token, NULL, error);
}

/* ---- roles ---- */

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

/* An unknown text of the file is not repeated: it may be anything. */
static int keys_of_source(struct service_clients *clients, struct credential *keys, const char *source,
                          struct error *error)
{
        struct error why = {.code = 0};
        int r;
        if (strcmp(source, "Environment") == 0)
                r = environment_keys(keys, error);
        else if (strcmp(source, "EcsContainer") == 0)
                r = container(clients, keys, error);
        else if (strcmp(source, "Ec2InstanceMetadata") == 0)
                r = instance(clients, keys, &why, error);
        else
                return error_set(error, STREAMER_EFAILED,
                                 "credential_source is none of Environment, EcsContainer and Ec2InstanceMetadata");
        if (r != 0)
                return r;
        error_set(error, STREAMER_EPERM, "credential_source %s has no credentials%s%s", source,
                  why.code != 0 ? ": " : "", why.text);
        error->unreachable = why.unreachable;
        return error->code;
}

/* A profile that another one names, or itself. */
static int keys_of_profile(struct credential *keys, const struct aws_config *named_by, const char *name,
                           struct error *error)
{
        struct aws_config config = *named_by; /* the same files */
        config.profile = (char *)(uintptr_t)name;
        if (!aws_config_has_profile(&config))
                return error_set(error, STREAMER_EPERM,
                                 "source_profile '%s' of profile '%s' is in none of the shared files", name,
                                 named_by->profile);
        return profile_keys(keys, &config, error) ?: refuse_unsupported(&config, error)
                      ?: error_set(error, STREAMER_EPERM,
                                  "source_profile '%s' has no keys (aws_access_key_id), and roles are not chained",
                                  name);
}

static int keys_of_role(struct service_clients *clients, struct credential *keys, const struct aws_config *config,
                        struct error *error)
{
        const char *role = aws_config_get(config, "role_arn");
        const char *profile = aws_config_get(config, "source_profile");
        const char *source = aws_config_get(config, "credential_source");
        cleanup_with(credential_deinit) struct credential signer = {.access = NULL};
        if (role == NULL)
                return CREDENTIAL_NOT_CONFIGURED;
        if (profile == NULL && source == NULL) {
                if (aws_config_get(config, "web_identity_token_file") != NULL)
                        return CREDENTIAL_NOT_CONFIGURED;
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
        return r == CREDENTIAL_FOUND ? assume_role(clients, keys, config, role, NULL, &signer, error) : r;
}

/* ---- the chain ---- */

/* A profile that the settings name has precedence over the environment's keys and web identity, which may be another
 * program's. */
int aws_find_keys(struct service_clients *clients, struct credential *keys, const char *profile, struct error *error)
{
        cleanup_with(aws_config_deinit) struct aws_config config;
        struct error why = {.text = "disabled"};
        int r = aws_config_init(&config, profile, error);
        if (r == 0 && profile == NULL)
                r = environment_keys(keys, error);
        if (r == 0 && config.named && !aws_config_has_profile(&config))
                r = error_set(error, STREAMER_EPERM, "profile '%s' is in none of the shared files", config.profile);
        r = r ?: keys_of_role(clients, keys, &config, error)
                       ?: web_identity(clients, keys, &config, profile == NULL, error)
                       ?: profile_keys(keys, &config, error)
                       ?: refuse_unsupported(&config, error)
                       ?: container(clients, keys, error)
                       ?: instance(clients, keys, &why, error);
        if (r != 0)
                return r;
        error_set(error, STREAMER_EPERM,
                  "no credentials: none in the settings, the environment or profile '%s', no web identity, no "
                  "container endpoint, and instance metadata: %s. A public store is read with s3.unsigned",
                  config.profile, why.text);
        /* Unless it is named, its silence says that there is none, and that there are no credentials. */
        error->unreachable = why.unreachable && aws_env(METADATA_ENDPOINT) != NULL;
        return error->code;
}
