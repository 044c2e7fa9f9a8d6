/* SPDX-License-Identifier: Apache-2.0
 *
 * A path becomes a set of open files:
 *
 *   a file                      > itself
 *   a folder with an index      > the files that its weight_map names
 *   a folder without            > the names that folder_choose() leaves
 *
 * All are opened before any is read. A file that is missing fails the whole: half a model is none.
 */
#include "daemon/source/folder.h"
#include "daemon/source/roots.h"
#include "daemon/source/sums.h"

#include "daemon/base/hash.h"
#include "daemon/base/util.h"

#include <endian.h>
#include <string.h>
#include <sys/stat.h>

/* ---- files of a folder ---- */

static int open_object(struct object *object, const struct place *place, struct error *error)
{
        int fd = -1;
        int r = place_open_file(place, &fd, error);
        return r < 0 ? r : object_init_consume_fd(object, fd, place->shown, error);
}

static int set_reserve(struct source_set *set, size_t n, struct error *error)
{
        set->objects = calloc(n, sizeof(*set->objects));
        return set->objects != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

static int set_add(struct source_set *set, const struct place *folder, const char *name, struct error *error)
{
        struct place place;
        int r = place_init_child(&place, folder, name, error);
        if (r < 0)
                return r;
        r = open_object(&set->objects[set->n_objects], &place, error);
        /* The folder or its index promises the file, so the source is there, and broken. */
        if (r == STREAMER_ENOENT)
                r = error_set(error, STREAMER_EFAILED, "%s, but cannot be found (%s)",
                              set->has_index ? "named by the index" : "listed in its folder", place.shown);
        if (r == 0)
                set->n_objects++;
        place_deinit(&place);
        return r;
}

static int add_listed(struct source_set *set, const struct place *place, const struct folder *folder,
                      struct error *error)
{
        int r = set_reserve(set, folder->n, error);
        for (size_t i = 0; r == 0 && i < folder->n; i++)
                r = set_add(set, place, folder->names[i], error);
        return r;
}

/* ---- the index ---- */

/* The version is taken first: what changes between here and the end of the load is noticed. */
static int read_index(struct source_set *set, const struct place *place, struct error *error)
{
        int r = place_open_file(place, &set->index_fd, error);
        if (r < 0)
                return r == STREAMER_ENOENT ? error_set(error, STREAMER_EFAILED,
                                                        "listed in its folder, but cannot be found (%s)", place->shown)
                                            : r;
        set->index_path = strdup(place->shown);
        if (set->index_path == NULL) {
                close(set->index_fd);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        r = object_version_read(set->index_fd, place->shown, &set->index_version, error);
        return r < 0 ? r : text_read_fd(&set->index_text, set->index_fd, ST_HEADER_MAX, place->shown, error);
}

static int parse_index(struct source_set *set, struct error *error)
{
        struct st_error st;
        if (st_index_parse(&set->index, set->index_text.data, set->index_text.size, &st) < 0)
                return error_set(error, st.rule == ST_NO_MEMORY ? STREAMER_ENOMEM : STREAMER_EFAILED, "%s (%s)",
                                 st.text, set->index_path);
        set->has_index = true;
        if (set->index.n_files == 0)
                return error_set(error, STREAMER_EFAILED, "the index names no file (%s)", set->index_path);
        if (set->index.n_files > SOURCE_FILES_MAX)
                return error_set(error, STREAMER_EFAILED, "the index names more than %d files (%s)", SOURCE_FILES_MAX,
                                 set->index_path);
        return 0;
}

static int add_indexed(struct source_set *set, const struct place *folder, struct error *error)
{
        struct place place;
        int r = place_init_child(&place, folder, FOLDER_INDEX, error);
        if (r < 0)
                return r;
        r = read_index(set, &place, error);
        place_deinit(&place);
        if (r == 0)
                r = parse_index(set, error);
        if (r == 0)
                r = set_reserve(set, set->index.n_files, error);
        for (size_t i = 0; r == 0 && i < set->index.n_files; i++)
                r = set_add(set, folder, st_index_file(&set->index, i), error);
        return r;
}

/* ---- opening ---- */

static int open_folder(struct source_set *set, const struct place *place, int path_fd, const struct source_opts *opts,
                       struct error *error)
{
        struct folder folder;
        int fd = -1;
        int r = place_open_folder(place, path_fd, &fd, error);
        if (r == 0)
                r = folder_init_consume_fd(&folder, fd, place->shown, error);
        if (r < 0)
                return r;
        r = folder.has_index ? add_indexed(set, place, error) : add_listed(set, place, &folder, error);
        folder_deinit(&folder);
        if (r == 0 && opts->want_sha256)
                r = sums_find(place, set->objects, set->n_objects, error);
        return r;
}

static int open_file(struct source_set *set, const struct place *place, const struct source_opts *opts,
                     struct error *error)
{
        struct place folder;
        int r = set_reserve(set, 1, error);
        if (r == 0)
                r = open_object(&set->objects[0], place, error);
        if (r < 0)
                return r;
        set->n_objects = 1;
        if (!opts->want_sha256)
                return 0;
        r = place_init_parent(&folder, place, error);
        if (r == 0)
                r = sums_find(&folder, set->objects, 1, error);
        place_deinit(&folder);
        return r;
}

int source_open(const struct source_roots *roots, const char *canonical, const struct source_opts *opts,
                struct source_set *set, struct error *error)
{
        struct place place;
        mode_t mode = 0;
        cleanup_close int path_fd = -1;
        *set = (struct source_set){0};
        int r = place_init(&place, roots, canonical, error);
        if (r == 0)
                r = place_find(&place, &path_fd, &mode, error);
        if (r == 0)
                r = S_ISDIR(mode) ? open_folder(set, &place, path_fd, opts, error)
                                  : open_file(set, &place, opts, error);
        place_deinit(&place);
        if (r < 0)
                source_set_deinit(set);
        return r;
}

void source_set_deinit(struct source_set *set)
{
        for (size_t i = 0; i < set->n_objects; i++)
                object_deinit(&set->objects[i]);
        free(set->objects);
        if (set->has_index)
                st_index_deinit(&set->index);
        text_deinit(&set->index_text);
        if (set->index_path != NULL)
                close(set->index_fd);
        free(set->index_path);
        *set = (struct source_set){0};
}

/* ---- versions ---- */

static void hash_version(struct hash *hash, const struct object_version *version)
{
        const uint64_t fields[] = {htole64(version->dev), htole64(version->ino), htole64(version->size),
                                   htole64(version->mtime_ns), htole64(version->ctime_ns)};
        hash_update(hash, fields, sizeof(fields));
}

void source_identity(const struct source_set *set, struct source_identity *out)
{
        struct hash *hash = hash_new();
        require(hash != NULL);
        for (size_t i = 0; i < set->n_objects; i++)
                hash_version(hash, &set->objects[i].version);
        if (set->has_index)
                hash_version(hash, &set->index_version);
        hash_final(hash, out->digest);
        hash_free(hash);
}

int source_check(const struct source_set *set, struct error *error)
{
        int r = 0;
        if (set->has_index)
                r = object_version_check(set->index_fd, set->index_path, &set->index_version, error);
        for (size_t i = 0; r == 0 && i < set->n_objects; i++)
                r = object_check_version(&set->objects[i], error);
        return r;
}
