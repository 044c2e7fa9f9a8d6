/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes of queued work behind one mutex, which is held for list operations, and while a thread is started. Threads
 * wake one another: a thread that takes work makes sure that one is idle for the next.
 */
#include "daemon/base/thread/work.h"

#include "daemon/base/log/log.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <pthread.h>

/* Lanes of file systems, and of stores, in use at once. With more than this, some share a lane. */
#define LANES 64
/* Stuck threads are replaced up to so many times the usual number. */
#define THREADS_CAP 3u

struct work_lane {
        struct list link; /* in pool->turn while it has queued or running work */
        uint64_t key;
        struct work *head, **tail;
        unsigned running;
};

struct work_pool {
        struct wake *wake;
        const char *name;
        unsigned max_threads, per_lane;
        pthread_mutex_t mutex; /* for what follows */
        pthread_cond_t more;   /* work was submitted, or a place is free for it */
        pthread_cond_t ended;
        struct work_lane fixed[WORK_LANE_SOURCES], local[LANES], remote[LANES];
        struct list turn;    /* of lanes in use; rotated, so that each gets its turn */
        struct list running; /* of work */
        unsigned queued;
        unsigned idle; /* threads that run no work */
        bool stopping;
        unsigned n_threads, alive; /* that were started, and have not ended */
        pthread_t threads[];
};

static bool lane_unused(const struct work_lane *lane)
{
        return lane->running == 0 && lane->head == NULL;
}

static struct work_lane *lane_of_source(struct work_lane lanes[LANES], uint64_t key)
{
        struct work_lane *unused = NULL;
        for (size_t i = 0; i < LANES; i++) {
                struct work_lane *lane = &lanes[i];
                if (!lane_unused(lane) && lane->key == key)
                        return lane;
                if (lane_unused(lane))
                        unused = lane;
        }
        return unused != NULL ? unused : &lanes[key % LANES];
}

static bool is_remote(const struct work_lane *lane)
{
        return lane->key >= WORK_LANE_REMOTE;
}

static bool is_local(const struct work_lane *lane)
{
        return lane->key >= WORK_LANE_SOURCES && !is_remote(lane);
}

static bool reads(const struct work_lane *lane)
{
        return lane->key != WORK_LANE_CPU;
}

static void lane_append(struct work_pool *pool, uint64_t key, struct work *work)
{
        struct work_lane *lane = key < WORK_LANE_SOURCES  ? &pool->fixed[key]
                                 : key < WORK_LANE_REMOTE ? lane_of_source(pool->local, key)
                                                          : lane_of_source(pool->remote, key);
        if (lane_unused(lane)) {
                lane->key = key;
                lane->tail = &lane->head;
                list_append(&pool->turn, &lane->link);
        }
        work->lane = lane;
        work->next = NULL;
        *lane->tail = work;
        lane->tail = &work->next;
        pool->queued++;
}

/* ---- shares ----
 *
 * Of a pool of N threads, L for a lane (the workers: N = 16, L = 4; docs/access.md shows these figures). Work that is
 * stuck has a thread in addition to N, and so has the first work of a local lane. A limit is of works that run at once:
 *
 *   member           limit     workers   works
 *   lane             L         4         of one lane
 *   user_in_lane     L - 1     3         of one user in a lane in which others wait
 *   reading          N - N/4   12        that read, without stuck and first ones: the rest is for the processors' lane
 *   reading_in_all   3N - N/4  44        that read, with all of them
 *   remote           N/2       8         remote, without stuck ones
 *   remote_in_all    2N        32        remote, with stuck ones
 *   user_remote      N/4       4         remote, of one user (root and the daemon's own: N/2), with stuck ones
 *   additional       2N        32        stuck and first ones together
 */

struct shares {
        unsigned lane, user_in_lane, reading, reading_in_all, remote, remote_in_all, user_remote, additional;
};

static unsigned part_of(unsigned n, unsigned parts)
{
        return n > parts ? n / parts : 1;
}

static struct shares shares_of(const struct work_pool *pool)
{
        unsigned n = pool->max_threads, reserved = n / 4, replaced = n * (THREADS_CAP - 1);
        return (struct shares){.lane = pool->per_lane,
                               .user_in_lane = pool->per_lane - 1,
                               .reading = n - reserved,
                               .reading_in_all = n + replaced - reserved,
                               .remote = part_of(n, 2),
                               .remote_in_all = replaced,
                               .user_remote = part_of(n, 4),
                               .additional = replaced};
}

/* Works that run in lanes that read. */
struct running {
        unsigned all, remote_all; /* with stuck ones */
        unsigned stuck, remote;   /* remote: of these none */
        unsigned first, usual; /* not stuck: the first of a local lane, which have an additional thread; all others */
};

