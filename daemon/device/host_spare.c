/* SPDX-License-Identifier: Apache-2.0
 *
 *                fill: true
 *       waiting ------------> filling      by pieces of one huge page, under the lock; between two of
 *          ^                     |         them it looks whether it is still wanted
 *          +---------------------+
 *            all is there | fill: false | the device's thread wants the lock | nothing more is to be had
 *
 * The device's thread takes or drops the file in whatever state the spare is; filling then begins a new
 * one. Whoever decides that it may be filled says so again and again, so that a spare that found no
 * memory, or was taken, is looked at once more.
 *
 * Who waits for whom. The loop for nobody: it leaves a flag and posts a semaphore. The device's thread for
 * one piece. That is why the thread has a nice value and not SCHED_IDLE: where others keep all processors
 * busy it is slow with its piece, but it comes to its end.
 *
 * How it fails: a page that cannot be had ends the filling, what is there stays. Most that it takes is what
 * it leaves: never more than the machine, or the daemon's control group, has available besides; huge pages
 * that were set aside are there to be taken.
 *
 * A modest one looks before each piece, since the pool has other users: it takes no page of which as many do
 * not stay, and gives back, piece by piece, while a quarter of its own size does not. Between the two it stays
 * as it is: what moved with each page of others would be zeroed again and again.
 */
#include "daemon/device/host_spare.h"

#include "daemon/base/log.h"
#include "daemon/base/machine.h"
#include "daemon/base/prompt.h"
#include "daemon/device/host_memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define PIECE HOST_HUGE_PAGE
#define LOOK (64 * MiB) /* how often the machine is asked for what it has left */
#define NICE_MOST 19

struct host_spare {
        struct host_spare_opts opts;
        pthread_t thread;
        sem_t calls;
        _Atomic bool called; /* and not taken up yet */
        _Atomic bool fill, ending;
        _Atomic bool wanted; /* the device's thread wants the lock */
        _Atomic uint64_t held, bytes;
        _Atomic uint64_t recent[HOST_SPARE_RECENT]; /* sizes of segments */
        _Atomic unsigned n_recent;

        pthread_mutex_t mutex; /* for what follows, and for moving `bytes` */
        int fd;                /* -1: none */
        enum page_kind pages;
        unsigned char *map; /* transparent huge pages come by a map alone */
        bool told;          /* that there is no more memory */
};

/* ---- the file ---- */

static int spare_let_go(struct host_spare *spare)
{
        int fd = spare->fd;
        if (spare->map != NULL)
                munmap(spare->map, spare->opts.most);
        spare->map = NULL;
        spare->fd = -1;
        spare->bytes = 0;
        return fd;
}

static bool spare_map(struct host_spare *spare)
{
        void *map = mmap(NULL, spare->opts.most, PROT_READ | PROT_WRITE, MAP_SHARED, spare->fd, 0);
        if (map == MAP_FAILED)
                return false;
        spare->map = map;
        return madvise(map, spare->opts.most, MADV_HUGEPAGE) == 0;
}

static bool spare_open(struct host_spare *spare, enum page_kind pages)
{
        spare->pages = pages;
        spare->fd = host_memfd_new(pages);
        return spare->fd >= 0 && ftruncate(spare->fd, (off_t)spare->opts.most) == 0 &&
               (pages != PAGES_THP || spare_map(spare));
}

static bool spare_populate(struct host_spare *spare, uint64_t at)
{
        int r;
        do
                r = spare->map != NULL ? madvise(spare->map + at, PIECE, MADV_POPULATE_WRITE)
                                       : fallocate(spare->fd, 0, (off_t)at, PIECE);
        while (r < 0 && errno == EINTR);
        return r == 0;
}

/* Of the first kind that there is a piece of. */
static bool spare_begin(struct host_spare *spare)
{
        for (unsigned i = 0; i < spare->opts.n_kinds; i++) {
                if (spare_open(spare, spare->opts.kinds[i]) && spare_populate(spare, 0))
                        return true;
                int e = errno;
                close_p(&(int){spare_let_go(spare)});
                errno = e;
        }
        return false;
}

/* ---- how far ---- */

/* How large the next segment may be. */
static uint64_t made_for(const struct host_spare *spare)
{
        uint64_t largest = 0;
        for (unsigned i = 0; spare->opts.modest && i < HOST_SPARE_RECENT; i++)
                if (spare->recent[i] > largest)
                        largest = spare->recent[i];
        return largest != 0 && largest < spare->opts.most ? largest : spare->opts.most;
}

static bool in_budget(const struct host_spare *spare)
{
        return spare->bytes + PIECE <= made_for(spare) && spare->held + spare->bytes + PIECE <= spare->opts.budget;
}

static bool machine_has(const struct host_spare *spare, uint64_t pool_left)
{
        enum page_kind pages = spare->fd >= 0 ? spare->pages : spare->opts.kinds[0];
        if (spare->opts.modest)
                return pool_left > spare->bytes + LOOK;
        if (spare->bytes % LOOK != 0 || (pages == PAGES_HUGETLB && machine_pool_left(spare->opts.root) >= LOOK))
                return true;
        return machine_available_memory(spare->opts.root) >= spare->bytes + LOOK;
}

static bool too_much(const struct host_spare *spare, uint64_t pool_left)
{
        uint64_t bytes = spare->bytes;
        return bytes > made_for(spare) || spare->held + bytes > spare->opts.budget || pool_left < bytes / 4;
}

