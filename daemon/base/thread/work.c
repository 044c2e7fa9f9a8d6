/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes of queued work behind one mutex, which is held for list operations only. Threads wake one another: a thread
 * that takes work makes sure that one is idle for the next.
 */
#include "daemon/base/thread/work.h"

#include "daemon/base/log/log.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <pthread.h>
#include <stdio.h>

/* Lanes in use at once. With more file systems than this, some share a lane. */
#define LANES 64
/* Hanging threads are replaced up to so many times the usual number. */
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
        bool stopping;            /* atomic, as the next */
        unsigned n_threads, hung; /* hung: works that are counted out */

        pthread_mutex_t mutex; /* for what follows */
        pthread_cond_t more;   /* work was submitted, or a place is free for it */
        pthread_cond_t ended;
        struct work_lane lanes[LANES];
        struct list turn; /* of lanes in use; rotated, so that each gets its turn */
        pthread_t *threads;
        struct list running; /* of work */
        unsigned max_threads, per_lane, alive, queued;
        unsigned idle;    /* threads that run no work */
        unsigned outside; /* running works in lanes that read, without the hanging ones */
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

static bool reads(const struct work_lane *lane)
{
        return lane->key != WORK_LANE_CPU;
}

/* Work that reads leaves a quarter of the threads to work that does not. */
static bool lane_has_capacity(const struct work_pool *pool, const struct work_lane *lane)
{
        if (lane->running >= pool->per_lane)
                return false;
        return !reads(lane) || pool->outside < pool->max_threads - pool->max_threads / 4;
}

/* The next work of a lane that has room, or NULL. The lane moves to the end of the turn. */
static struct work *pool_take(struct work_pool *pool)
{
        list_each_item (struct work_lane, lane, &pool->turn, link) {
                if (lane->head == NULL || !lane_has_capacity(pool, lane))
                        continue;
                struct work *work = lane->head;
                lane->head = work->next;
                if (lane->head == NULL)
                        lane->tail = &lane->head;
                work->since_ns = now_ns();
                work->hung = false;
                list_append(&pool->running, &work->running);
                work->lane->running++;
                pool->outside += reads(work->lane);
                list_remove(&lane->link);
                list_append(&pool->turn, &lane->link);
                pool->queued--;
                return work;
        }
        return NULL;
}

/* ---- threads ---- */

static void *pool_thread(void *arg);

static bool pool_start(struct work_pool *pool)
{
        if (thread_start(&pool->threads[load_relaxed(&pool->n_threads)], NULL, pool_thread, pool) != 0)
                return false;
        add_relaxed(&pool->n_threads, 1);
        pool->alive++;
        pool->idle++;
        return true;
}

/* A thread that cannot be started is no failure: others exist. */
static void keep_idle(struct work_pool *pool)
{
        if (pool->idle == 0 && !load_relaxed(&pool->stopping) &&
            load_relaxed(&pool->n_threads) - load_relaxed(&pool->hung) < pool->max_threads &&
            load_relaxed(&pool->n_threads) < pool->max_threads * THREADS_CAP)
                pool_start(pool);
}

/* Begins and ends with the lock. */
static void run_one(struct work_pool *pool, struct work *work)
{
        bool run = !load_relaxed(&pool->stopping);
        pool->idle--;
        keep_idle(pool);
        pthread_mutex_unlock(&pool->mutex);
        if (run)
                work->run(work);
        pthread_mutex_lock(&pool->mutex);
        pool->idle++;
        list_remove(&work->running);
        if (work->hung)
                sub_relaxed(&pool->hung, 1);
        else
                pool->outside -= reads(work->lane);
        work->lane->running--;
        if (lane_unused(work->lane))
                list_remove(&work->lane->link);
        /* A lane that was full may have capacity, or another that waited for threads that read. */
        if (pool->queued > 0)
                pthread_cond_signal(&pool->more);
        pthread_mutex_unlock(&pool->mutex);
        wake_post(pool->wake, &work->item);
        pthread_mutex_lock(&pool->mutex);
}

