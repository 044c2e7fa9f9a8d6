/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/stored.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/disk/disk_cache.h"
#include "daemon/io/http/http.h"
#include "daemon/io/remote/http_object.h"

#include <openssl/evp.h>

/* A source that has a query may have a secret in it, which is not stored. False also where there is no memory. */
static bool source_id(const char *canonical, unsigned char id[DISK_ID_SIZE])
{
        bool is_url = strncmp(canonical, "http", 4) == 0;
        return !(is_url && strchr(canonical, '?') != NULL) &&
               EVP_Digest(canonical, strlen(canonical), id, NULL, EVP_sha256(), NULL) == 1;
}

/* ---- noting ---- */

/* `alone`: the source that is this object alone; NULL: there is none, or no memory. */
static bool add_member(struct disk_source *source, const struct object *object, bool is_index, const char *alone)
{
        struct object_label label;
        if (object->ops->label == NULL || !object->ops->label(object, &label))
                return false;
        cleanup_free char *url = http_url_without_signature(label.url);
        cleanup_free char *path = strdup(object->path);
        struct disk_member member = {
                .is_index = is_index, .folder_len = (uint32_t)object->folder_len, .url = url, .path = path};
        memcpy(member.id, label.id, DISK_ID_SIZE);
        if (alone == NULL || !source_id(alone, member.alone))
                memset(member.alone, 0, DISK_ID_SIZE);
        return url != NULL && path != NULL && disk_source_add(source, &member);
}

struct disk_source *source_describe(const char *canonical, const struct source_set *set, source_file_uri_fn *file_uri)
{
        unsigned char id[DISK_ID_SIZE];
        bool ok = source_id(canonical, id);
        struct disk_source *source = ok ? disk_source_new(id, set->n_objects + 1) : NULL;
        if (source == NULL)
                return NULL;
        if (set->index.n_files > 0)
                ok = add_member(source, &set->index_object, true, NULL);
        for (size_t i = 0; ok && i < set->n_objects; i++) {
                const struct object *object = &set->objects[i];
                cleanup_free char *alone = object->folder_len > 0 ? file_uri(canonical, object_name(object)) : NULL;
                ok = add_member(source, object, false, alone);
        }
        return ok ? source : disk_source_free(source);
}

/* ---- opening ---- */

/* Where it was stored from another server than is configured now, without credentials, which are not for that one. */
static int open_member(const struct sources *sources, const struct disk_member *member,
                       const struct source_reach *reach, struct object *object, struct error *error)
{
        bool reached = reach->url != NULL && strncmp(member->url, reach->url, strlen(reach->url)) == 0;
        return object_http_open_stored(sources->http, sources->disk, member, reached ? reach->access : NULL, object,
                                       error);
}

static int open_index(const struct sources *sources, const struct disk_member *member, const struct source_reach *reach,
                      struct source_set *set, struct error *error)
{
        return open_member(sources, member, reach, &set->index_object, error)
                       ?: object_http_text(&set->index_object, ST_HEADER_MAX, &set->index_text, error)
                       ?: source_set_index(set, error);
}

static int open_members(const struct sources *sources, const struct disk_source *source,
                        const struct source_reach *reach, struct source_set *set, struct error *error)
{
        bool indexed = source->members[0].is_index;
        size_t n = source->n - indexed;
        int r = indexed ? open_index(sources, &source->members[0], reach, set, error) : 0;
        if (r == 0 && (n == 0 || (indexed && set->index.n_files != n)))
                r = error_set(error, STREAMER_EFAILED, "it is not in the disk cache any more (%s)",
                              source->members[0].path);
        r = r ?: source_set_reserve(set, n, error);
        for (size_t i = 0; r == 0 && i < n; i++)
                r = open_member(sources, &source->members[i + indexed], reach, &set->objects[i], error);
        return r;
}

bool source_open_stored(const struct sources *sources, const char *canonical, const struct source_reach *reach,
                        struct source_set *set)
{
        unsigned char id[DISK_ID_SIZE];
        struct error error = {0};
        struct disk_source *source =
                sources->disk != NULL && source_id(canonical, id) ? disk_cache_find_source(sources->disk, id) : NULL;
        if (source == NULL)
                return false;
        *set = (struct source_set){0};
        int r = open_members(sources, source, reach, set, &error);
        disk_cache_put_source(sources->disk, source);
        if (r < 0) {
                log_warn("disk cache: a source cannot be opened: %s", error.text);
                source_set_deinit(set);
        }
        return r == 0;
}

static void add_asked(const struct object **asked, size_t *n, const struct object *object,
                      const struct source_reach *reach)
{
        if (object->ops != NULL && object_http_is_below(object, reach->url))
                asked[(*n)++] = object;
}

int source_ask(const struct source_set *set, const struct source_reach *reach, struct error *error)
{
        size_t n = 0;
        cleanup_free const struct object **asked = calloc(set->n_objects + 1, sizeof(*asked));
        if (asked == NULL)
                return error_no_memory(error);
        if (reach->url == NULL)
                return 0;
        add_asked(asked, &n, &set->index_object, reach);
        for (size_t i = 0; i < set->n_objects; i++)
                add_asked(asked, &n, &set->objects[i], reach);
        return object_http_ask(asked, n, error);
}
