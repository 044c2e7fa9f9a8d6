/* SPDX-License-Identifier: Apache-2.0
 *
 * A descriptor that stands for the process at the other end of a socket, and tells of its end.
 *
 * The kernel gives the right one (SO_PEERPIDFD, 6.5). An older one is asked by number, which may be
 * another process's by then: so one that began after the connection did is refused. Where it gives none at all
 * the process is looked at, again and again (pidwatch.h).
 */
#ifndef DAEMON_BASE_PIDFD_H
#define DAEMON_BASE_PIDFD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Since the machine booted, which is what starts of processes are counted from. */
uint64_t boot_time_ns(void);

/* `pid` as SO_PEERCRED told it, for a connection that was there at `since` (of boot_time_ns). A new
 * descriptor, or -1 with errno: ESRCH where that process is gone, or in a namespace of its own. *began: 0, or where the
 * process is looked at when it began (pidstat.h), by which it is told from others of its number; such a
 * descriptor is worth nothing to anybody else than this daemon. */
int pidfd_of_client(int socket, pid_t pid, uint64_t since, uint64_t *began);

/* Do both stand for one process? False also where the kernel does not tell (before 6.9). */
bool pidfd_same(int a, int b);

#endif
