/* SPDX-License-Identifier: Apache-2.0
 *
 * A JSON document is exchanged for a token, by its type:
 *
 *   service_account               a JWT that its key signs > token_uri
 *   authorized_user               a refresh token > oauth2.googleapis.com
 *   external_account              a token of another provider (a file, a URL, or a signed request to AWS) > token_url
 *   external_account_authorized_user   a refresh token of a workforce pool's user > token_url
 *   impersonated_service_account  a token of the credentials in it > service_account_impersonation_url
 *
 * external_account may be followed by an impersonation, too. Types that need a program (executable) or a certificate
 * are refused by name.
 *
 * A document of workload identity federation names hosts, and whoever wrote it may be someone else than the operator:
 * only Google's hosts, loopback, and those that the settings name are asked. Files are read again for each token: their
 * writer replaces them before they expire.
 *
 * The metadata server answers before there is a document. That of GKE refuses in the first seconds of a pod.
 */
#include "daemon/source/gcs/google_credentials.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/aws_answer.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/store/fault.h"
#include "daemon/source/store/json_values.h"
#include "daemon/source/store/jwt.h"
#include "daemon/source/store/service.h"

#include <errno.h>
#include <fcntl.h>
#include <strings.h>

#define DOCUMENT_MAX (64 * KiB)
#define UNIVERSE "googleapis.com"
#define AUDIENCE "https://oauth2.googleapis.com/token"
#define SCOPE "https://www.googleapis.com/auth/devstorage.read_only"
#define IAM_SCOPE "https://www.googleapis.com/auth/iam"
#define JWT_LIFE 3600
#define METADATA_ADDRESS "169.254.169.254"
#define METADATA_PATIENCE (15 * SECOND) /* less than that of a renewal's callers */
#define ORIGIN_SIZE 300

struct google {
        struct google_opts opts;
        struct service_clients clients;
};

const char *google_env(const char *name)
{
        return filled(getenv(name));
}

/* ---- where the document is ---- */

/* The document as a setting of secret_read_text(), and what messages call it. *setting NULL: none is configured.
 * malloc'd. A file that no variable names, and that may not be read, counts as absent: in many containers HOME is
 * root's, whatever user the daemon runs as. */
static int find_document(const struct google_opts *opts, char **setting, const char **where, struct error *error)
{
        static const char *const variables[] = {"RUNAI_STREAMER_GCS_CREDENTIAL_FILE", "GOOGLE_APPLICATION_CREDENTIALS"};
        const char *own = filled(opts->credentials), *config = google_env("CLOUDSDK_CONFIG"),
                   *home = google_env("HOME");
        cleanup_free char *path = NULL;
        *setting = NULL;
        if (own != NULL) {
                *where = "settings";
                *setting = format_new("%s%s", own[0] == '/' ? "file:" : "", own);
                return *setting != NULL ? 0 : error_no_memory(error);
        }
        for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
                const char *file = google_env(variables[i]);
                if (file == NULL)
                        continue;
                *where = variables[i];
                *setting = format_new("file:%s", file);
                return *setting != NULL ? 0 : error_no_memory(error);
        }
        if (config == NULL && home == NULL)
                return 0;
        path = format_new("%s%s/application_default_credentials.json", config ?: home,
                          config != NULL ? "" : "/.config/gcloud");
        if (path == NULL)
                return error_no_memory(error);
        if (access(path, F_OK) < 0 || (config == NULL && access(path, R_OK) < 0))
                return 0;
        *where = "application_default_credentials.json";
        *setting = format_new("file:%s", path);
        return *setting != NULL ? 0 : error_no_memory(error);
}

/* Its faults are not quoted: what they quote may be secret. */
static int read_document(const char *setting, const char *where, struct json_values *values, struct error *error)
{
        cleanup_with(secret_text_deinit) struct text text = {0};
        int r = secret_read_text(setting, DOCUMENT_MAX, &text, error);
        if (r < 0) {
                cleanup_free char *why = strdup(error->text);
                return error_set(error, error->code, "%s: %s", where, why ?: "");
        }
        if (!json_values_init(values, text.data, text.size))
                return error_set(error, STREAMER_EFAILED, "%s: not a JSON document of Google credentials", where);
        return 0;
}

char *google_universe(const struct google_opts *opts)
{
        cleanup_with(json_values_deinit) struct json_values values = {.n = 0};
        cleanup_free char *setting = NULL;
        struct error ignored;
        const char *where, *universe = NULL;
        if (find_document(opts, &setting, &where, &ignored) == 0 && setting != NULL &&
            read_document(setting, where, &values, &ignored) == 0)
                universe = json_values_get(&values, "universe_domain");
        universe = universe ?: google_env("GOOGLE_CLOUD_UNIVERSE_DOMAIN") ?: UNIVERSE;
        return strdup(strspn(universe, "abcdefghijklmnopqrstuvwxyz0123456789.-") == strlen(universe) ? universe
                                                                                                     : UNIVERSE);
}

