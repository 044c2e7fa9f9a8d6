/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads of the daemon: how they are started, and the loop's place among them.
 */
#pragma once

#include "proto/scope.h"

#include <stdbool.h>

/* How much better than the others' the loop's nice value is. */
#define THREAD_NICE_STEP 10

/* Gives the calling thread, the loop's, a better nice value, where RLIMIT_NICE allows one. One thread of a process,
 * before others that shall not have it call thread_begin(). False: it has the same as all. */
bool thread_raise_priority(void);

/* As pthread_create(), with all signals blocked except the thread's own faults, since the first thread handles the
 * signals to the daemon. Creates every thread of the daemon. */
int thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg);

/* What each of the daemon's threads does first. `name`: up to 15 bytes. */
void thread_begin(const char *name);

/* Calls run(arg) on this thread, and meanwhile on up to `more` others of this name, THREADS_BESIDE at most; returns
 * when all calls have. Threads that cannot be started are not needed. */
#define THREADS_BESIDE 15u
void threads_run(unsigned more, const char *name, void (*run)(void *arg), void *arg);
