/* SPDX-License-Identifier: Apache-2.0
 *
 * az://container/path, az://container@account.blob.core.windows.net/path, and abfs[s]://container@account.dfs..., which
 * is the same account by another name: the requests of the Blob service.
 *
 *   GET ENDPOINT/CONTAINER?restype=container&comp=list&prefix=P   a page of blobs, with their ETags
 *   GET ENDPOINT/CONTAINER/BLOB                                   bytes, with If-Match
 *
 * A request is authorized by a bearer token, a SAS in its query, a signature with the account's key, or not at all. A
 * SAS and a key go to the account that they are of, and all credentials to Azure's hosts and configured endpoints
 * alone: a source may name any host.
 *
 * In an account with a hierarchical namespace directories are listed as blobs: they are left out.
 */
#include "daemon/source/azure/azure.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/percent.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/store/fault.h"
#include "daemon/source/store/jwt.h"
#include "daemon/source/store/service.h"
#include "daemon/source/store/store.h"
#include "daemon/source/store/xml.h"

#include <ctype.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <strings.h>

#define SCHEME "az://"
#define VERSION "2023-11-03" /* of the service */

struct azure_store {
        const char *source; /* canonical; owned, or NULL: of all others */
        struct azure_config config;
        struct renewal *renewal; /* NULL: anonymous */
};

struct azure_stores {
        size_t n;
        struct azure_store all[]; /* the first is for sources that the others do not cover */
};

/* ---- hosts ---- */

/* The name of an account's host, as in its source, for the blobs of it. */
struct azure_host {
        char account[32];
        char name[256];
};

static bool ends_with(const char *host, const char *suffix)
{
        return source_ends_with(host, strlen(host), suffix);
}

/* ACCOUNT.blob.SUFFIX, or the same with another zone or a private link; dfs is blob. False: no host of Azure's. */
static bool parse_host(struct azure_host *host, const char *text, size_t len)
{
        static const char *const suffixes[] = {".core.windows.net", ".core.chinacloudapi.cn", ".core.usgovcloudapi.net",
                                               ".storage.azure.net", ".fabric.microsoft.com"};
        char lower[sizeof(host->name)];
        if (len == 0 || len >= sizeof(lower))
                return false;
        for (size_t i = 0; i <= len; i++)
                lower[i] = i < len ? (char)tolower((unsigned char)text[i]) : '\0';
        size_t account = strspn(lower, "abcdefghijklmnopqrstuvwxyz0123456789");
        if (account == 0 || account >= sizeof(host->account) || lower[account] != '.' ||
            strspn(lower, "abcdefghijklmnopqrstuvwxyz0123456789.-") != len)
                return false;
        bool known = false;
        for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++)
                known = known || ends_with(lower, suffixes[i]);
        char *dfs = strstr(lower, ".dfs."), *blob = strstr(lower, ".blob.");
        if (!known || (dfs == NULL && blob == NULL))
                return false;
        snprintf(host->account, sizeof(host->account), "%.*s", (int)account, lower);
        if (dfs != NULL)
                snprintf(host->name, sizeof(host->name), "%.*s.blob.%s", (int)(dfs - lower), lower, dfs + 5);
        else
                snprintf(host->name, sizeof(host->name), "%s", lower);
        return true;
}

/* ---- URIs ---- */

static size_t key_at(const char *source)
{
        const char *slash = strchr(source + strlen(SCHEME), '/');
        return slash != NULL ? (size_t)(slash + 1 - source) : strlen(source);
}

static bool is_container(const char *text, size_t len)
{
        size_t from = len > 0 && text[0] == '$' ? 1 : 0;
        return len >= 3 && len <= 63 && strspn(text + from, "abcdefghijklmnopqrstuvwxyz0123456789-") >= len - from;
}

/* "az://container/..." or "az://container@ACCOUNT.blob.SUFFIX/...", without what store_canonical() adds. */
static int name_place(const char *source, char **out, struct error *error)
{
        const char *container = strstr(source, "://") + 3;
        size_t len = strcspn(container, "/@"), host_len = 0;
        const char *rest = container + len;
        struct azure_host host = {.name = ""};
        char shown[REDACTED_SOURCE];
        redact_source(shown, source);
        if (!is_container(container, len))
                return error_set(error, STREAMER_EINVAL, "%s: not the name of a container", shown);
        if (*rest == '@') {
                host_len = strcspn(++rest, "/");
                if (!parse_host(&host, rest, host_len))
                        return error_set(error, STREAMER_EINVAL,
                                         "az://%.*s@...: not a host of Azure's, such as account.blob.core.windows.net "
                                         "(another one is configured as azure.endpoint)",
                                         (int)len, container);
                rest += host_len;
        }
        *out = format_new(SCHEME "%.*s%s%s%s", (int)len, container, host_len > 0 ? "@" : "", host.name, rest);
        return *out != NULL ? 0 : error_no_memory(error);
}

