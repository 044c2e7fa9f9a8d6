/* SPDX-License-Identifier: Apache-2.0
 *
 * All files are requested in one round, which also reads their headers. An index has the names of all tensors, from
 * which the length of these headers is estimated: no more is requested. If a file that an index or a list names does
 * not exist, the source is broken, not missing.
 */
#include "daemon/source/web/remote_dir.h"

#include "daemon/base/util.h"

/* The rest of a tensor in a header, besides its name: dtype, shape of three, offsets of 12 digits; and the rest of the
 * header besides its tensors. A longer header costs one more request. */
#define TENSOR_REST 104u
#define HEADER_REST 1024u

int remote_dir_url_init(const struct remote_dir *dir, const char *name, struct object_url *url, struct error *error)
{
        char *text = NULL, *shown = NULL;
        bool located = dir->locate(dir, name, &text, &shown);
        const struct listed_file *file = dir->etags && dir->listing != NULL ? listing_find(dir->listing, name) : NULL;
        *url = (struct object_url){.url = text,
                                   .shown = shown,
                                   .etag = file != NULL ? filled(file->tag) : NULL,
                                   .access = dir->access,
                                   .atomic = dir->atomic};
        return located ? 0 : error_no_memory(error);
}

void remote_dir_url_deinit(struct object_url *url)
{
        free((char *)(uintptr_t)url->url);
        free((char *)(uintptr_t)url->shown);
        *url = (struct object_url){.url = NULL};
}

int remote_dir_open_text(const struct remote_dir *dir, const char *name, struct object *object, struct error *error)
{
        cleanup_with(remote_dir_url_deinit) struct object_url url;
        int r = remote_dir_url_init(dir, name, &url, error);
        url.text = true;
        return r ?: object_http_open(dir->http, &url, 1, object, error);
}

static int open_objects(const struct remote_dir *dir, const char *const *names, size_t n, const struct st_index *index,
                        struct object *objects, struct error *error)
{
        cleanup_free struct object_url *urls = calloc(n, sizeof(*urls));
        if (urls == NULL)
                return error_no_memory(error);
        int r = 0;
        for (size_t i = 0; r == 0 && i < n; i++)
                r = remote_dir_url_init(dir, names[i], &urls[i], error);
        for (size_t i = 0; index != NULL && r == 0 && i < n; i++)
                urls[i].header = HEADER_REST;
        for (size_t i = 0; r == 0 && index != NULL && i < index->n_entries; i++)
                urls[index->entries[i].file].header += index->entries[i].name_len + TENSOR_REST;
        r = r ?: object_http_open(dir->http, urls, n, objects, error);
        for (size_t i = 0; i < n; i++)
                remote_dir_url_deinit(&urls[i]);
        return r;
}

int remote_dir_open_files(const struct remote_dir *dir, const char *const *names, size_t n, struct source_set *set,
                          struct error *error)
{
        const char *promise = set->has_index ? "named by the index" : dir->promise;
        int r = source_set_reserve(set, n, error);
        if (r == 0)
                r = open_objects(dir, names, n, set->has_index ? &set->index : NULL, set->objects, error);
        return r == STREAMER_ENOENT && promise != NULL
                       ? error_set(error, STREAMER_EFAILED, "%s, but: %s", promise, error->text)
                       : r;
}

int remote_dir_open(const struct remote_dir *dir, struct source_set *set, struct error *error)
{
        bool indexed = dir->listing == NULL || dir->listing->index.name != NULL;
        int r = 0;
        if (indexed && set->index_object.ops == NULL)
                r = remote_dir_open_text(dir, LISTING_INDEX, &set->index_object, error);
        if (r == 0 && indexed)
                r = object_http_text(&set->index_object, ST_HEADER_MAX, &set->index_text, error)
                            ?: source_set_index(set, error);
        if (r < 0)
                return r;
        size_t n = indexed ? set->index.n_files : dir->listing->n;
        cleanup_free const char **names = calloc(n, sizeof(*names));
        if (names == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < n; i++)
                names[i] = indexed ? st_index_file(&set->index, i) : dir->listing->v[i].name;
        return remote_dir_open_files(dir, names, n, set, error);
}
