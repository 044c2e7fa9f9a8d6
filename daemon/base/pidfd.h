/* SPDX-License-Identifier: Apache-2.0
 *
 * A descriptor that stands for the process at the other end of a socket, and tells of its end.
 *
 * The kernel gives the right one (SO_PEERPIDFD, 6.5). An older one is asked by number, which may be
 * another process's by then: so one that began after the connection did is refused.
 */
#ifndef DAEMON_BASE_PIDFD_H
#define DAEMON_BASE_PIDFD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Since the machine booted, which is what starts of processes are counted from. */
uint64_t boot_time_ns(void);

/* `pid` as SO_PEERCRED told it, for a connection that was there at `since` (of boot_time_ns). A new
 * descriptor, or -1 with errno: ESRCH where that process is gone, or in a namespace of its own. */
int pidfd_of_client(int socket, pid_t pid, uint64_t since);

/* Do both stand for one process? False also where the kernel does not tell (before 6.9). */
bool pidfd_same(int a, int b);

/* Did it begin at this time at the latest? False also where that is not known. `root`: see sysfile.h. */
bool pid_began_by(const char *root, pid_t pid, uint64_t time);

#endif
