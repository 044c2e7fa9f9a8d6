/* SPDX-License-Identifier: Apache-2.0
 *
 * Each fact stands alone: what cannot be read is unknown, and nothing here fails.
 */
#include "daemon/base/machine.h"

#include "daemon/base/sysfile.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>

/* "No limit" of version 1 is the largest multiple of a page; nothing that large is a limit. */
#define CGROUP1_NONE (INT64_MAX / 2)

/* ---- limits ---- */

static uint64_t limit_of(__rlimit_resource_t resource)
{
        struct rlimit limit;
        if (getrlimit(resource, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
                return MACHINE_UNLIMITED;
        return limit.rlim_cur;
}

/* From the group upwards: a limit of any ancestor holds, too. */
static uint64_t tightest(const char *root, const char *mount, char *path, const char *file)
{
        uint64_t least = MACHINE_UNLIMITED;
        for (;;) {
                int64_t limit;
                if (sysfile_number(&limit, root, "%s%s/%s", mount, path, file) && limit >= 0 && limit < CGROUP1_NONE &&
                    (uint64_t)limit < least)
                        least = (uint64_t)limit;
                char *slash = strrchr(path, '/');
                if (slash == NULL)
                        return least;
                *slash = '\0';
        }
}

/* A line of /proc/self/cgroup is "number:controllers:/path"; version 2 has neither number nor names. */
static uint64_t group_limit(const char *root, char *line)
{
        char *controllers = strchr(line, ':'), *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL)
                return MACHINE_UNLIMITED;
        *controllers++ = *path++ = '\0';
        if (strcmp(path, "/") == 0)
                path[0] = '\0';
        if (controllers[0] == '\0')
                return tightest(root, "/sys/fs/cgroup", path, "memory.max");
        for (char *rest = controllers, *name; (name = strsep(&rest, ",")) != NULL;)
                if (strcmp(name, "memory") == 0)
                        return tightest(root, "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes");
        return MACHINE_UNLIMITED;
}

unsigned machine_processors(void)
{
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? (unsigned)n : 1;
}

uint64_t machine_cgroup_memory(const char *root)
{
        char name[512], line[1024];
        uint64_t least = MACHINE_UNLIMITED;
        snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
        FILE *f = fopen(name, "re");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
                line[strcspn(line, "\n")] = '\0';
                uint64_t limit = group_limit(root, line);
                least = limit < least ? limit : least;
        }
        if (f != NULL)
                fclose(f);
        return least;
}

/* ---- the kernel ---- */

static bool has_peerpidfd(void)
{
        int pair[2], fd = -1;
        socklen_t len = sizeof(fd);
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
                return false;
        bool has = getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0;
        if (has)
                close(fd);
        close(pair[0]);
        close(pair[1]);
        return has;
}

static bool has_pidfd(void)
{
        cleanup_close int fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
        return fd >= 0;
}

/* Asked of no file: only a kernel that has the call looks at the descriptor. */
static bool has_cachestat(void)
{
        uint64_t range[2] = {0}, stat[5];
        return syscall(SYS_CACHESTAT, -1, range, stat, 0) < 0 && errno == EBADF;
}

static uint64_t pid_namespace(const char *root)
{
        char name[512];
        struct stat st;
        snprintf(name, sizeof(name), "%s/proc/self/ns/pid", root);
        return stat(name, &st) == 0 ? st.st_ino : 0;
}

void machine_read(struct machine *m, const char *root)
{
        struct utsname uts;
        *m = (struct machine){.hugepages = -1, .hugepages_overcommit = -1};
        if (uname(&uts) == 0)
                snprintf(m->kernel, sizeof(m->kernel), "%.63s", uts.release);
        m->pid_namespace = pid_namespace(root);
        m->memlock = limit_of(RLIMIT_MEMLOCK);
        m->files = limit_of(RLIMIT_NOFILE);
        m->cgroup_memory = machine_cgroup_memory(root);
        sysfile_number(&m->hugepages, root, "/proc/sys/vm/nr_hugepages");
        sysfile_number(&m->hugepages_overcommit, root, "/proc/sys/vm/nr_overcommit_hugepages");
        sysfile_chosen(m->shmem_enabled, sizeof(m->shmem_enabled), root,
                       "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        m->pidfd = has_pidfd();
        m->peerpidfd = has_peerpidfd();
        m->cachestat = has_cachestat();
}
