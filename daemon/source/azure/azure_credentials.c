/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens are of Microsoft's identity platform, for https://storage.azure.com:
 *
 *   client secret     POST of a form to AUTHORITY/TENANT/oauth2/v2.0/token
 *   federated token   the same, with the content of a file, which Kubernetes replaces: it is read each time
 *   App Service       GET from IDENTITY_ENDPOINT, with IDENTITY_HEADER
 *   Machine Learning  GET from MSI_ENDPOINT, with MSI_SECRET
 *   Arc               GET from IDENTITY_ENDPOINT > 401 that names a file > the same with the file's content
 *   IMDS              GET from the metadata service, with "Metadata: true"
 *
 * A SAS and a key are of one account. They are read again when they are refused, or expire: their file may have been
 * replaced.
 */
#include "daemon/source/azure/azure_credentials.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/store/fault.h"
#include "daemon/source/store/json_values.h"
#include "daemon/source/store/jwt.h"
#include "daemon/source/store/service.h"

#include <strings.h>
#include <sys/stat.h>

#define RESOURCE "https://storage.azure.com"
#define AUTHORITY "https://login.microsoftonline.com"
#define SUFFIX "core.windows.net"
#define METADATA "http://169.254.169.254"
#define METADATA_HOST "AZURE_POD_IDENTITY_AUTHORITY_HOST" /* the variable that names another one */
#define METADATA_PATIENCE (15 * SECOND)                   /* less than that of a renewal's callers */
#define ARC_FOLDER "/var/opt/azcmagent/tokens/"
#define ARC_SECRET_MAX 4096
/* Of the emulator, which all of its users know. */
#define EMULATOR_ACCOUNT "devstoreaccount1"
#define EMULATOR_ENDPOINT "http://127.0.0.1:10000/" EMULATOR_ACCOUNT
#define EMULATOR_KEY "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

struct azure {
        struct azure_config config;
        struct service_clients clients;
};

static char *env(const char *name)
{
        char *value = getenv(name);
        return filled(value) != NULL ? value : NULL;
}

/* ---- what is configured ---- */

static bool has_credentials(const struct azure_opts *o)
{
        return filled(o->connection_string) != NULL || filled(o->sas_token) != NULL || filled(o->account_key) != NULL ||
               filled(o->token) != NULL || filled(o->client_secret) != NULL || filled(o->client_id) != NULL ||
               filled(o->federated_token_file) != NULL || o->is_anonymous;
}

