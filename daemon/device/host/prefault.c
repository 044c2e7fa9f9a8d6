/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device's prefaulted memory: allocated and zeroed while nothing is loaded.
 *
 * A thread of the lowest nice value does most of the work of a load into host memory ahead of need, in one memfd that
 * no client has seen, which becomes the next segment. It counts against no budget: it is freed when a segment needs its
 * memory. All calls accept NULL, a device without one.
 *
 * One that is not configured is modest: it takes idle huge pages of the pool alone, and must not cost other programs
 * anything. The next segment is assumed to be as large as the largest of the last few, if there were any.
 *
 *                fill: true
 *       waiting ------------> filling      one huge page at a time, under the mutex
 *          ^                     |
 *          +---------------------+
 *            complete | fill: false | the device's thread requests the mutex | no more memory
 *
 * The device's thread takes or drops the file in either state; filling then begins a new file. The load engine repeats
 * prefault_fill(), so filling is tried again after it found no memory.
 *
 * Waiting. The loop only posts a semaphore. The device's thread waits for at most one page: hence the filling thread
 * has a nice value and not SCHED_IDLE, with which a busy machine might never let it finish the page.
 *
 * Failure: a page that cannot be allocated ends the filling, and the pages before it stay. At least as much memory
 * as it takes stays available on the machine and in the daemon's control group; huge pages that were set aside may be
 * taken entirely.
 *
 * A modest one checks the pool before each page, since the pool has other users: it takes a page only if as many as it
 * has stay free, and frees pages while fewer than a quarter of its own size are free. In between it changes nothing, so
 * that a change of other programs does not make it zero the same pages repeatedly.
 */
#include "daemon/device/host/host_private.h"

#include "daemon/base/util.h"
#include "daemon/base/log/log.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/thread/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define CHECK_INTERVAL (64 * MiB) /* of prefaulted bytes between two checks of the machine's memory */
#define NICE_MOST 19

struct prefault {
        struct prefault_opts opts;
        pthread_t thread;
        bool started;
        /* Atomic, all of these: */
        bool fill, ending;
        bool settled;   /* only a load changes anything: a modest one has no pool, another one is complete */
        bool requested; /* the device's thread requests `mutex` */
        uint64_t held, bytes;
        uint64_t recent[PREFAULT_RECENT]; /* sizes of segments */
        unsigned n_recent;

        sem_t call; /* the thread is to read the flags */

        pthread_mutex_t mutex; /* guards what follows, and changes of `bytes` */
        int fd;                /* -1: none */
        enum page_kind pages;  /* of it */
        unsigned char *map;    /* pages of shared memory are populated through it; NULL for those of the pool */
        bool logged;           /* that memory is short */
};

/* ---- the file ---- */

static int memory_detach(struct prefault *prefault)
{
        int fd = prefault->fd;
        if (prefault->map != NULL)
                munmap(prefault->map, prefault->opts.most);
        prefault->map = NULL;
        prefault->fd = -1;
        store_relaxed(&prefault->bytes, 0);
        return fd;
}

static void memory_drop(struct prefault *prefault)
{
        int fd = memory_detach(prefault);
        if (fd >= 0)
                close(fd);
}

static bool memory_populate(struct prefault *prefault, uint64_t at)
{
        if (prefault->pages == PAGES_HUGETLB) /* these are zeroed at once */
                return TEMP_FAILURE_RETRY(fallocate(prefault->fd, 0, (off_t)at, (off_t)machine_pages.huge)) == 0;
        if (prefault->pages == PAGES_THP && prefault->opts.kernel->supported)
                return collapse_range(prefault->opts.kernel, prefault->map, prefault->fd, at) == RANGE_HUGE;
        return host_memory_populate(prefault->map, prefault->fd, at, machine_pages.huge) == 0;
}

static bool memory_begin(struct prefault *prefault, enum page_kind pages)
{
        const struct prefault_opts *opts = &prefault->opts;
        prefault->pages = pages;
        prefault->fd = host_memfd_new(pages);
        bool opened = prefault->fd >= 0 && ftruncate(prefault->fd, (off_t)opts->most) == 0;
        if (opened && pages != PAGES_HUGETLB) {
                void *map = host_memfd_map(prefault->fd, opts->most, PROT_READ | PROT_WRITE);
                prefault->map = map != MAP_FAILED ? map : NULL;
                opened = prefault->map != NULL && (pages != PAGES_THP || opts->kernel->supported ||
                                                   madvise(map, opts->most, MADV_HUGEPAGE) == 0);
        }
        if (opened && memory_populate(prefault, 0))
                return true;
        int e = errno;
        memory_drop(prefault);
        errno = e;
        return false;
}

