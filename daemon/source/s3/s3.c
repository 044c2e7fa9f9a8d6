/* SPDX-License-Identifier: Apache-2.0
 *
 * s3://bucket/key and s3://bucket/prefix/, taken literally: no percent-decoding, nothing collapsed. A key ends in
 * ".safetensors", or is that of an index; anything else is a prefix, which becomes objects like a folder:
 *
 *   list (paged), and the index, if there is one > choose > request the first bytes of all at once
 *
 * The ETag of the listing is sent along: if an object is replaced in between all of this begins again, once; one that
 * is replaced later fails the load. The index counts only if the listing has it with this ETag. A bucket in another
 * region than assumed starts all of this again, once.
 */
#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/listing.h"
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

/* A prefix is a directory itself. */
static size_t directory_len(const char *canonical)
{
        return (size_t)(strrchr(canonical, '/') + 1 - canonical);
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
        bool complete = is_prefix(source) || source_ends_with(key, strlen(key), SOURCE_SUFFIX) ||
                        (strrchr(source, '/') > bucket && source_is_index(strrchr(source, '/') + 1));
        *out = format_new("%s%s", source, complete ? "" : "/");
        return *out != NULL ? 0 : error_no_memory(error);
}

static char *s3_default_name(const char *canonical, unsigned n)
{
        const char *path = canonical + strlen(SCHEME);
        return source_last_components(path, source_folder_len(path), n + 1);
}

/* A source in the region that its bucket is assumed to be in. */
struct place {
        struct remote_dir dir;
        const char *base;   /* URL of the bucket */
        const char *prefix; /* of keys, which is empty or ends in '/' */
        struct error *error;
};

/* ---- listing ---- */

/* Fetches the page with the token *next and, in the same round, the other fetches. */
static int fetch_page(const struct place *p, struct listing *list, char **next, struct http_fetch *fetches, size_t n)
{
        struct aws_param params[] = {{"list-type", "2"},
                                     {"encoding-type", "url"},
                                     {"prefix", p->prefix},
                                     {"delimiter", list->sidecars ? NULL : "/"},
                                     {"continuation-token", *next}};
        cleanup_free char *query = aws_query(params, ARRAY_SIZE(params));
        cleanup_free char *url = query != NULL ? format_new("%s/?%s", p->base, query) : NULL;
        free(*next);
        *next = NULL;
        if (url == NULL)
                return error_no_memory(p->error);
        fetches[0] = (struct http_fetch){.request = {.url = url, .shown = p->dir.shown, .access = p->dir.access},
                                         .max_body = PAGE_BYTES};
        int r = http_fetch(p->dir.http, fetches, n, p->error);
        const struct http_answer *answer = &fetches[0].answer;
        if (r == 0 && answer->body == NULL)
                r = error_set(p->error, STREAMER_EFAILED, "an empty answer to a list (%s)", p->dir.shown);
        r = r ?: s3_page_parse(next, answer->body, answer->body_len, p->prefix, list, p->error);
        http_fetch_deinit(&fetches[0]);
        return r;
}

/* All pages; fetches[0] is for them, and the others are fetched together with the first page. */
static int list_pages(const struct place *p, struct listing *list, struct http_fetch *fetches, size_t n)
{
        cleanup_free char *next = NULL;
        unsigned most = list->sidecars ? SIDECAR_PAGES_MAX : PAGES_MAX;
        int r = fetch_page(p, list, &next, fetches, n);
        for (unsigned pages = 1; r == 0 && next != NULL; pages++)
                r = pages < most ? fetch_page(p, list, &next, fetches, 1)
                                 : error_set(p->error, STREAMER_EFAILED, "more than %u pages of keys (%s)", most,
                                             p->dir.shown);
        return r;
}

/* The index is fetched with the first page. Any answer to its request is accepted: the listing decides whether it is
 * used. It may be of another moment than the list: then it is closed, and requested again by the list's ETag. */
static int list_weights(const struct place *p, struct listing *list, struct object *index)
{
        struct http_fetch fetches[2] = {{.max_body = 0}};
        cleanup_with(remote_dir_url_deinit) struct object_url url;
        struct error ignored;
        int r = remote_dir_url_init(&p->dir, &(struct remote_file){.name = LISTING_INDEX, .text = true}, &url,
                                    p->error);
        r = r ?: object_http_prepare(p->dir.http, &url, index, &fetches[1], p->error);
        fetches[1].accepts = http_accepts_any;
        r = r ?: list_pages(p, list, fetches, 2);
        if (r == 0 && object_http_finish(index, &fetches[1], &ignored) < 0)
                object_deinit(index);
        http_fetch_deinit(&fetches[1]);
        r = r ?: listing_choose(list, "with this prefix", p->error);
        bool chosen = r == 0 && same_text(list->index, LISTING_INDEX);
        const struct listed_file *listed = chosen ? listing_find(list, LISTING_INDEX) : NULL;
        if (listed == NULL || index->ops == NULL ||
            (listed->tag[0] != '\0' && !object_http_has_etag(index, listed->tag)))
                object_deinit(index);
        return r;
}

