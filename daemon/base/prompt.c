/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/prompt.h"

#include <linux/sched.h>
#include <sched.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_NS 100000 /* the least that the kernel takes */
#define NICE_LEAST (-20)

/* The kernel's struct sched_attr in its first version; its own header declares things that glibc's does. */
struct attr {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
};

static bool set(int nice)
{
        struct attr attr = {.size = sizeof(attr),
                            .policy = SCHED_OTHER,
                            .flags = SCHED_FLAG_RESET_ON_FORK,
                            .nice = nice,
                            .runtime = SLICE_NS};
        return syscall(SYS_sched_setattr, 0, &attr, 0) == 0;
}

bool prompt_this_thread(void)
{
        int own = getpriority(PRIO_PROCESS, 0); /* what it was started with is somebody's choice */
        if (set(own - PROMPT_STEP > NICE_LEAST ? own - PROMPT_STEP : NICE_LEAST))
                return true;
        set(own);
        return false;
}