/* ---- how far ---- */

/* The assumed size of the next segment. */
static uint64_t target_size(const struct prefault *prefault)
{
        uint64_t largest = 0;
        for (unsigned i = 0; prefault->opts.modest && i < PREFAULT_RECENT; i++)
                if (load_relaxed(&prefault->recent[i]) > largest)
                        largest = load_relaxed(&prefault->recent[i]);
        return largest != 0 && largest < prefault->opts.most ? largest : prefault->opts.most;
}

static bool machine_has(const struct prefault *prefault, uint64_t pool_left)
{
        if (prefault->opts.modest)
                return pool_left > load_relaxed(&prefault->bytes) + CHECK_INTERVAL;
        if (load_relaxed(&prefault->bytes) % CHECK_INTERVAL != 0 ||
            (prefault->opts.pages == PAGES_HUGETLB && machine_pool_left() >= CHECK_INTERVAL))
                return true;
        return machine_available_memory() >= load_relaxed(&prefault->bytes) + CHECK_INTERVAL;
}

/* Frees the last page. False: it stays. */
static bool shed_piece(struct prefault *prefault, uint64_t pool_left)
{
        uint64_t bytes = load_relaxed(&prefault->bytes), left = bytes - machine_pages.huge;
        bool too_much = bytes > target_size(prefault) ||
                        load_relaxed(&prefault->held) + bytes > prefault->opts.budget || pool_left < bytes / 4;
        if (!prefault->opts.modest || bytes == 0 || !too_much)
                return false;
        if (fallocate(prefault->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)left,
                      (off_t)machine_pages.huge) < 0)
                return false;
        store_relaxed(&prefault->bytes, left);
        return true;
}

static void log_short(struct prefault *prefault, const char *why)
{
        char bytes[SIZE_TEXT], most[SIZE_TEXT];
        if (!prefault->logged)
                log_info("host: %s of %s is prefaulted, %s", size_text(bytes, load_relaxed(&prefault->bytes)),
                         size_text(most, prefault->opts.most), why);
        prefault->logged = true;
}

static bool is_complete(const struct prefault *prefault)
{
        uint64_t bytes = load_relaxed(&prefault->bytes) + machine_pages.huge;
        return bytes > target_size(prefault) || load_relaxed(&prefault->held) + bytes > prefault->opts.budget;
}

/* False: the file stays as large as it is. */
static bool add_piece(struct prefault *prefault, uint64_t pool_left)
{
        uint64_t bytes = load_relaxed(&prefault->bytes);
        if (is_complete(prefault))
                return false;
        if (!machine_has(prefault, pool_left)) {
                if (!prefault->opts.modest)
                        log_short(prefault, "others need the rest of the memory");
                return false;
        }
        const struct prefault_opts *opts = &prefault->opts;
        bool added = prefault->fd >= 0 ? memory_populate(prefault, bytes) : memory_begin(prefault, opts->pages);
        if (!added && prefault->fd < 0 && opts->fallback != opts->pages)
                added = memory_begin(prefault, opts->fallback);
        if (!added) {
                log_short(prefault, strerror(errno));
                return false;
        }
        add_relaxed(&prefault->bytes, machine_pages.huge);
        return true;
}

/* ---- the thread ---- */

static bool may_fill(const struct prefault *prefault)
{
        return load_relaxed(&prefault->fill) && !load_relaxed(&prefault->requested) && !load_relaxed(&prefault->ending);
}

