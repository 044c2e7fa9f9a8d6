/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening takes two steps. A name is resolved below the root (openat_beneath.h), which yields an O_PATH descriptor;
 * once fstat() has shown it to be a regular file it is opened through /proc/self/fd. So a FIFO is not waited on, a
 * device's driver is not called, and nothing can be exchanged between the check and the opening.
 *
 * The kernel follows links that stay below the root. Where one leads elsewhere, or is absolute, the path's text without
 * links (links.h) decides which root it is below, and it is resolved below that one in the same manner.
 */
#include "daemon/source/roots/roots.h"

#include "daemon/base/fallback/openat_beneath.h"
#include "daemon/base/util.h"
#include "daemon/io/file/file_version.h"
#include "daemon/source/roots/links.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

/* The kernel gives up where a folder above the file was moved meanwhile, since ".." might have led
 * outside. A user who keeps moving folders gets an error and does not occupy a thread. */
#define RESOLVE_TRIES 64

struct root {
        char *path; /* as configured */
        char *real; /* without links, when it was opened */
        int fd;
        dev_t dev;
        ino_t ino;
};

struct source_roots {
        unsigned refs;               /* atomic */
        char *rule;                  /* that they belong to; NULL: the daemon's */
        struct source_roots *within; /* of a rule: the daemon's, a reference; else NULL */
        size_t n;
        struct root roots[];
};

/* ---- roots ---- */

/* The folder at the path: of a rule, resolved as what a client names. */
static int open_folder(const struct source_roots *within, const char *path, struct stat *st, struct error *error)
{
        cleanup_close int fd = -1;
        cleanup_with(root_path_deinit) struct root_path below = {0};
        if (within == NULL)
                fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        else if (root_path_init(&below, within, path, error) < 0 || root_path_find(&below, &fd, st, error) < 0)
                return error->code;
        if (fd < 0 || fstat(fd, st) < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "root %s", path);
        if (!S_ISDIR(st->st_mode))
                return error_errno(error, STREAMER_EFAILED, ENOTDIR, "root %s", path);
        return take_fd(&fd);
}

static int root_open(struct root *root, const struct source_roots *within, struct error *error)
{
        char link[64], real[PATH_MAX];
        struct stat st;
        root->fd = open_folder(within, root->path, &st, error);
        if (root->fd < 0)
                return error->code;
        root->dev = st.st_dev;
        root->ino = st.st_ino;
        snprintf(link, sizeof(link), "/proc/self/fd/%d", root->fd);
        ssize_t len = readlink(link, real, sizeof(real) - 1);
        real[len > 0 ? len : 0] = '\0';
        root->real = strdup(real[0] == '/' ? real : root->path);
        return root->real != NULL ? 0 : error_no_memory(error);
}

int source_roots_new_rule(struct source_roots **out, const char *const *paths, size_t n, const char *rule,
                          struct source_roots *within, struct error *error)
{
        struct source_roots *roots = calloc(1, sizeof(*roots) + n * sizeof(roots->roots[0]));
        if (roots == NULL)
                return error_no_memory(error);
        require((rule == NULL) == (within == NULL) && (within == NULL || within->rule == NULL));
        roots->refs = 1;
        roots->within = source_roots_ref(within);
        roots->rule = rule != NULL ? strdup(rule) : NULL;
        int r = rule != NULL && roots->rule == NULL ? error_no_memory(error) : 0;
        while (r == 0 && roots->n < n) {
                struct root *root = &roots->roots[roots->n];
                root->fd = -1;
                r = source_canonical(paths[roots->n++], &root->path, error) ?: root_open(root, within, error);
        }
        *out = r == 0 ? roots : source_roots_free(roots);
        return r;
}

int source_roots_new(struct source_roots **out, const char *const *paths, size_t n, struct error *error)
{
        return source_roots_new_rule(out, paths, n, NULL, NULL, error);
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
                free(roots->roots[i].real);
        }
        source_roots_free(roots->within);
        free(roots->rule);
        free(roots);
        return NULL;
}

