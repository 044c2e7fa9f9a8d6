/* SPDX-License-Identifier: Apache-2.0
 *
 * A process has exited where the kernel does not know its number (ESRCH), or /proc says so. Where /proc cannot be read
 * it has not: memory is freed on this answer.
 */
#include "daemon/base/fallback/peer.h"

#include "daemon/base/sys/machine.h"
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>

/* The file system of pidfds, where each process has an inode of its own. */
#define PIDFS 0x50494446

/* ---- /proc/PID/stat ---- */

#define NS_PER_S UINT64_C(1000000000)

bool pid_stat_read(struct pid_stat *stat, pid_t pid)
{
        char line[1024];
        sysfile_line(line, sizeof(line), "/proc/%d/stat", (int)pid);
        const char *at = strrchr(line, ')'); /* the end of the name, which may hold anything */
        *stat = (struct pid_stat){.start = 0};
        return at != NULL &&
               sscanf(at,
                      ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64 " %*s %" SCNu64,
                      &stat->state, &stat->threads, &stat->start) == 3 &&
               stat->start > 0;
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

/* ---- credentials ---- */

static const struct ucred nobody = {.uid = (uid_t)-1, .gid = (gid_t)-1};

static struct ucred ask_kernel(int fd)
{
        struct ucred cred = nobody;
        socklen_t len = sizeof(cred);
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len);
        return cred;
}

bool peer_cred_get(int fd, struct ucred *cred)
{
        *cred = ask_kernel(fd);
        if (cred->pid != getpid())
                return true;
        /* gVisor reports the asking process even for a socket without a peer. */
        cleanup_close int alone = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (alone >= 0 && ask_kernel(alone).pid != getpid())
                return true;
        *cred = nobody;
        return false;
}

void peer_cred_enable(int fd)
{
        setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int));
}

ssize_t peer_cred_receive(int fd, void *space, size_t size, struct ucred *cred)
{
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(struct ucred))]; /* none for descriptors: the kernel closes them */
        } control;
        struct iovec all = {.iov_base = space, .iov_len = size};
        struct msghdr message = {
                .msg_iov = &all, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
        *cred = nobody;
        ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
        if (n < 0)
                return n;
        const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        struct ucred sent = {.pid = 0};
        if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_CREDENTIALS)
                memcpy(&sent, CMSG_DATA(c), sizeof(sent));
        /* A message sent before SO_PASSCRED was set has no process. gVisor reports the sending thread. */
        if (sent.pid > 0) {
                *cred = sent;
                cred->pid = pid_of_thread(sent.pid);
        }
        if (n > 0)
                setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &(int){0}, sizeof(int));
        return n;
}

/* ---- descriptors ---- */

int pidfd_of_client(int socket, pid_t pid, uint64_t since, uint64_t *began)
{
        int given = -1;
        socklen_t len = sizeof(given);
        *began = 0;
        if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &given, &len) == 0)
                return given;
        return pidfd_of_process(pid, since, began);
}

int pidfd_of_process(pid_t pid, uint64_t since, uint64_t *began)
{
        struct pid_stat stat;
        *began = 0;
        if (pid <= 0) {
                errno = ESRCH;
                return -1;
        }
        cleanup_close int fd = (int)syscall(SYS_pidfd_open, pid, 0);
        int why = errno;
        bool refused = fd < 0 && (why == ENOSYS || why == EPERM);
        if (fd < 0 && !refused)
                return -1;
        /* Read after the descriptor is open: from here on the number is not reused. Without one the process's own files
         * must be readable, to recognise it later. */
        bool known = pid_stat_read(&stat, pid), is_it = known && pid_stat_began_by(&stat, since);
        if (fd >= 0 && is_it)
                return take_fd(&fd);
        if (refused && is_it && !pid_stat_exited(&stat, stat.start))
                *began = stat.start;
        errno = refused && !known ? why : ESRCH;
        return -1;
}

uint64_t pidfd_inode(int fd)
{
        struct statfs fs;
        struct stat st;
        return fstatfs(fd, &fs) == 0 && fs.f_type == PIDFS && fstat(fd, &st) == 0 ? st.st_ino : 0;
}