static void *prefault_thread(void *arg)
{
        struct prefault *prefault = arg;
        thread_begin("host-prefault");
        setpriority(PRIO_PROCESS, 0, NICE_MOST); /* of this thread alone, on Linux */
        while (!load_relaxed(&prefault->ending)) {
                (void)TEMP_FAILURE_RETRY(sem_wait(&prefault->call));
                while (sem_trywait(&prefault->call) == 0) /* one look answers all */
                        ;
                bool more = true;
                while (more && may_fill(prefault)) {
                        pthread_mutex_lock(&prefault->mutex);
                        uint64_t pool_left = prefault->opts.modest ? machine_pool_left() : 0;
                        more = may_fill(prefault) &&
                               (shed_piece(prefault, pool_left) || add_piece(prefault, pool_left));
                        bool settled = prefault->opts.modest ? load_relaxed(&prefault->bytes) == 0 && pool_left == 0
                                                             : is_complete(prefault);
                        store_relaxed(&prefault->settled, !more && settled);
                        pthread_mutex_unlock(&prefault->mutex);
                }
        }
        return NULL;
}

/* ---- lifecycle ---- */

struct prefault *prefault_new(const struct prefault_opts *opts)
{
        struct prefault *prefault = calloc(1, sizeof(*prefault));
        if (prefault == NULL)
                return NULL;
        prefault->opts = *opts;
        prefault->opts.most = round_down(opts->most, machine_pages.huge);
        prefault->fd = -1;
        pthread_mutex_init(&prefault->mutex, NULL);
        sem_init(&prefault->call, 0, 0);
        prefault->started = thread_start(&prefault->thread, NULL, prefault_thread, prefault) == 0;
        return prefault->started ? prefault : prefault_free(prefault);
}

struct prefault *prefault_free(struct prefault *prefault)
{
        if (prefault == NULL)
                return NULL;
        store_relaxed(&prefault->ending, true);
        sem_post(&prefault->call);
        if (prefault->started)
                pthread_join(prefault->thread, NULL);
        memory_drop(prefault);
        sem_destroy(&prefault->call);
        pthread_mutex_destroy(&prefault->mutex);
        free(prefault);
        return NULL;
}

/* ---- without waiting ---- */

bool prefault_fill(struct prefault *prefault, bool fill)
{
        if (prefault == NULL)
                return false;
        store_relaxed(&prefault->fill, fill);
        if (fill)
                sem_post(&prefault->call);
        return fill && !load_relaxed(&prefault->settled);
}

uint64_t prefault_bytes(const struct prefault *prefault)
{
        return prefault != NULL ? load_relaxed(&prefault->bytes) : 0;
}

void prefault_hold(struct prefault *prefault, uint64_t bytes)
{
        if (prefault == NULL)
                return;
        add_relaxed(&prefault->held, bytes);
        unsigned at = __atomic_fetch_add(&prefault->n_recent, 1, __ATOMIC_RELAXED) % PREFAULT_RECENT;
        store_relaxed(&prefault->recent[at], bytes);
}

void prefault_release(struct prefault *prefault, uint64_t bytes)
{
        if (prefault != NULL)
                sub_relaxed(&prefault->held, bytes);
}

/* ---- the device's thread ---- */

/* Without the flag the filling thread might lock again before this thread has woken. */
static void prefault_lock(struct prefault *prefault)
{
        store_relaxed(&prefault->requested, true);
        pthread_mutex_lock(&prefault->mutex);
        store_relaxed(&prefault->requested, false);
}

/* A file that is far larger than the segment stays for a larger one, if the budget holds both. */
static bool stays_beside(const struct prefault *prefault, uint64_t size)
{
        uint64_t bytes = load_relaxed(&prefault->bytes), next = target_size(prefault);
        return size < (bytes < next ? bytes : next) / 2 &&
               load_relaxed(&prefault->held) + bytes <= prefault->opts.budget;
}

int prefault_take(struct prefault *prefault, uint64_t size, uint64_t *ready, enum page_kind *pages)
{
        int fd = -1;
        if (prefault == NULL)
                return -1;
        prefault_lock(prefault);
        *ready = load_relaxed(&prefault->bytes);
        *pages = prefault->pages;
        if (!stays_beside(prefault, size))
                fd = memory_detach(prefault);
        pthread_mutex_unlock(&prefault->mutex);
        return fd;
}

bool prefault_drop(struct prefault *prefault)
{
        if (prefault == NULL)
                return false;
        prefault_lock(prefault);
        cleanup_close int fd = memory_detach(prefault);
        pthread_mutex_unlock(&prefault->mutex);
        return fd >= 0;
}
