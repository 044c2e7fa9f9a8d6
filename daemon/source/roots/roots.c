/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening takes two steps. A name is resolved below the root (openat_beneath.h), which yields an O_PATH descriptor;
 * once fstat() has shown it to be a regular file it is opened through /proc/self/fd. So a FIFO is not waited on, a
 * device's driver is not called, and nothing can be exchanged between the check and the opening.
 */
#include "daemon/source/roots/roots.h"

#include "daemon/base/util.h"
#include "daemon/io/file/file_object.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

/* The kernel gives up where a folder above the file was moved meanwhile, since ".." might have led
 * outside. A user who keeps moving folders gets an error and does not occupy a thread. */
#define RESOLVE_TRIES 64

struct root {
        char *path;
        size_t len; /* 0 for "/", so that the rest of every path begins with its slash */
        int fd;
        openat_beneath_fn *find;
};

struct source_roots {
        unsigned holders; /* atomic */
        char *rule;       /* whose they are; NULL: the daemon's */
        size_t n;
        struct root roots[];
};

/* ---- roots ---- */

static int root_init(struct root *root, const char *path, struct error *error)
{
        int r = source_canonical(path, &root->path, error);
        if (r < 0)
                return r;
        root->len = strcmp(root->path, "/") == 0 ? 0 : strlen(root->path);
        root->fd = open(root->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (root->fd < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "root %s", root->path);
        root->find = openat_beneath_choose(root->fd);
        return 0;
}

int source_roots_new(struct source_roots **roots, const char *const *paths, size_t n, struct error *error)
{
        struct source_roots *made = calloc(1, sizeof(*made) + n * sizeof(made->roots[0]));
        if (made == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < n; i++)
                made->roots[i].fd = -1;
        made->n = n;
        made->holders = 1;
        for (size_t i = 0; i < n; i++) {
                int r = root_init(&made->roots[i], paths[i], error);
                if (r < 0) {
                        source_roots_free(made);
                        return r;
                }
        }
        *roots = made;
        return 0;
}

int source_roots_set_rule(struct source_roots *roots, const char *rule)
{
        roots->rule = strdup(rule);
        return roots->rule != NULL ? 0 : STREAMER_ENOMEM;
}

struct source_roots *source_roots_ref(struct source_roots *roots)
{
        if (roots != NULL)
                __atomic_add_fetch(&roots->holders, 1, __ATOMIC_RELAXED);
        return roots;
}

struct source_roots *source_roots_free(struct source_roots *roots)
{
        if (roots != NULL && __atomic_sub_fetch(&roots->holders, 1, __ATOMIC_ACQ_REL) > 0)
                return NULL;
        for (size_t i = 0; roots != NULL && i < roots->n; i++) {
                close_p(&roots->roots[i].fd);
                free(roots->roots[i].path);
        }
        if (roots != NULL)
                free(roots->rule);
        free(roots);
        return NULL;
}

bool source_roots_walked(const struct source_roots *roots)
{
        return roots->n > 0 && roots->roots[0].find == openat_beneath_by_walk;
}

const char *source_root(const struct source_roots *roots, size_t i)
{
        return i < roots->n ? roots->roots[i].path : NULL;
}

/* The longest that is a prefix of the path by whole components: /models holds /models and
 * /models/x, not /models-old. */
static const struct root *roots_find(const struct source_roots *roots, const char *path)
{
        const struct root *best = NULL;
        for (size_t i = 0; i < roots->n; i++) {
                const struct root *root = &roots->roots[i];
                bool holds = strncmp(path, root->path, root->len) == 0 &&
                             (path[root->len] == '/' || path[root->len] == '\0');
                if (holds && (best == NULL || root->len > best->len))
                        best = root;
        }
        return best;
}

/* ---- places ---- */

static int place_check(struct place *place, struct error *error)
{
        if (place->below != NULL && place->shown != NULL)
                return 0;
        place_deinit(place);
        return error_set(error, STREAMER_ENOMEM, "no memory");
}

#define outside(error, ...)                                                                                            \
        __extension__({                                                                                                \
                int outside_code = error_set((error), __VA_ARGS__);                                                    \
                (error)->outside = true;                                                                               \
                outside_code;                                                                                          \
        })

int place_init(struct place *place, const struct source_roots *roots, const char *canonical, struct error *error)
{
        const struct root *root = roots_find(roots, canonical);
        *place = (struct place){0};
        if (root == NULL && roots->rule != NULL)
                return outside(error, STREAMER_EPERM, "outside the roots of %s (%s)", roots->rule, canonical);
        if (root == NULL)
                return outside(error, STREAMER_EFAILED,
                               "outside the roots: the daemon opens files below its configured roots only (%s)",
                               canonical);
        const char *rest = canonical + root->len;
        while (*rest == '/')
                rest++;
        *place = (struct place){root->fd, root->find, strdup(*rest != '\0' ? rest : "."), strdup(canonical),
                                roots->rule};
        return place_check(place, error);
}

static char *join(const char *folder, const char *name)
{
        const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
        return format_new("%s%s%s", folder, slash, name);
}

int place_init_child(struct place *place, const struct place *folder, const char *name, struct error *error)
{
        char *below = strcmp(folder->below, ".") == 0 ? strdup(name) : join(folder->below, name);
        *place = (struct place){folder->root, folder->find, below, join(folder->shown, name), folder->rule};
        return place_check(place, error);
}

static char *parent(const char *path, const char *top)
{
        const char *slash = strrchr(path, '/');
        return slash == NULL || slash == path ? strdup(top) : strndup(path, (size_t)(slash - path));
}

int place_init_parent(struct place *place, const struct place *child, struct error *error)
{
        *place = (struct place){child->root, child->find, parent(child->below, "."), parent(child->shown, "/"),
                                child->rule};
        return place_check(place, error);
}

void place_deinit(struct place *place)
{
        free(place->below);
        free(place->shown);
        *place = (struct place){0};
}

/* ---- opening ---- */

static int open_failed(int errno_value, const struct place *place, struct error *error)
{
        const char *shown = place->shown;
        switch (errno_value) {
        case ENOENT:
        case ENOTDIR:
        case ENAMETOOLONG:
                return error_set(error, STREAMER_ENOENT, "%s (%s)", strerror(errno_value), shown);
        case EXDEV:
                if (place->rule != NULL)
                        return outside(error, STREAMER_EPERM,
                                       "outside the roots: a link leads out of a root of %s, or is absolute (%s)",
                                       place->rule, shown);
                return outside(error, STREAMER_EFAILED,
                               "outside the roots: a link leads out of its root, or is absolute, which is refused "
                               "wherever it leads (%s)",
                               shown);
        case ELOOP:
                return error_set(error, STREAMER_EFAILED, "a loop of links, or too many of them (%s)", shown);
        case EAGAIN:
                return error_set(error, STREAMER_EFAILED,
                                 "its folders keep being moved, or a process holds a lease on it (%s)", shown);
        case EACCES:
        case EPERM:
                return error_set(error, STREAMER_EPERM, "%s (%s)", strerror(errno_value), shown);
        case EMFILE:
        case ENFILE:
                return error_set(error, STREAMER_ELIMIT, "%s (%s)", strerror(errno_value), shown);
        default:
                return error_set(error, STREAMER_EFAILED, "%s (%s)", strerror(errno_value), shown);
        }
}

int place_find(const struct place *place, int *path_fd, mode_t *mode, struct error *error)
{
        struct stat st;
        cleanup_close int fd = place->find(place->root, place->below);
        for (int tries = 0; fd < 0 && (errno == EAGAIN || errno == EINTR) && tries < RESOLVE_TRIES; tries++)
                fd = place->find(place->root, place->below);
        if (fd < 0 || fstat(fd, &st) < 0)
                return open_failed(errno, place, error);
        *mode = st.st_mode;
        *path_fd = take_fd(&fd);
        return 0;
}

int place_open_file(const struct place *place, int *fd, struct error *error)
{
        cleanup_close int path_fd = -1;
        mode_t mode;
        int r = place_find(place, &path_fd, &mode, error);
        if (r < 0)
                return r;
        if (!S_ISREG(mode))
                return error_set(error, STREAMER_EFAILED, "%s, not a regular file (%s)", object_kind(mode),
                                 place->shown);
        char name[64];
        snprintf(name, sizeof(name), "/proc/self/fd/%d", path_fd);
        *fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        return *fd < 0 ? open_failed(errno, place, error) : 0;
}

int place_open_folder(const struct place *place, int path_fd, int *fd, struct error *error)
{
        *fd = openat(path_fd, ".", O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
        return *fd < 0 ? open_failed(errno, place, error) : 0;
}
