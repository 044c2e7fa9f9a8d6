/* SPDX-License-Identifier: Apache-2.0
 *
 * All files are requested in one round, which also reads their headers. An index tells how long these are, since it has
 * the names of all tensors: no more is requested than that. A file that an index or a list names and that is not there
 * is a broken source, not a missing one.
 */
#include "daemon/source/web/remote_dir.h"

#include "daemon/base/util.h"

#include <string.h>

/* Of a tensor in a header besides its name: dtype, shape of three, offsets of 12 digits; and what stands in a header
 * besides its tensors. What is longer after all costs a request more. */
#define TENSOR_REST 104u
#define HEADER_REST 1024u

int remote_dir_url_init(const struct remote_dir *store, const char *name, struct object_url *url, struct error *error)
{
        char *text = NULL, *shown = NULL;
        bool located = store->locate(store, name, &text, &shown);
        *url = (struct object_url){.url = text,
                                   .shown = shown,
                                   .etag = store->etag != NULL ? store->etag(store, name) : NULL,
                                   .access = store->access,
                                   .atomic = store->atomic};
        return located ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

void remote_dir_url_deinit(struct object_url *url)
{
        free((char *)(uintptr_t)url->url);
        free((char *)(uintptr_t)url->shown);
        *url = (struct object_url){.url = NULL};
}

int remote_dir_open_text(const struct remote_dir *store, const char *name, struct object *object, struct error *error)
{
        struct object_url url;
        int r = remote_dir_url_init(store, name, &url, error);
        url.text = true;
        if (r == 0)
                r = object_http_open(store->http, &url, 1, object, error);
        remote_dir_url_deinit(&url);
        return r;
}

static int open_objects(const struct remote_dir *store, const char *const *names, size_t n,
                        const struct st_index *index, struct object *objects, struct error *error)
{
        struct object_url *urls = calloc(n, sizeof(*urls));
        int r = urls != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; r == 0 && i < n; i++)
                r = remote_dir_url_init(store, names[i], &urls[i], error);
        for (size_t i = 0; r == 0 && index != NULL && i < index->n_files; i++)
                urls[i].header = HEADER_REST;
        for (size_t i = 0; r == 0 && index != NULL && i < index->n_entries; i++)
                urls[index->entries[i].file].header += index->entries[i].name_len + TENSOR_REST;
        if (r == 0)
                r = object_http_open(store->http, urls, n, objects, error);
        for (size_t i = 0; urls != NULL && i < n; i++)
                remote_dir_url_deinit(&urls[i]);
        free(urls);
        return r;
}

int remote_dir_open_files(const struct remote_dir *store, const char *const *names, size_t n, struct source_set *set,
                          struct error *error)
{
        int r = source_set_reserve(set, n, error);
        if (r == 0)
                r = open_objects(store, names, n, set->has_index ? &set->index : NULL, set->objects, error);
        if (r == STREAMER_ENOENT && (set->has_index || store->listed != NULL))
                r = error_set(error, STREAMER_EFAILED, "%s, but: %s",
                              set->has_index ? "named by the index" : store->listed, error->text);
        if (r == 0)
                set->n_objects = n;
        return r;
}

int remote_dir_open_indexed(const struct remote_dir *store, struct source_set *set, struct error *error)
{
        int r = object_http_text(&set->index_object, ST_HEADER_MAX, &set->index_text, error);
        if (r == 0)
                r = source_set_index(set, error);
        if (r < 0)
                return r;
        const char **names = calloc(set->index.n_files, sizeof(*names));
        if (names == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < set->index.n_files; i++)
                names[i] = st_index_file(&set->index, i);
        r = remote_dir_open_files(store, names, set->index.n_files, set, error);
        free(names);
        return r;
}