static struct running count_running(const struct work_pool *pool)
{
        struct running n = {0};
        list_each_item (const struct work, work, &pool->running, running) {
                if (!reads(work->lane))
                        continue;
                n.all++;
                n.remote_all += is_remote(work->lane);
                if (work->stuck) {
                        n.stuck++;
                        continue;
                }
                n.remote += is_remote(work->lane);
                if (work->first)
                        n.first++;
                else
                        n.usual++;
        }
        require(n.all == n.stuck + n.first + n.usual);
        return n;
}

/* Whether the next work of this lane would be its first, with an additional thread. */
static bool lane_adds_thread(const struct work_pool *pool, const struct work_lane *lane)
{
        struct shares shares = shares_of(pool);
        struct running running = count_running(pool);
        return is_local(lane) && lane->running == 0 && running.first + running.stuck < shares.additional;
}

static bool lane_has_capacity(const struct work_pool *pool, const struct work_lane *lane)
{
        struct shares shares = shares_of(pool);
        if (lane->running >= shares.lane)
                return false;
        if (!reads(lane))
                return true;
        struct running running = count_running(pool);
        if (running.all >= shares.reading_in_all)
                return false;
        if (is_remote(lane) && running.remote >= shares.remote)
                return false;
        if (is_remote(lane) && running.remote_all >= shares.remote_in_all)
                return false;
        return running.usual < shares.reading || lane_adds_thread(pool, lane);
}

static bool user_has_capacity(const struct work_pool *pool, const struct work_lane *lane, uint64_t user)
{
        struct shares shares = shares_of(pool);
        unsigned in_lane = 0, remote = 0;
        if (user == 0 || !reads(lane))
                return true;
        list_each_item (const struct work, work, &pool->running, running)
                if (work->user == user) {
                        in_lane += work->lane == lane;
                        remote += is_remote(work->lane);
                }
        if (is_remote(lane) && remote >= shares.user_remote)
                return false;
        return in_lane == 0 || lane->running < shares.user_in_lane;
}

/* Removes the first work of the lane whose user has capacity. */
static struct work *lane_take(const struct work_pool *pool, struct work_lane *lane)
{
        uint64_t refused = 0; /* the last user */
        for (struct work **at = &lane->head, *work; (work = *at) != NULL; at = &work->next) {
                if (work->user != 0 && work->user == refused)
                        continue;
                refused = work->user;
                if (!user_has_capacity(pool, lane, work->user))
                        continue;
                *at = work->next;
                if (*at == NULL)
                        lane->tail = at;
                return work;
        }
        return NULL;
}

/* The next work that has capacity, or NULL. Its lane moves to the end of the turn. */
static struct work *pool_take(struct work_pool *pool)
{
        list_each_item (struct work_lane, lane, &pool->turn, link) {
                struct work *work = lane_has_capacity(pool, lane) ? lane_take(pool, lane) : NULL;
                if (work == NULL)
                        continue;
                work->first = lane_adds_thread(pool, lane);
                work->since_ns = now_ns();
                work->stuck = false;
                list_append(&pool->running, &work->running);
                lane->running++;
                list_remove(&lane->link);
                list_append(&pool->turn, &lane->link);
                pool->queued--;
                return work;
        }
        return NULL;
}

/* ---- threads ---- */

static void *pool_thread(void *arg);

/* With the lock. One that cannot be started is no failure: others exist. */
static void keep_idle(struct work_pool *pool)
{
        struct running running = count_running(pool);
        unsigned usual = pool->n_threads - running.stuck - running.first; /* threads that are not additional */
        if (pool->idle > 0 || pool->stopping || pool->n_threads >= pool->max_threads * THREADS_CAP ||
            usual >= pool->max_threads || thread_start(&pool->threads[pool->n_threads], NULL, pool_thread, pool) != 0)
                return;
        pool->n_threads++;
        pool->alive++;
        pool->idle++;
}

static void end_run(struct work_pool *pool, struct work *work)
{
        pool->idle++;
        list_remove(&work->running);
        work->lane->running--;
        if (lane_unused(work->lane))
                list_remove(&work->lane->link);
        /* A lane that was full may have capacity, or another that waited for threads that read. */
        if (pool->queued > 0)
                pthread_cond_signal(&pool->more);
}

/* Begins and ends with the lock. */
static void run_one(struct work_pool *pool, struct work *work)
{
        bool run = !pool->stopping, moves = run && work->find_lane != NULL;
        uint64_t key = 0;
        pool->idle--;
        keep_idle(pool);
        pthread_mutex_unlock(&pool->mutex);
        if (moves)
                key = work->find_lane(work->source);
        else if (run)
                work->run(work);
        pthread_mutex_lock(&pool->mutex);
        end_run(pool, work);
        if (moves) {
                work->find_lane = NULL;
                lane_append(pool, key, work);
                pthread_cond_signal(&pool->more);
                return;
        }
        pthread_mutex_unlock(&pool->mutex);
        wake_post(pool->wake, &work->item);
        pthread_mutex_lock(&pool->mutex);
}

