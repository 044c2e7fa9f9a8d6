/* SPDX-License-Identifier: Apache-2.0
 *
 * The files below a local source's directory. Every name is resolved below its root (roots.h), so a link that leads out
 * of the root is neither listed nor opened. Linked directories are not entered: a list always ends.
 */
#include "daemon/source/local/local.h"

#include "daemon/base/util.h"
#include "daemon/io/file/file_object.h"
#include "daemon/source/roots/roots.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define DEPTH_MAX 8 /* directories below the source's */

/* The directory of the source: itself, or the one that holds it. */
static int place_init_directory(struct place *place, const struct sources *sources, const char *canonical,
                                struct error *error)
{
        struct place source;
        mode_t mode = 0;
        cleanup_close int path_fd = -1;
        *place = (struct place){0};
        int r = place_init(&source, sources->roots, canonical, error);
        if (r == 0)
                r = place_find(&source, &path_fd, &mode, error);
        if (r == 0 && S_ISDIR(mode)) {
                *place = source;
                return 0;
        }
        if (r == 0)
                r = place_init_parent(place, &source, error);
        place_deinit(&source);
        return r;
}

/* ---- listing ---- */

struct listing {
        struct sidecar_list *list;
        const char *shown; /* the source */
        struct error *error;
};

static int list_directory(const struct listing *listing, const struct place *place, const char *prefix, unsigned depth);

/* A file that cannot be opened by its name is skipped. */
static int list_entry(const struct listing *listing, const struct place *directory, int dir_fd, const char *entry,
                      const char *prefix, unsigned depth)
{
        struct stat st;
        struct place place;
        struct error ignored;
        mode_t mode;
        cleanup_close int path_fd = -1;
        if (entry[0] == '.' || fstatat(dir_fd, entry, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return 0;
        cleanup_free char *name = format_new("%s%s", prefix, entry);
        cleanup_free char *below = format_new("%s%s/", prefix, entry);
        if (name == NULL || below == NULL)
                return error_set(listing->error, STREAMER_ENOMEM, "no memory");
        int r = place_init_child(&place, directory, entry, listing->error);
        if (r < 0)
                return r;
        if (S_ISDIR(st.st_mode))
                r = depth < DEPTH_MAX ? list_directory(listing, &place, below, depth + 1) : 0;
        else if (place_find(&place, &path_fd, &mode, &ignored) == 0 && S_ISREG(mode) && fstat(path_fd, &st) == 0)
                r = sidecar_list_add(listing->list, name, (uint64_t)st.st_size, listing->shown, listing->error);
        place_deinit(&place);
        return r;
}

static int list_entries(const struct listing *listing, const struct place *place, DIR *dir, const char *prefix,
                        unsigned depth)
{
        for (;;) {
                errno = 0;
                const struct dirent *entry = readdir(dir);
                if (entry == NULL)
                        return errno == 0 ? 0
                                          : error_errno(listing->error, STREAMER_EFAILED, errno, "%s", place->shown);
                int r = list_entry(listing, place, dirfd(dir), entry->d_name, prefix, depth);
                if (r < 0)
                        return r;
        }
}

static int list_directory(const struct listing *listing, const struct place *place, const char *prefix, unsigned depth)
{
        mode_t mode;
        int fd = -1;
        cleanup_close int path_fd = -1;
        int r = place_find(place, &path_fd, &mode, listing->error);
        if (r == 0)
                r = place_open_folder(place, path_fd, &fd, listing->error);
        /* Below the source's own directory, one that may not be read has no files to offer. */
        if (r < 0)
                return depth > 0 ? 0 : r;
        DIR *dir = fdopendir(fd);
        if (dir == NULL) {
                close(fd);
                return error_set(listing->error, STREAMER_ENOMEM, "no memory");
        }
        r = list_entries(listing, place, dir, prefix, depth);
        closedir(dir);
        return r;
}

int local_list_sidecars(const struct sources *sources, const char *canonical, struct sidecar_list *list,
                        struct error *error)
{
        struct place place;
        const struct listing listing = {.list = list, .shown = canonical, .error = error};
        int r = place_init_directory(&place, sources, canonical, error);
        if (r == 0)
                r = list_directory(&listing, &place, "", 0);
        place_deinit(&place);
        return r;
}

/* ---- opening ---- */

int local_open_sidecar(const struct sources *sources, const char *canonical, const char *name, struct object *object,
                       struct error *error)
{
        struct place directory, place = {0};
        int fd = -1;
        int r = place_init_directory(&directory, sources, canonical, error);
        if (r == 0)
                r = place_init_child(&place, &directory, name, error);
        if (r == 0)
                r = place_open_file(&place, &fd, error);
        if (r == 0)
                r = object_init_consume_fd(object, fd, place.shown, error);
        place_deinit(&place);
        place_deinit(&directory);
        return r;
}
