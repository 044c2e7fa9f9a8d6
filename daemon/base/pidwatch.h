/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that are looked at, where the kernel gives no descriptor that stands for one (gVisor; a filter of
 * system calls that does not know pidfd_open).
 *
 * A thread of the daemon looks a few times a second; it begins with the first process. What it knows ends with
 * the daemon, and so do the descriptors: none may go to the fd store, where each process would have ended for the
 * next run.
 */
#ifndef DAEMON_BASE_PIDWATCH_H
#define DAEMON_BASE_PIDWATCH_H

#include <stdint.h>
#include <sys/types.h>

#define PIDWATCH_HZ 4

/* A new descriptor, or -1 with errno. It is readable (hung up) when the process has ended that began at `start`,
 * as pidstat.h has it. Whoever closes it ends the watch. */
int pidwatch_open(pid_t pid, uint64_t start);

/* The thread ends, and all descriptors become readable. */
void pidwatch_stop(void);

#endif
