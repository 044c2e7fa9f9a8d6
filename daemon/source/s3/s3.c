/* SPDX-License-Identifier: Apache-2.0
 *
 * A prefix becomes objects like a folder:
 *
 *   list (paged), and the index, if there is one > choose > request the first bytes of all at once
 *
 * The ETag of the listing is sent along: an object that is replaced in between fails the load, as one that is replaced
 * later does. The index counts only if the listing has it with this ETag. A bucket in another region than assumed
 * starts all of this again, once.
 */
#include "daemon/source/s3/s3.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/redact.h"
#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"
#include "daemon/source/model_dir.h"
#include "daemon/source/s3/s3_auth.h"
#include "daemon/source/s3/s3_reply.h"
#include "daemon/source/s3/s3_sums.h"
#include "daemon/source/web/remote_dir.h"
#include "proto/codec.h"

#include <string.h>

#define SCHEME "s3://"
#define SUFFIX ".safetensors"
#define KEY_MAX 1024
#define PAGE_BYTES (8 * MiB)
#define PAGES_MAX 1000       /* of a thousand keys each */
#define SIDECAR_PAGES_MAX 16 /* where directories below the prefix are listed, too */

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

/* A prefix is a directory itself; malloc'd. */
static char *directory_of(const char *canonical)
{
        return strndup(canonical, (size_t)(strrchr(canonical, '/') + 1 - canonical));
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
        char shown[REDACTED_SOURCE];
        redact_source(shown, source);
        if (!is_bucket(bucket, len))
                return error_set(error, STREAMER_EINVAL, "%s: not the name of a bucket", shown);
        if (strlen(key) > KEY_MAX)
                return error_set(error, STREAMER_EINVAL, "%s: longer than a key can be", source);
        if (!codec_utf8(source, strlen(source)))
                return error_set(error, STREAMER_EINVAL, "%s: not UTF-8", source);
        bool closed = ends_with(source, "/") || (key[0] != '\0' && ends_with(key, SUFFIX));
        *out = format_new("%s%s", source, closed ? "" : "/");
        return *out != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
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

struct s3_uri {
        char *bucket;
        const char *key; /* in the canonical text: a whole key, or a prefix that is empty or ends in '/' */
        bool prefix;
};

/* ---- one attempt to open, in one region ---- */

struct etag {
        char *name, *etag;
};

struct opening;

/* What an attempt does. It runs again if the bucket is in another region. */
struct job {
        int (*run)(struct opening *o);
        s3_entry_fn on_entry; /* of a listing; NULL: nothing is listed */
        bool flat;            /* the keys of the prefix alone, without those of directories below it */
        unsigned pages_max;
};

struct opening {
        struct remote_dir store;
        const char *canonical;
        const struct s3_uri *uri;
        char *base; /* URL of the bucket */
        struct error *error;
        const struct job *job;

        /* of the weights */
        const struct source_opts *opts;
        struct source_set *set;
        struct model_dir folder;
        struct etag *etags; /* of all files of the listing that may be of use */
        size_t n_etags;
        bool has_sums;

        /* of sidecars */
        struct sidecar_list *list;
        const char *name;
        struct object *object;
};

static int no_memory(struct opening *o)
{
        return error_set(o->error, STREAMER_ENOMEM, "no memory");
}

/* ---- listing ---- */

/* If-Match requires quotes, which some stores omit in their lists. */
static int keep_etag(struct opening *o, const char *name, const char *etag)
{
        struct etag *etags = array_grow(o->etags, o->n_etags, sizeof(*etags));
        if (etags == NULL)
                return no_memory(o);
        o->etags = etags;
        struct etag *kept = &o->etags[o->n_etags++];
        const char *quote = etag[0] != '\0' && strchr(etag, '"') == NULL ? "\"" : "";
        *kept = (struct etag){strdup(name), format_new("%s%s%s", quote, etag, quote)};
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
        int r = model_dir_offer(&o->folder, name, o->canonical, error);
        bool sums = strcmp(name, SUMS_NAME) == 0;
        o->has_sums |= sums;
        if (r == 0 && (sums || o->folder.n > before || strcmp(name, MODEL_DIR_INDEX) == 0))
                r = keep_etag(o, name, entry->etag);
        return r;
}

static char *list_url(struct opening *o, const char *next)
{
        struct aws_param params[5] = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", o->uri->key}};
        size_t n = 3;
        if (o->job->flat)
                params[n++] = (struct aws_param){"delimiter", "/"};
        if (next != NULL)
                params[n++] = (struct aws_param){"continuation-token", next};
        cleanup_free char *query = aws_query(params, n);
        return query != NULL ? format_new("%s/?%s", o->base, query) : NULL;
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
                r = s3_page_parse(page, answer->body, answer->body_len, o->job->on_entry, o, o->error);
        http_fetch_deinit(&fetches[0]);
        return r;
}

/* Any answer for the index will do: the listing decides whether it is used. */
static int first_page(struct opening *o, struct s3_page *page)
{
        struct object *index = &o->set->index_object;
        struct http_fetch fetches[2] = {{.max_body = 0}};
        struct object_url url;
        struct error unwanted;
        int r = remote_dir_url_init(&o->store, MODEL_DIR_INDEX, &url, o->error);
        url.text = true;
        if (r == 0)
                r = object_http_prepare(o->store.http, &url, index, &fetches[1], o->error);
        fetches[1].any_status = true;
        if (r == 0)
                r = fetch_page(o, page, fetches, 2);
        if (r == 0 && object_http_finish(index, &fetches[1], &unwanted) < 0)
                object_deinit(index);
        http_fetch_deinit(&fetches[1]);
        remote_dir_url_deinit(&url);
        return r;
}

static int other_pages(struct opening *o, struct s3_page *page)
{
        struct http_fetch fetches[2];
        int r = 0;
        for (unsigned n = 1; r == 0 && page->next != NULL; n++)
                r = n < o->job->pages_max ? fetch_page(o, page, fetches, 1)
                                          : error_set(o->error, STREAMER_EFAILED, "more than %u pages of keys (%s)",
                                                      o->job->pages_max, o->canonical);
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
                model_dir_choose(&o->folder);
        return r;
}

/* ---- objects ---- */

/* A file of the prefix, or the key itself where `name` is empty. */
static bool s3_locate(const struct remote_dir *store, const char *name, char **url, char **shown)
{
        const struct opening *o = container_of(store, struct opening, store);
        cleanup_free char *key = http_url_encode(o->uri->key, "/");
        cleanup_free char *file = http_url_encode(name, "/");
        if (key != NULL && file != NULL)
                *url = format_new("%s/%s%s", o->base, key, file);
        *shown = format_new("%s%s", o->canonical, name);
        return *url != NULL && *shown != NULL;
}

static const char *s3_etag(const struct remote_dir *store, const char *name)
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
        const char *etag = s3_etag(&o->store, MODEL_DIR_INDEX);
        if (index->ops != NULL && (etag == NULL || object_http_has_etag(index, etag)))
                return remote_dir_open_indexed(&o->store, o->set, o->error);
        object_deinit(index);
        int r = remote_dir_open_text(&o->store, MODEL_DIR_INDEX, index, o->error);
        return r < 0 ? r : remote_dir_open_indexed(&o->store, o->set, o->error);
}

