/* SPDX-License-Identifier: Apache-2.0
 *
 * A process has exited where the kernel does not know its number (ESRCH), or /proc says so. Where /proc cannot be read
 * it has not: memory is freed on this answer.
 */
#include "daemon/base/fallback/pidfd.h"

#include "daemon/base/sys/machine.h"
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* The file system of pidfds, where each process has an inode of its own. */
#define PIDFS 0x50494446

/* ---- /proc/PID/stat ---- */

#define NS_PER_S UINT64_C(1000000000)

/* Fields of /proc/PID/stat after the name, which is in parentheses and may hold anything. */
enum field { FIELD_STATE = 1, FIELD_THREADS = 18, FIELD_START = 20 };

static const char *field(const char *line, enum field number)
{
        const char *at = strrchr(line, ')');
        for (int i = 0; at != NULL && i < (int)number; i++)
                at = strchr(at + 1, ' ');
        return at != NULL ? at + 1 : NULL;
}

bool pid_stat_read(struct pid_stat *stat, pid_t pid)
{
        char line[1024];
        if (!sysfile_line(line, sizeof(line), "/proc/%d/stat", (int)pid))
                return false;
        const char *start = field(line, FIELD_START);
        if (start == NULL)
                return false;
        *stat = (struct pid_stat){*field(line, FIELD_STATE), strtoull(field(line, FIELD_THREADS), NULL, 10),
                                  strtoull(start, NULL, 10)};
        return stat->start > 0;
}

pid_t pid_of_thread(pid_t thread)
{
        char line[256];
        int pid = 0;
        FILE *f = sysfile_open("/proc/%d/status", (int)thread);
        while (f != NULL && fgets(line, sizeof(line), f) != NULL && sscanf(line, "Tgid: %d", &pid) != 1)
                ;
        if (f != NULL)
                fclose(f);
        return pid > 0 ? pid : 0;
}

bool pid_stat_exited(const struct pid_stat *stat, uint64_t start)
{
        switch (stat->state) {
        case 'X':
        case 'x':
                return true;
        case 'Z': /* its first thread is done; others may have all of its memory */
                return stat->start != start || stat->threads <= 1;
        default:
                return stat->start != start;
        }
}

bool pid_stat_began_by(const struct pid_stat *stat, uint64_t time)
{
        return stat->start <= time / (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
}

bool pid_exited(pid_t pid, uint64_t start)
{
        struct pid_stat stat;
        if (kill(pid, 0) < 0 && errno == ESRCH)
                return true;
        return pid_stat_read(&stat, pid) && pid_stat_exited(&stat, start);
}

/* ---- descriptors of clients ---- */

/* The kernel gives no descriptor: the process's own files must be readable, to recognise it later. `why`: errno then.
 */
static int find_began(pid_t pid, uint64_t since, int why, uint64_t *began)
{
        struct pid_stat stat;
        bool known = pid_stat_read(&stat, pid);
        if (known && pid_stat_began_by(&stat, since) && !pid_stat_exited(&stat, stat.start))
                *began = stat.start;
        errno = known ? ESRCH : why;
        return -1;
}

int pidfd_of_client(int socket, pid_t pid, uint64_t since, uint64_t *began)
{
        struct pid_stat stat;
        int given = -1;
        socklen_t len = sizeof(given);
        *began = 0;
        if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &given, &len) == 0)
                return given;
        if (pid <= 0) {
                errno = ESRCH;
                return -1;
        }
        cleanup_close int fd = (int)syscall(SYS_pidfd_open, pid, 0);
        if (fd < 0 && (errno == ENOSYS || errno == EPERM))
                return find_began(pid, since, errno, began);
        /* Read after the descriptor is open: from here on the number is not reused. */
        if (fd >= 0 && !(pid_stat_read(&stat, pid) && pid_stat_began_by(&stat, since))) {
                errno = ESRCH;
                return -1;
        }
        return take_fd(&fd);
}

bool pidfd_same(int a, int b)
{
        struct statfs fs;
        struct stat x, y;
        if (fstatfs(a, &fs) < 0 || fs.f_type != PIDFS || fstat(a, &x) < 0 || fstat(b, &y) < 0)
                return false;
        return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}
