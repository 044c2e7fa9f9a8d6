/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/fallback/pidfd.h"

#include "daemon/base/fallback/pidwatch.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

/* The file system of pidfds, where each process has an inode of its own. */
#define PIDFS 0x50494446

uint64_t boot_time_ns(void)
{
        return read_clock_ns(CLOCK_BOOTTIME);
}

/* The kernel gives no descriptor: the process's own files must be readable, to recognise it later. `why`: errno then.
 */
static int open_polled(pid_t pid, uint64_t since, int why, uint64_t *began)
{
        struct pid_stat stat;
        bool known = pid_stat_read(&stat, pid);
        if (!known || !pid_stat_began_by(&stat, since) || pid_stat_exited(&stat, stat.start)) {
                errno = known ? ESRCH : why;
                return -1;
        }
        int fd = pidwatch_open(pid, stat.start);
        if (fd >= 0)
                *began = stat.start;
        return fd;
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
                return open_polled(pid, since, errno, began);
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
