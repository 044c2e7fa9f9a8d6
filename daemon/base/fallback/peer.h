/* SPDX-License-Identifier: Apache-2.0
 *
 * The process at the other end of a socket.
 *
 * Linux reports its credentials (SO_PEERCRED). gVisor reports the asking process instead, as if each client were the
 * daemon; but it verifies credentials that are sent with a message, and clients send theirs with the first one
 * (SCM_CREDENTIALS).
 *
 * The kernel provides a descriptor for it, which becomes readable at its exit (SO_PEERPIDFD, 6.5). An older one is
 * asked by number, which may belong to another process by then: one that began after the connection is refused. Where
 * the kernel has no pidfds (gVisor; a system call filter without pidfd_open) there is no descriptor: /proc/PID/stat
 * says whether the process has exited.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

/* False if the kernel does not report it; then pid is 0, and uid and gid are -1. */
bool peer_cred_get(int fd, struct ucred *cred);

/* From now on messages carry their sender's credentials. */
void peer_cred_enable(int fd);
/* As recv(), for the first bytes, with their sender's credentials, or 0, -1 and -1; pid is also 0 if the sending thread
 * has ended. Later messages carry none. */
ssize_t peer_cred_receive(int fd, void *space, size_t size, struct ucred *cred);

/* `pid` as SO_PEERCRED reports it, for a connection that existed at `since` (CLOCK_BOOTTIME, ns). A new
 * descriptor, or -1. *began: 0; or where the kernel has none, when the process began (pid_stat.start), which
 * distinguishes it from others of its number: pid_exited() tells of its end. If neither is known, errno: ESRCH where
 * that process has ended, or is in another namespace. */
int pidfd_of_client(int socket, pid_t pid, uint64_t since, uint64_t *began);

/* The same of a process that is known by its number and existed at `since`. */
int pidfd_of_process(pid_t pid, uint64_t since, uint64_t *began);

/* A number that only descriptors of this process have; 0: the kernel does not say (before 6.9). */
uint64_t pidfd_inode(int fd);

/* ---- /proc/PID ---- */

struct pid_stat {
        char state;
        uint64_t threads;
        uint64_t start; /* ticks since the machine booted; never 0 */
};

/* False where it cannot be read, which a process may have forbidden (hidepid=). */
bool pid_stat_read(struct pid_stat *stat, pid_t pid);

/* The process that a thread is of; 0 where that cannot be read. */
pid_t pid_of_thread(pid_t thread);

/* Has the process that began then ended? Another has its number by now, or all its threads are done. */
bool pid_stat_exited(const struct pid_stat *stat, uint64_t start);
bool pid_exited(pid_t pid, uint64_t start); /* false where /proc does not say */

/* Did it begin at this time at the latest (CLOCK_BOOTTIME, ns)? */
bool pid_stat_began_by(const struct pid_stat *stat, uint64_t time);
