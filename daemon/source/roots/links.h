/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of a path without symbolic links, as far as they can be read. Nothing is opened, and the result is a text:
 * what it leads to is opened below a root all the same (roots.c), so a link that is exchanged meanwhile leads nowhere
 * else.
 *
 * The kernel's own links (/proc/PID/root, /proc/PID/fd/N) are not followed: they lead to an object that their text only
 * describes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* How a component is examined. `at` is an absolute path whose parents are no links. */
struct links_ops {
        /* As readlink(); -1: no link, or not known. */
        ssize_t (*read)(void *context, const char *at, char *target, size_t size);
        /* Links of this path are not followed, as it is a root: NULL, or its real path, which ".." leaves. */
        const char *(*root)(void *context, const char *at);
        void *context;
};

/* malloc'd; NULL with errno: ELOOP, ENAMETOOLONG, ENOMEM. */
char *links_follow(const char *path, const struct links_ops *ops);
/* readlinkat() of what is no link of the kernel's. */
ssize_t links_read(int folder, const char *name, char *target, size_t size);