/* ---- weights ---- */

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

/* A client that may not list gets 403 for a key that does not exist. */
static bool may_be_absent(const struct http_answer *answer)
{
        return answer->status == 403 || answer->status == 404;
}

/* The list and the store's checksums are requested at once. The list has precedence, since the publisher of the files
 * wrote it; the checksums add what it lacks. Where both have a digest they must agree: a difference fails the load. */
static int find_sums(const struct place *p, const struct listing *listed, struct source_set *set)
{
        struct object *objects = set->objects;
        size_t n = set->n_objects;
        bool request_list = listed == NULL || listed->has_sums;
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        cleanup_free struct http_fetch *fetches = calloc(n + 1, sizeof(*fetches));
        cleanup_free struct object_url *urls = calloc(n + 1, sizeof(*urls));
        if (fetches == NULL || urls == NULL)
                return error_no_memory(p->error);
        struct http_fetch *list = fetches + n;
        int r = http_headers_add(&headers, "x-amz-checksum-mode", "ENABLED", p->error);
        for (size_t i = 0; r == 0 && i <= n; i++) {
                struct http_request *request = &fetches[i].request;
                const char *name = i < n ? objects[i].path + strlen(p->dir.shown) : SUMS_NAME;
                r = remote_dir_url_init(&p->dir, &(struct remote_file){.name = name}, &urls[i], p->error);
                *request = (struct http_request){.url = urls[i].url, .shown = urls[i].shown, .access = p->dir.access};
                if (i < n) {
                        request->method = "HEAD";
                        request->headers = &headers;
                }
        }
        list->max_body = SUMS_MAX;
        list->accepts = listed != NULL ? NULL : may_be_absent;
        if (r == 0)
                r = http_fetch(p->dir.http, fetches, request_list ? n + 1 : n, p->error);
        struct text text = {.data = list->answer.body, .size = list->answer.body_len};
        if (r == 0 && request_list && list->answer.status < 300 && text.data != NULL)
                r = sums_apply(&text, urls[n].shown, objects, n, p->error);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = set_checksum(&objects[i], &fetches[i], p->error);
        for (size_t i = 0; i <= n; i++) {
                remote_dir_url_deinit(&urls[i]);
                http_fetch_deinit(&fetches[i]);
        }
        return r
                       ?: sums_require(objects, n, "a " SUMS_NAME " with its prefix, and no checksum of the store's",
                                       p->error);
}

/* ---- regions ---- */

static int place_init(struct place *p, const struct sources *sources, const char *source, const char *bucket,
                      const char *region, const char *encoded)
{
        const struct s3_endpoint *endpoint = s3_endpoints_find(sources->s3, source);
        char *base = NULL;
        int r = s3_endpoint_base(endpoint, bucket, region, &base, p->error);
        p->base = base;
        p->dir = (struct remote_dir){.source = source,
                                     .http = sources->http,
                                     .access = s3_auth_new(sources->s3, endpoint, bucket, region),
                                     .url = r == 0 ? format_new("%s/%s", base, encoded) : NULL,
                                     .shown = strndup(source, directory_len(source)),
                                     .atomic = true,
                                     .etags = true,
                                     .promise = "listed with its prefix"};
        if (r == 0 && (p->dir.access == NULL || p->dir.url == NULL || p->dir.shown == NULL))
                r = error_no_memory(p->error);
        return r;
}

static void place_deinit(struct place *p)
{
        remote_dir_deinit(&p->dir);
        free((char *)(uintptr_t)p->base);
}

/* Calls use() with the place of the source; and once more if that has failed and the store has named another region
 * than assumed. A use() that fails leaves nothing open. */
static int use_in_region(const struct sources *sources, const char *source, int (*use)(struct place *p, void *what),
                         void *what, struct error *error)
{
        const char *name = source + strlen(SCHEME);
        cleanup_free char *bucket = strndup(name, strcspn(name, "/"));
        cleanup_free char *prefix = strndup(key_of(source), directory_len(source) - (size_t)(key_of(source) - source));
        cleanup_free char *encoded = prefix != NULL ? http_url_encode(prefix, "/") : NULL;
        const struct s3_endpoint *endpoint = s3_endpoints_find(sources->s3, source);
        char assumed[S3_REGION], named[S3_REGION];
        if (bucket == NULL || encoded == NULL)
                return error_no_memory(error);
        s3_endpoints_get_region(sources->s3, endpoint, bucket, named);
        for (int turn = 0;; turn++) {
                struct place p = {.prefix = prefix, .error = error};
                strcpy(assumed, named);
                int r = place_init(&p, sources, source, bucket, assumed, encoded) ?: use(&p, what);
                place_deinit(&p);
                s3_endpoints_get_region(sources->s3, endpoint, bucket, named);
                if (r == 0 || turn > 0 || strcmp(assumed, named) == 0)
                        return r;
                log_info("bucket %s is in region %s", bucket, named);
                *error = (struct error){.code = 0};
        }
}

