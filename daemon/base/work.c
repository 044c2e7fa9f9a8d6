/* SPDX-License-Identifier: Apache-2.0
 *
 * Who submits is the loop, and it waits for nobody: work is pushed to an inbox without a lock, and a
 * semaphore is posted. (A condition variable would not do: where a thread was woken and has no processor
 * yet, glibc lets the next one who signals wait until it has.) The threads empty the inbox into the lanes,
 * and start one another: whoever takes work up sees to it that one is left for the next.
 */
#include "daemon/base/work.h"

#include "daemon/base/log.h"
#include "daemon/base/prompt.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* Lanes in use at once. With more file systems than this, some share a lane. */
#define LANES 64
/* Threads that hang are replaced until there are so many times the usual number. */
#define THREADS_CAP 3u

struct work_lane {
        struct list link; /* in pool->turn while it has queued or running work */
        uint64_t key;
        struct work *head, **tail;
        unsigned running;
};

struct work_pool {
        struct wake *wake;
        char name[16];
        _Atomic(struct work *) inbox; /* the newest first */
        sem_t calls;                  /* one for each work that was submitted, and for what frees room */
        _Atomic bool stopping;
        _Atomic unsigned n_threads, hung; /* hung: works that are counted out */

        pthread_mutex_t mutex; /* for what follows; not the loop's, but where threads hang and at the end */
        pthread_cond_t ended;
        struct work_lane lanes[LANES];
        struct list turn; /* of lanes in use; rotated, so that each gets its turn */
        pthread_t *threads;
        struct list running; /* of work */
        unsigned max_threads, per_lane, alive, queued;
        unsigned spare;   /* threads that run no work */
        unsigned outside; /* works that run in lanes that read, less those that hang */
};

static bool lane_unused(const struct work_lane *lane)
{
        return lane->running == 0 && lane->head == NULL;
}

static struct work_lane *lane_get(struct work_pool *pool, uint64_t key)
{
        struct work_lane *unused = NULL;
        for (size_t i = 0; i < LANES; i++) {
                struct work_lane *lane = &pool->lanes[i];
                if (!lane_unused(lane) && lane->key == key)
                        return lane;
                if (lane_unused(lane))
                        unused = lane;
        }
        if (unused == NULL)
                return &pool->lanes[key % LANES];
        unused->key = key;
        unused->tail = &unused->head;
        list_append(&pool->turn, &unused->link);
        return unused;
}

/* In the order in which it came. */
static void empty_inbox(struct work_pool *pool)
{
        struct work *work = atomic_exchange_explicit(&pool->inbox, NULL, memory_order_acquire), *oldest = NULL;
        while (work != NULL) {
                struct work *older = work->next;
                work->next = oldest;
                oldest = work;
                work = older;
        }
        while ((work = oldest) != NULL) {
                oldest = work->next;
                work->next = NULL;
                work->lane = lane_get(pool, work->key);
                *work->lane->tail = work;
                work->lane->tail = &work->next;
                pool->queued++;
        }
}

static bool reads(const struct work_lane *lane)
{
        return lane->key != WORK_LANE_CPU;
}

/* Work that reads leaves a quarter of the threads to work that does not. */
static bool lane_has_room(const struct work_pool *pool, const struct work_lane *lane)
{
        if (lane->running >= pool->per_lane)
                return false;
        return !reads(lane) || pool->outside < pool->max_threads - pool->max_threads / 4;
}

static void work_begins(struct work_pool *pool, struct work *work)
{
        work->since_ns = now_ns();
        work->hung = false;
        list_append(&pool->running, &work->running);
        work->lane->running++;
        pool->outside += reads(work->lane);
}

static void work_ends(struct work_pool *pool, struct work *work)
{
        list_remove(&work->running);
        if (work->hung)
                pool->hung--;
        else
                pool->outside -= reads(work->lane);
}

/* The next work of a lane that has room, or NULL. The lane goes to the end of the turn. */
static struct work *pool_take(struct work_pool *pool)
{
        list_each (pos, &pool->turn) {
                struct work_lane *lane = container_of(pos, struct work_lane, link);
                if (lane->head == NULL || !lane_has_room(pool, lane))
                        continue;
                struct work *work = lane->head;
                lane->head = work->next;
                if (lane->head == NULL)
                        lane->tail = &lane->head;
                work_begins(pool, work);
                list_remove(&lane->link);
                list_append(&pool->turn, &lane->link);
                pool->queued--;
                return work;
        }
        return NULL;
}

static void lane_put(struct work_lane *lane)
{
        lane->running--;
        if (lane_unused(lane))
                list_remove(&lane->link);
}

/* ---- threads ---- */

static void *pool_thread(void *arg);

static bool pool_start(struct work_pool *pool)
{
        if (thread_start(&pool->threads[pool->n_threads], NULL, pool_thread, pool) != 0)
                return false;
        pool->n_threads++;
        pool->alive++;
        pool->spare++;
        return true;
}

/* A thread that cannot be started is no failure: there is another, though it may be long in coming back. */
static void keep_spare(struct work_pool *pool)
{
        if (pool->spare == 0 && !pool->stopping && pool->n_threads - pool->hung < pool->max_threads &&
            pool->n_threads < pool->max_threads * THREADS_CAP)
                pool_start(pool);
}

/* Begins and ends with the lock. */
static void run_one(struct work_pool *pool, struct work *work)
{
        bool run = !pool->stopping;
        pool->spare--;
        keep_spare(pool);
        pthread_mutex_unlock(&pool->mutex);
        if (run)
                work->run(work);
        pthread_mutex_lock(&pool->mutex);
        pool->spare++;
        work_ends(pool, work);
        lane_put(work->lane);
        bool more = pool->queued > 0;
        pthread_mutex_unlock(&pool->mutex);
        /* A lane that was full may have room, or another that waited for room outside. */
        if (more)
                sem_post(&pool->calls);
        wake_post(pool->wake, &work->item);
        pthread_mutex_lock(&pool->mutex);
}

