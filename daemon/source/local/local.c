/* SPDX-License-Identifier: Apache-2.0
 *
 * A path becomes a set of open files:
 *
 *   a file                      > itself
 *   an index                    > the files that its weight_map names
 *   a folder                    > as its index, if listing_choose() finds one, else the names that it leaves
 *
 * All are opened before any is read. A missing file fails the load. The functions of the URI do not access the path.
 *
 * Sidecars are the files below the source's directory. Every name is resolved below its root (roots.h), so a link that
 * leads out of the root is neither listed nor opened. Linked directories are not entered: a list always ends.
 */
#include "daemon/base/sys/machine.h"
#include "daemon/base/text/percent.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/io/disk/disk_local.h"
#include "daemon/io/file/file_object.h"
#include "daemon/source/local/mounts.h"
#include "daemon/source/listing.h"
#include "daemon/source/roots/caller.h"
#include "daemon/source/roots/roots.h"
#include "daemon/source/sums.h"
#include "proto/codec.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#define FILE_SCHEME "file://"
#define LISTED "listed in its folder"
#define DEPTH_MAX 8            /* directories below the source's that are listed for sidecars */
#define SAMPLE_ENTRIES_MAX 512 /* examined to find a file of a root */

/* ---- URIs ---- */

/* In place: no empty or "." components, no slash at the end. -1 on "..", which would mean another
 * folder than its text says if the path has a link. */
static int collapse(char *path)
{
        char *to = path;
        for (const char *from = path; *from != '\0';) {
                size_t slashes = strspn(from, "/");
                const char *name = from + slashes;
                size_t len = strcspn(name, "/");
                from = name + len;
                if (len == 0 || (len == 1 && name[0] == '.'))
                        continue;
                if (len == 2 && name[0] == '.' && name[1] == '.')
                        return -1;
                *to++ = '/';
                memmove(to, name, len);
                to += len;
        }
        if (to == path)
                *to++ = '/';
        *to = '\0';
        return 0;
}

static int local_canonical(const char *source, char **out, struct error *error)
{
        bool is_uri = strncmp(source, FILE_SCHEME, strlen(FILE_SCHEME)) == 0;
        const char *rest = is_uri ? source + strlen(FILE_SCHEME) : source;
        char shown[REDACTED_SOURCE];
        if (is_uri && strncmp(rest, "localhost/", strlen("localhost/")) == 0)
                rest += strlen("localhost");
        if (!is_uri && rest[0] != '/' && strstr(source, "://") != NULL) {
                redact_source(shown, source);
                return error_set(error, STREAMER_EUNSUPPORTED, "%s: no source of this kind is known", shown);
        }
        if (rest[0] != '/')
                return error_set(error, STREAMER_EINVAL, "'%s': not an absolute path", source);
        cleanup_free char *path = strdup(rest);
        if (path == NULL)
                return error_no_memory(error);
        if (is_uri && !percent_decode(path, '+'))
                return error_set(error, STREAMER_EINVAL, "%s: a bad %%-escape", source);
        if (strlen(path) >= PATH_MAX)
                return error_set(error, STREAMER_EINVAL, "%.200s...: longer than a path can be", source);
        if (!codec_utf8(path, strlen(path)))
                return error_set(error, STREAMER_EINVAL, "%s: not UTF-8", source);
        if (collapse(path) < 0)
                return error_set(error, STREAMER_EINVAL, "%s: '..' is not allowed", source);
        *out = path;
        path = NULL;
        return 0;
}

#define SNAPSHOTS "/snapshots/"

/* Of a path in a snapshot of the HF cache, ".../models--org--name/snapshots/REV/rest": "org--name"; NULL: another. */
static const char *find_repository(const char *path, size_t *len)
{
        static const char prefix[] = "/models--";
        for (const char *at = path; (at = strstr(at, prefix)) != NULL; at++) {
                const char *repository = at + strlen(prefix);
                *len = strcspn(repository, "/");
                if (*len > 0 && strncmp(repository + *len, SNAPSHOTS, strlen(SNAPSHOTS)) == 0)
                        return repository;
        }
        return NULL;
}

