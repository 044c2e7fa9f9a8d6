/* SPDX-License-Identifier: Apache-2.0
 *
 * gs://bucket/key and gs://bucket/prefix/: the requests of the JSON API.
 *
 *   GET ENDPOINT/storage/v1/b/BUCKET/o?prefix=P              a page of objects, with their generations
 *   GET ENDPOINT/storage/v1/b/BUCKET/o/OBJECT?alt=media      bytes; with ifGenerationMatch=N of one generation
 *
 * A version is the generation, which each overwrite changes. An object that is stored with gzip is decoded on its way,
 * unless it is requested as gzip, and then no range of it is of use: it is refused.
 *
 * A request is authorized by a bearer token, or is anonymous. A token that is refused (401) is replaced, and the
 * request repeated once.
 */
#include "daemon/source/gcs/gcs.h"

#include "daemon/base/json/json.h"
#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/gcs/google_credentials.h"
#include "daemon/source/store/fault.h"
#include "daemon/source/store/service.h"
#include "daemon/source/store/store.h"

#include <openssl/evp.h>
#include <strings.h>

#define SCHEME "gs://"
#define FAULT_NOT_ADDED JSON_FAULTS /* the list's own error */

struct gcs_store {
        const char *source; /* borrowed; NULL: of all others */
        char *url;          /* NULL: Google's */
        struct google_opts opts;
        struct renewal *renewal; /* NULL: anonymous */
        struct error fault;      /* in Google's variables */
};

struct gcs_stores {
        size_t n;
        struct gcs_store all[]; /* the first is for sources that the others do not cover */
};

/* ---- settings ---- */

static int set_url(struct gcs_store *store, const char *text, const char *scheme, const char *name, struct error *error)
{
        struct http_url url;
        cleanup_free char *whole =
                format_new("%s%.*s", strstr(text, "://") == NULL ? scheme : "", (int)trimmed_len(text, '/'), text);
        if (whole == NULL)
                return error_no_memory(error);
        if (http_url_parse(&url, whole) < 0 || strpbrk(url.path, "?#") != NULL)
                return error_set(error, STREAMER_EINVAL, "%s: not http(s)://host[:port], without user and password",
                                 name);
        store->url = whole;
        whole = NULL;
        return 0;
}

/* The source's own, else the variable's, else that of the settings for all. */
static int find_url(struct gcs_store *store, const struct gcs_opts *own, const struct gcs_opts *defaults,
                    struct error *error)
{
        static const char variable[] = "STORAGE_EMULATOR_HOST";
        const char *emulator = google_env(variable), *text = own != defaults ? filled(own->endpoint) : NULL;
        if (text == NULL && emulator != NULL) {
                int r = set_url(store, emulator, "http://", variable, &store->fault);
                store->opts.is_emulator = r == 0;
                return r == STREAMER_ENOMEM ? error_no_memory(error) : 0;
        }
        text = text ?: filled(defaults->endpoint);
        return text != NULL ? set_url(store, text, "https://", "gcs.endpoint", error) : 0;
}

static int store_init(struct gcs_store *store, const struct gcs_opts *own, const struct gcs_opts *defaults,
                      struct error *error)
{
        bool has_own = own != defaults && filled(own->credentials) != NULL;
        const char *project = own != defaults ? filled(own->quota_project) : NULL;
        store->source = own->source;
        store->opts.credentials = has_own ? own->credentials : defaults->credentials;
        store->opts.quota_project =
                project ?: google_env("GOOGLE_CLOUD_QUOTA_PROJECT") ?: filled(defaults->quota_project);
        int r = find_url(store, own, defaults, error);
        if (r < 0)
                return r;
        if (store->fault.code != 0)
                log_warn("loads from gs:// fail: %s", store->fault.text);
        if (own->is_anonymous || (defaults->is_anonymous && !has_own && !own->is_authorized))
                return 0;
        return google_credentials_new(&store->renewal, &store->opts, error);
}