static void wait_for_call(struct work_pool *pool)
{
        while (sem_wait(&pool->calls) < 0 && errno == EINTR)
                ;
}

/* Calls that came while all were busy are answered later, by one look each. */
static void *pool_thread(void *arg)
{
        struct work_pool *pool = arg;
        thread_begin(pool->name);
        pthread_mutex_lock(&pool->mutex);
        for (;;) {
                empty_inbox(pool);
                struct work *work = pool_take(pool);
                if (work != NULL) {
                        run_one(pool, work);
                        continue;
                }
                if (pool->stopping)
                        break;
                pthread_mutex_unlock(&pool->mutex);
                wait_for_call(pool);
                pthread_mutex_lock(&pool->mutex);
        }
        pool->alive--;
        pthread_cond_broadcast(&pool->ended);
        pthread_mutex_unlock(&pool->mutex);
        return NULL;
}

static void call_all(struct work_pool *pool)
{
        for (unsigned i = 0; i < pool->n_threads; i++)
                sem_post(&pool->calls);
}

/* ---- life ---- */

struct work_pool *work_pool_new(struct wake *wake, const char *name, unsigned max_threads, unsigned per_lane)
{
        struct work_pool *pool = calloc(1, sizeof(*pool));
        if (pool == NULL)
                return NULL;
        pool->threads = calloc((size_t)max_threads * THREADS_CAP, sizeof(*pool->threads));
        if (pool->threads == NULL) {
                free(pool);
                return NULL;
        }
        pool->wake = wake;
        snprintf(pool->name, sizeof(pool->name), "%s", name);
        pool->max_threads = max_threads;
        pool->per_lane = per_lane;
        pthread_mutex_init(&pool->mutex, NULL);
        pthread_condattr_t attr;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        sem_init(&pool->calls, 0, 0);
        pthread_cond_init(&pool->ended, &attr);
        pthread_condattr_destroy(&attr);
        list_init(&pool->turn);
        list_init(&pool->running);
        pthread_mutex_lock(&pool->mutex);
        bool started = pool_start(pool);
        pthread_mutex_unlock(&pool->mutex);
        return started ? pool : work_pool_free(pool);
}

static void work_done(struct errand *item)
{
        struct work *work = container_of(item, struct work, item);
        work->done(work);
}

void work_submit(struct work_pool *pool, uint64_t key, struct work *work, void (*run)(struct work *),
                 void (*done)(struct work *))
{
        require(!pool->stopping);
        work->item.run = work_done;
        work->run = run;
        work->done = done;
        work->key = key;
        work->pool = pool;
        struct work *before = atomic_load_explicit(&pool->inbox, memory_order_relaxed);
        do
                work->next = before;
        while (!atomic_compare_exchange_weak_explicit(&pool->inbox, &before, work, memory_order_release,
                                                      memory_order_relaxed));
        sem_post(&pool->calls);
}

static bool is_devices(const struct work_lane *lane)
{
        return lane->key >= WORK_LANE_DEVICE(0) && lane->key != WORK_LANE_LOOK;
}

static bool hangs(const struct work *work, uint64_t now, uint64_t hang_ns)
{
        bool may = reads(work->lane) && !is_devices(work->lane);
        return may && !work->hung && now > work->since_ns && now - work->since_ns > hang_ns;
}

void work_pool_watch(struct work_pool *pool, uint64_t now, uint64_t hang_ns)
{
        pthread_mutex_lock(&pool->mutex);
        unsigned before = pool->hung;
        list_each (pos, &pool->running) {
                struct work *work = container_of(pos, struct work, running);
                if (!hangs(work, now, hang_ns))
                        continue;
                work->hung = true;
                pool->hung++;
                pool->outside--;
                keep_spare(pool);
        }
        unsigned hung = pool->hung;
        pthread_mutex_unlock(&pool->mutex);
        if (hung == before)
                return;
        call_all(pool);
        log_warn("workers: %u of %u hang in storage that does not answer", hung, pool->n_threads);
}

void work_pool_count(struct work_pool *pool, unsigned *threads, unsigned *hung)
{
        *threads = pool->n_threads;
        *hung = pool->hung;
}

bool work_pool_stop(struct work_pool *pool, uint64_t deadline_ns)
{
        struct timespec until = timespec_of(deadline_ns);
        pthread_mutex_lock(&pool->mutex);
        pool->stopping = true;
        call_all(pool);
        while (pool->alive > 0 && pthread_cond_timedwait(&pool->ended, &pool->mutex, &until) == 0)
                ;
        bool all = pool->alive == 0;
        pthread_mutex_unlock(&pool->mutex);
        for (unsigned i = 0; i < pool->n_threads; i++) {
                if (all)
                        pthread_join(pool->threads[i], NULL);
                else
                        pthread_detach(pool->threads[i]);
        }
        if (all)
                pool->n_threads = 0;
        return all;
}

struct work_pool *work_pool_free(struct work_pool *pool)
{
        if (pool != NULL) {
                /* One that never ran anything may not have been stopped: its thread is idle. */
                require(pool->n_threads == 0 || work_pool_stop(pool, UINT64_MAX));
                sem_destroy(&pool->calls);
                pthread_cond_destroy(&pool->ended);
                pthread_mutex_destroy(&pool->mutex);
                free(pool->threads);
                free(pool);
        }
        return NULL;
}