static int azure_canonical(const char *source, char **out, struct error *error)
{
        cleanup_free char *named = NULL;
        return name_place(source, &named, error) ?: store_canonical(named, key_at(named), out, error);
}

static char *azure_default_name(const char *canonical, unsigned n)
{
        const char *path = canonical + strlen(SCHEME), *at = strchr(path, '@'), *slash = strchr(path, '/');
        if (at == NULL || slash == NULL || slash < at)
                return source_last_components(path, source_folder_len(path), n + 1);
        cleanup_free char *name = format_new("%.*s%s", (int)(at - path), path, slash);
        return name != NULL ? source_last_components(name, source_folder_len(name), n + 1) : NULL;
}

/* ---- settings ---- */

static int store_init(struct azure_store *store, const struct azure_opts *own, const struct azure_opts *defaults,
                      const struct http_opts *http, struct error *error)
{
        char *source = NULL;
        int r = own->source != NULL ? name_place(own->source, &source, error) : 0;
        store->source = source;
        if (r < 0)
                return r;
        azure_config_init(&store->config, own, defaults);
        if (store->config.opts.is_anonymous)
                return 0;
        return azure_credentials_new(&store->renewal, &store->config, http, error);
}

int azure_stores_new(struct azure_stores **out, const struct azure_opts *defaults, const struct azure_opts *opts,
                     size_t n, const struct http_opts *http, struct error *error)
{
        struct azure_stores *stores = calloc(1, sizeof(*stores) + (n + 1) * sizeof(stores->all[0]));
        int r = 0;
        if (stores == NULL)
                return error_no_memory(error);
        for (; r == 0 && stores->n <= n; stores->n++)
                r = store_init(&stores->all[stores->n], stores->n == 0 ? defaults : &opts[stores->n - 1], defaults,
                               http, error);
        if (r < 0)
                stores = azure_stores_free(stores);
        *out = stores;
        return r;
}

struct azure_stores *azure_stores_free(struct azure_stores *stores)
{
        for (size_t i = 0; stores != NULL && i < stores->n; i++) {
                renewal_free(stores->all[i].renewal);
                free((char *)(uintptr_t)stores->all[i].source);
        }
        free(stores);
        return NULL;
}

/* ---- signatures ---- */

/* Of a query, in the order of names, which are those of our own lists and small letters: "\nname:value" each, decoded.
 */
static bool append_query(char **text, const char *query)
{
        struct parameter {
                char *name, *value;
        } list[16];
        size_t n = 0;
        cleanup_free char *copy = strdup(query);
        if (copy == NULL)
                return false;
        char *save, *part = strtok_r(copy, "&", &save);
        for (; part != NULL && n < ARRAY_SIZE(list); part = strtok_r(NULL, "&", &save)) {
                char *equals = strchr(part, '=');
                if (equals != NULL)
                        *equals = '\0';
                list[n++] = (struct parameter){part, equals != NULL ? equals + 1 : part + strlen(part)};
                percent_decode(list[n - 1].value, '+');
                for (size_t i = n - 1; i > 0 && strcmp(list[i].name, list[i - 1].name) < 0; i--) {
                        struct parameter other = list[i];
                        list[i] = list[i - 1];
                        list[i - 1] = other;
                }
        }
        for (size_t i = 0; i < n && *text != NULL; i++) {
                char *longer = format_new("%s\n%s:%s", *text, list[i].name, list[i].value);
                free(*text);
                *text = longer;
        }
        return *text != NULL;
}

char *azure_string_to_sign(const struct http_request *request, const struct http_headers *headers, const char *account)
{
        const char *path = strstr(request->url, "://") + 3, *query, *date, *version, *match;
        char range[64] = "";
        path += strcspn(path, "/?");
        query = strchr(path, '?');
        size_t path_len = query != NULL ? (size_t)(query - path) : strlen(path);
        date = http_headers_find(headers, "x-ms-date") ?: "";
        version = http_headers_find(headers, "x-ms-version") ?: "";
        match = http_headers_find(headers, "If-Match") ?: "";
        if (request->len > 0)
                snprintf(range, sizeof(range), "bytes=%" PRIu64 "-%" PRIu64, request->offset,
                         request->offset + request->len - 1);
        /* Content-Encoding, -Language, -Length, -MD5, -Type, Date, If-Modified-Since; If-Match; If-None-Match,
         * If-Unmodified-Since; Range. */
        char *text = format_new("%s\n\n\n\n\n\n\n\n%s\n\n\n%s\nx-ms-date:%s\nx-ms-version:%s\n/%s%s%.*s",
                                request->method ?: "GET", match, range, date, version, account,
                                path_len == 0 ? "/" : "", (int)path_len, path);
        if (text != NULL && query != NULL && !append_query(&text, query + 1)) {
                free(text);
                return NULL;
        }
        return text;
}