/* ---- opening ---- */

static int find_sums(struct opening *o)
{
        cleanup_free char *folder = directory_of(o->canonical);
        cleanup_free char *key = folder != NULL ? http_url_encode(key_of(folder), "/") : NULL;
        struct s3_sums_where where = {.http = o->store.http,
                                      .access = o->store.access,
                                      .base = o->base,
                                      .prefix = key,
                                      .shown = folder,
                                      .listed = o->uri->prefix,
                                      .has_sums = o->has_sums};
        return key != NULL ? s3_sums_find(&where, o->set->objects, o->set->n_objects, o->error) : no_memory(o);
}

static int open_weights(struct opening *o)
{
        static const char *const itself = "";
        const char *const *names = &itself;
        size_t n = 1;
        int r = o->uri->prefix ? list(o) : 0;
        bool indexed = o->folder.has_index;
        if (r == 0 && o->uri->prefix && !indexed) {
                object_deinit(&o->set->index_object);
                names = (const char *const *)o->folder.names;
                n = o->folder.n;
        }
        if (r == 0)
                r = indexed ? open_indexed(o) : remote_dir_open_files(&o->store, names, n, o->set, o->error);
        if (r == 0 && o->opts->want_sha256)
                r = find_sums(o);
        return r;
}

static const struct job job_weights = {.run = open_weights, .on_entry = on_entry, .flat = true, .pages_max = PAGES_MAX};

static void opening_deinit(struct opening *o)
{
        model_dir_deinit(&o->folder);
        for (size_t i = 0; i < o->n_etags; i++) {
                free(o->etags[i].name);
                free(o->etags[i].etag);
        }
        free(o->etags);
        free(o->base);
        http_access_unref(o->store.access);
}