/* ---- a document's exchange ---- */

/* One document, or the part below `prefix` of it. */
struct exchange {
        struct google *google;
        const struct json_values *values;
        const char *prefix;
        const char *origin; /* for messages */
};

static const char *get(const struct exchange *x, const char *path)
{
        return json_values_below(x->values, x->prefix, path);
}

static int need(const struct exchange *x, const char *path, const char **value, struct error *error)
{
        *value = get(x, path);
        return *value != NULL ? 0
                              : error_set(error, STREAMER_EFAILED, "the document has no '%s' (%s)", path, x->origin);
}

/* "x.googleapis.com" is below "googleapis.com", and so is that itself. */
static bool is_below(const char *host, const char *domain)
{
        size_t len = strlen(host), end = strlen(domain);
        return len >= end && strcmp(host + len - end, domain) == 0 && (len == end || host[len - end - 1] == '.');
}

static bool is_aws_metadata(const struct http_url *url)
{
        return strcmp(url->host, METADATA_ADDRESS) == 0 || strcmp(url->host, "fd00:ec2::254") == 0;
}

/* That a document may name this URL. */
static int check_url(const struct exchange *x, const char *key, const char *text, bool aws, struct error *error)
{
        const struct google_opts *opts = &x->google->opts;
        const char *universe = get(x, "universe_domain") ?: google_env("GOOGLE_CLOUD_UNIVERSE_DOMAIN") ?: UNIVERSE;
        struct http_url url;
        if (http_url_parse(&url, text) < 0)
                return error_set(error, STREAMER_EFAILED, "'%s' of the document is no URL (%s)", key, x->origin);
        bool allowed = http_url_loopback(&url) || (aws && is_aws_metadata(&url)) ||
                       (url.tls && (is_below(url.host, UNIVERSE) || is_below(url.host, universe)));
        for (size_t i = 0; !allowed && i < opts->n_token_hosts; i++)
                allowed = http_host_matches(&url, opts->token_hosts[i]);
        return allowed ? 0
                       : error_set(error, STREAMER_EPERM,
                                   "'%s' of the document names %s, which is not asked: it is neither Google's by https "
                                   "nor in gcs.token_hosts (%s)",
                                   key, url.host, x->origin);
}

/* What a token service refuses. */
static int refused(const struct exchange *x, const char *what, struct http_answer *answer, const char *note,
                   struct error *error)
{
        struct store_fault fault;
        store_fault_read(&fault, answer, "x-request-id");
        error_set(error, answer->status >= 400 && answer->status < 500 ? STREAMER_EPERM : STREAMER_EFAILED,
                  "%s answers %d%s%s%s%s%s (%s)", what, answer->status, fault.code[0] != '\0' ? " " : "", fault.code,
                  fault.message[0] != '\0' ? ": " : "", fault.message, note, x->origin);
        return service_failed(error, answer->status);
}

/* {"access_token", "expires_in"}. */
static int take_token(const struct exchange *x, const char *what, struct http_answer *answer, const char *note,
                      struct credential *credential, struct error *error)
{
        cleanup_with(json_values_deinit) struct json_values values = {.n = 0};
        if (answer->status != 200)
                return refused(x, what, answer, note, error);
        bool valid = json_values_init(&values, answer->body, answer->body_len);
        const char *token = valid ? json_values_get(&values, "access_token") : NULL;
        uint64_t life = json_values_number(&values, "expires_in");
        if (token == NULL)
                return error_set(error, STREAMER_EFAILED, "%s: the answer holds no access_token (%s)", what, x->origin);
        return credential_init_token(credential, CREDENTIAL_BEARER, token, life > 0 ? time(NULL) + (time_t)life : 0,
                                     x->origin, error);
}

static int exchange_form(const struct exchange *x, const char *url, const struct service_param *params, size_t n,
                         const char *authorization, const char *note, struct credential *credential,
                         struct error *error)
{
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        cleanup_with(secret_free_p) char *form = service_form(params, n);
        if (form == NULL)
                return error_no_memory(error);
        int r = service_post(x->google->clients.others, url, x->origin, SERVICE_FORM, form, authorization, &answer,
                             error);
        return r ?: take_token(x, "the token endpoint", &answer, note, credential, error);
}

/* ---- service_account ---- */

