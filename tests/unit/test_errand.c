/* SPDX-License-Identifier: Apache-2.0
 *
 * What is left for whoever has a lock: run at once where nobody has it, by its holder where somebody does,
 * in turn, and never forgotten.
 */
#include "daemon/base/errand.h"

#include "daemon/base/util.h"
#include "tests/lib/suite.h"

#include <pthread.h>

#define THREADS 4
#define TIMES 20000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct errands errands;

/* A call that notes its turn, under the mutex. */
struct call {
        struct errand errand;
        unsigned turn; /* from 1; 0: not yet */
};
static unsigned turns;

static void note(struct errand *errand)
{
        container_of(errand, struct call, errand)->turn = ++turns;
}

static void unlock(void)
{
        do {
                errands_run(&errands);
                pthread_mutex_unlock(&mutex);
        } while (errands_left(&errands) && pthread_mutex_trylock(&mutex) == 0);
}

static void leave(struct errand *errand)
{
        errand_post(&errands, errand);
        if (pthread_mutex_trylock(&mutex) == 0)
                unlock();
}

START_TEST(it_is_run_at_once_where_nobody_has_the_lock)
{
        struct call call = {.errand.run = note};
        leave(&call.errand);
        ck_assert_uint_eq(call.turn, 1);
        ck_assert(!errands_left(&errands));
}
END_TEST

START_TEST(the_holder_of_the_lock_runs_what_was_left_in_the_order_of_posting)
{
        struct call calls[3] = {{.errand.run = note}, {.errand.run = note}, {.errand.run = note}};
        pthread_mutex_lock(&mutex);
        for (unsigned i = 0; i < ARRAY_SIZE(calls); i++)
                leave(&calls[i].errand);
        ck_assert(errands_left(&errands));
        ck_assert_uint_eq(turns, 0);
        unlock();
        for (unsigned i = 0; i < ARRAY_SIZE(calls); i++)
                ck_assert_uint_eq(calls[i].turn, i + 1);
}
END_TEST

/* ---- one that leaves another ---- */

static struct call second = {.errand.run = note};

static void leave_second(struct errand *errand)
{
        note(errand);
        leave(&second.errand);
}

START_TEST(what_is_left_meanwhile_comes_after_it)
{
        struct call first = {.errand.run = leave_second};
        leave(&first.errand);
        ck_assert_uint_eq(first.turn, 1);
        ck_assert_uint_eq(second.turn, 2);
}
END_TEST

static void again(struct errand *errand)
{
        note(errand);
        if (turns < 3)
                leave(errand);
}

START_TEST(one_that_runs_may_be_left_anew)
{
        struct call call = {.errand.run = again};
        leave(&call.errand);
        ck_assert_uint_eq(turns, 3);
}
END_TEST

static void take_away(struct errand *errand)
{
        turns++;
        free(container_of(errand, struct call, errand));
}

START_TEST(one_that_runs_may_be_freed)
{
        pthread_mutex_lock(&mutex);
        for (int i = 0; i < 3; i++) {
                struct call *call = calloc(1, sizeof(*call));
                call->errand.run = take_away;
                leave(&call->errand);
        }
        unlock();
        ck_assert_uint_eq(turns, 3);
}
END_TEST

/* ---- a race ---- */

static void *leave_many(void *arg)
{
        struct call *calls = arg;
        for (unsigned i = 0; i < TIMES; i++) {
                calls[i].errand.run = note;
                leave(&calls[i].errand);
        }
        return NULL;
}

/* At the end nobody has the lock, and nobody comes any more: what was forgotten then would stay. */
START_TEST(of_many_that_are_left_at_once_none_is_forgotten)
{
        pthread_t threads[THREADS];
        struct call *calls = calloc((size_t)THREADS * TIMES, sizeof(*calls));
        for (size_t i = 0; i < THREADS; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, leave_many, calls + i * TIMES), 0);
        for (size_t i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        ck_assert_uint_eq(turns, THREADS * TIMES);
        ck_assert(!errands_left(&errands));
        free(calls);
}
END_TEST

int main(void)
{
        suite_begin("errands");
        TCase *t = suite_group("errands", NULL, NULL, 20);
        tcase_add_test(t, it_is_run_at_once_where_nobody_has_the_lock);
        tcase_add_test(t, the_holder_of_the_lock_runs_what_was_left_in_the_order_of_posting);
        tcase_add_test(t, what_is_left_meanwhile_comes_after_it);
        tcase_add_test(t, one_that_runs_may_be_left_anew);
        tcase_add_test(t, one_that_runs_may_be_freed);
        tcase_add_test(t, of_many_that_are_left_at_once_none_is_forgotten);
        return suite_run();
}
