/* SPDX-License-Identifier: Apache-2.0
 *
 * Parked threads: who is called goes on, who is not stays, and whoever calls waits for neither.
 */
#include "daemon/base/park.h"

#include "daemon/base/util.h"
#include "tests/lib/core.h"

#include <signal.h>
#include <stdatomic.h>

#define N 4

static struct park park;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned asked; /* how many may go, under the mutex */
static _Atomic unsigned went;
static pthread_t threads[N];
static unsigned n_threads;

static void *stay(void *arg)
{
        (void)arg;
        pthread_setname_np(pthread_self(), "t-park");
        pthread_mutex_lock(&mutex);
        while (asked == 0)
                park_wait(&park, &mutex);
        asked--;
        park_unlock(&park, &mutex);
        went++;
        return NULL;
}

/* One more that is asleep. */
static void start(void)
{
        ck_assert_int_eq(pthread_create(&threads[n_threads++], NULL, stay, NULL), 0);
        threads_await_asleep("t-park", n_threads);
}

static void call(unsigned n, bool all)
{
        pthread_mutex_lock(&mutex);
        asked += n;
        for (unsigned i = 0; !all && i < n; i++)
                park_call(&park);
        if (all)
                park_call_all(&park);
        park_unlock(&park, &mutex);
}

static bool have_gone(void *n)
{
        return went == *(unsigned *)n;
}

static void await(unsigned n)
{
        ck_assert_msg(eventually(have_gone, &n, 20000), "%u went, not %u", went, n);
}

static void begin(void)
{
        park_init(&park);
        n_threads = asked = 0;
        went = 0;
}

static void end(void)
{
        call(N, true);
        for (unsigned i = 0; i < n_threads; i++)
                pthread_join(threads[i], NULL);
        park_deinit(&park);
}

START_TEST(one_call_wakes_one)
{
        for (unsigned i = 0; i < N; i++)
                start();
        call(1, false);
        await(1);
        threads_await_asleep("t-park", N - 1);
}
END_TEST

START_TEST(a_call_of_all_wakes_all)
{
        for (unsigned i = 0; i < N; i++)
                start();
        call(N, true);
        await(N);
}
END_TEST

START_TEST(as_many_wake_as_were_called)
{
        for (unsigned i = 0; i < N; i++)
                start();
        call(3, false);
        await(3);
        threads_await_asleep("t-park", N - 3);
}
END_TEST

START_TEST(a_call_of_nobody_is_not_kept)
{
        call(0, true);
        pthread_mutex_lock(&mutex);
        park_call(&park);
        park_unlock(&park, &mutex);
        start();
        ck_assert_uint_eq(went, 0);
}
END_TEST

/* ---- a thread that was woken and does not get to run ---- */

static int hold[2];

static void held_up(int signum)
{
        char c;
        (void)signum;
        if (read(hold[0], &c, 1) < 0)
                abort();
}

static void *stay_once(void *arg)
{
        (void)arg;
        pthread_setname_np(pthread_self(), "t-once");
        pthread_mutex_lock(&mutex);
        park_wait(&park, &mutex);
        park_unlock(&park, &mutex);
        went++;
        return NULL;
}

static bool once_has_settled(void *n)
{
        return went > 0 || threads_named("t-once") == *(unsigned *)n;
}

static void start_once(void)
{
        ck_assert_int_eq(pthread_create(&threads[n_threads++], NULL, stay_once, NULL), 0);
        ck_assert(eventually(once_has_settled, &n_threads, 20000));
}

/* The first sits in a signal's handler, as it might sit without a processor: the second may go in its
 * place. With a condition variable the second call would wait for it. */
START_TEST(a_call_does_not_wait_for_who_was_called_before)
{
        must(pipe(hold));
        signal(SIGUSR1, held_up);
        start_once();
        threads_await_asleep("t-once", 1);
        pthread_kill(threads[0], SIGUSR1);
        call(0, true);
        start_once();
        call(0, true);
        await(1);
        must((int)write(hold[1], "x", 1));
        await(2);
}
END_TEST

int main(void)
{
        suite_begin("park");
        TCase *tests = core_group("calls", begin, end);
        tcase_add_test(tests, one_call_wakes_one);
        tcase_add_test(tests, a_call_of_all_wakes_all);
        tcase_add_test(tests, as_many_wake_as_were_called);
        tcase_add_test(tests, a_call_of_nobody_is_not_kept);
        tcase_add_test(tests, a_call_does_not_wait_for_who_was_called_before);
        return suite_run();
}