static int sign(struct http_headers *headers, const struct http_request *request, const struct credential *keys,
                struct error *error)
{
        unsigned char digest[32], key[CREDENTIAL_SECRET_MAX];
        char date[40];
        time_t now = time(NULL);
        struct tm tm;
        size_t len = strlen(keys->secret);
        int size = len % 4 == 0 ? EVP_DecodeBlock(key, (const unsigned char *)keys->secret, (int)len) : -1;
        if (size < 0)
                return error_set(error, STREAMER_EFAILED, "the account key is not Base64 (%s)", keys->origin);
        size -= (int)(len - trimmed_len(keys->secret, '='));
        strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &tm));
        int r = http_headers_add(headers, "x-ms-date", date, error);
        cleanup_free char *text = r == 0 ? azure_string_to_sign(request, headers, keys->access) : NULL;
        bool ok = text != NULL &&
                  HMAC(EVP_sha256(), key, size, (const unsigned char *)text, strlen(text), digest, NULL) != NULL;
        explicit_bzero(key, sizeof(key));
        cleanup_free char *signature = ok ? base64_new(digest, sizeof(digest)) : NULL;
        cleanup_free char *value = signature != NULL ? format_new("SharedKey %s:%s", keys->access, signature) : NULL;
        if (r < 0)
                return r;
        return value != NULL ? http_headers_add(headers, "Authorization", value, error) : error_no_memory(error);
}

/* ---- credentials of a request, and its refusal ---- */

struct azure_access {
        struct http_access http;
        const struct azure_store *store;
        char account[32];   /* that requests are to */
        bool is_configured; /* and that the settings or variables name: a SAS and a key are of it */
};

static int add_credential(const struct azure_access *a, const struct http_request *request,
                          const struct credential *credential, struct http_headers *more, struct error *error)
{
        bool of_account = credential->kind == CREDENTIAL_QUERY || credential->kind == CREDENTIAL_KEYS;
        if (of_account && !a->is_configured)
                return error_set(error, STREAMER_EPERM,
                                 "a SAS and a key are of one account, which is not %s: azure.sources has those of "
                                 "others (%s, credentials from %s)",
                                 a->account, request->shown, credential->origin);
        if (credential->kind == CREDENTIAL_KEYS)
                return sign(more, request, credential, error);
        if (credential->kind == CREDENTIAL_QUERY) {
                more->query = strdup(credential->token);
                return more->query != NULL ? 0 : error_no_memory(error);
        }
        cleanup_with(secret_free_p) char *bearer = format_new("Bearer %s", credential->token);
        return bearer != NULL ? http_headers_add(more, "Authorization", bearer, error) : error_no_memory(error);
}

static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        const struct azure_access *a = container_of(access, struct azure_access, http);
        cleanup_with(credential_deinit) struct credential credential = {.origin = NULL};
        int r = http_headers_add(more, "x-ms-version", VERSION, error);
        if (r < 0 || a->store->renewal == NULL)
                return r < 0 ? r : HTTP_AUTHORIZED;
        r = renewal_get(a->store->renewal, &credential, error);
        if (r != RENEWAL_READY)
                return r == RENEWAL_LATER ? HTTP_AUTHORIZED_LATER : r;
        more->credentials = credential.number;
        r = add_credential(a, request, &credential, more, error);
        return r < 0 ? r : HTTP_AUTHORIZED;
}

