/* SPDX-License-Identifier: Apache-2.0
 *
 * Looks for one regular file, a few folders deep and for a limited time, and tries it. Nothing is written: a root may
 * be read-only.
 */
#include "daemon/source/roots/roots.h"

#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"
#include "daemon/io/file/file_object.h"

#include <fcntl.h>

#define DEPTH_MAX 4
#define ENTRIES_MAX 512 /* examined, in all */

struct walk {
        char *path; /* of the folder that is searched, below the root */
        size_t size;
        unsigned entries;
        int fd; /* what was found; -1: nothing */
};

static void search_folder(struct walk *walk, DIR *folder_consumed, unsigned depth);

/* True: the search ends. Links are not followed: where they lead is not this root. */
static bool search_entry(struct walk *walk, int folder, const char *name, unsigned depth)
{
        struct stat st;
        size_t len = strlen(walk->path);
        if (name[0] == '.' || fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return false;
        bool is_folder = S_ISDIR(st.st_mode);
        if ((!is_folder && (!S_ISREG(st.st_mode) || st.st_size == 0)) || len + strlen(name) + 2 > walk->size)
                return false;
        int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | (is_folder ? O_DIRECTORY : 0));
        if (fd < 0)
                return false;
        snprintf(walk->path + len, walk->size - len, "%s%s", len > 0 ? "/" : "", name);
        DIR *below = is_folder && depth < DEPTH_MAX ? fdopendir(fd) : NULL;
        if (!is_folder)
                walk->fd = fd;
        else if (below != NULL)
                search_folder(walk, below, depth + 1);
        else
                close(fd);
        if (walk->fd < 0)
                walk->path[len] = '\0';
        return walk->fd >= 0;
}

static void search_folder(struct walk *walk, DIR *folder_consumed, unsigned depth)
{
        for (struct dirent *e; walk->entries < ENTRIES_MAX && (e = readdir(folder_consumed)) != NULL; walk->entries++)
                if (search_entry(walk, dirfd(folder_consumed), e->d_name, depth))
                        break;
        closedir(folder_consumed);
}

int root_facts_read(const struct source_roots *roots, const char *path, struct root_facts *facts, struct error *error)
{
        cleanup_with(root_path_deinit) struct root_path root = {0};
        DIR *folder;
        cleanup_with(object_deinit) struct object object = {.ops = NULL};
        struct walk walk = {.path = facts->file, .size = sizeof(facts->file), .fd = -1};
        uint64_t range[2] = {0, 4096}, stat[5];
        *facts = (struct root_facts){.direct_align = 0};
        int r = root_path_init(&root, roots, path, error) ?: root_path_open_folder(&root, &folder, error);
        if (r == 0)
                search_folder(&walk, folder, 0);
        if (r < 0 || walk.fd < 0)
                return r;
        facts->cachestat = syscall(SYS_CACHESTAT, walk.fd, range, stat, 0) == 0;
        r = object_init_consume_fd(&object, walk.fd, facts->file, error);
        if (r < 0)
                return r;
        facts->direct_align = object.direct >= 0 ? object.direct_align : 0;
        return 0;
}
