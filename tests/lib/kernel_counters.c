/* SPDX-License-Identifier: Apache-2.0
 *
 * Counters and settings of the kernel: see kernel_counters.h.
 */
#include "tests/lib/kernel_counters.h"
#include "tests/lib/at_exit.h"
#include "tests/lib/base.h"

#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/vfs.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

#define OVERCOMMIT "/proc/sys/vm/nr_overcommit_hugepages"
#define SET_ASIDE "/proc/sys/vm/nr_hugepages"
#define DROP_MS 20000
#define OTHERS_MOST (UINT64_C(4) << 30) /* huge pages that daemons of other test programs may take */
#define SHMEM_ENABLED "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
#define THP_ENABLED "/sys/kernel/mm/transparent_hugepage/enabled"

/* The number after `key` at the start of a line of /proc/PID/file; 0 if there is none. */
static uint64_t proc_number(pid_t pid, const char *file, const char *key)
{
        cleanup_free char *path = format_text("/proc/%d/%s", (int)pid, file);
        cleanup_free char *text = file_read(path, NULL);
        uint64_t value = 0;
        for (char *line = text; line && *line;) {
                if (strncmp(line, key, strlen(key)) == 0)
                        value = strtoull(line + strlen(key), NULL, 10);
                line = strchr(line, '\n');
                if (line)
                        line++;
        }
        return value;
}

/* ---- storage ---- */

uint64_t process_read_bytes(pid_t pid)
{
        return proc_number(pid, "io", "read_bytes:");
}

uint64_t process_written_bytes(pid_t pid)
{
        return proc_number(pid, "io", "wchar:");
}

bool process_read_no_model(pid_t pid, uint64_t before)
{
        return process_read_bytes(pid) - before < UINT64_C(1) << 20;
}

uint64_t file_cached_bytes(const char *path)
{
        cleanup_close int fd = must(open(path, O_RDONLY | O_CLOEXEC));
        uint64_t size = file_size(path), page = (uint64_t)sysconf(_SC_PAGESIZE), cached = 0;
        size_t pages = (size_t)((size + page - 1) / page);
        cleanup_free unsigned char *in_core = must_alloc(pages);
        void *map = size ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : NULL;
        if (map == MAP_FAILED || (map && mincore(map, size, in_core)))
                die_errno("mincore %s", path);
        for (size_t i = 0; i < pages; i++)
                cached += in_core[i] & 1 ? page : 0;
        if (map)
                munmap(map, size);
        return cached;
}

void file_uncache(const char *path)
{
        cleanup_close int fd = must(open(path, O_RDONLY | O_CLOEXEC));
        struct statfs fs;
        must(fsync(fd));
        must(fstatfs(fd, &fs));
        if (fs.f_type != TMPFS_MAGIC &&
            !WITHIN(DROP_MS, must(-posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED)) == 0 && file_cached_bytes(path) == 0))
                die("%s: its cached pages are in use", path);
}

void file_cache(const char *path)
{
        cleanup_close int fd = must(open(path, O_RDONLY | O_CLOEXEC));
        size_t size = (size_t)8 << 20;
        cleanup_free void *buf = must_alloc(size);
        while (must(read(fd, buf, size)) > 0)
                ;
}

void file_map_cached(struct held_file *held, const char *path)
{
        cleanup_close int fd = must(open(path, O_RDONLY | O_CLOEXEC));
        file_cache(path);
        held->size = file_size(path);
        held->map = mmap(NULL, held->size, PROT_READ, MAP_SHARED, fd, 0);
        if (held->map == MAP_FAILED || madvise(held->map, held->size, MADV_POPULATE_READ))
                die_errno("%s: cannot be held in memory", path);
}

void file_release(struct held_file *held)
{
        munmap(held->map, held->size);
}

/* ---- processes ---- */

uint64_t process_memory(pid_t pid)
{
        return (proc_number(pid, "smaps_rollup", "Pss_Anon:") + proc_number(pid, "smaps_rollup", "Pss_File:")) * 1024;
}

struct mapping {
        uint64_t size, resident, anonymous;
        bool of_file; /* on disk, not named memory */
};

static bool is_of_file(const char *path)
{
        static const char *const memory[] = {"/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage"};
        for (size_t i = 0; i < sizeof(memory) / sizeof(memory[0]); i++)
                if (strncmp(path, memory[i], strlen(memory[i])) == 0)
                        return false;
        return path[0] == '/';
}

