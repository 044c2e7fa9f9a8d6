/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/pidfd.h"

#include "daemon/base/fd.h"
#include "daemon/base/machine.h"
#include "daemon/base/sysfile.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S UINT64_C(1000000000)
/* Fields of /proc/PID/stat between the name in parentheses, which may hold anything, and the start. */
#define FIELDS_BEFORE_START 19
/* The file system of pidfds, where each process has an inode of its own. */
#define PIDFS 0x50494446

uint64_t boot_time_ns(void)
{
        struct timespec t;
        clock_gettime(CLOCK_BOOTTIME, &t);
        return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

bool pid_began_by(const char *root, pid_t pid, uint64_t time)
{
        char line[1024];
        if (!sysfile_line(line, sizeof(line), root, "/proc/%d/stat", (int)pid))
                return false;
        char *at = strrchr(line, ')');
        for (int i = 0; at != NULL && i <= FIELDS_BEFORE_START; i++)
                at = strchr(at + 1, ' ');
        if (at == NULL)
                return false;
        uint64_t ticks = strtoull(at + 1, NULL, 10), per_second = (uint64_t)sysconf(_SC_CLK_TCK);
        return ticks > 0 && ticks <= time / (NS_PER_S / per_second);
}

int pidfd_of_client(int socket, pid_t pid, uint64_t since)
{
        int given = -1;
        socklen_t len = sizeof(given);
        if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &given, &len) == 0)
                return given;
        if (pid <= 0) {
                errno = ESRCH;
                return -1;
        }
        cleanup_close int fd = (int)syscall(SYS_pidfd_open, pid, 0);
        /* Looked at after the descriptor is there: the number cannot be given on from here. */
        if (fd >= 0 && !pid_began_by("", pid, since)) {
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