const char *source_root(const struct source_roots *roots, size_t i)
{
        return i < roots->n ? roots->roots[i].path : NULL;
}

/* The root's path, or its real one, that holds the path; NULL: neither. */
static const char *root_prefix(const struct root *root, const char *path)
{
        return source_is_below(root->path, path) ? root->path : source_is_below(root->real, path) ? root->real : NULL;
}

/* The longest that holds the path. */
static const struct root *roots_find(const struct source_roots *roots, const char *path)
{
        const struct root *best = NULL;
        size_t longest = 0;
        for (size_t i = 0; i < roots->n; i++) {
                const char *prefix = root_prefix(&roots->roots[i], path);
                if (prefix != NULL && (best == NULL || strlen(prefix) > longest)) {
                        best = &roots->roots[i];
                        longest = strlen(prefix);
                }
        }
        return best;
}

static bool root_moved(const struct root *root)
{
        struct stat st;
        return stat(root->path, &st) == 0 && S_ISDIR(st.st_mode) && (st.st_dev != root->dev || st.st_ino != root->ino);
}

bool source_root_changed(const struct source_roots *roots, const char *path)
{
        for (size_t i = 0; i < roots->n; i++)
                if (strcmp(roots->roots[i].path, path) == 0)
                        return root_moved(&roots->roots[i]);
        return false;
}

/* The root as it is now; *own: the caller closes it. A caller who may not look uses the one of the start. */
static int root_now(const struct source_roots *roots, const struct root *root, bool *own)
{
        struct stat st;
        struct error error;
        int fd = root_moved(root) ? open_folder(roots->within, root->path, &st, &error) : -1;
        *own = fd >= 0;
        return *own ? fd : root->fd;
}

/* ---- paths ---- */

/* Relative to the root; "." for the root itself. */
static const char *below_root(const struct root *root, const char *at)
{
        const char *prefix = root_prefix(root, at);
        require(prefix != NULL);
        at += strlen(prefix);
        at += strspn(at, "/");
        return *at != '\0' ? at : ".";
}

static int outside(struct error *error, int code)
{
        error->outside = true;
        return code;
}

/* ---- links ---- */

/* Below a root by its descriptor: the caller may not be allowed to search the folders above it. */
static ssize_t read_link(void *context, const char *at, char *target, size_t size)
{
        const struct root *root = roots_find(context, at);
        return root != NULL ? links_read(root->fd, below_root(root, at), target, size)
                            : links_read(AT_FDCWD, at, target, size);
}

static const char *real_root(void *context, const char *at)
{
        const struct source_roots *roots = context;
        for (size_t i = 0; i < roots->n; i++)
                if (strcmp(roots->roots[i].path, at) == 0 || strcmp(roots->roots[i].real, at) == 0)
                        return roots->roots[i].real;
        return NULL;
}

/* The text without links, and the root that it is below; NULL: none, or errno tells. */
static const struct root *follow(const struct source_roots *roots, const char *at, char **text)
{
        const struct links_ops ops = {read_link, real_root, (void *)(uintptr_t)roots};
        *text = links_follow(at, &ops);
        const struct root *root = *text != NULL ? roots_find(roots, *text) : NULL;
        if (root == NULL && *text != NULL)
                errno = EXDEV;
        return root;
}

/* ---- opening a path ---- */

int root_path_init(struct root_path *path, const struct source_roots *roots, const char *canonical, struct error *error)
{
        cleanup_free char *text = NULL;
        const struct root *root = roots_find(roots, canonical);
        *path = (struct root_path){0};
        if (root == NULL)
                root = follow(roots, canonical, &text);
        if (root == NULL && roots->rule != NULL)
                return outside(error, error_set(error, STREAMER_EPERM, "outside the roots of %s (%s)", roots->rule,
                                                canonical));
        if (root == NULL)
                return outside(error, error_set(error, STREAMER_EFAILED,
                                                "outside the roots: the daemon opens files below its configured roots "
                                                "only (%s)",
                                                canonical));
        *path = (struct root_path){.roots = roots,
                                   .root = root,
                                   .shown = strdup(canonical),
                                   .at = strdup(text != NULL ? text : canonical),
                                   .fd = -1};
        if (path->shown == NULL || path->at == NULL)
                return error_no_memory(error);
        path->fd = root_now(roots, root, &path->owns_fd);
        return 0;
}

