/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that sleeps most of the time and is to run at once when it is woken: the loop, which would
 * else wait its turn behind the daemon's own readers and everybody else's threads, for as long as a tenth
 * of a second on a machine with more to do than processors.
 *
 *   real time       ahead of all that is not (SCHED_RR, the lowest priority). To root, or by RLIMIT_RTPRIO,
 *                   which the unit grants (LimitRTPRIO=)
 *   a nice value    below its own by PROMPT_STEP, where that is not allowed but this is: by RLIMIT_NICE
 *                   (LimitNICE=). It counts among the threads of one service alone
 *   a short slice   from the scheduler, which serves whoever asks for little first (Linux 6.12; no
 *                   privilege is needed); with a nice value and without
 *
 * A thread of real time that does not sleep any more would have the processor for itself. After PROMPT_SPIN_MS
 * without a sleep it gets the kernel's signal (RLIMIT_RTTIME), and is one like others from then on.
 *
 * It is of the calling thread alone: those that it starts begin with none of these (SCHED_FLAG_RESET_ON_FORK), and
 * by thread_begin() with the nice value that the daemon was started with, which the kernel would forget.
 */
#ifndef DAEMON_BASE_PROMPT_H
#define DAEMON_BASE_PROMPT_H

#include <pthread.h>
#include <stdbool.h>

#define PROMPT_STEP 10
#define PROMPT_SPIN_MS 1000

enum prompt { PROMPT_SLICE, PROMPT_NICE, PROMPT_REALTIME };

/* The best that is allowed. One thread of a process. */
enum prompt prompt_this_thread(bool realtime);

/* As pthread_create(), with all signals blocked but those of the thread's own faults (and SIGXCPU, above): a signal to
 * the daemon is for its first thread alone. Each thread of the daemon is made by this. */
int thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg);

/* What each of the daemon's threads does first. `name`: up to 15 bytes. */
void thread_begin(const char *name);

/* True once, after it has lost its place for not sleeping. */
bool prompt_lost(void);

#endif
