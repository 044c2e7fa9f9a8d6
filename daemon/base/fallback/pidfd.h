/* SPDX-License-Identifier: Apache-2.0
 *
 * A descriptor for the process at the other end of a socket, which becomes readable at its exit.
 *
 * The kernel provides it (SO_PEERPIDFD, 6.5). An older one is asked by number, which may belong to another process by
 * then: one that began after the connection is refused. Where the kernel has no pidfds the process is polled
 * (pidwatch.h).
 */
#ifndef DAEMON_BASE_FALLBACK_PIDFD_H
#define DAEMON_BASE_FALLBACK_PIDFD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Since the machine booted, which is what starts of processes are counted from. */
uint64_t boot_time_ns(void);

/* `pid` as SO_PEERCRED reports it, for a connection that existed at `since` (of boot_time_ns). A new
 * descriptor, or -1 with errno: ESRCH where that process has ended, or is in another namespace. *began: 0, or where the
 * process is polled, when it began (pidwatch.h), which distinguishes it from others of its number; such a
 * descriptor has a meaning for this daemon alone. */
int pidfd_of_client(int socket, pid_t pid, uint64_t since, uint64_t *began);

/* Do both denote one process? False also where the kernel does not say (before 6.9). */
bool pidfd_same(int a, int b);

#endif
