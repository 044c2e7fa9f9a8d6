/* SPDX-License-Identifier: Apache-2.0
 *
 * s3://bucket/key and s3://bucket/prefix/, taken literally: no percent-decoding, nothing collapsed. A key ends in
 * ".safetensors"; anything else is a prefix, which becomes objects like a folder:
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
        bool complete = is_prefix(source) || source_ends_with(key, strlen(key), SOURCE_SUFFIX);
        *out = format_new("%s%s", source, complete ? "" : "/");
        return *out != NULL ? 0 : error_no_memory(error);
}

static char *s3_default_name(const char *canonical, unsigned n)
{
        const char *path = canonical + strlen(SCHEME);
        return source_last_components(path, strlen(path), n + 1);
}

struct opening {
        struct remote_dir dir;
        const struct s3_endpoint *endpoint;
        const char *prefix; /* of keys, which is empty or ends in '/' */
        const char *base;   /* URL of the bucket */
        struct error *error;

        /* what is opened */
        struct listing *list; /* that a list of keys is added to */
        struct source_set *set;
        bool want_sha256;
        const char *sidecar;
        struct object *object; /* of the sidecar */
};

/* ---- listing ---- */

/* Fetches the page with the token *next and, in the same round, the other fetches. */
static int fetch_page(struct opening *o, char **next, struct http_fetch *fetches, size_t n)
{
        struct aws_param params[] = {{"list-type", "2"},
                                     {"encoding-type", "url"},
                                     {"prefix", o->prefix},
                                     {"delimiter", o->list->sidecars ? NULL : "/"},
                                     {"continuation-token", *next}};
        cleanup_free char *query = aws_query(params, ARRAY_SIZE(params));
        cleanup_free char *url = query != NULL ? format_new("%s/?%s", o->base, query) : NULL;
        free(*next);
        *next = NULL;
        if (url == NULL)
                return error_no_memory(o->error);
        fetches[0] = (struct http_fetch){.request = {.url = url, .shown = o->dir.shown, .access = o->dir.access},
                                         .max_body = PAGE_BYTES};
        int r = http_fetch(o->dir.http, fetches, n, o->error);
        const struct http_answer *answer = &fetches[0].answer;
        if (r == 0 && answer->body == NULL)
                r = error_set(o->error, STREAMER_EFAILED, "an empty answer to a list (%s)", o->dir.shown);
        r = r ?: s3_page_parse(next, answer->body, answer->body_len, o->prefix, o->list, o->error);
        http_fetch_deinit(&fetches[0]);
        return r;
}

/* All pages; fetches[0] is for them, and the others are fetched together with the first page. */
static int list_pages(struct opening *o, struct http_fetch *fetches, size_t n)
{
        cleanup_free char *next = NULL;
        unsigned most = o->list->sidecars ? SIDECAR_PAGES_MAX : PAGES_MAX;
        int r = fetch_page(o, &next, fetches, n);
        for (unsigned pages = 1; r == 0 && next != NULL; pages++)
                r = pages < most ? fetch_page(o, &next, fetches, 1)
                                 : error_set(o->error, STREAMER_EFAILED, "more than %u pages of keys (%s)", most,
                                             o->dir.shown);
        return r;
}

/* The index is fetched with the first page. Any answer to its request is accepted: the listing decides whether it is
 * used. It may be of another moment than the list: then it is closed, and requested again by the list's ETag. */