/* What the service's words leave out. */
static const char *advice(const char *code)
{
        static const struct {
                const char *code, *advice;
        } known[] = {
                {"AuthorizationPermissionMismatch", "the role 'Storage Blob Data Reader' is needed"},
                {"BlobArchived", "the blob is in the archive tier, and has to be rehydrated"},
                {"PublicAccessNotPermitted", "the account permits no anonymous access"},
        };
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (strcmp(code, known[i].code) == 0)
                        return known[i].advice;
        return NULL;
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        const struct azure_store *store = container_of(access, struct azure_access, http)->store;
        const char *named = http_headers_find(&answer->headers, "x-ms-error-code");
        int status = answer->status, code = store_fault_code(status);
        struct store_fault fault;
        store_fault_read(&fault, answer, "x-ms-request-id");
        if (fault.code[0] == '\0' && named != NULL)
                error_escape(fault.code, sizeof(fault.code), named);
        /* The rest of a message is the request's id and time. */
        char *end = strstr(fault.message, "\\x0aRequestId:");
        if (end != NULL)
                *end = '\0';
        const char *more = advice(fault.code);
        if (more != NULL)
                format_append(fault.message, sizeof(fault.message), "%s%s", fault.message[0] != '\0' ? "; " : "", more);
        if (strcmp(fault.code, "PublicAccessNotPermitted") == 0)
                code = STREAMER_EPERM;
        bool replaced = status == 401 || strcmp(fault.code, "AuthenticationFailed") == 0;
        bool again = replaced && store->renewal != NULL && renewal_refused(store->renewal, answer->credentials);
        store_fault_report(&fault, request, status, "", store->renewal, "anonymous", code, error);
        return again ? HTTP_REFUSAL_RETRY : code;
}

static void access_free(struct http_access *access)
{
        free(container_of(access, struct azure_access, http));
}

static struct http_access *access_new(const struct azure_store *store, const char *account, bool is_configured)
{
        static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};
        struct azure_access *access = calloc(1, sizeof(*access));
        if (access == NULL)
                return NULL;
        access->http = (struct http_access){.ops = &ops, .refs = 1, .no_redirects = true};
        access->store = store;
        access->is_configured = is_configured;
        snprintf(access->account, sizeof(access->account), "%s", account);
        return &access->http;
}

/* ---- lists ---- */

static int bad_list(const char *why, const struct listing *list, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "the store's list of blobs is not valid: %s (%s)", why, list->shown);
}

static bool same_name(const struct xml_element *element, const char *name)
{
        return strcasecmp(element->name, name) == 0;
}

/* A blob with its fields: n elements. */
static int add_blob(struct listing *list, const struct xml_element *fields, size_t n, const char *prefix,
                    struct error *error)
{
        const char *size = NULL, *etag = "";
        char *name = NULL;
        size_t len = strlen(prefix);
        bool directory = false, encoded = false;
        uint64_t bytes;
        for (size_t i = 0; i < n; i++) {
                if (fields[i].depth == 3 && same_name(&fields[i], "Name")) {
                        name = fields[i].text;
                        encoded = fields[i].encoded;
                } else if (fields[i].depth == 4 && same_name(&fields[i], "Content-Length")) {
                        size = fields[i].text;
                } else if (fields[i].depth == 4 && same_name(&fields[i], "Etag")) {
                        etag = fields[i].text;
                } else if (fields[i].depth == 4 && same_name(&fields[i], "ResourceType")) {
                        directory |= strcmp(fields[i].text, "directory") == 0;
                } else if (fields[i].depth == 4 && same_name(&fields[i], "hdi_isfolder")) {
                        directory |= strcasecmp(fields[i].text, "true") == 0;
                }
        }
        if (directory)
                return 0;
        if (name == NULL || size == NULL)
                return bad_list("a name or its length is missing", list, error);
        if (http_number(size, &bytes) < 0)
                return bad_list("a length is not a number", list, error);
        if (encoded && !percent_decode(name, '+'))
                return bad_list("a name is not percent-encoded as it should be", list, error);
        if (strncmp(name, prefix, len) != 0)
                return 0;
        const char *quote = etag[0] != '\0' && strchr(etag, '"') == NULL ? "\"" : "";
        cleanup_free char *tag = format_new("%s%s%s", quote, etag, quote);
        return tag != NULL ? listing_add(list, name + len, bytes, tag, error) : error_no_memory(error);
}

int azure_page_parse(char **next, const char *text, size_t size, const char *prefix, struct listing *list,
                     struct error *error)
{
        cleanup_with(xml_deinit) struct xml xml;
        const char *marker = NULL;
        size_t first = 0; /* of the elements since the last blob */
        int r = 0;
        *next = NULL;
        xml_init(&xml, text, size);
        if (xml.why != NULL || strcmp(xml.elements[xml.n - 1].name, "EnumerationResults") != 0)
                return bad_list(xml.why ?: "it is something else", list, error);
        for (size_t i = 0; r == 0 && i < xml.n; i++) {
                const struct xml_element *element = &xml.elements[i];
                if (element->depth == 1 && strcmp(element->name, "NextMarker") == 0)
                        marker = element->text;
                if (element->depth == 2 && strcmp(element->name, "Blob") == 0)
                        r = add_blob(list, &xml.elements[first], i - first, prefix, error);
                if (element->depth <= 2)
                        first = i + 1;
        }
        if (r == 0 && filled(marker) != NULL && (*next = strdup(marker)) == NULL)
                r = error_no_memory(error);
        return r;
}