static bool is_yes(const char *text)
{
        return text != NULL && (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

static void take_environment(struct azure_opts *o)
{
        *o = (struct azure_opts){
                .connection_string = env("AZURE_STORAGE_CONNECTION_STRING"),
                .sas_token = env("AZURE_STORAGE_SAS_TOKEN") ?: env("AZURE_STORAGE_SAS_KEY"),
                .account_key = env("AZURE_STORAGE_ACCOUNT_KEY") ?: env("AZURE_STORAGE_ACCESS_KEY")
                                       ?: env("AZURE_STORAGE_KEY"),
                .token = env("AZURE_STORAGE_TOKEN"),
                .tenant_id = env("AZURE_TENANT_ID"),
                .client_id = env("AZURE_CLIENT_ID"),
                .client_secret = env("AZURE_CLIENT_SECRET"),
                .federated_token_file = env("AZURE_FEDERATED_TOKEN_FILE"),
                .authority_host = env("AZURE_AUTHORITY_HOST"),
                .is_anonymous = is_yes(env("AZURE_SKIP_SIGNATURE")),
        };
}

void azure_config_init(struct azure_config *config, const struct azure_opts *own, const struct azure_opts *defaults)
{
        const char *account = own != defaults ? filled(own->account) : NULL;
        const char *endpoint = own != defaults ? filled(own->endpoint) : NULL;
        *config = (struct azure_config){
                .account = account ?: env("AZURE_STORAGE_ACCOUNT_NAME") ?: env("AZURE_STORAGE_ACCOUNT")
                                   ?: filled(defaults->account),
                .endpoint = endpoint ?: env("AZURE_STORAGE_ENDPOINT") ?: filled(defaults->endpoint),
                .suffix = env("AZURE_STORAGE_ENDPOINT_SUFFIX"),
                .where = "settings",
        };
        /* Those for all do not count where the source wants credentials, and these are that there are none. */
        bool use_defaults = has_credentials(defaults) && !(defaults->is_anonymous && own->is_authorized);
        if (own != defaults && has_credentials(own)) {
                config->opts = *own;
        } else if (use_defaults) {
                config->opts = *defaults;
        } else {
                take_environment(&config->opts);
                config->where = "environment";
        }
        if (config->opts.authority_host == NULL)
                config->opts.authority_host = env("AZURE_AUTHORITY_HOST");
        if (config->opts.tenant_id == NULL)
                config->opts.tenant_id = env("AZURE_TENANT_ID");
}

/* ---- connection strings ---- */

int azure_connection_get(const char *text, const char *name, char **value, struct error *error)
{
        size_t len = strlen(name);
        *value = NULL;
        for (size_t n; *text != '\0'; text += n + (text[n] == ';')) {
                text += strspn(text, " \t");
                n = strcspn(text, ";");
                if (n <= len || text[len] != '=' || strncasecmp(text, name, len) != 0)
                        continue;
                *value = strndup(text + len + 1, n - len - 1);
                return *value != NULL ? 0 : error_no_memory(error);
        }
        return 0;
}

/* The string itself; *text NULL: there is none. */
static int read_connection(const struct azure_config *config, char **text, struct error *error)
{
        const char *setting = filled(config->opts.connection_string);
        *text = NULL;
        return setting != NULL ? secret_read(setting, text, error) : 0;
}

/* Of a string, its part; "": the string names none. */
struct connection {
        char *account, *key, *sas, *endpoint, *suffix, *protocol, *emulator;
};

static void connection_deinit(struct connection *c)
{
        secret_free(c->account);
        secret_free(c->key);
        secret_free(c->sas);
        secret_free(c->endpoint);
        secret_free(c->suffix);
        secret_free(c->protocol);
        secret_free(c->emulator);
}

static int connection_init(struct connection *c, const struct azure_config *config, struct error *error)
{
        const struct {
                const char *name;
                char **value;
        } parts[] = {{"AccountName", &c->account},           {"AccountKey", &c->key},
                     {"SharedAccessSignature", &c->sas},     {"BlobEndpoint", &c->endpoint},
                     {"EndpointSuffix", &c->suffix},         {"DefaultEndpointsProtocol", &c->protocol},
                     {"UseDevelopmentStorage", &c->emulator}};
        cleanup_with(secret_free_p) char *text = NULL;
        *c = (struct connection){.account = NULL};
        int r = read_connection(config, &text, error);
        for (size_t i = 0; r == 0 && text != NULL && i < ARRAY_SIZE(parts); i++)
                r = azure_connection_get(text, parts[i].name, parts[i].value, error);
        if (r < 0 || text == NULL)
                return r;
        if (is_yes(c->emulator)) {
                c->account = c->account ?: strdup(EMULATOR_ACCOUNT);
                c->key = c->key ?: strdup(EMULATOR_KEY);
                c->endpoint = c->endpoint ?: strdup(EMULATOR_ENDPOINT);
                return c->account != NULL && c->key != NULL && c->endpoint != NULL ? 0 : error_no_memory(error);
        }
        if (c->account == NULL && c->endpoint == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "the connection string has neither AccountName nor BlobEndpoint (%s)", config->where);
        return 0;
}

/* ---- accounts ---- */

/* Of an endpoint the first part of its path, or of its host's name. */
static char *account_of(const char *endpoint)
{
        const char *host = strstr(endpoint, "://"), *path;
        host = host != NULL ? host + 3 : endpoint;
        path = host + strcspn(host, "/");
        if (path[0] == '/' && path[1] != '\0')
                return strndup(path + 1, strcspn(path + 1, "/"));
        return strndup(host, strcspn(host, ".:/"));
}

static int check_account(const char *name, struct error *error)
{
        size_t len = strlen(name);
        if (len > 0 && len <= 24 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789") == len)
                return 0;
        return error_set(error, STREAMER_EINVAL,
                         "the name of the Azure account is not 1 to 24 small letters and digits");
}

int azure_account_init(struct azure_account *account, const struct azure_config *config, struct error *error)
{
        cleanup_with(connection_deinit) struct connection c;
        *account = (struct azure_account){.name = NULL};
        int r = connection_init(&c, config, error);
        if (r < 0)
                return r;
        const char *endpoint = config->endpoint ?: filled(c.endpoint);
        const char *name = filled(c.account) ?: config->account;
        if (name == NULL && endpoint == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "no Azure account: azure.account, AZURE_STORAGE_ACCOUNT_NAME or the source "
                                 "(az://container@account.blob.core.windows.net/...) names it");
        account->is_configured = endpoint != NULL;
        account->name = name != NULL ? strdup(name) : account_of(endpoint);
        if (account->name == NULL)
                return error_no_memory(error);
        r = check_account(account->name, error);
        if (r < 0)
                return r;
        if (endpoint == NULL) {
                const char *suffix = filled(c.suffix) ?: config->suffix ?: SUFFIX;
                const char *protocol = filled(c.protocol) ?: "https";
                suffix += *suffix == '.';
                account->endpoint = format_new("%s://%s.%s%s", protocol, account->name,
                                               strncmp(suffix, "blob.", 5) == 0 ? "" : "blob.", suffix);
        } else {
                account->endpoint = format_new("%s%.*s", strstr(endpoint, "://") == NULL ? "https://" : "",
                                               (int)trimmed_len(endpoint, '/'), endpoint);
        }
        struct http_url url;
        if (account->endpoint == NULL)
                return error_no_memory(error);
        if (http_url_parse(&url, account->endpoint) < 0 || strpbrk(url.path, "?#") != NULL)
                return error_set(error, STREAMER_EINVAL,
                                 "the Azure endpoint is not http(s)://host[:port][/account], without user and password "
                                 "(azure.endpoint, AZURE_STORAGE_ENDPOINT, or the connection string)");
        return 0;
}

void azure_account_deinit(struct azure_account *account)
{
        free(account->name);
        free(account->endpoint);
        *account = (struct azure_account){.name = NULL};
}

/* ---- SAS and keys ---- */

time_t azure_sas_expires(const char *sas)
{
        for (const char *at = sas; at != NULL; at = strchr(at, '&')) {
                at += *at == '&' || *at == '?';
                if (strncmp(at, "se=", 3) != 0)
                        continue;
                cleanup_free char *value = strndup(at + 3, strcspn(at + 3, "&"));
                if (value == NULL || !percent_decode(value, '+'))
                        return 0;
                time_t expires = credential_time(value);
                struct tm tm = {0};
                const char *rest = strptime(value, "%Y-%m-%d", &tm);
                if (expires < 0 && rest != NULL && *rest == '\0') /* a day, which begins then */
                        expires = timegm(&tm);
                return expires > 0 ? expires : 0;
        }
        return 0;
}

static int sas(const char *text, const char *origin, struct credential *credential, struct error *error)
{
        text += *text == '?';
        return credential_init_token(credential, CREDENTIAL_QUERY, text, azure_sas_expires(text), origin, error);
}

static int of_connection(const struct azure_config *config, struct credential *credential, struct error *error)
{
        cleanup_with(connection_deinit) struct connection c;
        char origin[80];
        int r = connection_init(&c, config, error);
        if (r < 0)
                return r;
        snprintf(origin, sizeof(origin), "%s, connection string", config->where);
        if (filled(c.sas) != NULL)
                return sas(c.sas, origin, credential, error);
        if (filled(c.key) == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "the connection string has neither AccountKey nor SharedAccessSignature (%s)",
                                 config->where);
        cleanup_with(azure_account_deinit) struct azure_account account;
        return azure_account_init(&account, config, error)
                       ?: credential_init_keys(credential, account.name, c.key, NULL, origin, error);
}

static int of_key(const struct azure_config *config, struct credential *credential, struct error *error)
{
        cleanup_with(secret_free_p) char *key = NULL;
        cleanup_with(azure_account_deinit) struct azure_account account = {.name = NULL};
        char origin[80];
        snprintf(origin, sizeof(origin), "%s, account key", config->where);
        return secret_read(config->opts.account_key, &key, error) ?: azure_account_init(&account, config, error)
                       ?: credential_init_keys(credential, account.name, key, NULL, origin, error);
}

static int of_text(const struct azure_config *config, const char *setting, const char *what, enum credential_kind kind,
                   struct credential *credential, struct error *error)
{
        cleanup_with(secret_free_p) char *text = NULL;
        char origin[80];
        int r = secret_read(setting, &text, error);
        if (r < 0)
                return r;
        snprintf(origin, sizeof(origin), "%s, %s", config->where, what);
        return kind == CREDENTIAL_QUERY
                       ? sas(text, origin, credential, error)
                       : credential_init_token(credential, kind, text, jwt_expires(text), origin, error);
}

/* ---- answers with tokens ---- */

/* {"access_token", "expires_on" or "expires_in"}. */
static int take_token(struct http_answer *answer, const char *what, const char *note, const char *origin,
                      struct credential *credential, struct error *error)
{
        cleanup_with(json_values_deinit) struct json_values values = {.n = 0};
        if (answer->status != 200) {
                struct store_fault fault;
                store_fault_read(&fault, answer, "x-ms-request-id");
                error_set(error, answer->status >= 400 && answer->status < 500 ? STREAMER_EPERM : STREAMER_EFAILED,
                          "%s answers %d%s%s%s%s%s (%s)", what, answer->status, fault.code[0] != '\0' ? " " : "",
                          fault.code, fault.message[0] != '\0' ? ": " : "", fault.message, note, origin);
                return service_failed(error, answer->status);
        }
        bool valid = json_values_init(&values, answer->body, answer->body_len);
        const char *token = valid ? json_values_get(&values, "access_token") : NULL;
        uint64_t on = json_values_number(&values, "expires_on"), in = json_values_number(&values, "expires_in");
        time_t expires = on > 0 && on < INT64_MAX ? (time_t)on : in > 0 ? time(NULL) + (time_t)in : 0;
        if (token == NULL)
                return error_set(error, STREAMER_EFAILED, "%s: the answer holds no access_token (%s)", what, origin);
        return credential_init_token(credential, CREDENTIAL_BEARER, token, expires, origin, error);
}

/* ---- clients ---- */

/* All of a client's settings, or the name of one that is missing. */
static int check_client(const struct azure_config *config, struct error *error)
{
        const char *missing = filled(config->opts.tenant_id) == NULL   ? "tenant_id (AZURE_TENANT_ID)"
                              : filled(config->opts.client_id) == NULL ? "client_id (AZURE_CLIENT_ID)"
                                                                       : NULL;
        if (missing != NULL)
                return error_set(error, STREAMER_EFAILED, "a client of Azure without its %s (%s)", missing,
                                 config->where);
        return 0;
}

static int exchange(struct azure *azure, const char *secret, const char *assertion, const char *origin,
                    struct credential *credential, struct error *error)
{
        const struct azure_opts *o = &azure->config.opts;
        const char *authority = filled(o->authority_host) ?: AUTHORITY;
        cleanup_free char *tenant = http_url_encode(o->tenant_id, "");
        cleanup_free char *url = tenant != NULL ? format_new("%s%.*s/%s/oauth2/v2.0/token",
                                                             strstr(authority, "://") == NULL ? "https://" : "",
                                                             (int)trimmed_len(authority, '/'), authority, tenant)
                                                : NULL;
        const struct service_param params[] = {
                {"client_id", o->client_id},
                {"scope", RESOURCE "/.default"},
                {"grant_type", "client_credentials"},
                {"client_secret", secret},
                {"client_assertion_type",
                 assertion != NULL ? "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" : NULL},
                {"client_assertion", assertion}};
        cleanup_with(secret_free_p) char *form = service_form(params, ARRAY_SIZE(params));
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        char note[JWT_NOTE] = "";
        if (url == NULL || form == NULL)
                return error_no_memory(error);
        if (assertion != NULL)
                jwt_expired_note(assertion, note);
        int r = service_post(azure->clients.others, url, origin, SERVICE_FORM, form, NULL, &answer, error);
        return r ?: take_token(&answer, "the token endpoint", note, origin, credential, error);
}

static int client_secret(struct azure *azure, struct credential *credential, struct error *error)
{
        const struct azure_config *config = &azure->config;
        cleanup_with(secret_free_p) char *secret = NULL;
        char origin[80];
        snprintf(origin, sizeof(origin), "%s, client secret", config->where);
        return check_client(config, error) ?: secret_read(config->opts.client_secret, &secret, error)
                       ?: exchange(azure, secret, NULL, origin, credential, error);
}

static int federated_token(struct azure *azure, struct credential *credential, struct error *error)
{
        const struct azure_config *config = &azure->config;
        cleanup_with(secret_free_p) char *token = NULL;
        char origin[80];
        snprintf(origin, sizeof(origin), "%s, federated token", config->where);
        int r = check_client(config, error);
        if (r == 0 && secret_read_file(config->opts.federated_token_file, &token, error) < 0) {
                cleanup_free char *why = strdup(error->text);
                r = error_set(error, STREAMER_EFAILED, "federated_token_file (AZURE_FEDERATED_TOKEN_FILE): %s",
                              why ?: "");
        }
        return r ?: exchange(azure, NULL, token, origin, credential, error);
}

/* ---- managed identity ---- */

/* The URL of a request for a token; `id` is what the service calls the client that is asked for. */
static char *identity_url(const char *endpoint, const char *version, const char *id, const char *client)
{
        const struct service_param params[] = {{"api-version", version}, {"resource", RESOURCE}, {id, client}};
        cleanup_free char *query = service_form(params, ARRAY_SIZE(params));
        return query != NULL ? format_new("%s%s%s", endpoint, strchr(endpoint, '?') != NULL ? "&" : "?", query) : NULL;
}

static const char *client_of(const struct azure *azure)
{
        return filled(azure->config.opts.client_id);
}

/* App Service and its kind: the variables have an endpoint and a secret. Consumes the URL. */
static int endpoint_of_variables(struct azure *azure, char *url_, const char *header, const char *secret,
                                 const char *variable, const char *origin, struct credential *credential,
                                 struct error *error)
{
        cleanup_free char *url = url_;
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        const struct http_request request = {.url = url, .shown = origin};
        if (url == NULL)
                return error_no_memory(error);
        int r = service_get(azure->clients.others, &request, header, secret, &answer, error);
        return r ?: take_token(&answer, variable, "", origin, credential, error);
}

static int app_service(struct azure *azure, const char *endpoint, struct credential *credential, struct error *error)
{
        return endpoint_of_variables(azure, identity_url(endpoint, "2019-08-01", "client_id", client_of(azure)),
                                     "X-IDENTITY-HEADER", env("IDENTITY_HEADER"), "IDENTITY_ENDPOINT",
                                     "managed identity of App Service", credential, error);
}

static int machine_learning(struct azure *azure, const char *endpoint, struct credential *credential,
                            struct error *error)
{
        const char *client = client_of(azure) ?: env("DEFAULT_IDENTITY_CLIENT_ID");
        return endpoint_of_variables(azure, identity_url(endpoint, "2017-09-01", "clientid", client), "secret",
                                     env("MSI_SECRET"), "MSI_ENDPOINT", "managed identity of Azure Machine Learning",
                                     credential, error);
}

int azure_arc_secret(const char *challenge, char **path, struct error *error)
{
        static const char realm[] = "Basic realm=";
        const char *file = strncasecmp(challenge, realm, strlen(realm)) == 0 ? challenge + strlen(realm) : "";
        size_t len = strlen(file), folder = strlen(ARC_FOLDER);
        struct stat st;
        bool is_key = len > folder + 4 && strncmp(file, ARC_FOLDER, folder) == 0 &&
                      strcmp(file + len - 4, ".key") == 0 && strchr(file + folder, '/') == NULL;
        if (!is_key || (stat(file, &st) == 0 && st.st_size > ARC_SECRET_MAX))
                return error_set(error, STREAMER_EPERM,
                                 "Azure Arc names a secret that is no small .key file of its agent's (%s)", ARC_FOLDER);
        *path = strdup(file);
        return *path != NULL ? 0 : error_no_memory(error);
}

/* The server proves with the file that whoever asks may read it. */
static int arc(struct azure *azure, const char *endpoint, struct credential *credential, struct error *error)
{
        static const char origin[] = "managed identity of Azure Arc";
        cleanup_free char *url = identity_url(endpoint, "2020-06-01", "client_id", client_of(azure)), *path = NULL;
        cleanup_with(http_answer_deinit) struct http_answer challenge = {.status = 0}, answer = {.status = 0};
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        cleanup_with(secret_free_p) char *secret = NULL;
        const struct http_request request = {.url = url, .shown = origin, .headers = &headers};
        if (url == NULL)
                return error_no_memory(error);
        int r = service_get(azure->clients.others, &request, "Metadata", "true", &challenge, error);
        const char *named = r == 0 ? http_headers_find(&challenge.headers, "WWW-Authenticate") : NULL;
        if (r == 0 && (challenge.status != 401 || named == NULL))
                return error_set(error, STREAMER_EFAILED, "Azure Arc answers %d instead of a challenge (%s)",
                                 challenge.status, origin);
        r = r ?: azure_arc_secret(named, &path, error) ?: secret_read_file(path, &secret, error);
        if (r < 0)
                return r;
        cleanup_with(secret_free_p) char *authorization = format_new("Basic %s", secret);
        struct http_fetch fetch = {.request = {.url = url,
                                               .shown = origin,
                                               .headers = &headers,
                                               .plain_ok = strncasecmp(url, "http://", 7) == 0,
                                               .direct = true}};
        if (authorization == NULL)
                return error_no_memory(error);
        r = http_headers_add(&headers, "Metadata", "true", error)
                    ?: http_headers_add(&headers, "Authorization", authorization, error)
                               ?: service_fetch(azure->clients.others, &fetch, error);
        answer = fetch.answer;
        return r ?: take_token(&answer, "Azure Arc", "", origin, credential, error);
}

/* 404 and 410 while the identity is being made, or the service is updated. */
static bool is_temporary(int status)
{
        return status == 404 || status == 410 || status == 429 || status >= 500;
}

/* Also CREDENTIAL_NOT_CONFIGURED if nothing answers, with the reason in *why. */
static int metadata(struct azure *azure, struct credential *credential, struct error *why, struct error *error)
{
        static const char origin[] = "managed identity";
        const char *host = env(METADATA_HOST) ?: METADATA;
        cleanup_free char *endpoint =
                format_new("%s%.*s/metadata/identity/oauth2/token", strstr(host, "://") == NULL ? "http://" : "",
                           (int)trimmed_len(host, '/'), host);
        cleanup_free char *url =
                endpoint != NULL ? identity_url(endpoint, "2018-02-01", "client_id", client_of(azure)) : NULL;
        const struct http_request request = {.url = url, .shown = "metadata service"};
        cleanup_with(http_answer_deinit) struct http_answer answer = {.status = 0};
        if (url == NULL)
                return error_no_memory(error);
        uint64_t until = now_ns() + METADATA_PATIENCE;
        for (uint64_t pause = SECOND / 2;; pause *= 2) {
                int r = service_get(azure->clients.metadata, &request, "Metadata", "true", &answer, why);
                if (r == STREAMER_ECANCELED)
                        return error_set(error, r, "%s", why->text);
                if (r < 0)
                        return CREDENTIAL_NOT_CONFIGURED;
                if (!is_temporary(answer.status) || now_ns() + pause > until)
                        break;
                http_answer_deinit(&answer);
                r = service_pause(azure->clients.metadata, pause, error);
                if (r < 0)
                        return r;
        }
        return take_token(&answer, "the metadata service", "", origin, credential, error);
}

static int unsupported(const char *what, struct error *error)
{
        return error_set(error, STREAMER_EUNSUPPORTED, "%s is not supported", what);
}

static int managed_identity(struct azure *azure, struct credential *credential, struct error *why, struct error *error)
{
        const char *endpoint = env("IDENTITY_ENDPOINT"), *msi = env("MSI_ENDPOINT");
        if (endpoint != NULL && env("IDENTITY_SERVER_THUMBPRINT") != NULL)
                return unsupported("the managed identity of Service Fabric (IDENTITY_SERVER_THUMBPRINT)", error);
        if (endpoint != NULL && env("IDENTITY_HEADER") != NULL)
                return app_service(azure, endpoint, credential, error);
        if (endpoint != NULL && env("IMDS_ENDPOINT") != NULL)
                return arc(azure, endpoint, credential, error);
        if (endpoint == NULL && msi != NULL && env("MSI_SECRET") != NULL)
                return machine_learning(azure, msi, credential, error);
        if (endpoint == NULL && msi != NULL)
                return unsupported("the identity of Azure Cloud Shell (MSI_ENDPOINT without MSI_SECRET)", error);
        return metadata(azure, credential, why, error);
}

/* ---- the chain ---- */

/* What the environment configures, before a federated token or with it, and is another identity than the next ones. */
static int check_environment(const struct azure_config *config, struct error *error)
{
        const struct azure_opts *o = &config->opts;
        if (strcmp(config->where, "environment") != 0 || filled(o->client_id) == NULL || filled(o->tenant_id) == NULL)
                return 0;
        if (env("AZURE_CLIENT_CERTIFICATE_PATH") != NULL)
                return unsupported("a client's certificate (AZURE_CLIENT_CERTIFICATE_PATH)", error);
        if (env("AZURE_USERNAME") != NULL && env("AZURE_PASSWORD") != NULL)
                return unsupported("a user's password (AZURE_USERNAME, AZURE_PASSWORD)", error);
        if (filled(o->federated_token_file) != NULL && env("AZURE_KUBERNETES_TOKEN_PROXY") != NULL)
                return unsupported("an identity binding of AKS (AZURE_KUBERNETES_TOKEN_PROXY)", error);
        return 0;
}

static int fetch(void *provider, struct credential *credential, struct error *error)
{
        struct azure *azure = provider;
        const struct azure_config *config = &azure->config;
        const struct azure_opts *o = &config->opts;
        struct error why = {.code = 0};
        if (filled(o->connection_string) != NULL)
                return of_connection(config, credential, error);
        if (filled(o->sas_token) != NULL)
                return of_text(config, o->sas_token, "SAS", CREDENTIAL_QUERY, credential, error);
        if (filled(o->account_key) != NULL)
                return of_key(config, credential, error);
        if (filled(o->client_secret) != NULL)
                return client_secret(azure, credential, error);
        int r = check_environment(config, error);
        if (r < 0)
                return r;
        if (filled(o->federated_token_file) != NULL)
                return federated_token(azure, credential, error);
        if (filled(o->token) != NULL)
                return of_text(config, o->token, "token", CREDENTIAL_BEARER, credential, error);
        r = managed_identity(azure, credential, &why, error);
        if (r != CREDENTIAL_NOT_CONFIGURED)
                return r;
        error_set(error, STREAMER_EPERM,
                  "no credentials: neither the settings nor the environment have a connection string, a SAS, an "
                  "account key, a client or a token, and the metadata service: %s. A public container is read with "
                  "azure.anonymous",
                  why.text);
        /* Unless it is named, its silence says that there is none, and that there are no credentials. */
        error->unreachable = why.unreachable && env(METADATA_HOST) != NULL;
        return error->code;
}

static void stop(void *provider)
{
        struct azure *azure = provider;
        service_clients_stop(&azure->clients);
}

static void provider_free(void *provider)
{
        struct azure *azure = provider;
        service_clients_deinit(&azure->clients);
        free(azure);
}

int azure_credentials_new(struct renewal **renewal, const struct azure_config *config, const struct http_opts *http,
                          struct error *error)
{
        static const struct renewal_ops ops = {.fetch = fetch, .stop = stop, .free = provider_free};
        struct azure *azure = calloc(1, sizeof(*azure));
        if (azure == NULL)
                return error_no_memory(error);
        azure->config = *config;
        int r = service_clients_init(&azure->clients, http, SECOND, 3, error)
                        ?: renewal_new(renewal, &ops, azure, error);
        if (r < 0)
                provider_free(azure);
        return r;
}
