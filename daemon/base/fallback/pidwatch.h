/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads /proc/PID/stat, and polls processes where the kernel provides no pidfds (gVisor; a system call filter without
 * pidfd_open).
 *
 * The loop polls, a number of processes a turn. The descriptors are useless after the daemon has ended: they must not
 * go to the fd store, where each process would look exited to the next run.
 */
#ifndef DAEMON_BASE_FALLBACK_PIDWATCH_H
#define DAEMON_BASE_FALLBACK_PIDWATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

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

/* Did it begin at this time at the latest (of boot_time_ns)? */
bool pid_stat_began_by(const struct pid_stat *stat, uint64_t time);

/* ---- polling ---- */

/* A new descriptor, or -1 with errno. It is readable (hung up) when the process has ended that began at `start`,
 * as in struct pid_stat. Closing it ends the watch. */
int pidwatch_open(pid_t pid, uint64_t start);

/* About ten times a second: examines some of the processes. */
void pidwatch_turn(void);

/* All descriptors become readable. */
void pidwatch_stop(void);

#endif