/* The memory of the mappings of this size, all of it anonymous, and of the others. */
static void sum_mappings(pid_t pid, uint64_t size, uint64_t *sized, uint64_t *others)
{
        char *path = format_text("/proc/%d/smaps", (int)pid), line[PATH_SIZE + 128];
        FILE *f = fopen(path, "re");
        struct mapping m = {0};
        unsigned long long a, b;
        int name;
        *sized = *others = 0;
        if (!f)
                die_errno("%s", path);
        while (fgets(line, sizeof(line), f)) {
                if (sscanf(line, "%llx-%llx %*s %*s %*s %*s %n", &a, &b, &name) == 2)
                        m = (struct mapping){.size = b - a, .of_file = is_of_file(line + name)};
                else if (sscanf(line, "Rss: %llu", &a) == 1)
                        m.resident = a * 1024;
                else if (sscanf(line, "Anonymous: %llu", &a) == 1)
                        m.anonymous = a * 1024;
                else if (strncmp(line, "VmFlags:", 8) == 0 && m.size == size) /* its last line */
                        *sized += m.anonymous;
                else if (strncmp(line, "VmFlags:", 8) == 0)
                        *others += m.of_file ? m.resident : m.anonymous;
        }
        fclose(f);
        free(path);
}

uint64_t process_own_memory(pid_t pid, uint64_t without)
{
        uint64_t sized, others;
        sum_mappings(pid, without, &sized, &others);
        return others;
}

uint64_t process_mapping_memory(pid_t pid, uint64_t size)
{
        uint64_t sized, others;
        sum_mappings(pid, size, &sized, &others);
        return sized;
}

uint64_t process_peak_size(pid_t pid)
{
        return proc_number(pid, "status", "VmPeak:") * 1024;
}

uint64_t process_peak_memory(pid_t pid)
{
        return proc_number(pid, "status", "VmHWM:") * 1024;
}

void process_peak_memory_reset(pid_t pid)
{
        cleanup_free char *path = format_text("/proc/%d/clear_refs", (int)pid);
        file_write(path, "5", 1);
}

uint64_t process_cpu_ns(pid_t pid)
{
        clockid_t clock;
        struct timespec ts;
        if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &ts))
                die("no processor time of process %d", (int)pid);
        return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

unsigned process_fds_named(pid_t pid, const char *text)
{
        char *path = format_text("/proc/%d/fd", (int)pid), target[256];
        DIR *dir = opendir(path);
        unsigned n = 0;
        if (!dir)
                die_errno("%s", path);
        for (struct dirent *e; (e = readdir(dir));) {
                ssize_t len = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);
                target[len < 0 ? 0 : len] = '\0';
                n += e->d_name[0] != '.' && strstr(target, text) != NULL;
        }
        closedir(dir);
        free(path);
        return n;
}

unsigned process_fds(pid_t pid)
{
        return process_fds_named(pid, "");
}

bool process_wait_fds(pid_t pid, unsigned max)
{
        return WITHIN(PATIENCE_MS, process_fds(pid) <= max);
}

unsigned process_threads(pid_t pid)
{
        return (unsigned)proc_number(pid, "status", "Threads:");
}

unsigned process_threads_named(pid_t pid, const char *name, unsigned *asleep)
{
        cleanup_free char *folder = format_text("/proc/%d/task", (int)pid);
        DIR *dir = opendir(folder);
        unsigned n = 0;
        if (!dir)
                die_errno("%s", folder);
        *asleep = 0;
        for (struct dirent *e; (e = readdir(dir));) {
                char *path = format_text("%s/%s/stat", folder, e->d_name), comm[32], state = '?';
                FILE *f = e->d_name[0] != '.' ? fopen(path, "re") : NULL;
                if (f && fscanf(f, "%*d (%31[^)]) %c", comm, &state) == 2 &&
                    (name ? strcmp(comm, name) == 0 : atoi(e->d_name) != pid)) {
                        n++;
                        *asleep += state == 'S';
                }
                if (f)
                        fclose(f);
                free(path);
        }
        closedir(dir);
        return n;
}

void process_threads_await_asleep(pid_t pid, const char *name, unsigned n)
{
        unsigned asleep;
        AWAIT(process_threads_named(pid, name, &asleep) == n && asleep == n);
}

/* ---- huge pages ---- */

static uint64_t number_in(const char *path)
{
        cleanup_free char *text = file_read(path, NULL);
        return strtoull(text, NULL, 10);
}

static bool settings_may_change(void)
{
        return getenv("STREAMERD_TEST_SETTINGS") != NULL;
}

/* Restores the current value at exit. */
static bool set_number(const char *path, uint64_t n)
{
        if (!settings_may_change())
                return false;
        cleanup_free char *before = file_read(path, NULL), *now = format_text("%llu", (unsigned long long)n);
        cleanup_close int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd < 0)
                return false;
        at_exit_restore(path, before);
        return write(fd, now, strlen(now)) == (ssize_t)strlen(now);
}

void machine_settings_lock(void)
{
        int fd = open(OVERCOMMIT,
                      O_RDONLY | O_CLOEXEC); /* not closed, so that the process that restores it has it too */
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
                return;
        fprintf(stderr, "waits for another program that sets %s\n", OVERCOMMIT);
        while (flock(fd, LOCK_EX) < 0)
                if (errno != EINTR)
                        die_errno("flock of %s", OVERCOMMIT);
}

