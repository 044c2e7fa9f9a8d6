/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel's files with any content, because users choose names in them: cgroups, processes, mounts. Zero bytes
 * separate the files of a tree.
 */
#include "daemon/base/fallback/peer.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/sys/numa.h"
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#define V1 "/sys/fs/cgroup/memory/g"
#define HUGE "/sys/fs/cgroup/hugetlb/g"

static const char *const folders[] = {"/proc",
                                      "/proc/self",
                                      "/proc/1",
                                      "/sys",
                                      "/sys/fs",
                                      "/sys/fs/cgroup",
                                      "/sys/fs/cgroup/g",
                                      "/sys/fs/cgroup/memory",
                                      V1,
                                      "/sys/fs/cgroup/hugetlb",
                                      HUGE,
                                      "/sys/devices",
                                      "/sys/devices/system",
                                      "/sys/devices/system/node"};
static struct {
        const char *path;
        int fd;
} files[] = {{"/proc/self/cgroup", -1},
             {"/proc/meminfo", -1},
             {"/proc/1/stat", -1},
             {"/sys/fs/cgroup/g/memory.max", -1},
             {"/sys/fs/cgroup/g/memory.current", -1},
             {"/sys/fs/cgroup/g/memory.stat", -1},
             {V1 "/memory.limit_in_bytes", -1},
             {V1 "/memory.usage_in_bytes", -1},
             {"/sys/devices/system/node/online", -1},
             {"/sys/fs/cgroup/g/hugetlb.2MB.max", -1},
             {"/sys/fs/cgroup/g/hugetlb.2MB.current", -1},
             {HUGE "/hugetlb.2MB.limit_in_bytes", -1},
             {HUGE "/hugetlb.2MB.usage_in_bytes", -1}};
#define FILES (sizeof(files) / sizeof(files[0]))
#define FOLDERS (sizeof(folders) / sizeof(folders[0]))

static char tree[PATH_MAX / 2];

static const char *in_tree(const char *path)
{
        static char whole[PATH_MAX];
        snprintf(whole, sizeof(whole), "%s%s", tree, path);
        return whole;
}

static void tree_remove(void)
{
        for (size_t i = 0; i < FILES; i++)
                unlink(in_tree(files[i].path));
        for (size_t i = FOLDERS; i-- > 0;)
                rmdir(in_tree(folders[i]));
        rmdir(tree);
}

/* In memory if possible: a file system on a disk takes ten times as long for each run. */
static bool tree_begin(const char *folder)
{
        snprintf(tree, sizeof(tree), "%s/fuzz-kernel-XXXXXX", folder);
        return mkdtemp(tree) != NULL;
}

static void tree_make(void)
{
        const char *tmp = getenv("TMPDIR");
        holds(tree_begin("/dev/shm") || tree_begin(tmp != NULL ? tmp : "/tmp"));
        atexit(tree_remove);
        sysfile_root = tree;
        machine_pages_set(machine_pages.small, 2 * MiB);
        for (size_t i = 0; i < FOLDERS; i++)
                holds(mkdir(in_tree(folders[i]), 0755) == 0);
        for (size_t i = 0; i < FILES; i++)
                holds((files[i].fd = open(in_tree(files[i].path), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) >= 0);
}

static void tree_write(const uint8_t *data, size_t size)
{
        const uint8_t *end = data + size;
        for (size_t i = 0; i < FILES; i++) {
                const uint8_t *stop = data < end ? memchr(data, '\0', (size_t)(end - data)) : NULL;
                size_t n = (size_t)((stop != NULL ? stop : end) - data);
                holds(pwrite(files[i].fd, data, n, 0) == (ssize_t)n && ftruncate(files[i].fd, (off_t)n) == 0);
                data += n + (stop != NULL);
        }
}

static void fuzz_process(void)
{
        struct pid_stat stat;
        if (!pid_stat_read(&stat, 1))
                return;
        holds(stat.start > 0 && !pid_stat_began_by(&stat, 0)); /* nothing began before the machine */
        if (pid_stat_began_by(&stat, 1000000000))
                holds(pid_stat_began_by(&stat, 2000000000));
        holds(pid_stat_exited(&stat, stat.start + 1));
}

static void fuzz_values(void)
{
        uint64_t limit = machine_cgroup_memory();
        holds(machine_available_memory() <= limit);
        bool limited;
        uint64_t left = machine_huge_pages_left(0, &limited);
        holds(left == MACHINE_UNLIMITED || limited);
        holds(machine_huge_pages_left(1, &limited) <= left);
        holds(numa_online() != 0);
        fuzz_process();
}

static void fuzz_text(const uint8_t *data, size_t size)
{
        char word[16], line[64], *text = strndup((const char *)data, size); /* of its own size, for sanitizers */
        cpu_set_t set;
        int64_t number;
        holds(text != NULL);
        if (!numa_parse_list(text, &set, NUMA_NODES))
                holds(text[0] != '\0');
        if (sysfile_chosen(word, sizeof(word), files[0].path))
                holds(strlen(word) < sizeof(word) && strchr(word, ']') == NULL);
        if (sysfile_number(&number, "%s", files[0].path))
                holds(sysfile_line(line, sizeof(line), "%s", files[0].path));
        free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        if (tree[0] == '\0')
                tree_make();
        tree_write(data, size);
        fuzz_values();
        fuzz_text(data, size);
        return 0;
}
