/* SPDX-License-Identifier: Apache-2.0
 *
 * The walk holds a descriptor of each folder from the root to the present one, and the text that is left:
 *
 *   component > folder: pushed
 *             > link:   its text is put before the rest
 *             > "..":   popped; nothing to pop: EXDEV
 *             > else:   pushed, if nothing is left
 *
 * Each component is opened with O_NOFOLLOW and examined by its descriptor, and a link is read by its own. So concurrent
 * renames change what is found, but no step leads elsewhere than into the folder that is held. ".." is not resolved by
 * the file system: a folder that was moved has another parent.
 *
 * Unlike the kernel the walk ignores fs.protected_symlinks: another user's link in a sticky folder is followed, below
 * the root like any other.
 */
#include "daemon/base/fallback/openat_beneath.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#define LINKS_MAX 40         /* as the kernel */
#define NO_LINKS_HERE 0x2000 /* ST_NOSYMFOLLOW, of a mount (5.10) */

int openat_beneath_by_kernel(int root, const char *name)
{
        struct open_how how = {
                .flags = O_PATH | O_CLOEXEC,
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
        };
        return (int)syscall(SYS_openat2, root, name, &how, sizeof(how));
}

/* ---- by walking ---- */

struct walk {
        int opened[2 +
                   OPENAT_BENEATH_DEPTH]; /* the root, which is borrowed, the folders below it, and the last of all */
        unsigned depth;
        unsigned links;
        char *text; /* with what is left at its end */
        char *left;
};

static int failed(int errno_value)
{
        errno = errno_value;
        return -1;
}

/* Puts the text of a link before the rest. ELOOP for the kernel's own links: they lead to an object that their text
 * only describes, by a path, "pipe:[7]", or "(unreachable)/x". The other links of /proc are relative ("self", "net").
 */
static int follow(struct walk *walk, int link)
{
        char text[PATH_MAX];
        struct statfs fs;
        if (++walk->links > LINKS_MAX)
                return failed(ELOOP);
        ssize_t n = readlinkat(link, "", text, PATH_MAX);
        if (n <= 0 || n == PATH_MAX)
                return n < 0 ? -1 : failed(n == 0 ? ENOENT : ENAMETOOLONG);
        text[n] = '\0';
        if (fstatfs(link, &fs) < 0)
                return -1;
        bool kernels = fs.f_type == PROC_SUPER_MAGIC && (text[0] == '/' || text[0] == '(' || strchr(text, ':') != NULL);
        if (kernels || (fs.f_flags & NO_LINKS_HERE) != 0)
                return failed(ELOOP);
        if (text[0] == '/')
                return failed(EXDEV);
        char *joined = format_new("%s%s", text, walk->left);
        if (joined == NULL)
                return failed(ENOMEM);
        free(walk->text);
        walk->text = walk->left = joined;
        return 0;
}

/* What must be a folder is asked for as one: that mounts what is mounted when it is entered (autofs). It may
 * be a link to one all the same. */
static int enter(struct walk *walk, const char *name)
{
        static const int flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
        bool more = walk->left[0] == '/';
        int folder = walk->opened[walk->depth];
        struct stat st;
        cleanup_close int fd = openat(folder, name, more ? flags | O_DIRECTORY : flags);
        if (fd < 0 && more && (errno == ENOTDIR || errno == ELOOP))
                fd = openat(folder, name, flags);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -1;
        if (S_ISLNK(st.st_mode))
                return follow(walk, fd);
        if (!S_ISDIR(st.st_mode) && more)
                return failed(ENOTDIR);
        if (S_ISDIR(st.st_mode) && walk->depth == OPENAT_BENEATH_DEPTH)
                return failed(ENAMETOOLONG);
        walk->opened[++walk->depth] = take_fd(&fd);
        return 0;
}

static int step(struct walk *walk)
{
        char component[NAME_MAX + 2]; /* what is too long stays so */
        size_t len = strcspn(walk->left, "/");
        snprintf(component, sizeof(component), "%.*s", (int)len, walk->left);
        walk->left += len;
        bool up = strcmp(component, "..") == 0;
        if (!up && strcmp(component, ".") != 0)
                return enter(walk, component);
        /* Whether one may search here is asked as for any name. */
        cleanup_close int fd = openat(walk->opened[walk->depth], ".", O_PATH | O_CLOEXEC);
        if (fd < 0 || !up)
                return fd < 0 ? -1 : 0;
        return walk->depth > 0 ? close(walk->opened[walk->depth--]) : failed(EXDEV);
}

int openat_beneath_by_walk(int root, const char *name)
{
        struct walk walk = {.opened = {root}};
        if (name[0] == '\0' || strlen(name) >= PATH_MAX)
                return failed(name[0] == '\0' ? ENOENT : ENAMETOOLONG);
        if (name[0] == '/')
                return failed(EXDEV);
        walk.text = walk.left = strdup(name);
        if (walk.text == NULL)
                return failed(ENOMEM);
        int r = 0, fd = -1;
        while (r == 0 && walk.left[0] != '\0') {
                walk.left += strspn(walk.left, "/");
                if (walk.left[0] != '\0')
                        r = step(&walk);
        }
        if (r == 0)
                fd = walk.depth > 0 ? walk.opened[walk.depth--] : fcntl(root, F_DUPFD_CLOEXEC, 3);
        int error = errno;
        while (walk.depth > 0)
                close(walk.opened[walk.depth--]);
        free(walk.text);
        errno = error;
        return fd;
}

int openat_beneath(int root, const char *name)
{
        static bool logged; /* atomic */
        int fd = openat_beneath_by_kernel(root, name);
        if (fd >= 0 || (errno != ENOSYS && errno != EPERM))
                return fd;
        if (!__atomic_exchange_n(&logged, true, __ATOMIC_RELAXED))
                log_info(
                        "roots: openat2 is refused here, by the kernel or by a filter such as RestrictSUIDSGID=: names "
                        "are resolved one component after the other");
        return openat_beneath_by_walk(root, name);
}
