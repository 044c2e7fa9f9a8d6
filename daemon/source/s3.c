/* SPDX-License-Identifier: Apache-2.0
 *
 * A prefix becomes objects as a folder does:
 *
 *   list (paged), beside it the index, should there be one > choose > ask for the first bytes of all, at once
 *
 * The ETag of the listing goes along: an object that is replaced between the two fails the load, as one
 * that is replaced later does. What came of the index counts where the listing has it, with this ETag. A
 * bucket in another region than thought begins the whole anew, once.
 */
#include "daemon/source/s3.h"

#include "daemon/base/log.h"
#include "daemon/base/shown.h"
#include "daemon/base/util.h"
#include "daemon/source/folder.h"
#include "daemon/source/s3_access.h"
#include "daemon/source/s3_reply.h"
#include "daemon/source/aws_sign.h"
#include "daemon/source/s3_sums.h"
#include "daemon/source/store.h"
#include "proto/codec.h"

#include <string.h>

#define SCHEME "s3://"
#define SUFFIX ".safetensors"
#define KEY_MAX 1024
#define PAGE_BYTES (8 * MiB)
#define PAGES_MAX 1000 /* of a thousand keys each */

/* ---- the text of a source ---- */

static bool ends_with(const char *text, const char *end)
{
        size_t len = strlen(text), cut = strlen(end);
        return len >= cut && strcmp(text + len - cut, end) == 0;
}

static const char *key_of(const char *source)
{
        const char *bucket = source + strlen(SCHEME);
        const char *slash = strchr(bucket, '/');
        return slash != NULL ? slash + 1 : bucket + strlen(bucket);
}

