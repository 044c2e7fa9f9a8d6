/* SPDX-License-Identifier: Apache-2.0
 *
 * What is released at the end of a block, for the daemon, the client library and the tests.
 */
#pragma once

#include <pthread.h>
#include <stdlib.h>

static inline void free_p(void *p)
{
        free(*(void **)p);
}
#define cleanup_free __attribute__((cleanup(free_p)))

/* Locks a mutex until the end of the block. */
#define lock_scope(mutex)                                                                                              \
        __attribute__((cleanup(mutex_unlock_p), unused)) pthread_mutex_t *const locked_ = mutex_locked(mutex)
static inline pthread_mutex_t *mutex_locked(pthread_mutex_t *mutex)
{
        pthread_mutex_lock(mutex);
        return mutex;
}
static inline void mutex_unlock_p(pthread_mutex_t *const *mutex)
{
        pthread_mutex_unlock(*mutex);
}