/* ---- the store's operations ---- */

static const struct azure_store *find_store(const struct sources *sources, const char *source)
{
        const struct azure_stores *stores = sources->azure;
        return &stores->all[store_find(&stores->all[0].source, sizeof(stores->all[0]), stores->n, source)];
}

/* The endpoint of the account that the source names, else of the configured one. */
static int find_endpoint(const struct azure_store *store, const char *source, struct azure_host *host, char **endpoint,
                         bool *is_configured, struct error *error)
{
        const char *at = strchr(source, '@'), *slash = strchr(source + strlen(SCHEME), '/');
        cleanup_with(azure_account_deinit) struct azure_account account = {.name = NULL};
        struct error why;
        bool named = at != NULL && slash != NULL && at < slash;
        int r = azure_account_init(&account, &store->config, &why);
        if (!named && r < 0) {
                *error = why;
                return r;
        }
        if (named && !parse_host(host, at + 1, (size_t)(slash - at - 1)))
                return error_set(error, STREAMER_EINVAL, "not a host of Azure's"); /* unlike when it was canonical */
        bool same = r == 0 && (!named || strcmp(host->account, account.name) == 0);
        bool endpoint_counts = same && (!named || account.is_configured);
        if (!named)
                snprintf(host->account, sizeof(host->account), "%s", account.name);
        *is_configured = same;
        *endpoint = endpoint_counts ? strdup(account.endpoint) : format_new("https://%s", host->name);
        return *endpoint != NULL ? 0 : error_no_memory(error);
}

static int enter(const struct sources *sources, struct store_place *p)
{
        const struct azure_store *store = find_store(sources, p->dir.source);
        cleanup_free char *endpoint = NULL, *prefix = http_url_encode(p->prefix, "/");
        cleanup_free char *container = http_url_encode(p->bucket, "$");
        struct azure_host host = {.name = ""};
        bool is_configured = false;
        int r = find_endpoint(store, p->dir.source, &host, &endpoint, &is_configured, p->error);
        if (r < 0)
                return r;
        if (container == NULL || prefix == NULL)
                return error_no_memory(p->error);
        p->base = format_new("%s/%s", endpoint, container);
        p->dir.access = access_new(store, host.account, is_configured);
        p->dir.url = p->base != NULL ? format_new("%s/%s", p->base, prefix) : NULL;
        return p->dir.access != NULL && p->dir.url != NULL ? 0 : error_no_memory(p->error);
}

static char *list_url(const struct store_place *p, bool nested, const char *next)
{
        const struct service_param params[] = {{"restype", "container"},      {"comp", "list"},
                                               {"prefix", filled(p->prefix)}, {"delimiter", nested ? NULL : "/"},
                                               {"include", "metadata"},       {"marker", next}};
        cleanup_free char *query = service_form(params, ARRAY_SIZE(params));
        return query != NULL ? format_new("%s?%s", p->base, query) : NULL;
}

static int parse_page(const struct store_place *p, char **next, char *text, size_t size, struct listing *list,
                      struct error *error)
{
        return azure_page_parse(next, text, size, p->prefix, list, error);
}

static const struct store_ops ops = {
        .key_at = key_at,
        .enter = enter,
        .list_url = list_url,
        .parse_page = parse_page,
        .no_sums = "",
};

/* ---- the source ---- */

static int azure_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                      struct error *error)
{
        return store_open(&ops, sources, canonical, want_sha256, set, error);
}

static int azure_reach(const struct sources *sources, const char *canonical, struct source_reach *reach,
                       struct error *error)
{
        return store_reach(&ops, sources, canonical, reach, error);
}

static int azure_list_sidecars(const struct sources *sources, const char *canonical, struct listing *list,
                               struct error *error)
{
        return store_list_sidecars(&ops, sources, canonical, list, error);
}

static int azure_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                              struct object *object, struct error *error)
{
        return store_open_sidecar(&ops, sources, canonical, name, object, error);
}

const struct source_ops source_azure = {
        .schemes = (const char *const[]){SCHEME, "abfss://", "abfs://", NULL},
        .canonical = azure_canonical,
        .default_name = azure_default_name,
        .file_uri = store_sidecar_uri,
        .open = azure_open,
        .reach = azure_reach,
        .sidecar_uri = store_sidecar_uri,
        .list_sidecars = azure_list_sidecars,
        .open_sidecar = azure_open_sidecar,
};