/* ---- lists with other ETags than the objects ---- */

static const struct object *find_listed_another(const struct source_set *set)
{
        if (set->index_object.ops != NULL && object_http_listed_another(&set->index_object))
                return &set->index_object;
        for (size_t i = 0; i < set->n_objects; i++)
                if (object_http_listed_another(&set->objects[i]))
                        return &set->objects[i];
        return NULL;
}

enum lists { LIST_CHANGED = 1, LIST_WRONG };

/* An object has another ETag than the list: it was replaced in between, and a new list says so, or the store's lists do
 * not have the ETags of its objects. An enum lists, or an error. */
static int list_again(const struct place *p, struct listing *list, const struct object *object)
{
        struct http_fetch fetch;
        cleanup_with(listing_deinit) struct listing first = *list;
        const char *name = object_name(object);
        *list = (struct listing){.shown = first.shown};
        int r = list_pages(p, list, &fetch, 1) ?: listing_choose(list, "with this prefix", p->error);
        if (r < 0)
                return r;
        const struct listed_file *was = listing_find(&first, name), *is = listing_find(list, name);
        if (was == NULL || is == NULL || strcmp(was->tag, is->tag) != 0)
                return LIST_CHANGED;
        log_warn("the store's list has other ETags than its objects, whose own are used (%s)", object->path);
        return LIST_WRONG;
}

static int open_listed(struct place *p, struct listing *list, struct source_set *set)
{
        p->dir.listing = list;
        for (int turn = 0;; turn++) {
                int r = list_weights(p, list, &set->index_object) ?: remote_dir_open(&p->dir, set, p->error);
                const struct object *differs = r == 0 ? find_listed_another(set) : NULL;
                if (differs == NULL)
                        return r;
                r = list_again(p, list, differs);
                if (r != LIST_CHANGED)
                        return r == LIST_WRONG ? 0 : r;
                if (turn > 0)
                        return error_set(
                                p->error, STREAMER_EFAILED,
                                "the object was replaced while it was read: another ETag than in the list (%s)",
                                differs->path);
                source_set_deinit(set);
                listing_deinit(list);
        }
}

struct weights {
        struct source_set *set;
        bool want_sha256;
};

static int open_weights(struct place *p, void *what)
{
        const struct weights *weights = what;
        const struct remote_file itself = {.name = strrchr(p->dir.source, '/') + 1};
        struct source_set *set = weights->set;
        cleanup_with(listing_deinit) struct listing list = {.shown = p->dir.source};
        bool listed = is_prefix(p->dir.source);
        int r;
        if (listed)
                r = open_listed(p, &list, set);
        else if (source_is_index(itself.name))
                r = remote_dir_open_text(&p->dir, itself.name, &set->index_object, p->error)
                            ?: remote_dir_open(&p->dir, set, p->error);
        else
                r = source_set_reserve(set, 1, p->error)
                            ?: remote_dir_open_files(&p->dir, &itself, 1, set->objects, p->error);
        if (r == 0 && weights->want_sha256)
                r = find_sums(p, listed ? &list : NULL, set);
        if (r < 0)
                source_set_deinit(set);
        return r;
}

static int s3_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                   struct error *error)
{
        struct weights weights = {.set = set, .want_sha256 = want_sha256};
        return use_in_region(sources, canonical, open_weights, &weights, error);
}

/* ---- sidecars ---- */

static int list_sidecars(struct place *p, void *what)
{
        struct http_fetch fetch;
        struct listing *list = what;
        int r = list_pages(p, list, &fetch, 1);
        if (r < 0)
                listing_deinit(list);
        return r;
}

static int s3_list_sidecars(const struct sources *sources, const char *canonical, struct listing *list,
                            struct error *error)
{
        return use_in_region(sources, canonical, list_sidecars, list, error);
}

struct sidecar {
        const char *name;
        struct object *object;
};

static int open_sidecar(struct place *p, void *what)
{
        const struct sidecar *sidecar = what;
        return remote_dir_open_text(&p->dir, sidecar->name, sidecar->object, p->error);
}

static int s3_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                           struct object *object, struct error *error)
{
        struct sidecar sidecar = {.name = name, .object = object};
        return use_in_region(sources, canonical, open_sidecar, &sidecar, error);
}

static char *s3_sidecar_uri(const char *canonical, const char *name)
{
        return format_new("%.*s%s", (int)directory_len(canonical), canonical, name);
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