/* In a snapshot "org/name/rest", then "org/name@REV/rest". */
static char *local_default_name(const char *canonical, unsigned n)
{
        size_t len;
        const char *repository = find_repository(canonical, &len);
        if (repository == NULL)
                return source_last_components(canonical, source_folder_len(canonical), n + 1);
        const char *revision = repository + len + strlen(SNAPSHOTS);
        cleanup_free char *text = strndup(repository, len);
        if (text == NULL)
                return NULL;
        /* "org--name" is "org/name": the Hub allows no "--" in either part. In place. */
        for (char *at; (at = strstr(text, "--")) != NULL;) {
                at[0] = '/';
                memmove(at + 1, at + 2, strlen(at + 2) + 1);
        }
        char *name = format_new("%s%s%s", text, n > 0 ? "@" : "", n > 0 ? revision : revision + strcspn(revision, "/"));
        if (name != NULL)
                name[source_stem_len(name, strlen(name))] = '\0';
        return name;
}

static uint64_t local_lane(const char *canonical)
{
        return WORK_LANE_SOURCES + mounts_find(canonical).dev;
}

static bool local_known_lane(const char *canonical, uint64_t *lane)
{
        struct mount mount;
        bool known = mounts_find_known(canonical, &mount);
        *lane = WORK_LANE_SOURCES + mount.dev;
        return known;
}

/* ---- files of a folder ---- */

/* `promise`: why a missing file means that the source is broken and not missing; NULL: it does not. */
static int open_in_folder(struct object *object, const struct root_path *folder, const char *name, const char *promise,
                          struct error *error)
{
        cleanup_with(root_path_deinit) struct root_path path = {0};
        int fd = -1;
        int r = root_path_init_child(&path, folder, name, error) ?: root_path_open_file(&path, &fd, error)
                        ?: object_init_consume_fd(object, fd, path.shown, error);
        if (r == 0)
                object->folder_len = strlen(path.shown) - strlen(name);
        if (r == STREAMER_ENOENT && promise != NULL)
                return error_set(error, STREAMER_EFAILED, "%s, but cannot be found (%s)", promise, path.shown);
        return r;
}

/* The only one of its model. */
static int open_found(struct source_set *set, const struct root_path *path, int path_fd, const struct stat *st,
                      struct error *error)
{
        int fd = -1, r = source_set_reserve(set, 1, error) ?: root_path_open_found(path, path_fd, st, &fd, error);
        r = r ?: object_init_consume_fd(&set->objects[0], fd, path->shown, error);
        if (r == 0)
                set->objects[0].folder_len = (size_t)(strrchr(path->shown, '/') + 1 - path->shown);
        return r;
}

/* ---- lists ---- */

/* What is looked for below a folder: files for a list, or one that can be opened. */
struct walk {
        struct listing *list;  /* NULL: one file */
        struct object *sample; /* which becomes this object */
        unsigned examined;     /* entries of the search for it, in all */
};

static int walk_folder(struct walk *walk, const struct root_path *path, const char *prefix, unsigned depth,
                       struct error *error);

/* Folders, FIFOs and the like are no weights, whatever their names, nor are links to them. A link that leads nowhere is
 * listed, and fails when it is opened. */
static int add_weights(struct listing *list, const struct root_path *folder, const char *name, struct error *error)
{
        struct stat st;
        struct error ignored;
        cleanup_close int path_fd = -1;
        cleanup_with(root_path_deinit) struct root_path path = {0};
        if (strcmp(name, SUMS_NAME) != 0 && !listing_takes(list, name))
                return 0;
        int r = root_path_init_child(&path, folder, name, error);
        if (r < 0 || (root_path_find(&path, &path_fd, &st, &ignored) == 0 && !S_ISREG(st.st_mode)))
                return r;
        return listing_add(list, name, UINT64_MAX, "", error);
}