static int sign_assertion(const struct exchange *x, const char *email, const char *pem, const char *scope,
                          char **assertion, struct error *error)
{
        cleanup_free char *issuer = json_quote(email);
        cleanup_free char *key_id = json_quote(get(x, "private_key_id") ?: "");
        long long now = (long long)time(NULL);
        if (issuer == NULL || key_id == NULL)
                return error_no_memory(error);
        cleanup_free char *header = format_new("{\"typ\":\"JWT\",\"alg\":\"RS256\",\"kid\":%s}", key_id);
        cleanup_free char *claims =
                format_new("{\"iss\":%s,\"scope\":\"%s\",\"aud\":\"" AUDIENCE "\",\"iat\":%lld,\"exp\":%lld}", issuer,
                           scope, now, now + JWT_LIFE);
        if (header == NULL || claims == NULL)
                return error_no_memory(error);
        int r = jwt_sign(assertion, header, claims, pem, error);
        if (r == STREAMER_EFAILED)
                error_set(error, r, "'private_key' of the document is not an RSA key in PEM (%s)", x->origin);
        return r;
}

static int service_account(const struct exchange *x, const char *scope, struct credential *credential,
                           struct error *error)
{
        const char *email = NULL, *pem = NULL, *url = NULL;
        cleanup_with(secret_free_p) char *assertion = NULL;
        int r = need(x, "client_email", &email, error) ?: need(x, "private_key", &pem, error)
                        ?: need(x, "token_uri", &url, error)
                        ?: sign_assertion(x, email, pem, scope, &assertion, error);
        if (r < 0)
                return r;
        const struct service_param params[] = {{"grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"},
                                               {"assertion", assertion}};
        return exchange_form(x, url, params, ARRAY_SIZE(params), NULL, "", credential, error);
}

/* ---- authorized_user ---- */

/* Its token_uri is used, where it has one. */
static int authorized_user(const struct exchange *x, struct credential *credential, struct error *error)
{
        const char *id = NULL, *secret = NULL, *refresh = NULL;
        int r = need(x, "client_id", &id, error) ?: need(x, "client_secret", &secret, error)
                        ?: need(x, "refresh_token", &refresh, error);
        if (r < 0)
                return r;
        const struct service_param params[] = {{"grant_type", "refresh_token"},
                                               {"client_id", id},
                                               {"client_secret", secret},
                                               {"refresh_token", refresh}};
        return exchange_form(x, get(x, "token_uri") ?: AUDIENCE, params, ARRAY_SIZE(params), NULL, "", credential,
                             error);
}

/* ---- impersonation ---- */

/* [...] of the array at this path, or null. */
static char *json_array(const struct exchange *x, const char *path)
{
        char *list = strdup("");
        size_t n = 0;
        for (;; n++) {
                char item[64];
                snprintf(item, sizeof(item), "%s.%zu", path, n);
                const char *text = get(x, item);
                if (text == NULL || list == NULL)
                        break;
                cleanup_free char *quoted = json_quote(text);
                cleanup_free char *before = list;
                list = quoted != NULL ? format_new("%s%s%s", before, n > 0 ? "," : "", quoted) : NULL;
        }
        cleanup_free char *items = list;
        return items == NULL ? NULL : n == 0 ? strdup("null") : format_new("[%s]", items);
}

/* {"accessToken", "expireTime"}. Replaces the credential, with which the service is asked. */
static int impersonate(const struct exchange *x, const char *url, struct credential *credential, struct error *error)
{
        uint64_t life = json_values_number(x->values, "service_account_impersonation.token_lifetime_seconds");
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        cleanup_with(json_values_deinit) struct json_values values = {.n = 0};
        cleanup_with(secret_free_p) char *authorization = format_new("Bearer %s", credential->token);
        cleanup_free char *delegates = json_array(x, "delegates");
        cleanup_free char *body =
                delegates == NULL ? NULL
                                  : format_new("{\"delegates\":%s,\"scope\":[\"" SCOPE "\"],\"lifetime\":\"%llus\"}",
                                               delegates, (unsigned long long)(life > 0 ? life : 3600));
        credential_deinit(credential);
        if (authorization == NULL || body == NULL)
                return error_no_memory(error);
        int r = service_post(x->google->clients.others, url, x->origin, SERVICE_JSON, body, authorization, &answer,
                             error);
        if (r < 0)
                return r;
        if (answer.status != 200)
                return refused(x, "the impersonation of a service account", &answer, "", error);
        bool valid = json_values_init(&values, answer.body, answer.body_len);
        const char *token = valid ? json_values_get(&values, "accessToken") : NULL;
        const char *until = valid ? json_values_get(&values, "expireTime") : NULL;
        time_t expires = until != NULL ? credential_time(until) : 0;
        if (token == NULL || expires < 0)
                return error_set(error, STREAMER_EFAILED,
                                 "the impersonation of a service account: the answer holds no accessToken with an "
                                 "expireTime (%s)",
                                 x->origin);
        return credential_init_token(credential, CREDENTIAL_BEARER, token, expires, x->origin, error);
}

