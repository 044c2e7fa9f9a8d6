/* SPDX-License-Identifier: Apache-2.0
 *
 * A URL becomes a set of objects:
 *
 *   https://host/path/model.safetensors             > itself
 *   https://host/path/model.safetensors.index.json  > the files that its weight_map names, beside it
 *
 * A folder cannot be listed over HTTP, so a URL that ends in a slash is refused. All shards are asked for
 * in one round, which also brings their headers.
 */
#include "daemon/source/web.h"

#include "daemon/base/hash.h"
#include "daemon/base/util.h"
#include "daemon/io/http_policy.h"
#include "daemon/io/object_http.h"
#include "daemon/source/source.h"
#include "daemon/source/sums.h"
#include "proto/codec.h"

#include <string.h>

#define SUFFIX ".safetensors"
#define INDEX_SUFFIX ".json"

/* ---- what the text tells ---- */

static bool ends_with(const char *text, size_t len, const char *suffix)
{
        size_t n = strlen(suffix);
        return len >= n && memcmp(text + len - n, suffix, n) == 0;
}

/* Characters that have no place in a URL are encoded, so that one with a space means what it shows. */
static int web_canonical(const char *source, char **out, struct error *error)
{
        struct http_url url;
        cleanup_free char *shown = http_url_shown(source);
        cleanup_free char *encoded = http_url_encode(source, "%:/?#[]@!$&'()*+,;=");
        if (shown == NULL || encoded == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        encoded[strcspn(encoded, "#")] = '\0';
        if (!codec_utf8(source, strlen(source)) || http_url_parse(&url, encoded) < 0)
                return error_set(error, STREAMER_EINVAL,
                                 "not a URL: http(s)://host/path, without user and password (the settings hold "
                                 "credentials, under http.hosts)");
        size_t path = strcspn(url.path, "?");
        if (path <= 1 || url.path[path - 1] == '/')
                return error_set(error, STREAMER_EINVAL,
                                 "a folder cannot be listed over http: name a .safetensors file, or a "
                                 "model.safetensors.index.json (%s)",
                                 shown);
        bool standard = url.port == (url.tls ? 443u : 80u), v6 = strchr(url.host, ':') != NULL;
        char port[16] = "";
        if (!standard)
                snprintf(port, sizeof(port), ":%u", url.port);
        if (asprintf(out, "%s://%s%s%s%s%s", url.tls ? "https" : "http", v6 ? "[" : "", url.host, v6 ? "]" : "", port,
                     url.path) < 0)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        return 0;
}

static void percent_decode(char *text)
{
        char *to = text;
        unsigned byte;
        for (const char *from = text; *from != '\0'; to++) {
                if (*from == '%' && sscanf(from + 1, "%2x", &byte) == 1 && byte >= ' ') {
                        *to = (char)byte;
                        from += 3;
                } else {
                        *to = *from++;
                }
        }
        *to = '\0';
}

/* Of an index: the folder that it lies in. */
static char *web_default_name(const char *canonical)
{
        struct http_url url;
        size_t len = http_url_parse(&url, canonical) == 0 ? strcspn(url.path, "?") : 0;
        const char *path = len > 0 ? url.path : "/model";
        if (len == 0)
                len = strlen(path);
        if (ends_with(path, len, INDEX_SUFFIX))
                while (len > 1 && path[len - 1] != '/')
                        len--;
        while (len > 1 && path[len - 1] == '/')
                len--;
        size_t from = len;
        while (from > 0 && path[from - 1] != '/')
                from--;
        if (ends_with(path + from, len - from, SUFFIX) && len - from > strlen(SUFFIX))
                len -= strlen(SUFFIX);
        char *name = len > from ? strndup(path + from, len - from) : strdup("model");
        if (name == NULL)
                return NULL;
        percent_decode(name);
        if (codec_utf8(name, strlen(name)))
                return name;
        free(name);
        return strdup("model");
}

static uint64_t web_lane(const char *canonical)
{
        struct http_url url;
        unsigned char digest[DIGEST_SIZE];
        uint64_t lane = 0;
        if (http_url_parse(&url, canonical) < 0)
                return 1;
        hash_bytes(url.host, strlen(url.host), digest);
        memcpy(&lane, digest, sizeof(lane));
        return (lane ^ url.port) | UINT64_C(1) << 63; /* no file system's */
}

/* ---- opening ---- */

struct web_files {
        struct http *http;
        struct http_access *access;
        const char *base; /* URL that others are relative to */
};

static int open_one(const struct web_files *files, const char *url, bool whole_first, struct object *object,
                    struct error *error)
{
        cleanup_free char *shown = http_url_shown(url);
        if (shown == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        const struct object_url what = {
                .url = url, .shown = shown, .access = files->access, .whole_first = whole_first};
        return object_http_open(files->http, &what, 1, object, error);
}

static char *beside(const struct web_files *files, const char *name)
{
        cleanup_free char *encoded = http_url_encode(name, "");
        return encoded != NULL ? http_url_join(files->base, encoded) : NULL;
}

/* What messages and SHA256SUMS call it. */
static char *shown_beside(const struct web_files *files, const char *name)
{
        cleanup_free char *base = http_url_shown(files->base);
        char *shown = NULL;
        if (base == NULL)
                return NULL;
        *(strrchr(base, '/') + 1) = '\0';
        return asprintf(&shown, "%s%s", base, name) < 0 ? NULL : shown;
}

static int open_shards(const struct web_files *files, struct source_set *set, struct error *error)
{
        size_t n = set->index.n_files;
        struct object_url *urls = calloc(n, sizeof(*urls));
        int r = urls != NULL ? source_set_reserve(set, n, error) : error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; r == 0 && i < n; i++) {
                const char *name = st_index_file(&set->index, i);
                urls[i] = (struct object_url){
                        .url = beside(files, name), .shown = shown_beside(files, name), .access = files->access};
                if (urls[i].url == NULL || urls[i].shown == NULL)
                        r = error_set(error, STREAMER_ENOMEM, "no memory");
        }
        if (r == 0)
                r = object_http_open(files->http, urls, n, set->objects, error);
        if (r == 0)
                set->n_objects = n;
        if (r == STREAMER_ENOENT)
                r = error_set(error, STREAMER_EFAILED, "named by the index, but cannot be found: %s", error->text);
        for (size_t i = 0; urls != NULL && i < n; i++) {
                free((char *)(uintptr_t)urls[i].url);
                free((char *)(uintptr_t)urls[i].shown);
        }
        free(urls);
        return r;
}

static int open_index(const struct web_files *files, struct source_set *set, struct error *error)
{
        int r = open_one(files, files->base, true, &set->index_object, error);
        if (r == 0)
                r = object_http_text(&set->index_object, ST_HEADER_MAX, &set->index_text, error);
        if (r == 0)
                r = source_set_index(set, error);
        return r < 0 ? r : open_shards(files, set, error);
}

static int open_file(const struct web_files *files, struct source_set *set, struct error *error)
{
        int r = source_set_reserve(set, 1, error);
        if (r == 0)
                r = open_one(files, files->base, false, &set->objects[0], error);
        if (r == 0)
                set->n_objects = 1;
        return r;
}

static int find_sums(const struct web_files *files, struct source_set *set, struct error *error)
{
        cleanup_free char *url = beside(files, SUMS_NAME);
        struct object list = {.ops = NULL};
        struct text text = {0};
        if (url == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        int r = open_one(files, url, true, &list, error);
        if (r == STREAMER_ENOENT)
                return sums_require(set->objects, set->n_objects, "a " SUMS_NAME " beside it", error);
        if (r == 0)
                r = object_http_text(&list, SUMS_MAX, &text, error);
        if (r == 0)
                r = sums_take(&text, list.path, set->objects, set->n_objects, error);
        if (r == 0)
                r = sums_require(set->objects, set->n_objects, "the " SUMS_NAME " beside it", error);
        text_deinit(&text);
        object_deinit(&list);
        return r;
}

static int web_open(const struct sources *sources, const char *canonical, const struct source_opts *opts,
                    struct source_set *set, struct error *error)
{
        struct web_files files = {.http = sources->http, .base = canonical};
        if (sources->http == NULL)
                return error_set(error, STREAMER_EUNSUPPORTED, "this daemon reads no network sources");
        int r = web_access(sources->web, canonical, &files.access, error);
        if (r < 0)
                return r;
        r = ends_with(canonical, strcspn(canonical, "?"), INDEX_SUFFIX) ? open_index(&files, set, error)
                                                                        : open_file(&files, set, error);
        if (r == 0 && opts->want_sha256)
                r = find_sums(&files, set, error);
        http_access_unref(files.access);
        return r;
}

static const char *const schemes[] = {"https://", "http://", NULL};

const struct source_ops source_web = {
        .schemes = schemes,
        .canonical = web_canonical,
        .default_name = web_default_name,
        .lane = web_lane,
        .open = web_open,
};
