/* SPDX-License-Identifier: Apache-2.0
 *
 * Each fact is independent: what cannot be read is unknown, and nothing here fails.
 */
#include "daemon/base/sys/machine.h"

#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

/* ---- pages ---- */

struct machine_pages machine_pages;

/* The kernel's names of them; set with the sizes. */
static struct {
        char pool[64];                                       /* in /sys/kernel/mm/hugepages */
        char limit_v1[48], used_v1[48], limit[48], used[48]; /* in a control group */
} huge_names;

void machine_pages_set(uint64_t small, uint64_t huge)
{
        require(small >= 4 * KiB && (small & (small - 1)) == 0 && huge >= 2 * MiB && (huge & (huge - 1)) == 0);
        uint64_t mib = huge / MiB;
        machine_pages = (struct machine_pages){small, huge};
        snprintf(huge_names.pool, sizeof(huge_names.pool), "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB",
                 huge / KiB);
        snprintf(huge_names.limit_v1, sizeof(huge_names.limit_v1), "hugetlb.%" PRIu64 "MB.limit_in_bytes", mib);
        snprintf(huge_names.used_v1, sizeof(huge_names.used_v1), "hugetlb.%" PRIu64 "MB.usage_in_bytes", mib);
        snprintf(huge_names.limit, sizeof(huge_names.limit), "hugetlb.%" PRIu64 "MB.max", mib);
        snprintf(huge_names.used, sizeof(huge_names.used), "hugetlb.%" PRIu64 "MB.current", mib);
}

/* A table is one page of entries of eight bytes, for a kernel that does not name the size: without transparent huge
 * pages, or gVisor. */
__attribute__((constructor)) void machine_pages_read(void)
{
        int64_t huge;
        uint64_t small = (uint64_t)sysconf(_SC_PAGESIZE);
        if (!sysfile_number(&huge, "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") || huge < (int64_t)(2 * MiB) ||
            (huge & (huge - 1)) != 0)
                huge = (int64_t)(small * (small / 8));
        machine_pages_set(small, (uint64_t)huge);
}

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