/* ---- external_account: the token of another provider ---- */

/* A text, or a field of a JSON object, as credential_source.format says; malloc'd. */
static int subject_of_text(const struct exchange *x, char *text, size_t size, char **subject, struct error *error)
{
        const char *format = get(x, "credential_source.format.type") ?: "text";
        const char *field = get(x, "credential_source.format.subject_token_field_name");
        cleanup_with(json_values_deinit) struct json_values values = {.n = 0};
        const char *token = text + strspn(text, " \t\r\n");
        size_t len = strlen(token);
        if (strcmp(format, "json") == 0) {
                token = field != NULL && json_values_init(&values, text, size) ? json_values_get(&values, field) : NULL;
                len = token != NULL ? strlen(token) : 0;
        } else if (strcmp(format, "text") != 0) {
                return error_set(error, STREAMER_EUNSUPPORTED, "credential_source.format is neither text nor json (%s)",
                                 x->origin);
        }
        while (len > 0 && strchr(" \t\r\n", token[len - 1]) != NULL)
                len--;
        if (len == 0)
                return error_set(error, STREAMER_EFAILED, "credential_source holds no token (%s)", x->origin);
        *subject = strndup(token, len);
        return *subject != NULL ? 0 : error_no_memory(error);
}

static int subject_of_file(const struct exchange *x, const char *path, char **subject, struct error *error)
{
        cleanup_with(secret_text_deinit) struct text text = {0};
        cleanup_free char *setting = format_new("file:%s", path);
        if (setting == NULL)
                return error_no_memory(error);
        int r = secret_read_text(setting, DOCUMENT_MAX, &text, error);
        if (r < 0) {
                cleanup_free char *why = strdup(error->text);
                return error_set(error, r, "credential_source: %s (%s)", why ?: "", x->origin);
        }
        return subject_of_text(x, text.data, text.size, subject, error);
}

/* The headers that the document names. */
static int source_headers(const struct exchange *x, struct http_headers *headers, struct error *error)
{
        static const char below[] = "credential_source.headers.";
        char prefix[300];
        int r = 0;
        snprintf(prefix, sizeof(prefix), "%s%s%s", x->prefix, x->prefix[0] != '\0' ? "." : "", below);
        for (size_t i = 0; r == 0 && i < x->values->n; i++) {
                const struct json_value *v = &x->values->v[i];
                if (strncmp(v->path, prefix, strlen(prefix)) == 0)
                        r = http_headers_add(headers, v->path + strlen(prefix), v->text, error);
        }
        return r;
}

static int subject_of_url(const struct exchange *x, const char *url, char **subject, struct error *error)
{
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        cleanup_with(http_fetch_deinit) struct http_fetch fetch = {
                .request = {.url = url,
                            .shown = "credential_source",
                            .headers = &headers,
                            .plain_ok = strncasecmp(url, "http://", 7) == 0,
                            .direct = true}};
        int r = check_url(x, "credential_source.url", url, false, error) ?: source_headers(x, &headers, error)
                        ?: service_fetch(x->google->clients.others, &fetch, error);
        if (r == 0 && fetch.answer.status != 200)
                r = refused(x, "credential_source", &fetch.answer, "", error);
        return r ?: subject_of_text(x, fetch.answer.body, fetch.answer.body_len, subject, error);
}

/* ---- external_account: AWS ---- */

/* A text of the instance's metadata. *text is of the answer. */
static int aws_metadata(const struct exchange *x, const char *key, const char *method, const char *url,
                        const char *header, const char *value, struct http_answer *answer, struct error *error)
{
        const struct http_request request = {.method = method, .url = url, .shown = "AWS instance metadata"};
        int r = check_url(x, key, url, true, error)
                        ?: service_get(x->google->clients.metadata, &request, header, value, answer, error);
        if (r == 0 && answer->status != 200)
                r = refused(x, "AWS instance metadata", answer, "", error);
        return r;
}

/* IMDSv2 where the document has its URL. *session NULL: the first version. */
static int aws_session(const struct exchange *x, char **session, struct error *error)
{
        const char *url = get(x, "credential_source.imdsv2_session_token_url");
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        if (url == NULL)
                return 0;
        int r = aws_metadata(x, "imdsv2_session_token_url", "PUT", url, "X-aws-ec2-metadata-token-ttl-seconds", "300",
                             &answer, error);
        *session = r == 0 ? strdup(answer.body) : NULL;
        return r == 0 && *session == NULL ? error_no_memory(error) : r;
}

#define SESSION_HEADER "X-aws-ec2-metadata-token"

