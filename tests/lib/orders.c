/* SPDX-License-Identifier: Apache-2.0
 *
 * Threads that wait until they are chosen: see orders.h.
 */
#include "tests/lib/orders.h"

#include "tests/lib/kernel_counters.h"

#define WORK 64

void __real_work_submit(struct work_pool *pool, uint64_t lane, struct work *work, void (*run)(struct work *),
                        void (*done)(struct work *));
void __wrap_work_submit(struct work_pool *pool, uint64_t lane, struct work *work, void (*run)(struct work *),
                        void (*done)(struct work *));

static uint64_t random_state;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t waiting[WORK], loop; /* the priority of each thread that waits, and of the loop */
static unsigned n_waiting;
static struct held {
        struct work *work; /* submitted; NULL: free */
        void (*run)(struct work *work);
} submitted[WORK];

/* ---- threads ---- */

static uint64_t draw(void)
{
        return draw_below(&random_state, UINT64_MAX);
}

static bool is_waiting(uint64_t priority)
{
        for (unsigned i = 0; i < n_waiting; i++)
                if (waiting[i] == priority)
                        return true;
        return false;
}

static bool await_choice(void)
{
        lock_scope(&mutex);
        uint64_t priority = draw();
        require(n_waiting < WORK);
        waiting[n_waiting++] = priority;
        while (is_waiting(priority))
                pthread_cond_wait(&changed, &mutex);
        return true;
}

static struct held *find_submitted(const struct work *work)
{
        struct held *held = submitted;
        while (held < submitted + WORK && held->work != work)
                held++;
        require(held < submitted + WORK);
        return held;
}

static void run_chosen(struct work *work)
{
        pthread_mutex_lock(&mutex);
        struct held *held = find_submitted(work);
        void (*run)(struct work *) = held->run;
        held->work = NULL;
        pthread_mutex_unlock(&mutex);
        await_choice();
        run(work);
}

void __wrap_work_submit(struct work_pool *pool, uint64_t lane, struct work *work, void (*run)(struct work *),
                        void (*done)(struct work *))
{
        if (gate_delay != NULL) { /* only the loop sets it */
                lock_scope(&mutex);
                *find_submitted(NULL) = (struct held){work, run};
                run = run_chosen;
        }
        __real_work_submit(pool, lane, work, run, done);
}

/* ---- the test ---- */

void orders_begin(uint64_t seed)
{
        random_state = seed;
        __atomic_store_n(&gate_delay, await_choice, __ATOMIC_SEQ_CST);
}

unsigned orders_choose(unsigned n)
{
        lock_scope(&mutex);
        return (unsigned)draw_below(&random_state, n);
}

/* Of this process, but for the one that asks. */
static bool threads_sleep(void)
{
        unsigned asleep;
        return process_threads_named(getpid(), NULL, &asleep) == asleep;
}

/* A thread, or the loop, that waits with a low priority waits until nothing else can run. */
bool orders_step(void)
{
        AWAIT(threads_sleep());
        pthread_mutex_lock(&mutex);
        bool any = n_waiting > 0;
        uint64_t *first = &loop;
        for (unsigned i = 0; i < n_waiting; i++)
                first = waiting[i] > *first ? &waiting[i] : first;
        bool is_loop = first == &loop;
        *first = is_loop ? draw() : waiting[--n_waiting];
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&mutex);
        if (is_loop)
                core_settle();
        if (any)
                return true;
        AWAIT(threads_sleep());
        lock_scope(&mutex);
        return n_waiting > 0;
}

void orders_end(void)
{
        __atomic_store_n(&gate_delay, NULL, __ATOMIC_SEQ_CST);
}
