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
#include "daemon/base/text/percent.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"
#include "daemon/source/sums.h"
#include "daemon/source/web/http_auth.h"
#include "daemon/source/web/remote_dir.h"
#include "proto/codec.h"

#define INDEX_SUFFIX ".json"

/* ---- URIs ---- */

/* Characters that have no place in a URL are encoded, so that one with a space means what it shows. */
static int web_canonical(const char *source, char **out, struct error *error)
{
        struct http_url url;
        cleanup_free char *shown = redact_source_new(source);
        cleanup_free char *encoded = http_url_encode(source, "%:/?#[]@!$&'()*+,;=");
        if (shown == NULL || encoded == NULL)
                return error_no_memory(error);
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
        return *out != NULL ? 0 : error_no_memory(error);
}

/* Of an index: the folder that it lies in. */
static char *web_default_name(const char *canonical, unsigned n)
{
        struct http_url url;
        const char *path = http_url_parse(&url, canonical) == 0 ? url.path : "";
        size_t len = strcspn(path, "?");
        if (source_ends_with(path, len, INDEX_SUFFIX))
                while (len > 1 && path[len - 1] != '/')
                        len--;
        cleanup_free char *encoded = source_last_components(path, len, n + 1);
        char *name = encoded != NULL ? strdup(encoded) : NULL;
        /* What does not decode to text stays as it is. */
        if (name != NULL && !(percent_decode(name, '+') && codec_utf8(name, strlen(name))))
                strcpy(name, encoded);
        return name;
}

/* ---- files ---- */

/* The URL up to the name of the file. */
static size_t folder_len(const char *canonical)
{
        const char *slash = memrchr(canonical, '/', strcspn(canonical, "?"));
        return (size_t)(slash + 1 - canonical);
}

static int web_dir_init(struct remote_dir *dir, const struct sources *sources, const char *canonical,
                        struct error *error)
{
        size_t len = folder_len(canonical);
        *dir = (struct remote_dir){.source = canonical,
                                   .http = sources->http,
                                   .disk = sources->disk,
                                   .url = strndup(canonical, len),
                                   .shown = strndup(canonical, len)};
        if (dir->url == NULL || dir->shown == NULL)
                return error_no_memory(error);
        return web_auth(sources->hosts, sources->n_hosts, canonical, &dir->access, error);
}

/* ---- opening ---- */

static int apply_sums(struct object *list, struct source_set *set, struct error *error)
{
        cleanup_with(text_deinit) struct text text = {0};
        if (list->ops == NULL)
                return sums_require(set->objects, set->n_objects, "a " SUMS_NAME " beside it", error);
        return object_http_text(list, SUMS_MAX, &text, error)
                       ?: sums_apply(&text, list->path, set->objects, set->n_objects, error)
                       ?: sums_require(set->objects, set->n_objects, "the " SUMS_NAME " beside it", error);
}

/* The source itself and, where digests are wanted, the list of them that may lie beside it: one round. */
static int web_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                    struct error *error)
{
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        cleanup_with(object_deinit) struct object list = {.ops = NULL};
        struct object first[2] = {{.ops = NULL}};
        bool index = source_ends_with(canonical, strcspn(canonical, "?"), INDEX_SUFFIX);
        const struct remote_file names[] = {{.name = NULL, .text = index},
                                            {.name = SUMS_NAME, .text = true, .optional = true}};
        int r = web_dir_init(&dir, sources, canonical, error);
        if (r == 0 && !index)
                r = source_set_reserve(set, 1, error);
        r = r ?: remote_dir_open_files(&dir, names, want_sha256 ? 2 : 1, first, error);
        if (r < 0)
                return r;
        *(index ? &set->index_object : &set->objects[0]) = first[0];
        list = first[1];
        if (index)
                r = remote_dir_open(&dir, set, error);
        return r == 0 && want_sha256 ? apply_sums(&list, set, error) : r;
}

static int web_reach(const struct sources *sources, const char *canonical, struct source_reach *reach,
                     struct error *error)
{
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        int r = web_dir_init(&dir, sources, canonical, error);
        if (r == 0) {
                *reach = (struct source_reach){.access = dir.access, .url = dir.url};
                dir.access = NULL;
                dir.url = NULL;
        }
        return r;
}

/* ---- sidecars ---- */

/* The list, which is empty, is as accessible as the source. */
static char *web_sidecar_uri(const char *canonical, const char *name)
{
        if (name[0] == '\0')
                return strdup(canonical);
        cleanup_free char *encoded = http_url_encode(name, "/");
        return encoded != NULL ? format_new("%.*s%s", (int)folder_len(canonical), canonical, encoded) : NULL;
}

static int web_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                            struct object *object, struct error *error)
{
        cleanup_with(remote_dir_deinit) struct remote_dir dir;
        return web_dir_init(&dir, sources, canonical, error) ?: remote_dir_open_text(&dir, name, object, error);
}

const struct source_ops source_web = {
        .schemes = (const char *const[]){"https://", "http://", NULL},
        .canonical = web_canonical,
        .default_name = web_default_name,
        .file_uri = web_sidecar_uri,
        .open = web_open,
        .reach = web_reach,
        .sidecar_uri = web_sidecar_uri,
        .open_sidecar = web_open_sidecar,
};