/* A sidecar that cannot be opened by its name is skipped. 1: the walk ends. */
static int walk_entry(struct walk *walk, const struct root_path *folder, int folder_fd, const char *entry,
                      const char *prefix, unsigned depth, struct error *error)
{
        struct stat st;
        cleanup_with(root_path_deinit) struct root_path path = {0};
        struct error ignored;
        cleanup_close int path_fd = -1;
        if (walk->list != NULL && !walk->list->sidecars)
                return add_weights(walk->list, folder, entry, error);
        if (walk->list == NULL && walk->examined++ == SAMPLE_ENTRIES_MAX)
                return 1;
        if (entry[0] == '.' || fstatat(folder_fd, entry, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return 0;
        bool is_folder = S_ISDIR(st.st_mode);
        cleanup_free char *name = format_new("%s%s%s", prefix, entry, is_folder ? "/" : "");
        if (name == NULL)
                return error_no_memory(error);
        int r = root_path_init_child(&path, folder, entry, error);
        if (r < 0)
                return r;
        if (is_folder)
                return depth < DEPTH_MAX ? walk_folder(walk, &path, name, depth + 1, error) : 0;
        if (walk->list == NULL && S_ISREG(st.st_mode) && st.st_size > 0) {
                r = open_in_folder(walk->sample, folder, entry, NULL, error);
                return r == 0 ? 1 : r == STREAMER_ENOENT || r == STREAMER_EPERM ? 0 : r;
        }
        if (walk->list == NULL)
                return 0;
        if (root_path_find(&path, &path_fd, &st, &ignored) < 0 || !S_ISREG(st.st_mode))
                return 0;
        return listing_add(walk->list, name, (uint64_t)st.st_size, "", error);
}

/* Lists weights in this folder alone; looks for others also in the folders below it. */
static int walk_folder(struct walk *walk, const struct root_path *path, const char *prefix, unsigned depth,
                       struct error *error)
{
        DIR *dir;
        int r = root_path_open_folder(path, &dir, error);
        /* Below the source's own folder, one that may not be read has no files to offer. */
        if (r < 0)
                return depth > 0 && r != STREAMER_ENOMEM ? 0 : r;
        errno = 0;
        for (const struct dirent *entry; r == 0 && (entry = readdir(dir)) != NULL; errno = 0)
                r = walk_entry(walk, path, dirfd(dir), entry->d_name, prefix, depth, error);
        if (r == 0 && errno != 0)
                r = error_set(error, STREAMER_EFAILED, "%s (%s)", strerror(errno), path->shown);
        closedir(dir);
        return r;
}

static int list_folder(struct listing *list, const struct root_path *path, struct error *error)
{
        return walk_folder(&(struct walk){.list = list}, path, "", 0, error);
}

/* The folder of the source: itself, or the one that holds it. If the source is a link to a file, the one that holds the
 * link. */
static int find_folder(struct root_path *folder, const struct sources *sources, const char *canonical, bool *is_folder,
                       struct error *error)
{
        struct stat st = {0};
        cleanup_close int path_fd = -1;
        int r = root_path_init(folder, sources->roots, canonical, error)
                        ?: root_path_find(folder, &path_fd, &st, error);
        *is_folder = S_ISDIR(st.st_mode);
        if (r == 0 && !*is_folder)
                root_path_to_parent(folder);
        return r;
}

/* ---- weights ---- */

/* Opening takes the version before the text is read: later changes are detected at the end of the load. */
static int open_index(struct source_set *set, const struct root_path *folder, const char *name, const char *promise,
                      struct error *error)
{
        struct object *index = &set->index_object;
        return open_in_folder(index, folder, name, promise, error)
                       ?: text_read_fd(&set->index_text, index->fd, ST_HEADER_MAX, index->path, error)
                       ?: source_set_index(set, error);
}

static int open_indexed(struct source_set *set, const struct root_path *folder, struct error *error)
{
        int r = source_set_reserve(set, set->index.n_files, error);
        for (size_t i = 0; r == 0 && i < set->n_objects; i++)
                r = open_in_folder(&set->objects[i], folder, st_index_file(&set->index, i), "named by the index",
                                   error);
        return r;
}

static int open_listed(struct source_set *set, const struct root_path *folder, const struct listing *list,
                       struct error *error)
{
        int r = source_set_reserve(set, list->n, error);
        for (size_t i = 0; r == 0 && i < set->n_objects; i++)
                r = open_in_folder(&set->objects[i], folder, list->v[i].name, LISTED, error);
        return r;
}

static int open_folder(struct source_set *set, const struct root_path *path, struct error *error)
{
        cleanup_with(listing_deinit) struct listing list = {.shown = path->shown};
        int r = list_folder(&list, path, error) ?: listing_choose(&list, "in this folder", error);
        if (r == 0 && list.index != NULL)
                r = open_index(set, path, list.index, LISTED, error) ?: listing_take_index(&list, &set->index, error);
        if (r == 0 && list.index == NULL)
                source_set_drop_index(set);
        r = r ?: listing_report(&list, set, error);
        if (r < 0)
                return r;
        if (list.index == NULL)
                return open_listed(set, path, &list, error);
        r = open_indexed(set, path, error);
        for (size_t i = 0; r == STREAMER_EFAILED && i < list.n_left_out; i++)
                if (strcmp(list.left_out[i].name, LISTING_WHOLE) == 0) {
                        const struct error why = *error;
                        return error_set(error, r, "%s; " LISTING_WHOLE " beside it can be loaded by its path",
                                         why.text);
                }
        return r;
}

/* Of files that the daemon may read itself: others are their user's. */
static int open_copies(const struct sources *sources, struct source_set *set, struct error *error)
{
        bool own = sources->caller == NULL || !caller_is_other(sources->caller);
        int r = 0;
        for (size_t i = 0; r == 0 && own && sources->n_also > 0 && i < set->n_objects; i++)
                r = disk_local_init(&set->objects[i], sources->disk, sources->also, sources->n_also, error);
        return r;
}

static int local_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                      struct error *error)
{
        cleanup_with(root_path_deinit) struct root_path path = {0};
        cleanup_close int path_fd = -1;
        struct stat st = {0};
        int r = root_path_init(&path, sources->roots, canonical, error) ?: root_path_find(&path, &path_fd, &st, error);
        const char *name = strrchr(canonical, '/') + 1;
        bool is_folder = S_ISDIR(st.st_mode), is_index = !is_folder && source_is_index(name);
        if (r == 0 && !is_folder && !is_index)
                r = open_found(set, &path, path_fd, &st, error);
        if (r == 0 && !is_folder)
                root_path_to_parent(&path);
        if (r == 0 && is_folder)
                r = open_folder(set, &path, error);
        else if (r == 0 && is_index)
                r = open_index(set, &path, name, NULL, error) ?: open_indexed(set, &path, error);
        r = r ?: open_copies(sources, set, error);
        for (size_t i = 0; r == 0 && i < set->n_objects; i++)
                object_open_streams(&set->objects[i], set->n_objects);
        return r == 0 && want_sha256 ? sums_find(&path, set->objects, set->n_objects, error) : r;
}

/* ---- sidecars ---- */

static int local_list_sidecars(const struct sources *sources, const char *canonical, struct listing *list,
                               struct error *error)
{
        cleanup_with(root_path_deinit) struct root_path folder = {0};
        bool is_folder;
        return find_folder(&folder, sources, canonical, &is_folder, error) ?: list_folder(list, &folder, error);
}

static int local_open_sidecar(const struct sources *sources, const char *canonical, const char *name,
                              struct object *object, struct error *error)
{
        cleanup_with(root_path_deinit) struct root_path folder = {0};
        bool is_folder;
        return find_folder(&folder, sources, canonical, &is_folder, error)
                       ?: open_in_folder(object, &folder, name, NULL, error);
}

/* ---- roots ---- */

/* Nothing is written: a root may be read-only. */
int source_inspect_root(const struct source_roots *roots, const char *path, struct root_facts *facts,
                        struct error *error)
{
        cleanup_with(root_path_deinit) struct root_path root = {0};
        cleanup_with(object_deinit) struct object object = {.ops = NULL};
        uint64_t range[2] = {0, 4096}, stat[5];
        *facts = (struct root_facts){.changed = source_root_changed(roots, path)};
        snprintf(facts->file_system, sizeof(facts->file_system), "%s", mounts_find(path).type);
        int r = root_path_init(&root, roots, path, error)
                        ?: walk_folder(&(struct walk){.sample = &object}, &root, "", 0, error);
        if (r < 0 || object.ops == NULL)
                return r < 0 ? r : 0;
        snprintf(facts->file, sizeof(facts->file), "%s", object.path + trimmed_len(path, '/') + 1);
        facts->cachestat = syscall(SYS_CACHESTAT, object.fd, range, stat, 0) == 0;
        facts->direct_align = object.direct >= 0 ? object.direct_align : 0;
        return 0;
}

const struct source_ops source_local = {
        .schemes = (const char *const[]){FILE_SCHEME, "", NULL},
        .canonical = local_canonical,
        .default_name = local_default_name,
        .lane = local_lane,
        .known_lane = local_known_lane,
        .open = local_open,
        .list_sidecars = local_list_sidecars,
        .open_sidecar = local_open_sidecar,
};