int gcs_stores_new(struct gcs_stores **out, const struct gcs_opts *defaults, const struct gcs_opts *opts, size_t n,
                   const char *const *token_hosts, size_t n_token_hosts, const struct http_opts *http,
                   struct error *error)
{
        struct gcs_stores *stores = calloc(1, sizeof(*stores) + (n + 1) * sizeof(stores->all[0]));
        int r = 0;
        if (stores == NULL)
                return error_no_memory(error);
        for (; r == 0 && stores->n <= n; stores->n++) {
                struct gcs_store *store = &stores->all[stores->n];
                store->opts =
                        (struct google_opts){.token_hosts = token_hosts, .n_token_hosts = n_token_hosts, .http = http};
                r = store_init(store, stores->n == 0 ? defaults : &opts[stores->n - 1], defaults, error);
        }
        if (r < 0)
                stores = gcs_stores_free(stores);
        *out = stores;
        return r;
}

struct gcs_stores *gcs_stores_free(struct gcs_stores *stores)
{
        for (size_t i = 0; stores != NULL && i < stores->n; i++) {
                renewal_free(stores->all[i].renewal);
                free(stores->all[i].url);
        }
        free(stores);
        return NULL;
}

/* ---- credentials of a request, and its refusal ---- */

struct gcs_access {
        struct http_access http;
        const struct gcs_store *store;
};

/* The project that pays is named in both of the forms that the service knows. */
static int authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                     struct error *error)
{
        const struct gcs_store *store = container_of(access, struct gcs_access, http)->store;
        cleanup_with(credential_deinit) struct credential credential = {.origin = NULL};
        const char *project = store->opts.quota_project;
        if (store->renewal != NULL) {
                int r = renewal_get(store->renewal, &credential, error);
                if (r != RENEWAL_READY)
                        return r == RENEWAL_LATER ? HTTP_AUTHORIZED_LATER : r;
                more->credentials = credential.number;
                project = credential.project;
        }
        cleanup_with(secret_free_p) char *bearer =
                credential.kind == CREDENTIAL_BEARER ? format_new("Bearer %s", credential.token) : NULL;
        const struct service_param params[] = {{"userProject", project}};
        int r = 0;
        if (credential.kind == CREDENTIAL_BEARER && bearer == NULL)
                return error_no_memory(error);
        if (bearer != NULL)
                r = http_headers_add(more, "Authorization", bearer, error);
        if (r == 0 && project != NULL)
                r = http_headers_add(more, "x-goog-user-project", project, error);
        if (r == 0 && project != NULL && (more->query = service_form(params, 1)) == NULL)
                r = error_no_memory(error);
        return r < 0 ? r : HTTP_AUTHORIZED;
}

/* Google's text mostly names the permission that is missing. */
static void add_permission(struct store_fault *fault, const struct http_request *request)
{
        const char *list = strstr(request->url, "/o?");
        if (strstr(fault->message, "storage.") == NULL)
                format_append(fault->message, sizeof(fault->message), "%sthe permission storage.objects.%s is needed",
                              fault->message[0] != '\0' ? "; " : "", list != NULL ? "list" : "get");
}

static int refused(struct http_access *access, const struct http_request *request, const struct http_answer *answer,
                   struct error *error)
{
        const struct gcs_store *store = container_of(access, struct gcs_access, http)->store;
        int status = answer->status, code = store_fault_code(status);
        struct store_fault fault;
        store_fault_read(&fault, answer, "x-guploader-uploadid");
        bool again = status == 401 && store->renewal != NULL && renewal_refused(store->renewal, answer->credentials);
        if (status == 403)
                add_permission(&fault, request);
        store_fault_report(&fault, request, status, "", store->renewal, "anonymous", code, error);
        return again ? HTTP_REFUSAL_RETRY : code;
}

static void access_free(struct http_access *access)
{
        free(container_of(access, struct gcs_access, http));
}

static struct http_access *access_new(const struct gcs_store *store)
{
        static const struct http_access_ops ops = {.authorize = authorize, .refused = refused, .free = access_free};
        struct gcs_access *access = calloc(1, sizeof(*access));
        if (access == NULL)
                return NULL;
        access->http = (struct http_access){.ops = &ops, .refs = 1, .no_redirects = true, .takes_gzip = true};
        access->store = store;
        return &access->http;
}

/* ---- objects ---- */

