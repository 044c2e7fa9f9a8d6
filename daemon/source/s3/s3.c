/* SPDX-License-Identifier: Apache-2.0
 *
 * s3://bucket/key and s3://bucket/prefix/, taken literally: no percent-decoding, nothing collapsed. A key ends in
 * ".safetensors"; anything else is a prefix, which becomes objects like a folder:
 *
 *   list (paged), and the index, if there is one > choose > request the first bytes of all at once
 *
 * The ETag of the listing is sent along: an object that is replaced in between fails the load, as one that is replaced
 * later does. The index counts only if the listing has it with this ETag. A bucket in another region than assumed
 * starts all of this again, once.
 */
#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/model_dir.h"
#include "daemon/source/s3/endpoint.h"
#include "daemon/source/s3/s3_reply.h"
#include "daemon/source/source.h"
#include "daemon/source/sums.h"
#include "daemon/source/web/remote_dir.h"
#include "proto/codec.h"

#include <strings.h>

#define SCHEME "s3://"
#define KEY_MAX 1024
#define PAGE_BYTES (8 * MiB)
#define PAGES_MAX 1000       /* of a thousand keys each */
#define SIDECAR_PAGES_MAX 16 /* with the directories below the prefix */

/* ---- URIs ---- */

static bool is_prefix(const char *canonical)
{
        return source_ends_with(canonical, strlen(canonical), "/");
}

static const char *key_of(const char *source)
{
        const char *bucket = source + strlen(SCHEME);
        const char *slash = strchr(bucket, '/');
        return slash != NULL ? slash + 1 : bucket + strlen(bucket);
}

/* A prefix is a directory itself; malloc'd. */
static char *directory_of(const char *canonical)
{
        return strndup(canonical, (size_t)(strrchr(canonical, '/') + 1 - canonical));
}

