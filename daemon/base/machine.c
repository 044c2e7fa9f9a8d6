/* SPDX-License-Identifier: Apache-2.0
 *
 * Each fact stands alone: what cannot be read is unknown, and nothing here fails.
 */
#include "daemon/base/machine.h"

#include "daemon/base/sysfile.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
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

/* Of one version of cgroups. */
struct cgroup_files {
        const char *mount, *limit, *used;
        const char *droppable[2]; /* in memory.stat: cached files */
};
static const struct cgroup_files cgroup1 = {"/sys/fs/cgroup/memory",
                                            "memory.limit_in_bytes",
                                            "memory.usage_in_bytes",
                                            {"total_inactive_file", "total_active_file"}};
static const struct cgroup_files cgroup2 = {
        "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

/* The sum of the lines "name number" or "name: number kB" with these names; *found: how many there were. */
static uint64_t sum_lines(const char *path, const char *const names[2], unsigned *found)
{
        char line[256], name[64];
        uint64_t value, sum = 0;
        FILE *f = fopen(path, "re");
        *found = 0;
        while (f != NULL && fgets(line, sizeof(line), f) != NULL)
                for (int i = 0; i < 2 && sscanf(line, "%63s %" SCNu64, name, &value) == 2; i++)
                        if (names[i] != NULL && strcmp(name, names[i]) == 0) {
                                sum += value;
                                ++*found;
                        }
        if (f != NULL)
                fclose(f);
        return sum;
}

static uint64_t group_used(const char *root, const struct cgroup_files *files, const char *path)
{
        char stat[1536];
        unsigned found;
        int64_t used;
        if (!sysfile_number(&used, root, "%s%s/%s", files->mount, path, files->used) || used < 0)
                return 0;
        snprintf(stat, sizeof(stat), "%s%s%s/memory.stat", root, files->mount, path);
        uint64_t droppable = sum_lines(stat, files->droppable, &found);
        return (uint64_t)used > droppable ? (uint64_t)used - droppable : 0;
}

/* From the group upwards: a limit of any ancestor holds, too. */
static uint64_t tightest(const char *root, const struct cgroup_files *files, char *path, bool left)
{
        uint64_t least = MACHINE_UNLIMITED;
        for (;;) {
                int64_t limit;
                if (sysfile_number(&limit, root, "%s%s/%s", files->mount, path, files->limit) && limit >= 0 &&
                    limit < CGROUP1_NONE) {
                        uint64_t used = left ? group_used(root, files, path) : 0;
                        uint64_t rest = (uint64_t)limit > used ? (uint64_t)limit - used : 0;
                        least = rest < least ? rest : least;
                }
                char *slash = strrchr(path, '/');
                if (slash == NULL)
                        return least;
                *slash = '\0';
        }
}

/* A line of /proc/self/cgroup is "number:controllers:/path"; version 2 has neither number nor names. */
static uint64_t group_limit(const char *root, char *line, bool left)
{
        char *controllers = strchr(line, ':'), *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL)
                return MACHINE_UNLIMITED;
        *controllers++ = *path++ = '\0';
        if (strcmp(path, "/") == 0)
                path[0] = '\0';
        if (controllers[0] == '\0')
                return tightest(root, &cgroup2, path, left);
        for (char *rest = controllers, *name; (name = strsep(&rest, ",")) != NULL;)
                if (strcmp(name, "memory") == 0)
                        return tightest(root, &cgroup1, path, left);
        return MACHINE_UNLIMITED;
}

/* The limit, or what is left of it. */
static uint64_t cgroup_memory(const char *root, bool left)
{
        char name[512], line[1024];
        uint64_t least = MACHINE_UNLIMITED;
        snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
        FILE *f = fopen(name, "re");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
                line[strcspn(line, "\n")] = '\0';
                uint64_t limit = group_limit(root, line, left);
                least = limit < least ? limit : least;
        }
        if (f != NULL)
                fclose(f);
        return least;
}

uint64_t machine_cgroup_memory(const char *root)
{
        return cgroup_memory(root, false);
}

uint64_t machine_available_memory(const char *root)
{
        static const char *const names[2] = {"MemAvailable:", NULL};
        char path[512];
        unsigned found;
        uint64_t group = cgroup_memory(root, true);
        snprintf(path, sizeof(path), "%s/proc/meminfo", root);
        uint64_t machine = sum_lines(path, names, &found) * KiB;
        return found > 0 && machine < group ? machine : group;
}

uint64_t machine_pool_left(const char *root)
{
        static const char pool[] = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        int64_t unused, promised;
        if (!sysfile_number(&unused, root, "%s/free_hugepages", pool) ||
            !sysfile_number(&promised, root, "%s/resv_hugepages", pool) || unused <= promised)
                return 0;
        return (uint64_t)(unused - promised) * (2 * MiB);
}

unsigned machine_processors(void)
{
        long n = sysconf(_SC_NPROCESSORS_ONLN);
        return n > 0 ? (unsigned)n : 1;
}

/* ---- the kernel ---- */

static bool has_openat2(void)
{
        struct open_how how = {.flags = O_PATH | O_CLOEXEC};
        cleanup_close int fd = (int)syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof(how));
        return fd >= 0;
}

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
        m->openat2 = has_openat2();
        m->pidfd = has_pidfd();
        m->peerpidfd = has_peerpidfd();
        m->cachestat = has_cachestat();
}