/* The zone without its last letter. */
static int aws_region(const struct exchange *x, const char *session, char region[64], struct error *error)
{
        const char *set = google_env("AWS_REGION") ?: google_env("AWS_DEFAULT_REGION"), *url = NULL;
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        int r = set == NULL ? need(x, "credential_source.region_url", &url, error) : 0;
        if (r == 0 && set == NULL)
                r = aws_metadata(x, "region_url", NULL, url, SESSION_HEADER, session, &answer, error);
        if (r < 0)
                return r;
        const char *text = set ?: answer.body;
        size_t len = strcspn(text, "\r\n") - (set == NULL && answer.body_len > 0 ? 1 : 0);
        if (len == 0 || len >= 64 || strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-") < len)
                return error_set(error, STREAMER_EFAILED, "AWS's region is not a name (%s)", x->origin);
        snprintf(region, 64, "%.*s", (int)len, text);
        return 0;
}

static int aws_keys(const struct exchange *x, const char *session, struct credential *keys, struct error *error)
{
        const char *access = google_env("AWS_ACCESS_KEY_ID"), *secret = google_env("AWS_SECRET_ACCESS_KEY"),
                   *url = NULL;
        cleanup_with(http_answer_deinit) struct http_answer role = {.status = 0}, answer = {.status = 0};
        if (access != NULL && secret != NULL)
                return credential_init_keys(keys, access, secret, google_env("AWS_SESSION_TOKEN"), "environment",
                                            error);
        int r = need(x, "credential_source.url", &url, error)
                        ?: aws_metadata(x, "credential_source.url", NULL, url, SESSION_HEADER, session, &role, error);
        if (r < 0)
                return r;
        size_t len = strcspn(role.body, "\r\n");
        if (len == 0 || len >= 128 || strcspn(role.body, "/?# ") < len)
                return error_set(error, STREAMER_EFAILED, "the AWS instance's role has no valid name (%s)", x->origin);
        cleanup_free char *below = format_new("%s/%.*s", url, (int)len, role.body);
        if (below == NULL)
                return error_no_memory(error);
        r = aws_metadata(x, "credential_source.url", NULL, below, SESSION_HEADER, session, &answer, error);
        return r ?: aws_keys_parse_json(keys, answer.body, answer.body_len, "AWS instance metadata", error);
}

/* {"headers": [{"key", "value"}], "method", "url"} of the signed request, which Google makes. */
static char *signed_request(const struct http_headers *headers, const char *url, const char *host, const char *audience)
{
        static const char *const names[] = {"Authorization", "x-amz-date", "x-amz-security-token"};
        cleanup_free char *quoted_host = json_quote(host), *target = json_quote(audience),
                          *quoted_url = json_quote(url);
        char *list = quoted_host == NULL || target == NULL
                             ? NULL
                             : format_new("{\"key\":\"host\",\"value\":%s},{\"key\":\"x-goog-cloud-target-resource\","
                                          "\"value\":%s}",
                                          quoted_host, target);
        for (size_t i = 0; list != NULL && i < ARRAY_SIZE(names); i++) {
                const char *value = http_headers_find(headers, names[i]);
                if (value == NULL)
                        continue;
                cleanup_with(secret_free_p) char *quoted = json_quote(value);
                cleanup_with(secret_free_p) char *before = list;
                list = quoted != NULL ? format_new("%s,{\"key\":\"%s\",\"value\":%s}", before, names[i], quoted) : NULL;
        }
        cleanup_with(secret_free_p) char *items = list;
        return items != NULL && quoted_url != NULL
                       ? format_new("{\"headers\":[%s],\"method\":\"POST\",\"url\":%s}", items, quoted_url)
                       : NULL;
}

static int subject_of_aws(const struct exchange *x, const char *audience, char **subject, struct error *error)
{
        const char *template = NULL, *rest;
        char region[64];
        cleanup_with(secret_free_p) char *session = NULL;
        cleanup_with(credential_deinit) struct credential keys = {.origin = NULL};
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        struct http_url parsed;
        int r = need(x, "credential_source.regional_cred_verification_url", &template, error)
                        ?: aws_session(x, &session, error) ?: aws_region(x, session, region, error);
        r = r < 0 ? r : aws_keys(x, session, &keys, error);
        if (r < 0)
                return r;
        rest = strstr(template, "{region}");
        cleanup_free char *url = rest != NULL ? format_new("%.*s%s%s", (int)(rest - template), template, region,
                                                           rest + strlen("{region}"))
                                              : strdup(template);
        if (url == NULL)
                return error_no_memory(error);
        if (http_url_parse(&parsed, url) < 0)
                return error_set(error, STREAMER_EFAILED,
                                 "'regional_cred_verification_url' of the document is no URL (%s)", x->origin);
        const struct http_request request = {.method = "POST", .url = url, .body = ""};
        r = aws_sign(&headers, &request, region, time(NULL), &keys, error);
        if (r < 0)
                return r;
        cleanup_with(secret_free_p) char *json = signed_request(&headers, url, parsed.host, audience);
        *subject = json != NULL ? http_url_encode(json, "") : NULL;
        return *subject != NULL ? 0 : error_no_memory(error);
}

/* ---- external_account ---- */

static int find_subject(const struct exchange *x, const char *audience, char **subject, struct error *error)
{
        const char *file = get(x, "credential_source.file"), *url = get(x, "credential_source.url");
        const char *environment = get(x, "credential_source.environment_id");
        static const char *const refused_kinds[] = {"executable", "certificate"};
        for (size_t i = 0; i < ARRAY_SIZE(refused_kinds); i++) {
                char path[80];
                size_t len = (size_t)snprintf(path, sizeof(path), "%s%scredential_source.%s.", x->prefix,
                                              x->prefix[0] != '\0' ? "." : "", refused_kinds[i]);
                for (size_t k = 0; k < x->values->n; k++)
                        if (strncmp(x->values->v[k].path, path, len) == 0)
                                return error_set(error, STREAMER_EUNSUPPORTED,
                                                 "credential_source.%s is not supported: file, url and AWS are (%s)",
                                                 refused_kinds[i], x->origin);
        }
        if (environment != NULL && strcmp(environment, "aws1") != 0)
                return error_set(error, STREAMER_EUNSUPPORTED, "credential_source: an unknown environment_id (%s)",
                                 x->origin);
        if (environment != NULL)
                return subject_of_aws(x, audience, subject, error);
        if (file != NULL)
                return subject_of_file(x, file, subject, error);
        if (url != NULL)
                return subject_of_url(x, url, subject, error);
        return error_set(error, STREAMER_EFAILED, "credential_source has neither file, url nor environment_id (%s)",
                         x->origin);
}

/* Of a client, whose project is not named then; NULL: there is none, or no memory. */
static char *basic_authorization(const struct exchange *x)
{
        const char *id = get(x, "client_id"), *secret = get(x, "client_secret");
        if (id == NULL || secret == NULL)
                return NULL;
        cleanup_with(secret_free_p) char *pair = format_new("%s:%s", id, secret);
        cleanup_with(secret_free_p) char *encoded = pair != NULL ? base64_new(pair, strlen(pair)) : NULL;
        return encoded != NULL ? format_new("Basic %s", encoded) : NULL;
}

/* As a user of a workforce pool has them, who has signed in by gcloud. */
static int external_user(const struct exchange *x, struct credential *credential, struct error *error)
{
        const char *refresh = NULL, *url = NULL, *id = NULL, *secret = NULL;
        int r = need(x, "refresh_token", &refresh, error) ?: need(x, "token_url", &url, error)
                        ?: need(x, "client_id", &id, error) ?: need(x, "client_secret", &secret, error)
                        ?: check_url(x, "token_url", url, false, error);
        if (r < 0)
                return r;
        cleanup_with(secret_free_p) char *authorization = basic_authorization(x);
        if (authorization == NULL)
                return error_no_memory(error);
        const struct service_param params[] = {{"grant_type", "refresh_token"}, {"refresh_token", refresh}};
        return exchange_form(x, url, params, ARRAY_SIZE(params), authorization, "", credential, error);
}

static int workforce_options(const struct exchange *x, char **options, struct error *error)
{
        const char *project = get(x, "workforce_pool_user_project");
        if (project == NULL || get(x, "client_id") != NULL)
                return 0;
        cleanup_free char *quoted = json_quote(project);
        cleanup_free char *json = quoted != NULL ? format_new("{\"userProject\": %s}", quoted) : NULL;
        *options = json != NULL ? http_url_encode(json, "") : NULL;
        return *options != NULL ? 0 : error_no_memory(error);
}

static int external_account(const struct exchange *x, const char *scope, struct credential *credential,
                            struct error *error)
{
        const char *audience = NULL, *type = NULL, *url = NULL,
                   *impersonation = get(x, "service_account_impersonation_url");
        cleanup_with(secret_free_p) char *subject = NULL;
        cleanup_free char *options = NULL;
        char note[JWT_NOTE];
        int r = need(x, "audience", &audience, error) ?: need(x, "subject_token_type", &type, error)
                        ?: need(x, "token_url", &url, error) ?: check_url(x, "token_url", url, false, error);
        if (r == 0 && impersonation != NULL)
                r = check_url(x, "service_account_impersonation_url", impersonation, false, error);
        r = r ?: workforce_options(x, &options, error) ?: find_subject(x, audience, &subject, error);
        if (r < 0)
                return r;
        cleanup_with(secret_free_p) char *authorization = basic_authorization(x);
        const struct service_param params[] = {
                {"grant_type", "urn:ietf:params:oauth:grant-type:token-exchange"},
                {"audience", audience},
                {"scope", impersonation != NULL ? IAM_SCOPE : scope},
                {"requested_token_type", "urn:ietf:params:oauth:token-type:access_token"},
                {"subject_token", subject},
                {"subject_token_type", type},
                {"options", options}};
        r = exchange_form(x, url, params, ARRAY_SIZE(params), authorization, jwt_expired_note(subject, note),
                          credential, error);
        return r == CREDENTIAL_FOUND && impersonation != NULL ? impersonate(x, impersonation, credential, error) : r;
}

/* ---- types ---- */

static int exchange(const struct exchange *x, const char *scope, struct credential *credential, struct error *error);

static int impersonated_account(const struct exchange *x, struct credential *credential, struct error *error)
{
        struct exchange source = *x;
        const char *url = NULL;
        int r = need(x, "service_account_impersonation_url", &url, error)
                        ?: check_url(x, "service_account_impersonation_url", url, false, error);
        if (r == 0 && x->prefix[0] != '\0')
                r = error_set(error, STREAMER_EUNSUPPORTED,
                              "source_credentials that impersonate, too, are not supported (%s)", x->origin);
        source.prefix = "source_credentials";
        r = r ?: exchange(&source, IAM_SCOPE, credential, error);
        return r == CREDENTIAL_FOUND ? impersonate(x, url, credential, error) : r;
}

static int exchange(const struct exchange *x, const char *scope, struct credential *credential, struct error *error)
{
        const char *type = NULL;
        int r = need(x, "type", &type, error);
        if (r < 0)
                return r;
        if (strcmp(type, "service_account") == 0)
                return service_account(x, scope, credential, error);
        if (strcmp(type, "authorized_user") == 0)
                return authorized_user(x, credential, error);
        if (strcmp(type, "external_account") == 0)
                return external_account(x, scope, credential, error);
        if (strcmp(type, "external_account_authorized_user") == 0)
                return external_user(x, credential, error);
        if (strcmp(type, "impersonated_service_account") == 0)
                return impersonated_account(x, credential, error);
        char shown[80];
        error_escape(shown, sizeof(shown), type);
        return error_set(error, STREAMER_EUNSUPPORTED,
                         "credentials of type '%s' are not supported: service_account, authorized_user, "
                         "external_account, external_account_authorized_user and impersonated_service_account are (%s)",
                         shown, x->origin);
}

static int token_of_document(struct google *google, const char *setting, const char *where,
                             struct credential *credential, struct error *error)
{
        cleanup_with(json_values_deinit) struct json_values values = {.n = 0};
        char origin[ORIGIN_SIZE], type[80];
        int r = read_document(setting, where, &values, error);
        if (r < 0)
                return r;
        error_escape(type, sizeof(type), json_values_get(&values, "type") ?: "no type");
        snprintf(origin, sizeof(origin), "%s, %s", where, type);
        const struct exchange x = {.google = google, .values = &values, .prefix = "", .origin = origin};
        r = exchange(&x, SCOPE, credential, error);
        const char *project = json_values_get(&values, "quota_project_id");
        if (r == CREDENTIAL_FOUND && project != NULL && (credential->project = strdup(project)) == NULL) {
                credential_deinit(credential);
                r = error_no_memory(error);
        }
        return r;
}

/* ---- the metadata server ---- */

/* It exists: its variable names it, this is one of Google's machines, or a pod. */
static bool expects_metadata(void)
{
        char name[64] = "";
        if (google_env("GCE_METADATA_HOST") != NULL || google_env("KUBERNETES_SERVICE_HOST") != NULL)
                return true;
        cleanup_close int fd = open("/sys/class/dmi/id/product_name", O_RDONLY | O_CLOEXEC);
        return fd >= 0 && read(fd, name, sizeof(name) - 1) > 0 && strncmp(name, "Google", 6) == 0;
}

/* Of the statuses that it has while it starts: final is what says that there is no such account, or no such path. */
static bool is_temporary(int status)
{
        return status == 401 || status == 403 || status == 404 || status == 429 || status >= 500;
}

static int ask_metadata(struct google *google, const char *url, struct http_answer *answer, struct error *error)
{
        const struct http_request request = {.url = url, .shown = "metadata server"};
        uint64_t until = now_ns() + (expects_metadata() ? METADATA_PATIENCE : 0);
        for (uint64_t pause = SECOND / 4;; pause *= 2) {
                int r = service_get(google->clients.metadata, &request, "Metadata-Flavor", "Google", answer, error);
                bool again = r < 0 ? r != STREAMER_ECANCELED : is_temporary(answer->status);
                if (!again || now_ns() + pause > until)
                        return r;
                http_answer_deinit(answer);
                r = service_pause(google->clients.metadata, pause, error);
                if (r < 0)
                        return r;
        }
}

/* Also CREDENTIAL_NOT_CONFIGURED if nothing answers, with the reason in *why. */
static int token_of_metadata(struct google *google, struct credential *credential, struct error *why,
                             struct error *error)
{
        static const char path[] = "/computeMetadata/v1/instance/service-accounts/default/token?scopes=";
        const struct exchange x = {.google = google, .prefix = "", .origin = "metadata server"};
        const char *host = google_env("GCE_METADATA_HOST"), *off = google_env("NO_GCE_CHECK");
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        if (off != NULL && strcasecmp(off, "true") == 0) {
                error_set(why, STREAMER_EFAILED, "NO_GCE_CHECK is set");
                return CREDENTIAL_NOT_CONFIGURED;
        }
        cleanup_free char *scope = http_url_encode(SCOPE, "");
        cleanup_free char *url =
                scope != NULL ? format_new("http://%s%s%s", host ?: google_env("GCE_METADATA_IP") ?: METADATA_ADDRESS,
                                           path, scope)
                              : NULL;
        if (url == NULL)
                return error_no_memory(error);
        int r = ask_metadata(google, url, &answer, why);
        if (r < 0 && host == NULL)
                return r == STREAMER_ECANCELED ? error_set(error, r, "%s", why->text) : CREDENTIAL_NOT_CONFIGURED;
        if (r < 0) {
                error_set(error, STREAMER_EFAILED, "GCE_METADATA_HOST: %s", why->text);
                error->unreachable = why->unreachable;
                return error->code;
        }
        const char *flavor = http_headers_find(&answer.headers, "Metadata-Flavor");
        if (answer.status == 200 && (flavor == NULL || strcmp(flavor, "Google") != 0))
                return error_set(error, STREAMER_EFAILED,
                                 "what answers is not Google's metadata server: its answer has "
                                 "no Metadata-Flavor: Google");
        return take_token(&x, "the metadata server", &answer, "", credential, error);
}

/* ---- the chain ---- */

static int fetch(void *provider, struct credential *credential, struct error *error)
{
        struct google *google = provider;
        struct error why = {.code = 0};
        cleanup_free char *setting = NULL;
        const char *where = "";
        int r = find_document(&google->opts, &setting, &where, error);
        if (r == 0 && setting != NULL)
                r = token_of_document(google, setting, where, credential, error);
        else if (r == 0 && google->opts.is_emulator && google_env("GCE_METADATA_HOST") == NULL)
                r = credential_init_anonymous(credential, "as an emulator is asked", error);
        else if (r == 0)
                r = token_of_metadata(google, credential, &why, error);
        if (r == CREDENTIAL_NOT_CONFIGURED)
                return error_set(error, STREAMER_EPERM,
                                 "no credentials: none in the settings, GOOGLE_APPLICATION_CREDENTIALS or gcloud's "
                                 "application_default_credentials.json, and the metadata server: %s. A public bucket "
                                 "is read with gcs.anonymous",
                                 why.text);
        const char *project = filled(google->opts.quota_project);
        if (r != CREDENTIAL_FOUND || project == NULL)
                return r;
        free(credential->project);
        credential->project = strdup(project);
        if (credential->project != NULL)
                return r;
        credential_deinit(credential);
        return error_no_memory(error);
}

static void stop(void *provider)
{
        struct google *google = provider;
        service_clients_stop(&google->clients);
}

static void provider_free(void *provider)
{
        struct google *google = provider;
        service_clients_deinit(&google->clients);
        free(google);
}

/* A number in the environment; else the default. */
static unsigned env_number(const char *name, unsigned max, unsigned fallback)
{
        const char *text = google_env(name);
        unsigned long value = text != NULL ? strtoul(text, NULL, 10) : 0;
        return value >= 1 && value <= max ? (unsigned)value : fallback;
}

int google_credentials_new(struct renewal **renewal, const struct google_opts *opts, struct error *error)
{
        static const struct renewal_ops ops = {.fetch = fetch, .stop = stop, .free = provider_free};
        struct google *google = calloc(1, sizeof(*google));
        if (google == NULL)
                return error_no_memory(error);
        google->opts = *opts;
        int r = service_clients_init(&google->clients, opts->http, env_number("GCE_METADATA_TIMEOUT", 60, 3) * SECOND,
                                     env_number("GCE_METADATA_DETECT_RETRIES", 10, 3), error)
                        ?: renewal_new(renewal, &ops, google, error);
        if (r < 0)
                provider_free(google);
        return r;
}
