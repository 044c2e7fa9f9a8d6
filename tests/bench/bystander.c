/* SPDX-License-Identifier: Apache-2.0
 *
 * A process that has nothing to do: each millisecond it looks at the clock for a while and touches a few
 * pages that are new to it, as any program does that asks for memory. Where one look and the next lie far
 * apart the machine did not let it run: a virtual machine's host had the processor, or took its time to
 * find the page. Time in which the process was ready and others had the processor is taken off, as it is
 * for the daemon's loop (daemon/serve/stall.h). So what it has seen is no daemon's doing, and a stall of a
 * loop that is not longer says nothing of the loop.
 */
#include "tests/bench/bench.h"
#include "tests/lib/base.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LOOKS_NS 20000
#define PAUSE_NS 980000
#define PAGES 4
#define PAGE 4096

static _Atomic uint64_t *longest_ns; /* shared with the process */
static pid_t bystander;

/* In all: ready, without a processor. */
static uint64_t delayed_ns(int schedstat)
{
        char text[96] = "";
        uint64_t ns = 0;

        if (pread(schedstat, text, sizeof(text) - 1, 0) > 0)
                sscanf(text, "%*u %" SCNu64, &ns);
        return ns;
}

static uint64_t longest_look(void)
{
        uint64_t began = clock_ns(), last = began, longest = 0;

        while (last - began < LOOKS_NS) {
                uint64_t now = clock_ns();
                if (now - last > longest)
                        longest = now - last;
                last = now;
        }
        return longest;
}

static uint64_t touch_new_pages(void)
{
        uint64_t began = clock_ns();
        volatile char *pages = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (pages == MAP_FAILED)
                return 0;
        for (size_t i = 0; i < PAGES; i++)
                pages[i * PAGE] = 1;
        munmap((void *)(uintptr_t)pages, PAGES * PAGE);
        return clock_ns() - began;
}

static void note(uint64_t took, uint64_t delayed)
{
        if (took > delayed && took - delayed > *longest_ns)
                *longest_ns = took - delayed;
}

static _Noreturn void stand_by(void)
{
        int schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
                uint64_t first = delayed_ns(schedstat), look = longest_look();
                uint64_t second = delayed_ns(schedstat), touch = touch_new_pages();
                note(look, second - first);
                note(touch, delayed_ns(schedstat) - second);
                nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        }
}

void bystander_start(void)
{
        longest_ns = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (longest_ns == MAP_FAILED)
                die_errno("bystander");
        bystander = must(fork());
        if (bystander == 0)
                stand_by();
}

double bystander_stop(void)
{
        kill(bystander, SIGKILL);
        waitpid(bystander, NULL, 0);
        return (double)*longest_ns / 1e6;
}
