/* SPDX-License-Identifier: Apache-2.0
 *
 * Huge pages on request (MADV_COLLAPSE, Linux 6.1) for one mapping of a memfd.
 *
 * The kernel replaces the pages of a range of the size of a huge page of shared memory by a huge page if the range has
 * a page, and none of them is pinned. So each range is collapsed once, before the first byte is read into it:
 *
 *   RANGE_NEW > RANGE_BUSY (one thread: populates the first page, collapses) > RANGE_HUGE
 *                                                                            > RANGE_SMALL  (no huge page was free)
 *
 * A thread that needs a busy range waits: a direct read into it would pin pages that are being collapsed.
 *
 * Guard. Where memory is fragmented the kernel compacts it on behalf of the caller. If collapsing has cost a segment
 * more processor time than small pages would, and the kernel has compacted memory meanwhile (compact_stall in
 * /proc/vmstat), the segment's remaining ranges get small pages.
 */
#include "daemon/device/host/host_private.h"

#include "daemon/base/metric/metric.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* A segment's first collapses, which may find lists of free pages empty, are not held against it. */
#define GRACE_RANGES 16u
/* Bytes that are filled with small pages, to know what those of a range cost. */
#define PROBED (2 * MiB)

struct collapse {
        const struct collapse_kernel *kernel;
        unsigned char *base;
        int fd;
        pthread_mutex_t mutex;    /* for what follows */
        pthread_cond_t done;      /* a range is no longer busy */
        uint64_t spent_ns, tried; /* processor time of ranges that were tried */
        uint64_t compactions;     /* of the kernel, before they were */
        bool stopped;             /* atomic, as the next */
        uint64_t small;
        unsigned char ranges[]; /* enum collapse_range */
};

/* ---- the kernel ---- */

static int advise_collapse(void *base, uint64_t len)
{
        return madvise(base, len, MADV_COLLAPSE);
}

static uint64_t thread_clock(void)
{
        return read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

/* Compactions that a process waited for; 0: unknown. */
static uint64_t count_compactions(void)
{
        uint64_t n = 0;
        char line[128];
        FILE *f = fopen("/proc/vmstat", "re");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL)
                if (sscanf(line, "compact_stall %" SCNu64, &n) == 1)
                        break;
        if (f != NULL)
                fclose(f);
        return n;
}

const struct collapse_calls collapse_calls = {
        .collapse = advise_collapse, .clock = thread_clock, .compactions = count_compactions};

void collapse_probe(struct collapse_kernel *kernel, const struct collapse_calls *calls)
{
        *kernel = (struct collapse_kernel){.calls = *calls};
        void *base;
        cleanup_close int fd =
                host_memfd_seal_consume_fd(host_memfd_new(PAGES_4K), 2 * machine_pages.huge, false, &base);
        if (fd < 0)
                return;
        uint64_t since = calls->clock(), huge = machine_pages.huge;
        if (host_memory_populate(base, fd, huge, PROBED) == 0 &&
            host_memory_populate(base, fd, 0, machine_pages.small) == 0) {
                memset((unsigned char *)base + huge, 1, PROBED);
                kernel->small_ns = (calls->clock() - since) * (huge / PROBED);
                kernel->supported = calls->collapse(base, machine_pages.huge) == 0 || errno == ENOMEM ||
                                    errno == EAGAIN || errno == EBUSY;
        }
        munmap(base, 2 * machine_pages.huge);
}

/* ---- life ---- */

struct collapse *collapse_new(const struct collapse_kernel *kernel, unsigned char *base, int fd, uint64_t size,
                              uint64_t ready)
{
        uint64_t n = size / machine_pages.huge;
        require(size % machine_pages.huge == 0 && (uintptr_t)base % machine_pages.huge == 0);
        struct collapse *collapse = calloc(1, sizeof(*collapse) + n);
        if (collapse == NULL)
                return NULL;
        collapse->kernel = kernel;
        collapse->base = base;
        collapse->fd = fd;
        collapse->compactions = kernel->calls.compactions();
        pthread_mutex_init(&collapse->mutex, NULL);
        pthread_cond_init(&collapse->done, NULL);
        memset(collapse->ranges, RANGE_HUGE, ready < size ? ready / machine_pages.huge : n);
        return collapse;
}

