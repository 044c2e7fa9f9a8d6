/* SPDX-License-Identifier: Apache-2.0
 *
 * A path becomes a set of open files:
 *
 *   a file                      > itself
 *   a folder with an index      > the files that its weight_map names
 *   a folder without            > the names that model_dir_choose() leaves
 *
 * All are opened before any is read. A missing file fails the load.
 */
#include "daemon/source/local/local.h"
#include "daemon/source/model_dir.h"
#include "daemon/source/roots/roots.h"
#include "daemon/source/sums.h"

#include "daemon/base/util.h"
#include "daemon/io/file/file_object.h"

#include <sys/stat.h>

/* ---- files of a folder ---- */

static int open_object(struct object *object, const struct place *place, struct error *error)
{
        int fd = -1;
        int r = place_open_file(place, &fd, error);
        return r < 0 ? r : object_init_consume_fd(object, fd, place->shown, error);
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

/* ---- the index ---- */

static int add_indexed(struct source_set *set, const struct place *folder, struct error *error)
{
        struct place place;
        int r = place_init_child(&place, folder, MODEL_DIR_INDEX, error);
        if (r < 0)
                return r;
        /* Opening takes the version before the text is read: later changes are detected at the end of the load. */
        r = open_object(&set->index_object, &place, error);
        if (r == STREAMER_ENOENT)
                r = error_set(error, STREAMER_EFAILED, "listed in its folder, but cannot be found (%s)", place.shown);
        if (r == 0)
                r = text_read_fd(&set->index_text, set->index_object.fd, ST_HEADER_MAX, place.shown, error);
        place_deinit(&place);
        if (r == 0)
                r = source_set_index(set, error);
        if (r == 0)
                r = source_set_reserve(set, set->index.n_files, error);
        for (size_t i = 0; r == 0 && i < set->index.n_files; i++)
                r = set_add(set, folder, st_index_file(&set->index, i), error);
        return r;
}

/* ---- opening ---- */

static int open_folder(struct source_set *set, const struct place *place, int path_fd, const struct source_opts *opts,
                       struct error *error)
{
        struct model_dir folder;
        int fd = -1;
        int r = place_open_folder(place, path_fd, &fd, error);
        if (r == 0)
                r = model_dir_init_consume_fd(&folder, fd, place->shown, error);
        if (r < 0)
                return r;
        r = folder.has_index ? add_indexed(set, place, error) : source_set_reserve(set, folder.n, error);
        for (size_t i = 0; r == 0 && !folder.has_index && i < folder.n; i++)
                r = set_add(set, place, folder.names[i], error);
        model_dir_deinit(&folder);
        if (r == 0 && opts->want_sha256)
                r = sums_find(place, set->objects, set->n_objects, error);
        return r;
}

static int open_file(struct source_set *set, const struct place *place, const struct source_opts *opts,
                     struct error *error)
{
        struct place folder;
        int r = source_set_reserve(set, 1, error);
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

static int local_open(const struct sources *sources, const char *canonical, const struct source_opts *opts,
                      struct source_set *set, struct error *error)
{
        struct place place;
        mode_t mode = 0;
        cleanup_close int path_fd = -1;
        int r = place_init(&place, sources->roots, canonical, error);
        if (r == 0)
                r = place_find(&place, &path_fd, &mode, error);
        if (r == 0)
                r = S_ISDIR(mode) ? open_folder(set, &place, path_fd, opts, error)
                                  : open_file(set, &place, opts, error);
        place_deinit(&place);
        return r;
}

static const char *const schemes[] = {"file://", "", NULL};

const struct source_ops source_local = {
        .schemes = schemes,
        .local = true,
        .canonical = local_canonical,
        .default_name = local_default_name,
        .lane = local_lane,
        .open = local_open,
        .list_sidecars = local_list_sidecars,
        .open_sidecar = local_open_sidecar,
};
