/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/fallback/peer_cred.h"

#include "daemon/base/fallback/pidfd.h"
#include "daemon/base/util.h"

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