/* A prefix ends in '/', so that s3://b/llama and s3://b/llama/ are one source. */
static int s3_canonical(const char *source, char **out, struct error *error)
{
        const char *key = key_of(source), *bucket = source + strlen(SCHEME);
        size_t len = strcspn(bucket, "/");
        char shown[REDACTED_SOURCE];
        redact_source(shown, source);
        if (len < 1 || len > 255 ||
            strspn(bucket, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._") < len)
                return error_set(error, STREAMER_EINVAL, "%s: not the name of a bucket", shown);
        if (strlen(key) > KEY_MAX)
                return error_set(error, STREAMER_EINVAL, "%.200s...: longer than a key can be", source);
        if (!codec_utf8(source, strlen(source)))
                return error_set(error, STREAMER_EINVAL, "%s: not UTF-8", source);
        bool complete = is_prefix(source) || source_ends_with(key, strlen(key), SOURCE_SUFFIX);
        *out = format_new("%s%s", source, complete ? "" : "/");
        return *out != NULL ? 0 : error_no_memory(error);
}

static char *s3_default_name(const char *canonical, unsigned n)
{
        const char *path = canonical + strlen(SCHEME);
        return source_last_components(path, strlen(path), n + 1);
}

struct etag {
        char *name, *etag;
};

struct opening {
        /* The task: it runs again if the bucket is in another region. */
        int (*run)(struct opening *o);
        s3_entry_fn on_entry; /* of a listing; NULL: nothing is listed */
        bool flat;            /* the keys of the prefix alone, without those of directories below it */
        unsigned pages_max;

        struct remote_dir dir;
        const char *canonical; /* the key or prefix that is read; NULL in a task: the source's directory */
        const char *key;       /* in it: a whole key, or a prefix that is empty or ends in '/' */
        char *bucket;
        char *base; /* URL of the bucket */
        struct error *error;

        /* of the weights */
        bool want_sha256, has_sums;
        struct source_set *set;
        struct model_dir folder;
        struct etag *etags; /* of all files of the listing that may be used */
        size_t n_etags;

        /* of sidecars */
        struct sidecar_list *list;
        const char *name;
        struct object *object;
};

/* ---- listing ---- */

/* If-Match requires quotes, which some stores omit in their lists. */
static int add_etag(struct opening *o, const char *name, const char *etag)
{
        struct etag *etags = array_grow(o->etags, o->n_etags, sizeof(*etags));
        if (etags == NULL)
                return error_no_memory(o->error);
        o->etags = etags;
        struct etag *added = &o->etags[o->n_etags++];
        const char *quote = etag[0] != '\0' && strchr(etag, '"') == NULL ? "\"" : "";
        *added = (struct etag){strdup(name), format_new("%s%s%s", quote, etag, quote)};
        return added->name != NULL && added->etag != NULL ? 0 : error_no_memory(o->error);
}

/* A store that does not know the delimiter also lists the keys of folders below. */
static int on_weight(void *context, const struct s3_entry *entry, struct error *error)
{
        struct opening *o = context;
        size_t len = strlen(o->key), before = o->folder.n;
        if (strncmp(entry->key, o->key, len) != 0 || strchr(entry->key + len, '/') != NULL)
                return 0;
        const char *name = entry->key + len;
        int r = model_dir_offer(&o->folder, name, o->canonical, error);
        bool sums = strcmp(name, SUMS_NAME) == 0;
        o->has_sums |= sums;
        if (r == 0 && (sums || o->folder.n > before || strcmp(name, MODEL_DIR_INDEX) == 0))
                r = add_etag(o, name, entry->etag);
        return r;
}

/* Fetches the page with the token *next and, in the same round, the other fetches. */
static int fetch_page(struct opening *o, char **next, struct http_fetch *fetches, size_t n)
{
        struct aws_param params[] = {{"list-type", "2"},
                                     {"encoding-type", "url"},
                                     {"prefix", o->key},
                                     {"delimiter", o->flat ? "/" : NULL},
                                     {"continuation-token", *next}};
        cleanup_free char *query = aws_query(params, ARRAY_SIZE(params));
        cleanup_free char *url = query != NULL ? format_new("%s/?%s", o->base, query) : NULL;
        free(*next);
        *next = NULL;
        if (url == NULL)
                return error_no_memory(o->error);
        fetches[0] = (struct http_fetch){.request = {.url = url, .shown = o->canonical, .access = o->dir.access},
                                         .max_body = PAGE_BYTES};
        int r = http_fetch(o->dir.http, fetches, n, o->error);
        const struct http_answer *answer = &fetches[0].answer;
        if (r == 0 && answer->body == NULL)
                r = error_set(o->error, STREAMER_EFAILED, "an empty answer to a list (%s)", o->canonical);
        r = r ?: s3_page_parse(next, answer->body, answer->body_len, o->on_entry, o, o->error);
        http_fetch_deinit(&fetches[0]);
        return r;
}

/* All pages; fetches[0] is for them, and the others are fetched together with the first page. */
static int list_pages(struct opening *o, struct http_fetch *fetches, size_t n)
{
        cleanup_free char *next = NULL;
        int r = fetch_page(o, &next, fetches, n);
        for (unsigned pages = 1; r == 0 && next != NULL; pages++)
                r = pages < o->pages_max ? fetch_page(o, &next, fetches, 1)
                                         : error_set(o->error, STREAMER_EFAILED, "more than %u pages of keys (%s)",
                                                     o->pages_max, o->canonical);
        return r;
}

static const char *s3_etag(const struct remote_dir *dir, const char *name)
{
        const struct opening *o = container_of(dir, struct opening, dir);
        for (size_t i = 0; i < o->n_etags; i++)
                if (strcmp(o->etags[i].name, name) == 0)
                        return o->etags[i].etag[0] != '\0' ? o->etags[i].etag : NULL;
        return NULL;
}

/* The index is fetched with the first page. Any answer to its request is accepted: the listing decides whether it is
 * used. It may be of another moment than the list: then it is closed, and requested again by the list's ETag. */
static int list_weights(struct opening *o)
{
        struct object *index = &o->set->index_object;
        struct http_fetch fetches[2] = {{.max_body = 0}};
        cleanup_with(remote_dir_url_deinit) struct object_url url;
        struct error ignored;
        int r = remote_dir_url_init(&o->dir, MODEL_DIR_INDEX, &url, o->error);
        url.text = true;
        r = r ?: object_http_prepare(o->dir.http, &url, index, &fetches[1], o->error);
        fetches[1].any_status = true;
        r = r ?: list_pages(o, fetches, 2);
        if (r == 0 && object_http_finish(index, &fetches[1], &ignored) < 0)
                object_deinit(index);
        http_fetch_deinit(&fetches[1]);
        if (r < 0)
                return r;
        const char *etag = s3_etag(&o->dir, MODEL_DIR_INDEX);
        bool listed = o->folder.has_index && index->ops != NULL && (etag == NULL || object_http_has_etag(index, etag));
        if (!listed)
                object_deinit(index);
        return model_dir_choose(&o->folder, "with this prefix", o->canonical, o->error);
}

/* ---- weights ---- */

/* The URL of an object, from its URI. */
static char *object_url(const struct opening *o, const char *uri)
{
        cleanup_free char *key = http_url_encode(key_of(uri), "/");
        return key != NULL ? format_new("%s/%s", o->base, key) : NULL;
}

/* A file of the prefix, or the key itself if `name` is empty. */
static bool s3_locate(const struct remote_dir *dir, const char *name, char **url, char **shown)
{
        const struct opening *o = container_of(dir, struct opening, dir);
        *shown = format_new("%s%s", o->canonical, name);
        *url = *shown != NULL ? object_url(o, *shown) : NULL;
        return *url != NULL;
}

static int set_checksum(struct object *object, const struct http_fetch *fetch, struct error *error)
{
        const char *value = http_headers_find(&fetch->answer.headers, "x-amz-checksum-sha256");
        const char *type = http_headers_find(&fetch->answer.headers, "x-amz-checksum-type");
        char hex[65];
        bool whole = type == NULL || strcasecmp(type, "FULL_OBJECT") == 0;
        if (value == NULL || !whole || !s3_checksum_decode(value, hex))
                return 0;
        log_debug("SHA-256 as the store keeps it (%s)", object->path);
        return sums_set_digest(object, hex, "the store's checksum", error);
}

/* The list and the store's checksums are requested at once. The list has precedence, since the publisher of the files
 * wrote it; the checksums add what it lacks. Where both have a digest they must agree: a difference fails the load. */
static int find_sums(struct opening *o)
{
        /* A client that may not list gets 403 for a key that does not exist. */
        static const int absent[] = {403, 404, 0};
        struct object *objects = o->set->objects;
        size_t n = o->set->n_objects;
        bool listed = is_prefix(o->canonical), request_list = !listed || o->has_sums;
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        cleanup_free struct http_fetch *fetches = calloc(n + 1, sizeof(*fetches));
        cleanup_free char *folder = directory_of(o->canonical);
        cleanup_free char *list_uri = folder != NULL ? format_new("%s" SUMS_NAME, folder) : NULL;
        if (fetches == NULL || list_uri == NULL)
                return error_no_memory(o->error);
        struct http_fetch *list = fetches + n;
        int r = http_headers_add(&headers, "x-amz-checksum-mode", "ENABLED", o->error);
        for (size_t i = 0; r == 0 && i <= n; i++) {
                struct http_request *request = &fetches[i].request;
                request->shown = i < n ? objects[i].path : list_uri;
                request->access = o->dir.access;
                request->url = object_url(o, request->shown);
                if (i < n) {
                        request->method = "HEAD";
                        request->headers = &headers;
                }
                if (request->url == NULL)
                        r = error_no_memory(o->error);
        }
        list->max_body = SUMS_MAX;
        list->fine = listed ? NULL : absent;
        if (r == 0)
                r = http_fetch(o->dir.http, fetches, request_list ? n + 1 : n, o->error);
        struct text text = {.data = list->answer.body, .size = list->answer.body_len};
        if (r == 0 && request_list && list->answer.status < 300 && text.data != NULL)
                r = sums_apply(&text, list_uri, objects, n, o->error);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = set_checksum(&objects[i], &fetches[i], o->error);
        for (size_t i = 0; i <= n; i++) {
                free((char *)(uintptr_t)fetches[i].request.url);
                http_fetch_deinit(&fetches[i]);
        }
        return r
                       ?: sums_require(objects, n, "a " SUMS_NAME " with its prefix, and no checksum of the store's",
                                       o->error);
}

static int open_weights(struct opening *o)
{
        static const char *const itself = "";
        int r = is_prefix(o->canonical) ? list_weights(o) ?: remote_dir_open(&o->dir, &o->folder, o->set, o->error)
                                        : remote_dir_open_files(&o->dir, &itself, 1, o->set, o->error);
        return r == 0 && o->want_sha256 ? find_sums(o) : r;
}

/* ---- attempts ---- */

static int attempt(const struct opening *task, struct s3_endpoints *endpoints, const struct s3_endpoint *endpoint,
                   const char *region)
{
        struct opening o = *task;
        o.dir.access = s3_auth_new(endpoints, endpoint, o.bucket, region);
        if (o.dir.access == NULL)
                return error_no_memory(o.error);
        int r = s3_endpoint_base(endpoint, o.bucket, region, &o.base, o.error) ?: o.run(&o);
        model_dir_deinit(&o.folder);
        for (size_t i = 0; i < o.n_etags; i++) {
                free(o.etags[i].name);
                free(o.etags[i].etag);
        }
        free(o.etags);
        free(o.base);
        http_access_unref(o.dir.access);
        return r;
}

/* `source` chooses the endpoint and its credentials. It is read unless the task reads its directory. */
static int run(const struct sources *sources, const char *source, struct opening *task)
{
        const struct s3_endpoint *endpoint = s3_endpoints_find(sources->s3, source);
        const char *bucket = source + strlen(SCHEME);
        char region[S3_REGION], now[S3_REGION];
        cleanup_free char *directory = task->canonical == NULL ? directory_of(source) : NULL;
        cleanup_free char *name = task->bucket = strndup(bucket, strcspn(bucket, "/"));
        if (task->canonical == NULL)
                task->canonical = directory;
        if (task->canonical == NULL || name == NULL)
                return error_no_memory(task->error);
        bool listed = is_prefix(task->canonical) && task->set != NULL;
        task->key = key_of(task->canonical);
        task->dir = (struct remote_dir){.http = sources->http,
                                        .atomic = true,
                                        .listed = listed ? "listed with its prefix" : NULL,
                                        .locate = s3_locate,
                                        .etag = s3_etag};
        s3_endpoints_get_region(sources->s3, endpoint, name, region);
        int r = attempt(task, sources->s3, endpoint, region);
        s3_endpoints_get_region(sources->s3, endpoint, name, now);
        if (r == 0 || strcmp(region, now) == 0)
                return r;
        log_info("bucket %s is in region %s", name, now);
        if (task->set != NULL)
                source_set_deinit(task->set);
        if (task->list != NULL)
                sidecar_list_deinit(task->list);
        if (task->object != NULL)
                object_deinit(task->object);
        *task->error = (struct error){.code = 0};
        return attempt(task, sources->s3, endpoint, now);
}

static int s3_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                   struct error *error)
{
        struct opening task = {.run = open_weights,
                               .on_entry = on_weight,
                               .flat = true,
                               .pages_max = PAGES_MAX,
                               .canonical = canonical,
                               .want_sha256 = want_sha256,
                               .set = set,
                               .error = error};
        return run(sources, canonical, &task);
}

/* ---- sidecars ---- */

static int on_sidecar(void *context, const struct s3_entry *entry, struct error *error)
{
        struct opening *o = context;
        size_t len = strlen(o->key);
        if (strncmp(entry->key, o->key, len) != 0)
                return 0;
        return sidecar_list_add(o->list, entry->key + len, entry->size, o->canonical, error);
}

static int list_sidecars(struct opening *o)
{
        struct http_fetch fetch;
        return list_pages(o, &fetch, 1);
}

static int open_sidecar(struct opening *o)
{
        return remote_dir_open_text(&o->dir, o->name, o->object, o->error);
}

static int s3_list_sidecars(const struct sources *sources, const char *canonical, struct sidecar_list *list,
                            struct error *error)
{
        struct opening task = {.run = list_sidecars,
                               .on_entry = on_sidecar,
                               .pages_max = SIDECAR_PAGES_MAX,
                               .list = list,
                               .error = error};
        return run(sources, canonical, &task);
}

static int s3_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                           struct object *object, struct error *error)
{
        struct opening task = {.run = open_sidecar, .name = name, .object = object, .error = error};
        return run(sources, canonical, &task);
}

static char *s3_sidecar_uri(const char *canonical, const char *name)
{
        cleanup_free char *directory = directory_of(canonical);
        return directory != NULL ? format_new("%s%s", directory, name) : NULL;
}

const struct source_ops source_s3 = {
        .schemes = (const char *const[]){SCHEME, NULL},
        .canonical = s3_canonical,
        .default_name = s3_default_name,
        .open = s3_open,
        .sidecar_uri = s3_sidecar_uri,
        .list_sidecars = s3_list_sidecars,
        .open_sidecar = s3_open_sidecar,
};
