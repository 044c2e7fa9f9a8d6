/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/store/store.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/source/listing.h"
#include "daemon/source/sums.h"
#include "proto/codec.h"

#define KEY_MAX 1024
#define PAGE_BYTES (8 * MiB)
#define PAGES_MAX 1000       /* of a thousand keys each */
#define SIDECAR_PAGES_MAX 16 /* with the directories below the prefix */

/* ---- URIs ---- */

static bool is_prefix(const char *canonical)
{
        return source_ends_with(canonical, strlen(canonical), "/");
}

size_t store_directory_len(const char *canonical)
{
        return (size_t)(strrchr(canonical, '/') + 1 - canonical);
}

int store_canonical(const char *source, size_t key_at, char **out, struct error *error)
{
        const char *key = source + key_at, *slash = strrchr(key, '/');
        char shown[REDACTED_SOURCE];
        redact_source(shown, source);
        if (http_url_is_signed(source)) /* which is a secret, and no part of a key */
                return error_set(error, STREAMER_EINVAL,
                                 "%s?...: a link with a signature, which is no part of a source: the settings have it, "
                                 "or the link is https://...",
                                 shown);
        if (strlen(key) > KEY_MAX)
                return error_set(error, STREAMER_EINVAL, "%.200s...: longer than a key can be", source);
        if (!codec_utf8(source, strlen(source)))
                return error_set(error, STREAMER_EINVAL, "%s: not UTF-8", source);
        bool is_index = key[0] != '\0' && source_is_index(slash != NULL ? slash + 1 : key);
        bool complete = is_prefix(source) || source_ends_with(key, strlen(key), SOURCE_SUFFIX) || is_index;
        *out = format_new("%s%s", source, complete ? "" : "/");
        return *out != NULL ? 0 : error_no_memory(error);
}

size_t store_covers(const char *prefix, const char *source)
{
        size_t len = strlen(prefix);
        if (strncmp(prefix, source, len) != 0)
                return 0;
        bool bucket_alone = strchr(strstr(prefix, "://") + 3, '/') == NULL;
        return bucket_alone && source[len] != '/' && source[len] != '\0' ? 0 : len;
}

size_t store_find(const char *const *sources, size_t entry_size, size_t n, const char *source)
{
        size_t best = 0, best_len = 0;
        for (size_t i = 1; i < n; i++) {
                const char *const *own = (const void *)((const char *)sources + i * entry_size);
                size_t len = store_covers(*own, source);
                if (len > best_len) {
                        best = i;
                        best_len = len;
                }
        }
        return best;
}

/* ---- listing ---- */

/* Fetches the page that *next names and, in the same round, the other fetches. */
static int fetch_page(const struct store_place *p, struct listing *list, char **next, struct http_fetch *fetches,
                      size_t n)
{
        cleanup_free char *url = p->ops->list_url(p, list->sidecars, *next);
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
        r = r ?: p->ops->parse_page(p, next, answer->body, answer->body_len, list, p->error);
        http_fetch_deinit(&fetches[0]);
        return r;
}

/* All pages; fetches[0] is for them, and the others are fetched together with the first page. */
static int list_pages(const struct store_place *p, struct listing *list, struct http_fetch *fetches, size_t n)
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
static int list_weights(const struct store_place *p, struct listing *list, struct object *index)
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

/* A client that may not list gets 403 for a key that does not exist. */
static bool may_be_absent(const struct http_answer *answer)
{
        return answer->status == 403 || answer->status == 404;
}

/* The list and the store's checksums are requested at once. The list has precedence, since the publisher of the files
 * wrote it; the checksums add what it lacks. Where both have a SHA-256 they must agree: a difference fails the load. */
static int find_sums(const struct store_place *p, const struct listing *listed, struct source_set *set)
{
        struct object *objects = set->objects;
        size_t n = set->n_objects;
        bool request_list = listed == NULL || listed->has_sums;
        bool asks = p->ops->sum_header != NULL;
        size_t heads = asks ? n : 0; /* the list is the fetch after these */
        cleanup_with(http_headers_deinit) struct http_headers headers = {.n = 0};
        cleanup_free struct http_fetch *fetches = calloc(n + 1, sizeof(*fetches));
        cleanup_free struct object_url *urls = calloc(n + 1, sizeof(*urls));
        if (fetches == NULL || urls == NULL)
                return error_no_memory(p->error);
        struct http_fetch *list = fetches + heads;
        int r = asks ? http_headers_add(&headers, p->ops->sum_header, p->ops->sum_value, p->error) : 0;
        for (size_t i = 0; r == 0 && i <= heads; i++) {
                struct http_request *request = &fetches[i].request;
                const char *name = i < heads ? objects[i].path + strlen(p->dir.shown) : SUMS_NAME;
                r = remote_dir_url_init(&p->dir, &(struct remote_file){.name = name}, &urls[i], p->error);
                *request = (struct http_request){.url = urls[i].url, .shown = urls[i].shown, .access = p->dir.access};
                if (i < heads) {
                        request->method = "HEAD";
                        request->headers = &headers;
                }
        }
        list->max_body = SUMS_MAX;
        list->accepts = listed != NULL ? NULL : may_be_absent;
        if (r == 0)
                r = http_fetch(p->dir.http, fetches, request_list ? heads + 1 : heads, p->error);
        struct text text = {.data = list->answer.body, .size = list->answer.body_len};
        if (r == 0 && request_list && list->answer.status < 300 && text.data != NULL)
                r = sums_apply(&text, urls[heads].shown, objects, n, p->error);
        for (size_t i = 0; r == 0 && i < heads; i++)
                r = p->ops->take_sum(&objects[i], &fetches[i].answer.headers, p->error);
        for (size_t i = 0; i <= heads; i++) {
                remote_dir_url_deinit(&urls[i]);
                http_fetch_deinit(&fetches[i]);
        }
        cleanup_free char *where = format_new("a " SUMS_NAME " with its prefix%s", p->ops->no_sums);
        if (r == 0 && where == NULL)
                r = error_no_memory(p->error);
        return r ?: sums_require(objects, n, where, p->error);
}

