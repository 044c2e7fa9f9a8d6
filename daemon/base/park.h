/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that wait, under a mutex, for something to do: a condition variable whose caller never waits
 * and never holds the mutex while it wakes. pthread_cond_signal() can do both: where a thread was woken
 * and has no processor yet, glibc lets the next one who signals wait until it has; and whom a wake costs
 * the processor keeps the mutex from everybody else meanwhile. The loop is to wait for neither.
 *
 *   park_wait() < asleep > park_call() ... park_unlock(): the mutex is free, those called are woken
 *
 * Everyone who may call lets the mutex go by park_unlock() alone.
 */
#ifndef DAEMON_BASE_PARK_H
#define DAEMON_BASE_PARK_H

#include <pthread.h>
#include <semaphore.h>

struct park {
        sem_t woken;
        unsigned asleep; /* less those called */
        unsigned called; /* to be woken with the mutex free */
};

void park_init(struct park *park);
void park_deinit(struct park *park); /* nobody is asleep */

/* With the mutex, which is let go meanwhile. Like a condition's wait it may end for no reason. */
void park_wait(struct park *park, pthread_mutex_t *mutex);
/* The same in parts, for who has more to do when the mutex goes: with it; and without. */
void park_enter(struct park *park);
void park_sleep(struct park *park);
void park_call(struct park *park);
void park_call_all(struct park *park);
void park_unlock(struct park *park, pthread_mutex_t *mutex);

#endif