struct collapse *collapse_free(struct collapse *collapse)
{
        if (collapse == NULL)
                return NULL;
        pthread_cond_destroy(&collapse->done);
        pthread_mutex_destroy(&collapse->mutex);
        free(collapse);
        return NULL;
}

/* ---- ranges ---- */

enum collapse_range collapse_range(const struct collapse_kernel *kernel, unsigned char *base, int fd, uint64_t at)
{
        if (host_memory_populate(base, fd, at, machine_pages.small) < 0)
                return RANGE_NEW;
        return kernel->calls.collapse(base + at, machine_pages.huge) == 0 ? RANGE_HUGE : RANGE_SMALL;
}

/* Without compaction, pages of any size would have cost this time, as where a hypervisor has reclaimed the memory. */
static void judge_cost(struct collapse *collapse)
{
        const struct collapse_kernel *kernel = collapse->kernel;
        if (collapse->stopped || collapse->spent_ns <= (collapse->tried + GRACE_RANGES) * kernel->small_ns)
                return;
        uint64_t before = collapse->compactions;
        collapse->compactions = kernel->calls.compactions();
        collapse->spent_ns = collapse->tried = 0;
        if (collapse->compactions == before)
                return;
        store_relaxed(&collapse->stopped, true);
        metric_add(METRIC_COLLAPSE_STOPPED, 1);
}

/* With the mutex, which is released while the kernel works. RANGE_NEW: no memory, with errno. */
static enum collapse_range collapse_new_range(struct collapse *collapse, uint64_t range)
{
        const struct collapse_kernel *kernel = collapse->kernel;
        if (collapse->stopped)
                return RANGE_SMALL;
        collapse->ranges[range] = RANGE_BUSY;
        pthread_mutex_unlock(&collapse->mutex);
        uint64_t since = kernel->calls.clock();
        enum collapse_range result = collapse_range(kernel, collapse->base, collapse->fd, range * machine_pages.huge);
        int e = errno;
        uint64_t spent = kernel->calls.clock() - since;
        pthread_mutex_lock(&collapse->mutex);
        collapse->spent_ns += spent;
        collapse->tried++;
        judge_cost(collapse);
        pthread_cond_broadcast(&collapse->done);
        errno = e;
        return result;
}

static int prepare_range(struct collapse *collapse, uint64_t range, uint64_t from, uint64_t to, uint64_t *made)
{
        pthread_mutex_lock(&collapse->mutex);
        while (collapse->ranges[range] == RANGE_BUSY)
                pthread_cond_wait(&collapse->done, &collapse->mutex);
        if (collapse->ranges[range] == RANGE_NEW) {
                collapse->ranges[range] = (unsigned char)collapse_new_range(collapse, range);
                if (collapse->ranges[range] == RANGE_SMALL)
                        add_relaxed(&collapse->small, machine_pages.huge);
                else if (collapse->ranges[range] == RANGE_HUGE)
                        *made += machine_pages.huge;
        }
        enum collapse_range state = collapse->ranges[range];
        pthread_mutex_unlock(&collapse->mutex);
        if (state != RANGE_SMALL)
                return state == RANGE_HUGE ? 0 : -1;
        if (host_memory_populate(collapse->base, collapse->fd, from, to - from) < 0)
                return -1;
        *made += to - from;
        return 0;
}

int collapse_prepare(struct collapse *collapse, uint64_t offset, uint64_t len, uint64_t *made)
{
        int r = 0;
        for (uint64_t at = offset, end = offset + len, next; at < end && r == 0; at = next) {
                next = round_down(at, machine_pages.huge) + machine_pages.huge;
                r = prepare_range(collapse, at / machine_pages.huge, at, next < end ? next : end, made);
        }
        return r;
}

uint64_t collapse_small_bytes(const struct collapse *collapse)
{
        return collapse != NULL ? load_relaxed(&collapse->small) : 0;
}

bool collapse_stopped(const struct collapse *collapse)
{
        return collapse != NULL && load_relaxed(&collapse->stopped);
}