/* ---- places ---- */

static void place_deinit(struct store_place *p)
{
        remote_dir_deinit(&p->dir);
        free(p->bucket);
        free(p->base);
        free(p->prefix);
}

static int place_init(struct store_place *p, const struct store_ops *ops, const struct sources *sources,
                      const char *source, struct error *error)
{
        size_t key = ops->key_at(source), directory = store_directory_len(source);
        const char *bucket = strstr(source, "://") + 3;
        *p = (struct store_place){.ops = ops,
                                  .bucket = strndup(bucket, strcspn(bucket, "@/")),
                                  .prefix = directory > key ? strndup(source + key, directory - key) : strdup(""),
                                  .error = error};
        p->dir = (struct remote_dir){.source = source,
                                     .http = sources->http,
                                     .disk = sources->disk,
                                     .shown = strndup(source, directory),
                                     .atomic = true,
                                     .etags = true,
                                     .promise = "listed with its prefix"};
        if (p->bucket == NULL || p->prefix == NULL || p->dir.shown == NULL)
                return error_no_memory(error);
        int r = ops->enter(sources, p);
        require(r < 0 || (p->base != NULL && p->dir.url != NULL));
        return r;
}

/* Calls use() at the place of the source; and once more if that has failed and the store has named another place. A
 * use() that fails leaves nothing open. */
static int use_place(const struct store_ops *ops, const struct sources *sources, const char *source,
                     int (*use)(struct store_place *p, void *what), void *what, struct error *error)
{
        for (int turn = 0;; turn++) {
                struct store_place p;
                bool again = false;
                int r = place_init(&p, ops, sources, source, error);
                if (r == 0) {
                        r = use(&p, what);
                        again = r < 0 && turn == 0 && ops->moved != NULL && ops->moved(sources, &p);
                }
                place_deinit(&p);
                if (!again)
                        return r;
                *error = (struct error){.code = 0};
        }
}

/* ---- lists with other versions than the objects ---- */

static const char *version_word(const struct store_place *p)
{
        return p->dir.dialect != NULL ? p->dir.dialect->word : "ETag";
}

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

/* An object has another version than the list: it was replaced in between, and a new list says so, or the store's lists
 * do not have the versions (ETags) of its objects. An enum lists, or an error. */
static int list_again(const struct store_place *p, struct listing *list, const struct object *object)
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
        log_warn("the store's list has other %ss than its objects, whose own are used (%s)", version_word(p),
                 object->path);
        return LIST_WRONG;
}

static int open_listed(struct store_place *p, struct listing *list, struct source_set *set)
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
                        return error_set(p->error, STREAMER_EFAILED,
                                         "the object was replaced while it was read: another %s than in the list (%s)",
                                         version_word(p), differs->path);
                source_set_deinit(set);
                listing_deinit(list);
        }
}

struct weights {
        struct source_set *set;
        bool want_sha256;
};

static int open_weights(struct store_place *p, void *what)
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

int store_open(const struct store_ops *ops, const struct sources *sources, const char *canonical, bool want_sha256,
               struct source_set *set, struct error *error)
{
        struct weights weights = {.set = set, .want_sha256 = want_sha256};
        return use_place(ops, sources, canonical, open_weights, &weights, error);
}

int store_reach(const struct store_ops *ops, const struct sources *sources, const char *canonical,
                struct source_reach *reach, struct error *error)
{
        struct store_place p;
        int r = place_init(&p, ops, sources, canonical, error);
        if (r == 0) {
                *reach = (struct source_reach){.access = p.dir.access, .url = p.dir.url};
                p.dir.access = NULL;
                p.dir.url = NULL;
        }
        place_deinit(&p);
        return r;
}

/* ---- sidecars ---- */

static int list_sidecars(struct store_place *p, void *what)
{
        struct http_fetch fetch;
        struct listing *list = what;
        int r = list_pages(p, list, &fetch, 1);
        if (r < 0)
                listing_deinit(list);
        return r;
}

int store_list_sidecars(const struct store_ops *ops, const struct sources *sources, const char *canonical,
                        struct listing *list, struct error *error)
{
        return use_place(ops, sources, canonical, list_sidecars, list, error);
}

struct sidecar {
        const char *name;
        struct object *object;
};

static int open_sidecar(struct store_place *p, void *what)
{
        const struct sidecar *sidecar = what;
        return remote_dir_open_text(&p->dir, sidecar->name, sidecar->object, p->error);
}

int store_open_sidecar(const struct store_ops *ops, const struct sources *sources, const char *canonical,
                       const char *name, struct object *object, struct error *error)
{
        struct sidecar sidecar = {.name = name, .object = object};
        return use_place(ops, sources, canonical, open_sidecar, &sidecar, error);
}

char *store_sidecar_uri(const char *canonical, const char *name)
{
        return format_new("%.*s%s", (int)store_directory_len(canonical), canonical, name);
}