static bool is_bucket(const char *bucket, size_t len)
{
        return len >= 1 && len <= 255 &&
               strspn(bucket, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._") >= len;
}

/* A prefix ends in '/', so that s3://b/llama and s3://b/llama/ are one source. */
static int s3_canonical(const char *source, char **out, struct error *error)
{
        const char *key = key_of(source), *bucket = source + strlen(SCHEME);
        size_t len = strcspn(bucket, "/");
        char shown[SHOWN_SOURCE];
        shown_source(shown, source);
        if (!is_bucket(bucket, len))
                return error_set(error, STREAMER_EINVAL, "%s: not the name of a bucket", shown);
        if (strlen(key) > KEY_MAX)
                return error_set(error, STREAMER_EINVAL, "%s: longer than a key can be", source);
        if (!codec_utf8(source, strlen(source)))
                return error_set(error, STREAMER_EINVAL, "%s: not UTF-8", source);
        bool closed = ends_with(source, "/") || (key[0] != '\0' && ends_with(key, SUFFIX));
        if (asprintf(out, "%s%s", source, closed ? "" : "/") >= 0)
                return 0;
        *out = NULL;
        return error_set(error, STREAMER_ENOMEM, "no memory");
}

static char *s3_default_name(const char *canonical)
{
        const char *end = canonical + strlen(canonical);
        while (end[-1] == '/')
                end--;
        const char *begin = end;
        while (begin[-1] != '/')
                begin--;
        size_t len = (size_t)(end - begin), cut = strlen(SUFFIX);
        if (len > cut && strncmp(end - cut, SUFFIX, cut) == 0)
                len -= cut;
        return strndup(begin, len);
}

/* One lane for each bucket: its store answers for it, and for no other. */
static uint64_t s3_lane(const char *canonical)
{
        uint64_t hash = UINT64_C(14695981039346656037);
        for (const char *c = canonical; c < key_of(canonical); c++)
                hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
        return hash | 1;
}

int s3_uri_init(struct s3_uri *uri, const char *canonical, struct error *error)
{
        const char *bucket = canonical + strlen(SCHEME);
        *uri = (struct s3_uri){.bucket = strndup(bucket, strcspn(bucket, "/")),
                               .key = key_of(canonical),
                               .prefix = ends_with(canonical, "/")};
        return uri->bucket != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

void s3_uri_deinit(struct s3_uri *uri)
{
        free(uri->bucket);
        *uri = (struct s3_uri){.bucket = NULL};
}

/* ---- one attempt to open, in one region ---- */

struct etag {
        char *name, *etag;
};

struct opening {
        struct store store;
        const char *canonical;
        const struct s3_uri *uri;
        struct s3_access *access; /* the store's */
        char *base;               /* URL of the bucket */
        struct folder folder;
        struct etag *etags; /* of all files of the listing that may be of use */
        size_t n_etags;
        bool has_sums;
        struct source_set *set;
        struct error *error;
};

static int no_memory(struct opening *o)
{
        return error_set(o->error, STREAMER_ENOMEM, "no memory");
}

/* ---- listing ---- */

/* Conditions want quotes, which some stores leave off in their lists. */
static char *quoted(const char *etag)
{
        bool bare = etag[0] != '\0' && strchr(etag, '"') == NULL;
        const char *quote = bare ? "\"" : "";
        char *text;
        return asprintf(&text, "%s%s%s", quote, etag, quote) < 0 ? NULL : text;
}

static int keep_etag(struct opening *o, const char *name, const char *etag)
{
        struct etag *etags = with_room(o->etags, o->n_etags, sizeof(*etags));
        if (etags == NULL)
                return no_memory(o);
        o->etags = etags;
        struct etag *kept = &o->etags[o->n_etags];
        *kept = (struct etag){strdup(name), quoted(etag)};
        o->n_etags++;
        return kept->name != NULL && kept->etag != NULL ? 0 : no_memory(o);
}

/* With the delimiter there are no keys of folders below; a store that does not know it gives them. */
static int on_entry(void *context, const struct s3_entry *entry, struct error *error)
{
        struct opening *o = context;
        size_t len = strlen(o->uri->key);
        if (strncmp(entry->key, o->uri->key, len) != 0 || strchr(entry->key + len, '/') != NULL)
                return 0;
        const char *name = entry->key + len;
        size_t before = o->folder.n;
        int r = folder_offer(&o->folder, name, o->canonical, error);
        bool sums = strcmp(name, SUMS_NAME) == 0;
        o->has_sums |= sums;
        if (r == 0 && (sums || o->folder.n > before || strcmp(name, FOLDER_INDEX) == 0))
                r = keep_etag(o, name, entry->etag);
        return r;
}

static char *list_url(struct opening *o, const char *next)
{
        struct aws_param params[5] = {
                {"list-type", "2"}, {"encoding-type", "url"}, {"delimiter", "/"}, {"prefix", o->uri->key}};
        size_t n = 4;
        char *url = NULL;
        if (next != NULL)
                params[n++] = (struct aws_param){"continuation-token", next};
        cleanup_free char *query = aws_query(params, n);
        return query == NULL || asprintf(&url, "%s/?%s", o->base, query) < 0 ? NULL : url;
}

/* Asked for with the page `page->next`, and beside it what else is wanted. */
static int fetch_page(struct opening *o, struct s3_page *page, struct http_fetch fetches[2], size_t n)
{
        cleanup_free char *url = list_url(o, page->next);
        free(page->next);
        *page = (struct s3_page){.next = NULL};
        if (url == NULL)
                return no_memory(o);
        fetches[0] = (struct http_fetch){.request = {.url = url, .shown = o->canonical, .access = o->store.access},
                                         .max_body = PAGE_BYTES};
        int r = http_fetch(o->store.http, fetches, n, o->error);
        const struct http_answer *answer = &fetches[0].answer;
        if (r == 0 && answer->body == NULL)
                r = error_set(o->error, STREAMER_EFAILED, "an empty answer to a list (%s)", o->canonical);
        if (r == 0)
                r = s3_page_parse(page, answer->body, answer->body_len, on_entry, o, o->error);
        http_fetch_deinit(&fetches[0]);
        return r;
}

/* Whatever is answered for the index: the list tells whether it is wanted. */
static int first_page(struct opening *o, struct s3_page *page)
{
        struct object *index = &o->set->index_object;
        struct http_fetch fetches[2] = {{.max_body = 0}};
        struct object_url url;
        struct error unwanted;
        int r = store_url_init(&o->store, FOLDER_INDEX, &url, o->error);
        url.text = true;
        if (r == 0)
                r = object_http_ask(o->store.http, &url, index, &fetches[1], o->error);
        fetches[1].any_status = true;
        if (r == 0)
                r = fetch_page(o, page, fetches, 2);
        if (r == 0 && object_http_answered(index, &fetches[1], &unwanted) < 0)
                object_deinit(index);
        http_fetch_deinit(&fetches[1]);
        store_url_deinit(&url);
        return r;
}

static int other_pages(struct opening *o, struct s3_page *page)
{
        struct http_fetch fetches[2];
        int r = 0;
        for (unsigned n = 1; r == 0 && page->next != NULL; n++)
                r = n < PAGES_MAX ? fetch_page(o, page, fetches, 1)
                                  : error_set(o->error, STREAMER_EFAILED, "more than %u pages of keys (%s)", PAGES_MAX,
                                              o->canonical);
        return r;
}

static int list(struct opening *o)
{
        struct s3_page page = {.next = NULL};
        int r = first_page(o, &page);
        if (r == 0)
                r = other_pages(o, &page);
        free(page.next);
        if (r == 0 && o->folder.n == 0 && !o->folder.has_index)
                r = error_set(o->error, STREAMER_ENOENT, "no safetensors files with this prefix (%s)", o->canonical);
        if (r == 0)
                folder_choose(&o->folder);
        return r;
}

/* ---- objects ---- */

/* A file of the prefix, or the key itself where `name` is empty. */
static bool s3_locate(const struct store *store, const char *name, char **url, char **shown)
{
        const struct opening *o = container_of(store, struct opening, store);
        cleanup_free char *key = aws_encode(o->uri->key, true);
        cleanup_free char *file = aws_encode(name, true);
        if (key == NULL || file == NULL || asprintf(url, "%s/%s%s", o->base, key, file) < 0)
                *url = NULL;
        if (asprintf(shown, "%s%s", o->canonical, name) < 0)
                *shown = NULL;
        return *url != NULL && *shown != NULL;
}

static const char *s3_etag(const struct store *store, const char *name)
{
        const struct opening *o = container_of(store, struct opening, store);
        for (size_t i = 0; i < o->n_etags; i++)
                if (strcmp(o->etags[i].name, name) == 0)
                        return o->etags[i].etag[0] != '\0' ? o->etags[i].etag : NULL;
        return NULL;
}

/* What came beside the list may be of another moment: then it is asked for by the list's ETag. */
static int open_indexed(struct opening *o)
{
        struct object *index = &o->set->index_object;
        const char *etag = s3_etag(&o->store, FOLDER_INDEX);
        struct object_url url;
        if (index->ops != NULL && (etag == NULL || object_http_has_etag(index, etag)))
                return store_open_indexed(&o->store, o->set, o->error);
        object_deinit(index);
        int r = store_url_init(&o->store, FOLDER_INDEX, &url, o->error);
        url.text = true;
        if (r == 0)
                r = object_http_open(o->store.http, &url, 1, index, o->error);
        store_url_deinit(&url);
        return r < 0 ? r : store_open_indexed(&o->store, o->set, o->error);
}

static int open_prefix(struct opening *o)
{
        int r = list(o);
        if (r < 0)
                return r;
        if (o->folder.has_index)
                return open_indexed(o);
        object_deinit(&o->set->index_object);
        return store_open_files(&o->store, (const char *const *)o->folder.names, o->folder.n, o->set, o->error);
}

/* ---- opening ---- */

static int find_sums(struct opening *o)
{
        const char *slash = strrchr(o->canonical, '/') + 1;
        cleanup_free char *folder = strndup(o->canonical, (size_t)(slash - o->canonical));
        cleanup_free char *key = folder != NULL ? aws_encode(key_of(folder), true) : NULL;
        struct s3_sums_where where = {.http = o->store.http,
                                      .access = o->store.access,
                                      .base = o->base,
                                      .prefix = key,
                                      .shown = folder,
                                      .listed = o->uri->prefix,
                                      .has_sums = o->has_sums};
        return key != NULL ? s3_sums_find(&where, o->set->objects, o->set->n_objects, o->error) : no_memory(o);
}

static int open_in(struct opening *o, const struct source_opts *opts)
{
        static const char *const itself = "";
        int r = o->uri->prefix ? open_prefix(o) : store_open_files(&o->store, &itself, 1, o->set, o->error);
        if (r == 0 && opts->want_sha256)
                r = find_sums(o);
        return r;
}

static void opening_deinit(struct opening *o)
{
        folder_deinit(&o->folder);
        for (size_t i = 0; i < o->n_etags; i++) {
                free(o->etags[i].name);
                free(o->etags[i].etag);
        }
        free(o->etags);
        free(o->base);
        s3_access_unref(o->access);
}

/* In *region where the bucket is to be looked for; then, where the store says that it is elsewhere. */
static int attempt(const struct sources *sources, const char *canonical, const struct s3_uri *uri,
                   const struct source_opts *opts, struct source_set *set, char region[S3_REGION], struct error *error)
{
        const struct s3_site *site = s3_sites_find(sources->s3, canonical);
        struct opening o = {.store = {.http = sources->http,
                                      .atomic = true,
                                      .listed = uri->prefix ? "listed with its prefix" : NULL,
                                      .locate = s3_locate,
                                      .etag = s3_etag},
                            .canonical = canonical,
                            .uri = uri,
                            .access = s3_access_new(site, region),
                            .set = set,
                            .error = error};
        o.store.access = o.access != NULL ? s3_access_http(o.access) : NULL;
        int r = o.access != NULL ? s3_site_base(site, uri->bucket, region, &o.base, error) : no_memory(&o);
        if (r == 0)
                r = open_in(&o, opts);
        region[0] = '\0';
        if (o.access != NULL)
                s3_access_moved(o.access, region);
        opening_deinit(&o);
        return r;
}

static int s3_open(const struct sources *sources, const char *canonical, const struct source_opts *opts,
                   struct source_set *set, struct error *error)
{
        const struct s3_site *site = s3_sites_find(sources->s3, canonical);
        char region[S3_REGION];
        struct s3_uri uri;
        int r = s3_uri_init(&uri, canonical, error);
        if (r < 0)
                return r;
        s3_sites_region(sources->s3, site, uri.bucket, region);
        r = attempt(sources, canonical, &uri, opts, set, region, error);
        if (r < 0 && region[0] != '\0') {
                log_info("bucket %s is in region %s", uri.bucket, region);
                s3_sites_learn(sources->s3, site, uri.bucket, region);
                source_set_deinit(set);
                *error = (struct error){.code = 0};
                r = attempt(sources, canonical, &uri, opts, set, region, error);
        }
        s3_uri_deinit(&uri);
        return r;
}

static const char *const schemes[] = {SCHEME, NULL};

const struct source_ops source_s3 = {
        .schemes = schemes,
        .canonical = s3_canonical,
        .default_name = s3_default_name,
        .lane = s3_lane,
        .open = s3_open,
};
