/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening takes two steps. A name is resolved below the root (openat_beneath.h), which yields an O_PATH descriptor;
 * once fstat() has shown it to be a regular file it is opened through /proc/self/fd. So a FIFO is not waited on, a
 * device's driver is not called, and nothing can be exchanged between the check and the opening.
 */
#include "daemon/source/roots/roots.h"

#include "daemon/base/fallback/openat_beneath.h"
#include "daemon/base/util.h"
#include "daemon/io/file/file_version.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* The kernel gives up where a folder above the file was moved meanwhile, since ".." might have led
 * outside. A user who keeps moving folders gets an error and does not occupy a thread. */
#define RESOLVE_TRIES 64

struct root {
        char *path;
        int fd;
};

struct source_roots {
        unsigned refs; /* atomic */
        char *rule;    /* that they belong to; NULL: the daemon's */
        size_t n;
        struct root roots[];
};

/* ---- roots ---- */

int source_roots_new(struct source_roots **out, const char *const *paths, size_t n, const char *rule,
                     struct error *error)
{
        struct source_roots *roots = calloc(1, sizeof(*roots) + n * sizeof(roots->roots[0]));
        if (roots == NULL)
                return error_no_memory(error);
        roots->refs = 1;
        roots->rule = rule != NULL ? strdup(rule) : NULL;
        int r = rule != NULL && roots->rule == NULL ? error_no_memory(error) : 0;
        while (r == 0 && roots->n < n) {
                struct root *root = &roots->roots[roots->n];
                root->fd = -1;
                r = source_canonical(paths[roots->n++], &root->path, error);
                if (r == 0 && (root->fd = open(root->path, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0)
                        r = error_errno(error, STREAMER_EFAILED, errno, "root %s", root->path);
        }
        *out = r == 0 ? roots : source_roots_free(roots);
        return r;
}

struct source_roots *source_roots_ref(struct source_roots *roots)
{
        if (roots != NULL)
                __atomic_add_fetch(&roots->refs, 1, __ATOMIC_RELAXED);
        return roots;
}

struct source_roots *source_roots_free(struct source_roots *roots)
{
        if (roots == NULL || __atomic_sub_fetch(&roots->refs, 1, __ATOMIC_ACQ_REL) > 0)
                return NULL;
        for (size_t i = 0; i < roots->n; i++) {
                close_p(&roots->roots[i].fd);
                free(roots->roots[i].path);
        }
        free(roots->rule);
        free(roots);
        return NULL;
}

const char *source_root(const struct source_roots *roots, size_t i)
{
        return i < roots->n ? roots->roots[i].path : NULL;
}

/* The longest that holds the path. */
static const struct root *roots_find(const struct source_roots *roots, const char *path)
{
        const struct root *best = NULL;
        for (size_t i = 0; i < roots->n; i++) {
                const struct root *root = &roots->roots[i];
                if (source_is_below(root->path, path) && (best == NULL || strlen(root->path) > strlen(best->path)))
                        best = root;
        }
        return best;
}

/* ---- paths ---- */

/* Relative to the root; "." for the root itself. */
static const char *below_root(const struct root_path *path)
{
        const char *below = path->shown + strlen(path->root->path);
        below += strspn(below, "/");
        return *below != '\0' ? below : ".";
}

static int outside(struct error *error, int code)
{
        error->outside = true;
        return code;
}

int root_path_init(struct root_path *path, const struct source_roots *roots, const char *canonical, struct error *error)
{
        const struct root *root = roots_find(roots, canonical);
        *path = (struct root_path){0};
        if (root == NULL && roots->rule != NULL)
                return outside(error, error_set(error, STREAMER_EPERM, "outside the roots of %s (%s)", roots->rule,
                                                canonical));
        if (root == NULL)
                return outside(error, error_set(error, STREAMER_EFAILED,
                                                "outside the roots: the daemon opens files below its configured roots "
                                                "only (%s)",
                                                canonical));
        *path = (struct root_path){root, strdup(canonical), roots->rule};
        return path->shown != NULL ? 0 : error_no_memory(error);
}

int root_path_init_child(struct root_path *path, const struct root_path *folder, const char *name, struct error *error)
{
        const char *slash = folder->shown[strlen(folder->shown) - 1] == '/' ? "" : "/";
        *path = (struct root_path){folder->root, format_new("%s%s%s", folder->shown, slash, name), folder->rule};
        return path->shown != NULL ? 0 : error_no_memory(error);
}

void root_path_to_parent(struct root_path *path)
{
        char *slash = strrchr(path->shown, '/');
        slash[slash == path->shown] = '\0';
}

void root_path_deinit(struct root_path *path)
{
        free(path->shown);
        *path = (struct root_path){0};
}

/* ---- opening ---- */

static int open_failed(int errno_value, const struct root_path *path, struct error *error)
{
        static const struct {
                int errno_value, code;
                const char *what; /* NULL: strerror() */
        } known[] = {
                {ENOENT, STREAMER_ENOENT, NULL},
                {ENOTDIR, STREAMER_ENOENT, NULL},
                {ENAMETOOLONG, STREAMER_ENOENT, NULL},
                {EACCES, STREAMER_EPERM, NULL},
                {EPERM, STREAMER_EPERM, NULL},
                {EMFILE, STREAMER_ELIMIT, NULL},
                {ENFILE, STREAMER_ELIMIT, NULL},
                {ELOOP, STREAMER_EFAILED, "a loop of links, or too many of them"},
                {EAGAIN, STREAMER_EFAILED, "its folders keep being moved, or a process holds a lease on it"},
        };
        if (errno_value == EXDEV && path->rule != NULL)
                return outside(error, error_set(error, STREAMER_EPERM,
                                                "outside the roots: a link leads out of a root of %s, or is absolute "
                                                "(%s)",
                                                path->rule, path->shown));
        if (errno_value == EXDEV)
                return outside(error, error_set(error, STREAMER_EFAILED,
                                                "outside the roots: a link leads out of its root, or is absolute, "
                                                "which is refused wherever it leads (%s)",
                                                path->shown));
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (known[i].errno_value == errno_value)
                        return error_set(error, known[i].code, "%s (%s)", known[i].what ?: strerror(errno_value),
                                         path->shown);
        return error_set(error, STREAMER_EFAILED, "%s (%s)", strerror(errno_value), path->shown);
}

int root_path_find(const struct root_path *path, int *path_fd, struct stat *st, struct error *error)
{
        cleanup_close int fd = openat_beneath(path->root->fd, below_root(path));
        for (int tries = 0; fd < 0 && (errno == EAGAIN || errno == EINTR) && tries < RESOLVE_TRIES; tries++)
                fd = openat_beneath(path->root->fd, below_root(path));
        if (fd < 0 || fstat(fd, st) < 0)
                return open_failed(errno, path, error);
        *path_fd = take_fd(&fd);
        return 0;
}

int root_path_open_file(const struct root_path *path, int *fd, struct error *error)
{
        cleanup_close int path_fd = -1;
        struct stat st;
        int r = root_path_find(path, &path_fd, &st, error);
        if (r < 0)
                return r;
        if (!S_ISREG(st.st_mode))
                return error_set(error, STREAMER_EFAILED, "%s, not a regular file (%s)", object_kind(st.st_mode),
                                 path->shown);
        char name[64];
        snprintf(name, sizeof(name), "/proc/self/fd/%d", path_fd);
        *fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        return *fd < 0 ? open_failed(errno, path, error) : 0;
}

int root_path_open_folder(const struct root_path *path, DIR **dir, struct error *error)
{
        cleanup_close int path_fd = -1;
        struct stat st;
        int r = root_path_find(path, &path_fd, &st, error);
        if (r < 0)
                return r;
        cleanup_close int fd = openat(path_fd, ".", O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
                return open_failed(errno, path, error);
        *dir = fdopendir(fd);
        if (*dir == NULL)
                return error_set(error, STREAMER_ENOMEM, "%s (%s)", strerror(errno), path->shown);
        take_fd(&fd);
        return 0;
}