/* What groups limit; a file's NULL droppable[0] is not looked for. */
struct controller {
        const char *name; /* in /proc/self/cgroup, of version 1 */
        struct cgroup_files versions[2];
};
static const struct controller memory = {
        "memory",
        {{"/sys/fs/cgroup/memory",
          "memory.limit_in_bytes",
          "memory.usage_in_bytes",
          {"total_inactive_file", "total_active_file"}},
         {"/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}}}};
static const struct controller huge_pages = {
        "hugetlb",
        {{"/sys/fs/cgroup/hugetlb", huge_names.limit_v1, huge_names.used_v1, {NULL, NULL}},
         {"/sys/fs/cgroup", huge_names.limit, huge_names.used, {NULL, NULL}}}};

/* The tightest limit of the groups of this process, and the least that one leaves. */
struct limits {
        uint64_t limit, left;
        bool hidden[2]; /* of each version: the group's files are not to be seen */
        bool v1;        /* a group of version 1 has this controller */
        bool others;    /* one has any: then version 2 need not be mounted in its place */
};

/* The sum of the lines "name number" or "name: number kB" with these names. False: there are none. */
static bool sum_lines_consume(FILE *f, const char *const names[2], uint64_t *sum)
{
        char line[256], name[64];
        uint64_t value;
        int found = 0, all = names[1] != NULL ? 2 : 1;
        *sum = 0;
        while (f != NULL && found < all && fgets(line, sizeof(line), f) != NULL)
                for (int i = 0; i < all; i++)
                        if (strncmp(line, names[i], strlen(names[i])) == 0 &&
                            sscanf(line, "%63s %" SCNu64, name, &value) == 2 && strcmp(name, names[i]) == 0) {
                                *sum += value;
                                found++;
                        }
        if (f != NULL)
                fclose(f);
        return found > 0;
}

/* Of which this process holds `held`, some of it not charged yet. */
static uint64_t group_used(const struct cgroup_files *files, const char *path, uint64_t held)
{
        int64_t used;
        uint64_t droppable = 0;
        if (!sysfile_number(&used, "%s%s/%s", files->mount, path, files->used) || used < 0)
                return held;
        if (files->droppable[0] != NULL)
                sum_lines_consume(sysfile_open("%s%s/memory.stat", files->mount, path), files->droppable, &droppable);
        uint64_t kept = (uint64_t)used > droppable ? (uint64_t)used - droppable : 0;
        return kept > held ? kept : held;
}

/* From the group upwards: a limit of any ancestor holds, too. */
static void add_groups(struct limits *limits, const struct cgroup_files *files, char *path, uint64_t held)
{
        for (char *slash = path; slash != NULL;) {
                int64_t limit;
                if (sysfile_number(&limit, "%s%s/%s", files->mount, path, files->limit) && limit >= 0 &&
                    limit < CGROUP1_NONE) {
                        uint64_t most = (uint64_t)limit, used = group_used(files, path, held);
                        uint64_t left = most > used ? most - used : 0;
                        limits->limit = most < limits->limit ? most : limits->limit;
                        limits->left = left < limits->left ? left : limits->left;
                }
                slash = strrchr(path, '/');
                if (slash != NULL)
                        *slash = '\0';
        }
}

/* A line of /proc/self/cgroup is "number:controllers:/path"; version 2 has neither number nor names. */
static void add_line(struct limits *limits, const struct controller *controller, char *line, uint64_t held)
{
        bool v2 = strncmp(line, "0::", 3) == 0, found = v2;
        char *rest = line, *name;
        strsep(&rest, ":");
        char *controllers = strsep(&rest, ":"), *path = rest;
        limits->others = limits->others || !v2;
        while ((name = strsep(&controllers, ",")) != NULL)
                found = found || strcmp(name, controller->name) == 0;
        if (path == NULL || !found)
                return;

        const struct cgroup_files *files = &controller->versions[v2];
        if (strcmp(path, "/") == 0)
                path[0] = '\0';
        limits->v1 = limits->v1 || !v2;
        /* What a mount namespace does not show holds all the same. Of the root of all groups, which has no limits,
         * nothing need be seen. */
        char procs[1536];
        snprintf(procs, sizeof(procs), "%s%s%s/cgroup.procs", sysfile_root, files->mount, path);
        limits->hidden[v2] = path[0] != '\0' && access(procs, F_OK) < 0;
        add_groups(limits, files, path, held);
}

static struct limits read_limits(const struct controller *controller, uint64_t held)
{
        char line[1024];
        struct limits limits = {.limit = MACHINE_UNLIMITED, .left = MACHINE_UNLIMITED};
        FILE *f = sysfile_open("/proc/self/cgroup");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
                line[strcspn(line, "\n")] = '\0';
                add_line(&limits, controller, line, held);
        }
        if (f != NULL)
                fclose(f);
        return limits;
}

uint64_t machine_cgroup_memory(void)
{
        return read_limits(&memory, 0).limit;
}

uint64_t machine_huge_pages_left(uint64_t held, bool *limited)
{
        struct limits limits = read_limits(&huge_pages, held);
        bool hidden = limits.v1 ? limits.hidden[0] : limits.hidden[1] && !limits.others;
        *limited = hidden || limits.limit != MACHINE_UNLIMITED;
        return limits.left;
}

uint64_t machine_available_memory(void)
{
        static const char *const names[2] = {"MemAvailable:", NULL};
        uint64_t group = read_limits(&memory, 0).left, kib;
        return sum_lines_consume(sysfile_open("/proc/meminfo"), names, &kib) && kib * KiB < group ? kib * KiB : group;
}

uint64_t machine_pool_surplus(uint64_t available)
{
        int64_t most, made;
        if (!sysfile_number(&most, "%s/nr_overcommit_hugepages", huge_names.pool) ||
            !sysfile_number(&made, "%s/surplus_hugepages", huge_names.pool) || most <= made)
                return 0;
        uint64_t bytes = (uint64_t)(most - made) * machine_pages.huge;
        return bytes < available ? bytes : available;
}

uint64_t machine_pool_left(void)
{
        int64_t unused, promised;
        if (!sysfile_number(&unused, "%s/free_hugepages", huge_names.pool) ||
            !sysfile_number(&promised, "%s/resv_hugepages", huge_names.pool) || unused <= promised)
                return 0;
        return (uint64_t)(unused - promised) * machine_pages.huge;
}

/* ---- the kernel ---- */

static bool has_peerpidfd(void)
{
        int pair[2];
        cleanup_close int fd = -1;
        socklen_t len = sizeof(fd);
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
                return false;
        bool has = getsockopt(pair[0], SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0;
        close(pair[0]);
        close(pair[1]);
        return has;
}

/* A kernel that has none (gVisor of some years) names each process's by another number. */
static uint64_t namespace_of(const char *kind)
{
        char name[512];
        struct stat st;
        struct statfs fs;
        snprintf(name, sizeof(name), "%s/proc/self/ns/%s", sysfile_root, kind);
        return statfs(name, &fs) == 0 && fs.f_type == NSFS_MAGIC && stat(name, &st) == 0 ? st.st_ino : 0;
}

void machine_read(struct machine *m)
{
        struct utsname uts;
        struct open_how how = {.flags = O_PATH | O_CLOEXEC};
        uint64_t range[2] = {0}, stat[5];
        *m = (struct machine){.hugepages = -1, .hugepages_overcommit = -1};
        if (uname(&uts) == 0)
                snprintf(m->kernel, sizeof(m->kernel), "%.63s", uts.release);
        m->pid_namespace = namespace_of("pid");
        m->net_namespace = namespace_of("net");
        m->memlock = limit_of(RLIMIT_MEMLOCK);
        m->files = limit_of(RLIMIT_NOFILE);
        m->memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * machine_pages.small;
        m->cgroup_memory = machine_cgroup_memory();
        m->cgroup_huge_pages = read_limits(&huge_pages, 0).limit;
        sysfile_number(&m->hugepages, "/proc/sys/vm/nr_hugepages");
        sysfile_number(&m->hugepages_overcommit, "/proc/sys/vm/nr_overcommit_hugepages");
        sysfile_chosen(m->shmem_enabled, sizeof(m->shmem_enabled), "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
        m->peerpidfd = has_peerpidfd();
        cleanup_close int root = (int)syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof(how));
        cleanup_close int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
        m->openat2 = root >= 0;
        m->pidfd = self >= 0;
        /* Asked of no file: only a kernel that has the call inspects the descriptor. */
        m->cachestat = syscall(SYS_CACHESTAT, -1, range, stat, 0) < 0 && errno == EBADF;
}
