/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/thread/threads.h"

#include "daemon/base/util.h"

#include <signal.h>
#include <sys/resource.h>

/* What the daemon was started with, and a thread inherits the loop's instead. */
static int own_nice; /* atomic, as the next */
static bool preferred;

/* The nice value of a thread, on Linux. */
bool thread_raise_priority(void)
{
        int nice_value = getpriority(PRIO_PROCESS, 0);
        bool done = setpriority(PRIO_PROCESS, 0, nice_value - THREAD_NICE_STEP) == 0;
        store_relaxed(&own_nice, nice_value);
        __atomic_store_n(&preferred, done, __ATOMIC_RELEASE);
        return done;
}

int thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg)
{
        static const int own_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
        sigset_t blocked, before;
        sigfillset(&blocked);
        for (size_t i = 0; i < ARRAY_SIZE(own_faults); i++)
                sigdelset(&blocked, own_faults[i]);
        pthread_sigmask(SIG_BLOCK, &blocked, &before);
        int r = pthread_create(thread, attr, main, arg);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return r;
}

void thread_begin(const char *name)
{
        pthread_setname_np(pthread_self(), name);
        if (__atomic_load_n(&preferred, __ATOMIC_ACQUIRE))
                setpriority(PRIO_PROCESS, 0, load_relaxed(&own_nice));
}

struct shared_run {
        const char *name;
        void (*run)(void *arg);
        void *arg;
};

static void *run_beside(void *arg)
{
        const struct shared_run *shared = arg;
        thread_begin(shared->name);
        shared->run(shared->arg);
        return NULL;
}

void threads_run(unsigned more, const char *name, void (*run)(void *arg), void *arg)
{
        struct shared_run shared = {name, run, arg};
        pthread_t threads[THREADS_BESIDE];
        unsigned n = 0;
        require(more <= THREADS_BESIDE);
        while (n < more && thread_start(&threads[n], NULL, run_beside, &shared) == 0)
                n++;
        run(arg);
        while (n > 0)
                pthread_join(threads[--n], NULL);
}