static void *pool_thread(void *arg)
{
        struct work_pool *pool = arg;
        thread_begin(pool->name);
        lock_scope(&pool->mutex);
        for (;;) {
                struct work *work = pool_take(pool);
                if (work != NULL) {
                        run_one(pool, work);
                        continue;
                }
                if (pool->stopping)
                        break;
                pthread_cond_wait(&pool->more, &pool->mutex);
        }
        pool->alive--;
        pthread_cond_broadcast(&pool->ended);
        return NULL;
}

/* ---- life ---- */

struct work_pool *work_pool_new(struct wake *wake, const char *name, unsigned max_threads, unsigned per_lane)
{
        struct work_pool *pool =
                calloc(1, sizeof(*pool) + (size_t)max_threads * THREADS_CAP * sizeof(pool->threads[0]));
        if (pool == NULL)
                return NULL;
        pool->wake = wake;
        pool->name = name;
        pool->max_threads = max_threads;
        pool->per_lane = per_lane;
        pthread_mutex_init(&pool->mutex, NULL);
        pthread_cond_init(&pool->more, NULL);
        pthread_cond_init(&pool->ended, NULL);
        list_init(&pool->turn);
        list_init(&pool->running);
        pthread_mutex_lock(&pool->mutex);
        keep_idle(pool);
        bool started = pool->alive > 0;
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
        work->item.run = work_done;
        work->run = run;
        work->done = done;
        pthread_mutex_lock(&pool->mutex);
        require(!pool->stopping);
        lane_append(pool, key, work);
        pthread_mutex_unlock(&pool->mutex);
        pthread_cond_signal(&pool->more); /* not before: the thread would wait for the mutex */
}

void work_submit_routed(struct work_pool *pool, uint64_t (*find_lane)(const char *source), const char *source,
                        struct work *work, void (*run)(struct work *), void (*done)(struct work *))
{
        work->find_lane = find_lane;
        work->source = source;
        work_submit(pool, WORK_LANE_CPU, work, run, done);
}

static bool is_stuck(const struct work *work, uint64_t now, uint64_t limit_ns)
{
        uint64_t key = work->lane->key;
        bool is_device = key >= WORK_LANE_DEVICES && key < WORK_LANE_SOURCES;
        return reads(work->lane) && !is_device && now > work->since_ns && now - work->since_ns > limit_ns;
}

bool work_pool_watch(struct work_pool *pool, uint64_t now, uint64_t limit_ns)
{
        unsigned found = 0;
        pthread_mutex_lock(&pool->mutex);
        list_each_item (struct work, work, &pool->running, running)
                if (!work->stuck && is_stuck(work, now, limit_ns)) {
                        work->stuck = true;
                        found++;
                }
        if (found > 0) {
                keep_idle(pool);
                pthread_cond_broadcast(&pool->more);
        }
        unsigned stuck = count_running(pool).stuck, n = pool->n_threads;
        bool runs = !list_empty(&pool->running);
        pthread_mutex_unlock(&pool->mutex);
        if (found > 0)
                log_warn("workers: %u of %u hang in storage that does not answer", stuck, n);
        return runs;
}

void work_pool_count(struct work_pool *pool, unsigned *threads, unsigned *stuck)
{
        lock_scope(&pool->mutex);
        *threads = pool->n_threads;
        *stuck = count_running(pool).stuck;
}

bool work_pool_stop(struct work_pool *pool, uint64_t deadline_ns)
{
        struct timespec until = timespec_of(deadline_ns);
        pthread_mutex_lock(&pool->mutex);
        pool->stopping = true;
        pthread_cond_broadcast(&pool->more);
        while (pool->alive > 0 && pthread_cond_clockwait(&pool->ended, &pool->mutex, CLOCK_MONOTONIC, &until) == 0)
                ;
        bool all = pool->alive == 0;
        pthread_mutex_unlock(&pool->mutex);
        while (all && pool->n_threads > 0)
                pthread_join(pool->threads[--pool->n_threads], NULL);
        return all;
}

struct work_pool *work_pool_free(struct work_pool *pool)
{
        if (pool != NULL) {
                /* One that never ran anything may not have been stopped: its thread is idle. */
                require(work_pool_stop(pool, UINT64_MAX));
                pthread_cond_destroy(&pool->more);
                pthread_cond_destroy(&pool->ended);
                pthread_mutex_destroy(&pool->mutex);
                free(pool);
        }
        return NULL;
}