bool hugepages_allow(uint64_t bytes)
{
        uint64_t pages = (bytes + machine_pages.huge - 1) / machine_pages.huge + OTHERS_MOST / machine_pages.huge;

        /* Never below what other programs rely on. */
        if (number_in(OVERCOMMIT) >= pages)
                return access(OVERCOMMIT, W_OK) == 0;
        return set_number(OVERCOMMIT, pages);
}

bool hugepages_reserve(uint64_t bytes)
{
        static uint64_t others = UINT64_MAX;
        uint64_t pages = (bytes + machine_pages.huge - 1) / machine_pages.huge;
        if (others == UINT64_MAX)
                others = number_in(SET_ASIDE);
        if (number_in(SET_ASIDE) == others + pages)
                return true;
        if (!set_number(SET_ASIDE, others + pages))
                return false;
        /* The kernel accepts any number, and reserves the pages that it finds. */
        if (number_in(SET_ASIDE) == others + pages)
                return true;
        set_number(SET_ASIDE, others);
        return false;
}

/* ---- a limit of huge pages ---- */

#define GROUPS "/sys/fs/cgroup"

static char *limited_group; /* its folder, below `limited_mount` */
static char *limited_mount;

static bool write_to(const char *folder, const char *file, const char *text)
{
        cleanup_free char *path = format_text("%s/%s", folder, file);
        cleanup_close int fd = open(path, O_WRONLY | O_CLOEXEC);
        return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

/* Mounts a controller of cgroup version 1, which works unless the machine uses that of version 2. */
static bool limit_by(const char *controller, const char *file, uint64_t bytes, const char *elsewhere)
{
        cleanup_free char *text = format_text("%llu", (unsigned long long)bytes);
        limited_mount = elsewhere != NULL ? format_text("%s", elsewhere) : format_text("%s/%s", GROUPS, controller);
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
            mount("none", GROUPS, "tmpfs", 0, NULL) != 0 || mkdir(limited_mount, 0755) != 0 ||
            mount("none", limited_mount, "cgroup", 0, controller) != 0)
                return false;
        limited_group = format_text("%s/streamerd-test-%d", limited_mount, (int)getpid());
        return mkdir(limited_group, 0755) == 0 && write_to(limited_group, file, text) &&
               write_to(limited_group, "tasks", "0");
}

bool hugepages_limit(uint64_t bytes, const char *elsewhere)
{
        cleanup_free char *file =
                format_text("hugetlb.%lluMB.limit_in_bytes", (unsigned long long)(machine_pages.huge >> 20));
        return limit_by("hugetlb", file, bytes, elsewhere);
}

bool memory_limit(uint64_t bytes)
{
        return limit_by("memory", "memory.limit_in_bytes", bytes, NULL);
}

/* A thread that was joined may be in the group for a moment more. */
void limit_end(void)
{
        if (!write_to(limited_mount, "cgroup.procs", "0") || !WITHIN(PATIENCE_MS, rmdir(limited_group) == 0))
                die_errno("%s", limited_group);
}

/* The word in brackets; malloc'd, NULL if there is none. */
static char *chosen_in(const char *path)
{
        cleanup_free char *text = access(path, R_OK) == 0 ? file_read(path, NULL) : NULL;
        const char *begin = text != NULL ? strchr(text, '[') : NULL, *end = begin != NULL ? strchr(begin, ']') : NULL;
        return end != NULL ? strndup(begin + 1, (size_t)(end - begin - 1)) : NULL;
}

static bool choose_in(const char *path, const char *word)
{
        cleanup_free char *before = chosen_in(path);
        cleanup_close int fd = before != NULL && settings_may_change() ? open(path, O_WRONLY | O_CLOEXEC) : -1;
        if (fd < 0)
                return false;
        at_exit_restore(path, before);
        return write(fd, word, strlen(word)) == (ssize_t)strlen(word);
}

bool huge_pages_choose(const char *shared, const char *private)
{
        return (shared == NULL || choose_in(SHMEM_ENABLED, shared)) &&
               (private == NULL || choose_in(THP_ENABLED, private));
}

bool shmem_thp_is_denied(void)
{
        cleanup_free char *word = chosen_in(SHMEM_ENABLED);
        return word == NULL || strcmp(word, "deny") == 0;
}

bool shmem_thp_is_off(void)
{
        if (access(SHMEM_ENABLED, R_OK) < 0)
                return true;
        cleanup_free char *text = file_read(SHMEM_ENABLED, NULL);
        return strstr(text, "[never]") != NULL || strstr(text, "[deny]") != NULL;
}

void shmem_thp_allow(void)
{
        if (access(SHMEM_ENABLED, R_OK) < 0)
                return;
        cleanup_free char *text = file_read(SHMEM_ENABLED, NULL);
        const char *word = strchr(text, '[');
        cleanup_close int fd = settings_may_change() ? open(SHMEM_ENABLED, O_WRONLY | O_CLOEXEC) : -1;
        if (word != NULL && strncmp(word, "[never]", 7) == 0 && fd >= 0) {
                at_exit_restore(SHMEM_ENABLED, "never");
                must(write(fd, "advise", 6));
        }
}