static void *pool_thread(void *arg)
{
        struct work_pool *pool = arg;
        thread_begin(pool->name);
        pthread_mutex_lock(&pool->mutex);
        for (;;) {
                struct work *work = pool_take(pool);
                if (work != NULL) {
                        run_one(pool, work);
                        continue;
                }
                if (load_relaxed(&pool->stopping))
                        break;
                pthread_cond_wait(&pool->more, &pool->mutex);
        }
        pool->alive--;
        pthread_cond_broadcast(&pool->ended);
        pthread_mutex_unlock(&pool->mutex);
        return NULL;
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
        pthread_cond_init(&pool->more, NULL);
        pthread_cond_init(&pool->ended, NULL);
        list_init(&pool->turn);
        list_init(&pool->running);
        pthread_mutex_lock(&pool->mutex);
        bool started = pool_start(pool);
        pthread_mutex_unlock(&pool->mutex);
        return started ? pool : work_pool_free(pool);
}

static void work_done(struct callback *item)
{
        struct work *work = container_of(item, struct work, item);
        work->done(work);
}

void work_submit(struct work_pool *pool, uint64_t key, struct work *work, void (*run)(struct work *),
                 void (*done)(struct work *))
{
        require(!load_relaxed(&pool->stopping));
        work->item.run = work_done;
        work->run = run;
        work->done = done;
        work->pool = pool;
        work->next = NULL;
        pthread_mutex_lock(&pool->mutex);
        work->lane = lane_get(pool, key);
        *work->lane->tail = work;
        work->lane->tail = &work->next;
        pool->queued++;
        pthread_cond_signal(&pool->more);
        pthread_mutex_unlock(&pool->mutex);
}

static bool hangs(const struct work *work, uint64_t now, uint64_t hang_ns)
{
        uint64_t key = work->lane->key;
        bool is_device = key >= WORK_LANE_DEVICE(0) && key != WORK_LANE_INSPECT;
        return reads(work->lane) && !is_device && !work->hung && now > work->since_ns && now - work->since_ns > hang_ns;
}

void work_pool_watch(struct work_pool *pool, uint64_t now, uint64_t hang_ns)
{
        pthread_mutex_lock(&pool->mutex);
        unsigned before = load_relaxed(&pool->hung);
        list_each_item (struct work, work, &pool->running, running) {
                if (!hangs(work, now, hang_ns))
                        continue;
                work->hung = true;
                add_relaxed(&pool->hung, 1);
                pool->outside--;
                keep_idle(pool);
        }
        unsigned hung = load_relaxed(&pool->hung);
        pthread_mutex_unlock(&pool->mutex);
        if (hung == before)
                return;
        pthread_cond_broadcast(&pool->more);
        log_warn("workers: %u of %u hang in storage that does not answer", hung, load_relaxed(&pool->n_threads));
}

void work_pool_count(struct work_pool *pool, unsigned *threads, unsigned *hung)
{
        *threads = load_relaxed(&pool->n_threads);
        *hung = load_relaxed(&pool->hung);
}

bool work_pool_stop(struct work_pool *pool, uint64_t deadline_ns)
{
        struct timespec until = timespec_of(deadline_ns);
        pthread_mutex_lock(&pool->mutex);
        store_relaxed(&pool->stopping, true);
        pthread_cond_broadcast(&pool->more);
        while (pool->alive > 0 && pthread_cond_clockwait(&pool->ended, &pool->mutex, CLOCK_MONOTONIC, &until) == 0)
                ;
        bool all = pool->alive == 0;
        pthread_mutex_unlock(&pool->mutex);
        for (unsigned i = 0; i < load_relaxed(&pool->n_threads); i++) {
                if (all)
                        pthread_join(pool->threads[i], NULL);
                else
                        pthread_detach(pool->threads[i]);
        }
        if (all)
                store_relaxed(&pool->n_threads, 0);
        return all;
}

struct work_pool *work_pool_free(struct work_pool *pool)
{
        if (pool != NULL) {
                /* One that never ran anything may not have been stopped: its thread is idle. */
                require(load_relaxed(&pool->n_threads) == 0 || work_pool_stop(pool, UINT64_MAX));
                pthread_cond_destroy(&pool->more);
                pthread_cond_destroy(&pool->ended);
                pthread_mutex_destroy(&pool->mutex);
                free(pool->threads);
                free(pool);
        }
        return NULL;
}
