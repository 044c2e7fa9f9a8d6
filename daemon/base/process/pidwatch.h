/* SPDX-License-Identifier: Apache-2.0
 *
 * Polls processes where the kernel provides no pidfds (gVisor; a system call filter without pidfd_open).
 *
 * A thread polls a few times a second; it begins with the first process. Its descriptors are useless after the daemon
 * has ended: they must not go to the fd store, where each process would look exited to the next run.
 */
#ifndef DAEMON_BASE_PROCESS_PIDWATCH_H
#define DAEMON_BASE_PROCESS_PIDWATCH_H

#include <stdint.h>
#include <sys/types.h>

#define PIDWATCH_HZ 4

/* A new descriptor, or -1 with errno. It is readable (hung up) when the process has ended that began at `start`,
 * as pidstat.h has it. Closing it ends the watch. */
int pidwatch_open(pid_t pid, uint64_t start);

/* The thread ends, and all descriptors become readable. */
void pidwatch_stop(void);

#endif
