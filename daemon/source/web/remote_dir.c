/* SPDX-License-Identifier: Apache-2.0
 *
 * All files are requested in one round, which also reads their headers. An index has the names of all tensors, from
 * which the length of these headers is estimated: no more is requested. If a file that an index or a list names does
 * not exist, the source is broken, not missing.
 */
#include "daemon/source/web/remote_dir.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "proto/codec.h"

/* The rest of a tensor in a header, besides its name: dtype, shape of three, offsets of 12 digits; and the rest of the
 * header besides its tensors. A longer header costs one more request. */
#define TENSOR_REST 104u
#define HEADER_REST 1024u

void remote_dir_deinit(struct remote_dir *dir)
{
        dir->access = http_access_unref(dir->access);
        free(dir->url);
        free(dir->shown);
        free(dir->tail);
        free(dir->repository);
        dir->url = dir->shown = dir->tail = dir->repository = NULL;
}

/* Without its query, and with the file's own name, by which it is compared with other files and lists. A name that is
 * no text, or that has a slash, stays as it is. */
static char *shown_url(const char *source)
{
        char *shown = redact_source_new(source), *slash = shown != NULL ? strrchr(shown, '/') : NULL;
        cleanup_free char *name = slash != NULL ? strdup(slash + 1) : NULL;
        if (name != NULL && percent_decode(name, '+') && codec_utf8(name, strlen(name)) && strchr(name, '/') == NULL)
                strcpy(slash + 1, name);
        return shown;
}

int remote_dir_url_init(const struct remote_dir *dir, const struct remote_file *file, struct object_url *url,
                        struct error *error)
{
        const struct listed_file *listed = NULL;
        *url = (struct object_url){.access = dir->access,
                                   .dialect = dir->dialect,
                                   .header = file->header,
                                   .text = file->text,
                                   .atomic = dir->atomic,
                                   .optional = file->optional,
                                   .disk = file->optional ? NULL : dir->disk};
        if (file->name == NULL) {
                url->url = strdup(dir->source);
                url->shown = shown_url(dir->source);
        } else {
                cleanup_free char *encoded = http_url_encode(file->name, dir->keep ?: "/");
                url->url = encoded != NULL ? format_new("%s%s%s", dir->url, encoded, dir->tail ?: "") : NULL;
                url->shown = format_new("%s%s", dir->shown, file->name);
                listed = dir->etags && dir->listing != NULL ? listing_find(dir->listing, file->name) : NULL;
        }
        const struct listed_file *hashed = file->name != NULL && dir->repository != NULL && dir->listing != NULL
                                                   ? listing_find(dir->listing, file->name)
                                                   : NULL;
        bool has_content = hashed != NULL && filled(hashed->tag) != NULL;
        url->content = has_content ? format_new("%s %s", dir->repository, hashed->tag) : NULL;
        const char *tag = listed != NULL ? filled(listed->tag) : NULL;
        bool is_etag = tag != NULL && (dir->dialect != NULL || strchr(tag, '"') != NULL);
        url->etag = is_etag ? tag : NULL;
        url->modified = is_etag ? NULL : tag;
        return url->url != NULL && url->shown != NULL && !has_content == !url->content ? 0 : error_no_memory(error);
}

void remote_dir_url_deinit(struct object_url *url)
{
        free((char *)(uintptr_t)url->url);
        free((char *)(uintptr_t)url->shown);
        free((char *)(uintptr_t)url->content);
        *url = (struct object_url){.url = NULL};
}

int remote_dir_open_files(const struct remote_dir *dir, const struct remote_file *files, size_t n,
                          struct object *objects, struct error *error)
{
        cleanup_free struct object_url *urls = calloc(n, sizeof(*urls));
        if (urls == NULL)
                return error_no_memory(error);
        int r = 0;
        for (size_t i = 0; r == 0 && i < n; i++)
                r = remote_dir_url_init(dir, &files[i], &urls[i], error);
        r = r ?: object_http_open(dir->http, urls, n, objects, error);
        for (size_t i = 0; r == 0 && i < n; i++)
                if (files[i].name != NULL && objects[i].path != NULL)
                        objects[i].folder_len = strlen(dir->shown);
        for (size_t i = 0; i < n; i++)
                remote_dir_url_deinit(&urls[i]);
        return r;
}

int remote_dir_open_text(const struct remote_dir *dir, const char *name, struct object *object, struct error *error)
{
        return remote_dir_open_files(dir, &(struct remote_file){.name = name, .text = true}, 1, object, error);
}

int remote_dir_open(const struct remote_dir *dir, struct source_set *set, struct error *error)
{
        struct listing *listing = dir->listing;
        const struct st_index *index = &set->index;
        bool indexed = listing == NULL || listing->index != NULL;
        int r = 0;
        if (indexed && set->index_object.ops == NULL)
                r = remote_dir_open_text(dir, listing != NULL ? listing->index : LISTING_INDEX, &set->index_object,
                                         error);
        if (r == 0 && indexed)
                r = object_http_text(&set->index_object, ST_HEADER_MAX, &set->index_text, error)
                            ?: source_set_index(set, error);
        if (r == 0 && indexed && listing != NULL) {
                r = listing_take_index(listing, index, error);
                indexed = listing->index != NULL;
        }
        if (r == 0 && !indexed)
                source_set_drop_index(set);
        if (r == 0 && listing != NULL)
                r = listing_report(listing, set, error);
        if (r < 0)
                return r;
        size_t n = indexed ? index->n_files : listing->n;
        cleanup_free struct remote_file *files = calloc(n, sizeof(*files));
        if (files == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < n; i++)
                files[i] = indexed ? (struct remote_file){.name = st_index_file(index, i), .header = HEADER_REST}
                                   : (struct remote_file){.name = listing->v[i].name};
        for (size_t i = 0; i < index->n_entries; i++)
                files[index->entries[i].file].header += index->entries[i].name_len + TENSOR_REST;
        r = source_set_reserve(set, n, error) ?: remote_dir_open_files(dir, files, n, set->objects, error);
        return r == STREAMER_ENOENT ? error_set(error, STREAMER_EFAILED, "%s, but: %s",
                                                indexed ? "named by the index" : dir->promise, error->text)
                                    : r;
}