static char *join(const char *folder, const char *name)
{
        return format_new("%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/", name);
}

int root_path_init_child(struct root_path *path, const struct root_path *folder, const char *name, struct error *error)
{
        *path = *folder;
        path->owns_fd = false;
        path->shown = join(folder->shown, name);
        path->at = join(folder->at, name);
        return path->shown != NULL && path->at != NULL ? 0 : error_no_memory(error);
}

static void cut_last(char *text)
{
        char *slash = strrchr(text, '/');
        slash[slash == text] = '\0';
}

void root_path_to_parent(struct root_path *path)
{
        cut_last(path->shown);
        cut_last(path->at);
}

void root_path_deinit(struct root_path *path)
{
        if (path->owns_fd)
                close_p(&path->fd);
        free(path->shown);
        free(path->at);
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
        char why[ERROR_ERRNO_SIZE];
        error_errno_text(why, errno_value);
        if (errno_value == EXDEV && path->roots->rule != NULL)
                return outside(error, error_set(error, STREAMER_EPERM,
                                                "outside the roots: a link leads out of the roots of %s (%s)",
                                                path->roots->rule, path->shown));
        if (errno_value == EXDEV)
                return outside(error, error_set(error, STREAMER_EFAILED,
                                                "outside the roots: a link leads out of the configured roots (%s)",
                                                path->shown));
        for (size_t i = 0; i < ARRAY_SIZE(known); i++)
                if (known[i].errno_value == errno_value)
                        return error_set(error, known[i].code, "%s (%s)", known[i].what ?: why, path->shown);
        return error_set(error, STREAMER_EFAILED, "%s (%s)", why, path->shown);
}

/* The kernel says EAGAIN where a folder was moved meanwhile. */
static int resolve_below(int root, const char *below)
{
        int fd = openat_beneath(root, below);
        for (int tries = 0; fd < 0 && (errno == EAGAIN || errno == EINTR) && tries < RESOLVE_TRIES; tries++)
                fd = openat_beneath(root, below);
        return fd;
}

static int resolve(const struct root_path *path)
{
        cleanup_free char *text = NULL;
        bool own;
        int fd = resolve_below(path->fd, below_root(path->root, path->at));
        if (fd >= 0 || errno != EXDEV)
                return fd;
        const struct root *root = follow(path->roots, path->at, &text);
        if (root == NULL)
                return -1;
        int root_fd = root_now(path->roots, root, &own);
        fd = resolve_below(root_fd, below_root(root, text));
        int error = errno;
        if (own)
                close(root_fd);
        errno = error;
        return fd;
}

int root_path_find(const struct root_path *path, int *path_fd, struct stat *st, struct error *error)
{
        cleanup_close int fd = resolve(path);
        if (fd < 0 || fstat(fd, st) < 0)
                return open_failed(errno, path, error);
        *path_fd = take_fd(&fd);
        return 0;
}

int root_path_open_found(const struct root_path *path, int path_fd, const struct stat *st, int *fd, struct error *error)
{
        if (!S_ISREG(st->st_mode))
                return error_set(error, STREAMER_EFAILED, "%s, not a regular file (%s)", object_kind(st->st_mode),
                                 path->shown);
        char name[64];
        snprintf(name, sizeof(name), "/proc/self/fd/%d", path_fd);
        *fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        return *fd < 0 ? open_failed(errno, path, error) : 0;
}

int root_path_open_file(const struct root_path *path, int *fd, struct error *error)
{
        cleanup_close int path_fd = -1;
        struct stat st;
        return root_path_find(path, &path_fd, &st, error) ?: root_path_open_found(path, path_fd, &st, fd, error);
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
