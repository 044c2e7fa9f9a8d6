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
#include "daemon/source/web/web.h"

#include "daemon/base/hash.h"
#include "daemon/base/text/percent.h"
#include "daemon/base/text/redact.h"
#include "daemon/base/util.h"
#include "daemon/io/http/policy.h"
#include "daemon/source/sums.h"
#include "daemon/source/web/remote_dir.h"
#include "proto/codec.h"

#include <string.h>

#define SUFFIX ".safetensors"
#define INDEX_SUFFIX ".json"

/* ---- URIs ---- */

static bool ends_with(const char *text, size_t len, const char *suffix)
{
        size_t n = strlen(suffix);
        return len >= n && memcmp(text + len - n, suffix, n) == 0;
}

/* Characters that have no place in a URL are encoded, so that one with a space means what it shows. */
static int web_canonical(const char *source, char **out, struct error *error)
{
        struct http_url url;
        cleanup_free char *shown = redact_source_new(source);
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
        *out = format_new("%s://%s%s%s%s%s", url.tls ? "https" : "http", v6 ? "[" : "", url.host, v6 ? "]" : "", port,
                          url.path);
        return *out != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

/* In place; control characters stay as they are written. */
static void name_decode(char *text)
{
        char *to = text;
        for (const char *from = text; *from != '\0';) {
                int byte = percent_byte(from);
                *to++ = byte >= ' ' ? (char)byte : *from;
                from += byte >= ' ' ? 3 : 1;
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
        name_decode(name);
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

/* ---- files ---- */

struct web_files {
        struct remote_dir store;
        const char *base; /* URL that others are relative to */
};

/* What messages and SHA256SUMS call it. */
static char *shown_beside(const char *base, const char *name)
{
        cleanup_free char *folder = redact_source_new(base);
        if (folder == NULL)
                return NULL;
        *(strrchr(folder, '/') + 1) = '\0';
        return format_new("%s%s", folder, name);
}

static bool web_locate(const struct remote_dir *store, const char *name, char **url, char **shown)
{
        const char *base = container_of(store, struct web_files, store)->base;
        bool itself = name[0] == '\0';
        cleanup_free char *encoded = http_url_encode(name, "/");
        *url = itself ? strdup(base) : encoded != NULL ? http_url_join(base, encoded) : NULL;
        *shown = itself ? redact_source_new(base) : shown_beside(base, name);
        return *url != NULL && *shown != NULL;
}

/* ---- opening ---- */

/* The source itself and, where digests are wanted, the list of them that may lie beside it: one round. */
static int open_first(const struct web_files *files, bool text, struct object *itself, struct object *sums,
                      struct error *error)
{
        struct object_url urls[2] = {{.url = NULL}};
        struct object objects[2];
        size_t n = sums != NULL ? 2 : 1;
        int r = remote_dir_url_init(&files->store, "", &urls[0], error);
        if (r == 0 && sums != NULL)
                r = remote_dir_url_init(&files->store, SUMS_NAME, &urls[1], error);
        urls[0].text = text;
        urls[1].text = urls[1].optional = true;
        if (r == 0)
                r = object_http_open(files->store.http, urls, n, objects, error);
        if (r == 0)
                *itself = objects[0];
        if (r == 0 && sums != NULL)
                *sums = objects[1];
        remote_dir_url_deinit(&urls[0]);
        remote_dir_url_deinit(&urls[1]);
        return r;
}

static int take_sums(struct object *list, struct source_set *set, struct error *error)
{
        struct text text = {0};
        if (list->ops == NULL)
                return sums_require(set->objects, set->n_objects, "a " SUMS_NAME " beside it", error);
        int r = object_http_text(list, SUMS_MAX, &text, error);
        if (r == 0)
                r = sums_apply(&text, list->path, set->objects, set->n_objects, error);
        if (r == 0)
                r = sums_require(set->objects, set->n_objects, "the " SUMS_NAME " beside it", error);
        text_deinit(&text);
        return r;
}

static int web_open(const struct sources *sources, const char *canonical, const struct source_opts *opts,
                    struct source_set *set, struct error *error)
{
        struct web_files files = {.store = {.http = sources->http, .locate = web_locate}, .base = canonical};
        struct object list = {.ops = NULL}, *sums = opts->want_sha256 ? &list : NULL;
        if (sources->http == NULL)
                return error_set(error, STREAMER_EUNSUPPORTED, "this daemon reads no network sources");
        int r = web_auth(sources->hosts, sources->n_hosts, canonical, &files.store.access, error);
        if (r < 0)
                return r;
        bool index = ends_with(canonical, strcspn(canonical, "?"), INDEX_SUFFIX);
        r = index ? 0 : source_set_reserve(set, 1, error);
        if (r == 0)
                r = open_first(&files, index, index ? &set->index_object : &set->objects[0], sums, error);
        if (r == 0 && index)
                r = remote_dir_open_indexed(&files.store, set, error);
        else if (r == 0)
                set->n_objects = 1;
        if (r == 0 && sums != NULL)
                r = take_sums(sums, set, error);
        object_deinit(&list);
        http_access_unref(files.store.access);
        return r;
}

/* ---- sidecars ---- */

static char *web_sidecar_uri(const char *canonical, const char *name)
{
        const struct web_files files = {.base = canonical};
        char *url = NULL, *shown = NULL;
        web_locate(&files.store, name, &url, &shown);
        free(shown);
        return url;
}

static int web_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                            struct object *object, struct error *error)
{
        struct web_files files = {.store = {.http = sources->http, .locate = web_locate}, .base = canonical};
        if (sources->http == NULL)
                return error_set(error, STREAMER_EUNSUPPORTED, "this daemon reads no network sources");
        int r = web_auth(sources->hosts, sources->n_hosts, canonical, &files.store.access, error);
        if (r == 0)
                r = remote_dir_open_text(&files.store, name, object, error);
        http_access_unref(files.store.access);
        return r;
}

static const char *const schemes[] = {"https://", "http://", NULL};

const struct source_ops source_web = {
        .schemes = schemes,
        .canonical = web_canonical,
        .default_name = web_default_name,
        .lane = web_lane,
        .open = web_open,
        .sidecar_uri = web_sidecar_uri,
        .open_sidecar = web_open_sidecar,
};