bool gcs_crc32c(const char *value, uint32_t *crc)
{
        const char *at = strstr(value, "crc32c=");
        unsigned char bytes[6];
        if (at == NULL || (at != value && at[-1] != ',' && at[-1] != ' '))
                return false;
        at += strlen("crc32c=");
        if (strcspn(at, ", ") != 8 || EVP_DecodeBlock(bytes, (const unsigned char *)at, 8) != 6)
                return false;
        *crc = (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
        return true;
}

/* The header describes the whole object, also with the answer to a range; there may be two of them. */
static void take_sum(struct object *object, const struct http_headers *headers)
{
        for (size_t i = 0; !object->has_crc32c; i++) {
                const char *value = http_headers_find_nth(headers, "x-goog-hash", i);
                if (value == NULL)
                        return;
                object->has_crc32c = gcs_crc32c(value, &object->crc32c);
        }
}

static const struct http_dialect dialect = {.version = "x-goog-generation",
                                            .parameter = "ifGenerationMatch",
                                            .word = "generation",
                                            .encoding = "x-goog-stored-content-encoding",
                                            .take_sum = take_sum};

/* ---- lists ---- */

struct item {
        const char *name, *size, *generation; /* in the text */
};

/* Numbers of 64 bits are texts. */
static bool parse_item(struct json *j, struct item *item)
{
        struct json_string key;
        *item = (struct item){.generation = ""};
        if (!json_open(j, '{'))
                return json_unexpected(j, "'{'");
        for (size_t n = 0; json_member(j, &n, &key);)
                if (JSON_IS(j, key, "name"))
                        json_take_text(j, &item->name);
                else if (JSON_IS(j, key, "size"))
                        json_take_text(j, &item->size);
                else if (JSON_IS(j, key, "generation"))
                        json_take_text(j, &item->generation);
                else
                        json_skip(j);
        return j->fault == JSON_OK;
}

static bool add_item(struct json *j, const struct item *item, const char *prefix, struct listing *list,
                     struct error *error)
{
        uint64_t bytes, generation;
        size_t len = strlen(prefix), at = j->at;
        if (item->name == NULL || item->size == NULL || http_number(item->size, &bytes) < 0)
                return json_fail(j, JSON_SYNTAX, at, "an object without its name or size");
        if (item->generation[0] != '\0' && http_number(item->generation, &generation) < 0)
                return json_fail(j, JSON_SYNTAX, at, "a generation that is not a number");
        if (strncmp(item->name, prefix, len) != 0)
                return true;
        return listing_add(list, item->name + len, bytes, item->generation, error) == 0 ||
               json_fail(j, FAULT_NOT_ADDED, at, "%s", error->text);
}

int gcs_page_parse(char **next, char *text, size_t size, const char *prefix, struct listing *list, struct error *error)
{
        struct json j;
        struct json_string key;
        struct item item;
        const char *token = NULL;
        int r = 0;
        *next = NULL;
        json_init(&j, text, size);
        if (!json_open(&j, '{'))
                json_unexpected(&j, "'{'");
        for (size_t n = 0; json_member(&j, &n, &key);) {
                if (JSON_IS(&j, key, "nextPageToken"))
                        json_take_text(&j, &token);
                else if (!JSON_IS(&j, key, "items"))
                        json_skip(&j);
                else if (!json_open(&j, '['))
                        json_unexpected(&j, "'['");
                else
                        for (size_t i = 0; json_more(&j, ']', i); i++)
                                if (!parse_item(&j, &item) || !add_item(&j, &item, prefix, list, error))
                                        break;
        }
        if (!json_end(&j) && j.fault == FAULT_NOT_ADDED)
                r = error->code;
        else if (j.fault != JSON_OK)
                r = error_set(error, STREAMER_EFAILED, "the store's list of objects is not valid: %s (%s)", j.detail,
                              list->shown);
        else if (filled(token) != NULL && (*next = strdup(token)) == NULL)
                r = error_no_memory(error);
        json_deinit(&j);
        return r;
}

/* ---- the store's operations ---- */

static size_t key_at(const char *source)
{
        const char *slash = strchr(source + strlen(SCHEME), '/');
        return slash != NULL ? (size_t)(slash + 1 - source) : strlen(source);
}

static const struct gcs_store *find_store(const struct sources *sources, const char *source)
{
        const struct gcs_stores *stores = sources->gcs;
        return &stores->all[store_find(&stores->all[0].source, sizeof(stores->all[0]), stores->n, source)];
}

static int enter(const struct sources *sources, struct store_place *p)
{
        const struct gcs_store *store = find_store(sources, p->dir.source);
        if (store->fault.code != 0) {
                *p->error = store->fault;
                return p->error->code;
        }
        cleanup_free char *universe = store->url == NULL ? google_universe(&store->opts) : NULL;
        cleanup_free char *google = universe != NULL ? format_new("https://storage.%s", universe) : NULL;
        cleanup_free char *bucket = http_url_encode(p->bucket, ""), *prefix = http_url_encode(p->prefix, "");
        const char *url = store->url ?: google;
        if (url == NULL || bucket == NULL || prefix == NULL)
                return error_no_memory(p->error);
        p->base = format_new("%s/storage/v1/b/%s/o", url, bucket);
        p->dir.access = access_new(store);
        p->dir.dialect = &dialect;
        p->dir.keep = "";
        p->dir.url = p->base != NULL ? format_new("%s/%s", p->base, prefix) : NULL;
        p->dir.tail = strdup("?alt=media");
        return p->dir.access != NULL && p->dir.url != NULL && p->dir.tail != NULL ? 0 : error_no_memory(p->error);
}

static char *list_url(const struct store_place *p, bool nested, const char *next)
{
        const struct service_param params[] = {{"prefix", filled(p->prefix)},
                                               {"delimiter", nested ? NULL : "/"},
                                               {"fields", "items(name,size,generation),nextPageToken"},
                                               {"pageToken", next}};
        cleanup_free char *query = service_form(params, ARRAY_SIZE(params));
        return query != NULL ? format_new("%s?%s", p->base, query) : NULL;
}

static int parse_page(const struct store_place *p, char **next, char *text, size_t size, struct listing *list,
                      struct error *error)
{
        return gcs_page_parse(next, text, size, p->prefix, list, error);
}

static const struct store_ops ops = {
        .key_at = key_at,
        .enter = enter,
        .list_url = list_url,
        .parse_page = parse_page,
        .no_sums = ", and no crc32c of the store's",
};

/* ---- the source ---- */

static int gcs_canonical(const char *source, char **out, struct error *error)
{
        const char *bucket = source + strlen(SCHEME);
        size_t len = strcspn(bucket, "/");
        char shown[REDACTED_SOURCE];
        redact_source(shown, source);
        if (len < 3 || len > 222 || strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-._") < len)
                return error_set(error, STREAMER_EINVAL, "%s: not the name of a bucket of Google's", shown);
        return store_canonical(source, key_at(source), out, error);
}

static char *gcs_default_name(const char *canonical, unsigned n)
{
        const char *path = canonical + strlen(SCHEME);
        return source_last_components(path, source_folder_len(path), n + 1);
}

static int gcs_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                    struct error *error)
{
        return store_open(&ops, sources, canonical, want_sha256, set, error);
}

static int gcs_reach(const struct sources *sources, const char *canonical, struct source_reach *reach,
                     struct error *error)
{
        return store_reach(&ops, sources, canonical, reach, error);
}

static int gcs_list_sidecars(const struct sources *sources, const char *canonical, struct listing *list,
                             struct error *error)
{
        return store_list_sidecars(&ops, sources, canonical, list, error);
}

static int gcs_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                            struct object *object, struct error *error)
{
        return store_open_sidecar(&ops, sources, canonical, name, object, error);
}

const struct source_ops source_gcs = {
        .schemes = (const char *const[]){SCHEME, NULL},
        .canonical = gcs_canonical,
        .default_name = gcs_default_name,
        .file_uri = store_sidecar_uri,
        .open = gcs_open,
        .reach = gcs_reach,
        .sidecar_uri = store_sidecar_uri,
        .list_sidecars = gcs_list_sidecars,
        .open_sidecar = gcs_open_sidecar,
};
