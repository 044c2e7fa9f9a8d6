/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads /proc/PID/stat.
 */
#ifndef DAEMON_BASE_PROCESS_PIDSTAT_H
#define DAEMON_BASE_PROCESS_PIDSTAT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct pid_stat {
        char state;
        uint64_t threads;
        uint64_t start; /* ticks since the machine booted; never 0 */
};

/* False where it cannot be read, which a process that is there may have forbidden (hidepid=). */
bool pid_stat_read(struct pid_stat *stat, pid_t pid);

/* The process that a thread is of; 0 where that cannot be read. */
pid_t pid_of_thread(pid_t thread);

/* Has the process that began then ended? Another has its number by now, or all its threads are done. */
bool pid_stat_exited(const struct pid_stat *stat, uint64_t start);

/* Did it begin at this time at the latest (of boot_time_ns)? */
bool pid_stat_began_by(const struct pid_stat *stat, uint64_t time);

#endif
