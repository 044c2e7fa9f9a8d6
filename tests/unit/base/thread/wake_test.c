/* SPDX-License-Identifier: Apache-2.0
 *
 * Callbacks of the loop: posted by it and by other threads, in order, each once, and never inside the call that posts
 * them.
 */
#include "tests/lib/core.h"

#include "daemon/base/thread/wake.h"

static struct step {
        struct callback callback;
        struct step *next; /* posted when this one runs */
        unsigned number, runs;
} steps[5];

static unsigned n_run;
static bool inside;

static void run_step(struct callback *callback)
{
        struct step *step = container_of(callback, struct step, callback);
        ck_assert(!inside);
        inside = true;
        ck_assert_uint_eq(step->number, n_run++);
        step->runs++;
        if (step->next != NULL)
                wake_post(core_wake, &step->next->callback);
        inside = false;
}

static void begin(void)
{
        for (unsigned i = 0; i < ARRAY_SIZE(steps); i++)
                steps[i] = (struct step){.callback.run = run_step, .number = i};
}

CORE_FIXTURE(begin, NULL);

TEST(callbacks_run_in_their_order_and_once_for_all_posts)
{
        for (unsigned i = 0; i < ARRAY_SIZE(steps); i++)
                for (unsigned n = 0; n < 3; n++)
                        wake_post(core_wake, &steps[i].callback);
        ck_assert_uint_eq(n_run, 0);
        core_until(n_run == ARRAY_SIZE(steps));
        core_settle();
        ck_assert_uint_eq(n_run, ARRAY_SIZE(steps));
}

TEST(a_chain_of_callbacks_takes_one_iteration_of_the_loop)
{
        for (unsigned i = 0; i + 1 < ARRAY_SIZE(steps); i++)
                steps[i].next = &steps[i + 1];
        uint64_t before = wake_count(core_wake);
        wake_post(core_wake, &steps[0].callback);
        uv_run(&core_loop, UV_RUN_NOWAIT);
        ck_assert_uint_eq(n_run, ARRAY_SIZE(steps));
        ck_assert_uint_gt(wake_count(core_wake), before);
}

static struct callback endless;
static bool stopped;

static void run_endless(struct callback *callback)
{
        if (!stopped)
                wake_post(core_wake, callback);
}

static void on_timer(uv_timer_t *timer)
{
        stopped = true;
        uv_close((uv_handle_t *)timer, NULL);
}

TEST(callbacks_without_an_end_leave_the_loop_to_others)
{
        uv_timer_t timer;
        endless.run = run_endless;
        uv_timer_init(&core_loop, &timer);
        uv_timer_start(&timer, on_timer, 5, 0);
        wake_post(core_wake, &endless);
        core_until(stopped);
        core_settle();
        ck_assert(!endless.posted);
}

static void *post_first(void *unused)
{
        wake_post(core_wake, &steps[0].callback);
        return NULL;
}

TEST(another_thread_wakes_a_loop_that_waits)
{
        pthread_t thread;
        must(pthread_create(&thread, NULL, post_first, NULL));
        core_until(n_run == 1);
        pthread_join(thread, NULL);
}

/* ---- many threads ---- */

#define THREADS 4
#define POSTS 2000

static struct many {
        struct callback callbacks[POSTS];
} many[THREADS];
static unsigned n_many;

static void run_many(struct callback *callback)
{
        n_many++;
        if (n_many % 3 == 0) /* the loop posts, too */
                wake_post(core_wake, &endless);
}

static void *post_many(void *arg)
{
        struct many *mine = arg;
        for (unsigned i = 0; i < POSTS; i++)
                wake_post(core_wake, &mine->callbacks[i]);
        return NULL;
}

TEST(no_callback_of_any_thread_is_lost)
{
        pthread_t threads[THREADS];
        stopped = true;
        endless.run = run_endless;
        for (unsigned t = 0; t < THREADS; t++) {
                for (unsigned i = 0; i < POSTS; i++)
                        many[t].callbacks[i].run = run_many;
                must(pthread_create(&threads[t], NULL, post_many, &many[t]));
        }
        core_until(n_many == THREADS * POSTS);
        for (unsigned t = 0; t < THREADS; t++)
                pthread_join(threads[t], NULL);
}
