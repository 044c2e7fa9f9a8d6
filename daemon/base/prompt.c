/* SPDX-License-Identifier: Apache-2.0
 *
 * The handler of the signal runs on whatever thread the kernel picks, so that it names the one it is about.
 * A call that sets one's scheduling is all it makes.
 */
#include "daemon/base/prompt.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000 /* the least that the kernel takes */
#define NICE_LEAST (-20)
#define PRIORITY 1 /* the lowest that is ahead of everything ordinary */

/* The kernel's struct sched_attr in its first version; its own header declares things that glibc's does. */
struct attr {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
};

static struct {
        pid_t thread;
        _Atomic int own_nice; /* what it was started with */
        int nice;             /* the better one, which may not be allowed */
        _Atomic bool lost;
} prompt;

static bool set(struct attr attr)
{
        attr.size = sizeof(attr);
        attr.flags = SCHED_FLAG_RESET_ON_FORK;
        return syscall(SYS_sched_setattr, prompt.thread, &attr, 0) == 0;
}

/* ---- like others, with a short slice ---- */

static bool set_nice(int nice)
{
        return set((struct attr){.policy = SCHED_OTHER, .nice = nice, .runtime = SLICE_NS});
}

static enum prompt set_ordinary(void)
{
        if (set_nice(prompt.nice))
                return PROMPT_NICE;
        set_nice(prompt.own_nice);
        return PROMPT_SLICE;
}

/* ---- real time ---- */

static void on_spinning(int signum)
{
        int saved = errno;
        (void)signum;
        set_ordinary();
        prompt.lost = true;
        errno = saved;
}

/* Well before the hard limit, where the kernel kills. Where it cannot be bounded it is not asked for. */
static bool bound_spinning(void)
{
        rlim_t limit = PROMPT_SPIN_MS * 1000;
        struct rlimit time;
        if (getrlimit(RLIMIT_RTTIME, &time) < 0 || signal(SIGXCPU, on_spinning) == SIG_ERR)
                return false;
        if (time.rlim_max / 2 < limit)
                limit = time.rlim_max / 2;
        if (time.rlim_cur <= limit)
                return true;
        time.rlim_cur = limit;
        return setrlimit(RLIMIT_RTTIME, &time) == 0;
}

enum prompt prompt_this_thread(bool realtime)
{
        prompt.thread = (pid_t)syscall(SYS_gettid);
        int own = getpriority(PRIO_PROCESS, 0); /* somebody's choice */
        prompt.own_nice = own;
        prompt.nice = own - PROMPT_STEP > NICE_LEAST ? own - PROMPT_STEP : NICE_LEAST;
        enum prompt ordinary = set_ordinary();
        if (realtime && bound_spinning() && set((struct attr){.policy = SCHED_RR, .priority = PRIORITY}))
                return PROMPT_REALTIME;
        return ordinary;
}

/* Threads that are started before the loop has its place inherit theirs. A better one than 0 takes a right:
 * without it 0 has to do. */
int thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg)
{
        /* Its own faults, and the one that on_spinning() is to get wherever it can. */
        static const int left[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGXCPU};
        sigset_t blocked, before;
        sigfillset(&blocked);
        for (size_t i = 0; i < ARRAY_SIZE(left); i++)
                sigdelset(&blocked, left[i]);
        pthread_sigmask(SIG_BLOCK, &blocked, &before);
        int r = pthread_create(thread, attr, main, arg);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return r;
}

void thread_begin(const char *name)
{
        int own = prompt.own_nice;
        pthread_setname_np(pthread_self(), name);
        if (own != 0)
                setpriority(PRIO_PROCESS, 0, own);
}

bool prompt_lost(void)
{
        return atomic_exchange(&prompt.lost, false);
}
