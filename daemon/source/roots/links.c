/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/source/roots/links.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define LINKS_MAX 40 /* as the kernel */

ssize_t links_read(int folder, const char *name, char *target, size_t size)
{
        struct statfs fs;
        ssize_t n = readlinkat(folder, name, target, size);
        if (n <= 0)
                return -1;
        cleanup_close int link = openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        return link >= 0 && fstatfs(link, &fs) == 0 && fs.f_type != PROC_SUPER_MAGIC ? n : -1;
}

/* What is resolved, and what is left of the text. */
struct follow {
        char done[PATH_MAX]; /* "": the root directory */
        char *left;          /* malloc'd */
        const char *at;      /* in it */
        unsigned links;
        const struct links_ops *ops;
};

static int failed(int errno_value)
{
        errno = errno_value;
        return -1;
}

static int put_before(struct follow *f, const char *target)
{
        char *joined = format_new("%s/%s", target, f->at);
        if (joined == NULL)
                return failed(ENOMEM);
        free(f->left);
        f->at = f->left = joined;
        if (target[0] == '/')
                f->done[0] = '\0';
        return ++f->links > LINKS_MAX ? failed(ELOOP) : 0;
}

static void leave(struct follow *f)
{
        const char *real = f->ops->root(f->ops->context, f->done);
        if (real != NULL)
                snprintf(f->done, sizeof(f->done), "%s", real);
        char *slash = strrchr(f->done, '/');
        if (slash != NULL)
                *slash = '\0';
}

static int step(struct follow *f, const char *name, size_t len)
{
        char target[PATH_MAX];
        size_t have = strlen(f->done);
        if (have + 1 + len >= sizeof(f->done))
                return failed(ENAMETOOLONG);
        snprintf(f->done + have, sizeof(f->done) - have, "/%.*s", (int)len, name);
        if (f->ops->root(f->ops->context, f->done) != NULL)
                return 0;
        ssize_t n = f->ops->read(f->ops->context, f->done, target, sizeof(target));
        if (n < 0)
                return 0;
        if (n == sizeof(target))
                return failed(ENAMETOOLONG);
        target[n] = '\0';
        f->done[have] = '\0';
        return put_before(f, target);
}

char *links_follow(const char *path, const struct links_ops *ops)
{
        struct follow f = {.left = strdup(path), .ops = ops};
        int r = f.left != NULL ? 0 : failed(ENOMEM);
        for (f.at = f.left; r == 0;) {
                f.at += strspn(f.at, "/");
                const char *name = f.at;
                size_t len = strcspn(name, "/");
                if (len == 0)
                        break;
                f.at += len;
                if (len == 2 && strncmp(name, "..", 2) == 0)
                        leave(&f);
                else if (len != 1 || name[0] != '.')
                        r = step(&f, name, len);
        }
        int error = errno;
        free(f.left);
        errno = error;
        return r == 0 ? strdup(f.done[0] != '\0' ? f.done : "/") : NULL;
}
