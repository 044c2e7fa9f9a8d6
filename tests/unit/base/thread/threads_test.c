/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's threads: their signals, and work that several share.
 */
#include "daemon/base/thread/threads.h"
#include "tests/lib/suite.h"

#include <pthread.h>
#include <signal.h>

static void *read_mask(void *mask)
{
        pthread_sigmask(SIG_BLOCK, NULL, mask);
        return NULL;
}

TEST(a_thread_receives_its_own_faults_and_no_other_signal)
{
        sigset_t mask, before = {0}, after = {0};
        pthread_t thread;
        pthread_sigmask(SIG_BLOCK, NULL, &before);
        ck_assert_int_eq(thread_start(&thread, NULL, read_mask, &mask), 0);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        for (int signal = 1; signal < SIGKILL; signal++) {
                bool own = signal == SIGILL || signal == SIGTRAP || signal == SIGABRT || signal == SIGBUS ||
                           signal == SIGFPE;
                ck_assert_int_eq(sigismember(&mask, signal), !own);
        }
        ck_assert(!sigismember(&mask, SIGSEGV) && !sigismember(&mask, SIGSYS) && sigismember(&mask, SIGTERM));
        pthread_sigmask(SIG_BLOCK, NULL, &after);
        ck_assert_int_eq(memcmp(&before, &after, sizeof(before)), 0);
}

static pthread_barrier_t barrier;
static unsigned n_calls; /* atomic */

static void meet(void *arg)
{
        ck_assert_ptr_eq(arg, &barrier);
        __atomic_fetch_add(&n_calls, 1, __ATOMIC_RELAXED);
        pthread_barrier_wait(arg);
}

/* Each call waits for all. */
TEST(work_is_shared_with_as_many_threads_as_are_asked_for, .to = 3)
{
        pthread_barrier_init(&barrier, NULL, (unsigned)_i + 1);
        threads_run((unsigned)_i, "shared", meet, &barrier);
        ck_assert_uint_eq(n_calls, (unsigned)_i + 1);
        pthread_barrier_destroy(&barrier);
}