/* The last piece. False: there is none to give back. */
static bool shed_piece(struct host_spare *spare, uint64_t pool_left)
{
        if (!spare->opts.modest || spare->bytes == 0 || !too_much(spare, pool_left))
                return false;
        uint64_t left = spare->bytes - PIECE;
        if (fallocate(spare->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)left, PIECE) < 0)
                return false;
        spare->bytes = left;
        return true;
}

static void tell_short(struct host_spare *spare, const char *why)
{
        if (!spare->told)
                log_info("host: %" PRIu64 " of %" PRIu64 " spare bytes are ready, %s", (uint64_t)spare->bytes,
                         spare->opts.most, why);
        spare->told = true;
}

/* False: nothing more is to be had for now. */
static bool add_piece(struct host_spare *spare, uint64_t pool_left)
{
        if (!in_budget(spare))
                return false;
        if (!machine_has(spare, pool_left)) {
                if (!spare->opts.modest)
                        tell_short(spare, "others need the rest of the memory");
                return false;
        }
        if (!(spare->fd < 0 ? spare_begin(spare) : spare_populate(spare, spare->bytes))) {
                tell_short(spare, strerror(errno));
                return false;
        }
        spare->bytes += PIECE;
        return true;
}

/* A modest one looks at the pool before each piece, and then decides both ways by that. */
static bool move_piece(struct host_spare *spare)
{
        uint64_t pool_left = spare->opts.modest ? machine_pool_left(spare->opts.root) : 0;
        return shed_piece(spare, pool_left) || add_piece(spare, pool_left);
}

/* ---- the thread ---- */

static bool may_fill(const struct host_spare *spare)
{
        return spare->fill && !spare->wanted && !spare->ending;
}

static void fill_up(struct host_spare *spare)
{
        bool more = true;
        while (more && may_fill(spare)) {
                pthread_mutex_lock(&spare->mutex);
                more = may_fill(spare) && move_piece(spare);
                pthread_mutex_unlock(&spare->mutex);
        }
}

static void *spare_thread(void *arg)
{
        struct host_spare *spare = arg;
        thread_begin("host-spare");
        setpriority(PRIO_PROCESS, 0, NICE_MOST); /* of this thread alone, on Linux */
        while (!spare->ending) {
                while (sem_wait(&spare->calls) < 0 && errno == EINTR)
                        ;
                spare->called = false;
                fill_up(spare);
        }
        return NULL;
}

static void call(struct host_spare *spare)
{
        if (!atomic_exchange(&spare->called, true))
                sem_post(&spare->calls);
}

/* ---- life ---- */

struct host_spare *host_spare_new(const struct host_spare_opts *opts)
{
        struct host_spare *spare = calloc(1, sizeof(*spare));
        if (spare == NULL)
                return NULL;
        spare->opts = *opts;
        spare->opts.most = round_down(opts->most, PIECE);
        spare->fd = -1;
        pthread_mutex_init(&spare->mutex, NULL);
        sem_init(&spare->calls, 0, 0);
        if (thread_start(&spare->thread, NULL, spare_thread, spare) == 0)
                return spare;
        sem_destroy(&spare->calls);
        pthread_mutex_destroy(&spare->mutex);
        free(spare);
        return NULL;
}

struct host_spare *host_spare_free(struct host_spare *spare)
{
        if (spare == NULL)
                return NULL;
        spare->ending = true;
        call(spare);
        pthread_join(spare->thread, NULL);
        close_p(&(int){spare_let_go(spare)});
        sem_destroy(&spare->calls);
        pthread_mutex_destroy(&spare->mutex);
        free(spare);
        return NULL;
}

/* ---- without waiting ---- */

void host_spare_fill(struct host_spare *spare, bool fill)
{
        if (spare == NULL)
                return;
        spare->fill = fill;
        if (fill)
                call(spare);
}

uint64_t host_spare_bytes(const struct host_spare *spare)
{
        return spare != NULL ? spare->bytes : 0;
}

void host_spare_hold(struct host_spare *spare, uint64_t bytes)
{
        if (spare == NULL)
                return;
        spare->held += bytes;
        spare->recent[spare->n_recent++ % HOST_SPARE_RECENT] = bytes;
}

void host_spare_release(struct host_spare *spare, uint64_t bytes)
{
        if (spare != NULL)
                spare->held -= bytes;
}

/* ---- the device's thread ---- */

/* Without the flag the other thread might have the lock again before this one has woken. */
static void spare_lock(struct host_spare *spare)
{
        spare->wanted = true;
        pthread_mutex_lock(&spare->mutex);
        spare->wanted = false;
}

/* One that is far too large for it would have been made ready in vain. */
static bool stays_beside(const struct host_spare *spare, uint64_t size)
{
        uint64_t next = made_for(spare), for_what = spare->bytes < next ? spare->bytes : next;
        return size < for_what / 2 && spare->held + spare->bytes <= spare->opts.budget;
}

int host_spare_take(struct host_spare *spare, uint64_t size, uint64_t *ready, enum page_kind *pages)
{
        int fd = -1;
        if (spare == NULL)
                return -1;
        spare_lock(spare);
        *ready = spare->bytes;
        *pages = spare->pages;
        if (!stays_beside(spare, size))
                fd = spare_let_go(spare);
        pthread_mutex_unlock(&spare->mutex);
        return fd;
}

bool host_spare_drop(struct host_spare *spare)
{
        if (spare == NULL)
                return false;
        spare_lock(spare);
        cleanup_close int fd = spare_let_go(spare);
        pthread_mutex_unlock(&spare->mutex);
        return fd >= 0;
}