static int list_weights(struct opening *o, struct object *index)
{
        struct http_fetch fetches[2] = {{.max_body = 0}};
        cleanup_with(remote_dir_url_deinit) struct object_url url;
        struct error ignored;
        int r = remote_dir_url_init(&o->dir, &(struct remote_file){.name = LISTING_INDEX, .text = true}, &url,
                                    o->error);
        r = r ?: object_http_prepare(o->dir.http, &url, index, &fetches[1], o->error);
        fetches[1].accepts = http_accepts_any;
        r = r ?: list_pages(o, fetches, 2);
        if (r == 0 && object_http_finish(index, &fetches[1], &ignored) < 0)
                object_deinit(index);
        http_fetch_deinit(&fetches[1]);
        r = r ?: listing_choose(o->list, "with this prefix", o->error);
        const struct listed_file *listed = r == 0 ? listing_find(o->list, LISTING_INDEX) : NULL;
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
static int find_sums(struct opening *o, struct source_set *set)
{
        struct object *objects = set->objects;
        size_t n = set->n_objects;
        bool listed = is_prefix(o->dir.source), request_list = !listed || o->list->has_sums;
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        cleanup_free struct http_fetch *fetches = calloc(n + 1, sizeof(*fetches));
        cleanup_free struct object_url *urls = calloc(n + 1, sizeof(*urls));
        if (fetches == NULL || urls == NULL)
                return error_no_memory(o->error);
        struct http_fetch *list = fetches + n;
        int r = http_headers_add(&headers, "x-amz-checksum-mode", "ENABLED", o->error);
        for (size_t i = 0; r == 0 && i <= n; i++) {
                struct http_request *request = &fetches[i].request;
                const char *name = i < n ? objects[i].path + strlen(o->dir.shown) : SUMS_NAME;
                r = remote_dir_url_init(&o->dir, &(struct remote_file){.name = name}, &urls[i], o->error);
                *request = (struct http_request){.url = urls[i].url, .shown = urls[i].shown, .access = o->dir.access};
                if (i < n) {
                        request->method = "HEAD";
                        request->headers = &headers;
                }
        }
        list->max_body = SUMS_MAX;
        list->accepts = listed ? NULL : may_be_absent;
        if (r == 0)
                r = http_fetch(o->dir.http, fetches, request_list ? n + 1 : n, o->error);
        struct text text = {.data = list->answer.body, .size = list->answer.body_len};
        if (r == 0 && request_list && list->answer.status < 300 && text.data != NULL)
                r = sums_apply(&text, urls[n].shown, objects, n, o->error);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = set_checksum(&objects[i], &fetches[i], o->error);
        for (size_t i = 0; i <= n; i++) {
                remote_dir_url_deinit(&urls[i]);
                http_fetch_deinit(&fetches[i]);
        }
        return r
                       ?: sums_require(objects, n, "a " SUMS_NAME " with its prefix, and no checksum of the store's",
                                       o->error);
}

/* ---- attempts ---- */

/* If the store names another region than assumed, there is a second attempt. Each begins with what an earlier one has
 * opened. */
static int open_in_region(struct opening *o, const struct sources *sources, const char *source,
                          int (*attempt)(struct opening *o))
{
        const char *name = source + strlen(SCHEME);
        cleanup_free char *bucket = strndup(name, strcspn(name, "/"));
        cleanup_free char *prefix = strndup(key_of(source), directory_len(source) - (size_t)(key_of(source) - source));
        cleanup_free char *encoded = prefix != NULL ? http_url_encode(prefix, "/") : NULL;
        char region[S3_REGION], now[S3_REGION];
        if (bucket == NULL || encoded == NULL)
                return error_no_memory(o->error);
        o->endpoint = s3_endpoints_find(sources->s3, source);
        o->prefix = prefix;
        s3_endpoints_get_region(sources->s3, o->endpoint, bucket, region);
        for (bool first = true;; first = false) {
                cleanup_free char *base = NULL;
                int r = s3_endpoint_base(o->endpoint, bucket, region, &base, o->error);
                o->base = base;
                o->dir = (struct remote_dir){.source = source,
                                             .http = sources->http,
                                             .access = s3_auth_new(sources->s3, o->endpoint, bucket, region),
                                             .url = r == 0 ? format_new("%s/%s", base, encoded) : NULL,
                                             .shown = strndup(source, directory_len(source)),
                                             .atomic = true,
                                             .etags = true,
                                             .promise = "listed with its prefix"};
                if (r == 0 && (o->dir.access == NULL || o->dir.url == NULL || o->dir.shown == NULL))
                        r = error_no_memory(o->error);
                r = r ?: attempt(o);
                remote_dir_deinit(&o->dir);
                s3_endpoints_get_region(sources->s3, o->endpoint, bucket, now);
                if (r == 0 || !first || strcmp(region, now) == 0)
                        return r;
                log_info("bucket %s is in region %s", bucket, now);
                strcpy(region, now);
                *o->error = (struct error){.code = 0};
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

enum lists { LIST_CHANGED, LIST_WRONG };

/* An object has another ETag than the list: it was replaced in between, and a new list says so, or the store's lists do
 * not have the ETags of its objects. */
static int list_again(struct opening *o, const struct object *object, enum lists *lists)
{
        struct http_fetch fetch;
        cleanup_with(listing_deinit) struct listing first = *o->list;
        const char *name = strrchr(object->path, '/') + 1;
        *o->list = (struct listing){.shown = first.shown};
        int r = list_pages(o, &fetch, 1) ?: listing_choose(o->list, "with this prefix", o->error);
        const struct listed_file *was = listing_find(&first, name), *is = r == 0 ? listing_find(o->list, name) : NULL;
        *lists = was != NULL && is != NULL && strcmp(was->tag, is->tag) == 0 ? LIST_WRONG : LIST_CHANGED;
        if (r == 0 && *lists == LIST_WRONG)
                log_warn("the store's list has other ETags than its objects, whose own are used (%s)", object->path);
        return r;
}

static int open_listed(struct opening *o)
{
        struct source_set *set = o->set;
        enum lists lists = LIST_CHANGED;
        for (bool again = false;; again = true) {
                source_set_deinit(set);
                listing_deinit(o->list);
                o->dir.listing = o->list;
                int r = list_weights(o, &set->index_object) ?: remote_dir_open(&o->dir, set, o->error);
                const struct object *differs = r == 0 ? find_listed_another(set) : NULL;
                if (differs == NULL)
                        return r;
                r = list_again(o, differs, &lists);
                if (r < 0 || lists == LIST_WRONG)
                        return r;
                if (again)
                        return error_set(
                                o->error, STREAMER_EFAILED,
                                "the object was replaced while it was read: another ETag than in the list (%s)",
                                differs->path);
        }
}

static int open_weights(struct opening *o)
{
        const struct remote_file itself = {.name = strrchr(o->dir.source, '/') + 1};
        struct source_set *set = o->set;
        source_set_deinit(set);
        int r = is_prefix(o->dir.source) ? open_listed(o)
                                         : source_set_reserve(set, 1, o->error)
                                                   ?: remote_dir_open_files(&o->dir, &itself, 1, set->objects, o->error);
        return r == 0 && o->want_sha256 ? find_sums(o, set) : r;
}

static int s3_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                   struct error *error)
{
        cleanup_with(listing_deinit) struct listing list = {.shown = canonical};
        struct opening o = {.list = &list, .set = set, .want_sha256 = want_sha256, .error = error};
        return open_in_region(&o, sources, canonical, open_weights);
}

/* ---- sidecars ---- */

static int list_sidecars(struct opening *o)
{
        struct http_fetch fetch;
        listing_deinit(o->list);
        return list_pages(o, &fetch, 1);
}

static int s3_list_sidecars(const struct sources *sources, const char *canonical, struct listing *list,
                            struct error *error)
{
        struct opening o = {.list = list, .error = error};
        return open_in_region(&o, sources, canonical, list_sidecars);
}

static int open_sidecar(struct opening *o)
{
        object_deinit(o->object);
        return remote_dir_open_text(&o->dir, o->sidecar, o->object, o->error);
}

static int s3_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                           struct object *object, struct error *error)
{
        struct opening o = {.sidecar = name, .object = object, .error = error};
        return open_in_region(&o, sources, canonical, open_sidecar);
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