/* In *region where the bucket is to be looked for; then, where the store says that it is elsewhere. */
static int attempt(const struct opening *what, const struct s3_endpoint *site, char region[S3_REGION])
{
        struct opening o = *what;
        struct http_access *access = o.store.access = s3_auth_new(site, region);
        int r = access != NULL ? s3_endpoint_base(site, o.uri->bucket, region, &o.base, o.error) : no_memory(&o);
        if (r == 0)
                r = o.job->run(&o);
        region[0] = '\0';
        if (access != NULL)
                s3_auth_get_region(access, region);
        opening_deinit(&o);
        return r;
}

/* `source` chooses the endpoint and its credentials; what->canonical is the key or prefix that is read. */
static int run(const struct sources *sources, const char *source, struct opening *what)
{
        const struct s3_endpoint *site = s3_sites_find(sources->s3, source);
        const char *bucket = what->canonical + strlen(SCHEME);
        const struct s3_uri uri = {.bucket = strndup(bucket, strcspn(bucket, "/")),
                                   .key = key_of(what->canonical),
                                   .prefix = ends_with(what->canonical, "/")};
        char region[S3_REGION];
        if (uri.bucket == NULL)
                return no_memory(what);
        what->uri = &uri;
        what->store = (struct remote_dir){.http = sources->http,
                                          .atomic = true,
                                          .listed = uri.prefix && what->set != NULL ? "listed with its prefix" : NULL,
                                          .locate = s3_locate,
                                          .etag = s3_etag};
        s3_sites_region(sources->s3, site, uri.bucket, region);
        int r = attempt(what, site, region);
        if (r < 0 && region[0] != '\0') {
                log_info("bucket %s is in region %s", uri.bucket, region);
                s3_sites_learn(sources->s3, site, uri.bucket, region);
                if (what->set != NULL)
                        source_set_deinit(what->set);
                if (what->list != NULL)
                        sidecar_list_deinit(what->list);
                if (what->object != NULL)
                        object_deinit(what->object);
                *what->error = (struct error){.code = 0};
                r = attempt(what, site, region);
        }
        free(uri.bucket);
        return r;
}

static int s3_open(const struct sources *sources, const char *canonical, const struct source_opts *opts,
                   struct source_set *set, struct error *error)
{
        struct opening what = {.job = &job_weights, .canonical = canonical, .opts = opts, .set = set, .error = error};
        return run(sources, canonical, &what);
}

/* ---- sidecars ---- */

static int on_sidecar(void *context, const struct s3_entry *entry, struct error *error)
{
        struct opening *o = context;
        size_t len = strlen(o->uri->key);
        if (strncmp(entry->key, o->uri->key, len) != 0)
                return 0;
        return sidecar_list_add(o->list, entry->key + len, entry->size, o->canonical, error);
}

static int list_sidecars(struct opening *o)
{
        struct http_fetch fetches[2];
        struct s3_page page = {.next = NULL};
        int r = fetch_page(o, &page, fetches, 1);
        if (r == 0)
                r = other_pages(o, &page);
        free(page.next);
        return r;
}

static int open_sidecar(struct opening *o)
{
        return remote_dir_open_text(&o->store, o->name, o->object, o->error);
}

static int run_in_directory(const struct sources *sources, const char *canonical, struct opening *what)
{
        cleanup_free char *directory = directory_of(canonical);
        if (directory == NULL)
                return no_memory(what);
        what->canonical = directory;
        return run(sources, canonical, what);
}

static int s3_list_sidecars(const struct sources *sources, const char *canonical, struct sidecar_list *list,
                            struct error *error)
{
        static const struct job job = {.run = list_sidecars, .on_entry = on_sidecar, .pages_max = SIDECAR_PAGES_MAX};
        struct opening what = {.job = &job, .list = list, .error = error};
        return run_in_directory(sources, canonical, &what);
}

static int s3_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                           struct object *object, struct error *error)
{
        static const struct job job = {.run = open_sidecar};
        struct opening what = {.job = &job, .name = name, .object = object, .error = error};
        return run_in_directory(sources, canonical, &what);
}

static char *s3_sidecar_uri(const char *canonical, const char *name)
{
        cleanup_free char *directory = directory_of(canonical);
        return directory != NULL ? format_new("%s%s", directory, name) : NULL;
}

static const char *const schemes[] = {SCHEME, NULL};

const struct source_ops source_s3 = {
        .schemes = schemes,
        .canonical = s3_canonical,
        .default_name = s3_default_name,
        .lane = s3_lane,
        .open = s3_open,
        .sidecar_uri = s3_sidecar_uri,
        .list_sidecars = s3_list_sidecars,
        .open_sidecar = s3_open_sidecar,
};
