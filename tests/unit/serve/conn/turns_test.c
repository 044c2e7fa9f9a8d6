/* SPDX-License-Identifier: Apache-2.0
 *
 * Processor time of loop iterations, without waiting for events or for a processor; incremental tasks of the loop: all
 * work is done, and the loop keeps running; and the nice values of the loop's thread and of the threads that it starts.
 */
#include "daemon/serve/conn/turns.h"

#include "daemon/base/thread/threads.h"
#include "tests/lib/core.h"

#include <sys/resource.h>

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

/* Time before the first wait is no iteration. */
TEST(each_iteration_is_counted_in_its_bucket)
{
        static const unsigned us[] = {0, 900000, 99, 100, 499, 500, 4999, 5000, 49999, 50000};
        static const uint64_t want[LOOP_CPU_BUCKETS] = {2, 2, 1, 0, 1, 1, 1, 2};
        struct loop_cpu loop_cpu = {.iterations = 0};
        loop_cpu_iteration(&loop_cpu, 1000 * MS);
        for (size_t i = 0; i < ARRAY_SIZE(us); i++)
                loop_cpu_iteration(&loop_cpu, loop_cpu.last_ns + us[i] * US);
        ck_assert_mem_eq(loop_cpu.counts, want, sizeof(want));
        ck_assert_uint_eq(loop_cpu.iterations, ARRAY_SIZE(us));
        ck_assert_uint_eq(loop_cpu.longest_ns, 900 * MS);
}

/* ---- on a loop ---- */

static uint64_t thread_ns(void)
{
        struct timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void compute(uv_timer_t *timer)
{
        uint64_t until = thread_ns() + 20 * MS;
        while (thread_ns() < until)
                ;
}

static void sleep_on(uv_timer_t *timer)
{
        poll(NULL, 0, 100);
}

static uint64_t longest_with(uv_timer_cb callback)
{
        struct loop_cpu loop_cpu;
        uv_timer_t timer;
        loop_cpu_start(&loop_cpu, &core_loop);
        uv_timer_init(&core_loop, &timer);
        uv_timer_start(&timer, callback, 1, 1);
        core_until(loop_cpu.iterations >= 5);
        uv_close((uv_handle_t *)&timer, NULL);
        uv_close((uv_handle_t *)&loop_cpu.prepare, NULL);
        core_settle();
        return loop_cpu.longest_ns;
}

CORE_FIXTURE(NULL, NULL);

TEST(a_callback_that_computes_is_counted)
{
        ck_assert_uint_ge(longest_with(compute), 20 * MS);
}

TEST(a_callback_that_sleeps_is_not_counted)
{
        ck_assert_uint_lt(longest_with(sleep_on), 100 * MS);
}

/* ---- tasks ---- */

#define PIECE_NS (1 * UINT64_C(1000000))

static struct loop_task loop_task;
static uv_prepare_t prepare;
static unsigned left, done, n_turns;

static bool step(struct loop_task *of)
{
        ck_assert_ptr_eq(of, &loop_task);
        if (left == 0)
                return false;
        for (uint64_t until = now_ns() + PIECE_NS; now_ns() < until;)
                ;
        left--;
        done++;
        return true;
}

static void on_turn(uv_prepare_t *of)
{
        n_turns++;
}

static void begin(void)
{
        loop_task_init(&loop_task, &core_loop, step);
        uv_prepare_init(&core_loop, &prepare);
        uv_prepare_start(&prepare, on_turn);
        uv_unref((uv_handle_t *)&prepare);
}

static void end(void)
{
        uv_close((uv_handle_t *)&loop_task.idle, NULL);
        uv_close((uv_handle_t *)&prepare, NULL);
}

CORE_FIXTURE(begin, end);

TEST(the_loop_iterates_during_a_long_task)
{
        left = 30;
        loop_task_begin(&loop_task);
        ck_assert_uint_eq(done, 0);
        core_until(left == 0);
        ck_assert_uint_eq(done, 30);
        ck_assert_uint_ge(n_turns, 5);
}

TEST(a_restarted_run_continues)
{
        left = 1;
        loop_task_begin(&loop_task);
        loop_task_begin(&loop_task);
        core_until(left == 0);
        core_settle(); /* until it sleeps */
        left = 2;
        loop_task_begin(&loop_task);
        core_until(left == 0);
        ck_assert_uint_eq(done, 3);
        core_settle();
        ck_assert(!uv_is_active((uv_handle_t *)&loop_task.idle));
}

/* ---- the turns of users ---- */

#define GREEDY 7
#define MANY 40

static struct turns turns;
static struct turn items[MANY], other;
static unsigned served, before_other;

/* Each takes as long as a turn. */
static void serve(struct turn *turn, uint64_t until_ns)
{
        ck_assert_uint_gt(until_ns, 0);
        if (turn == &other)
                before_other = served;
        served++;
        while (now_ns() < until_ns)
                ;
}

static void begin_turns(void)
{
        served = 0;
        before_other = MANY;
        turns_start(&turns, &core_loop, serve);
        list_init(&other.link);
        for (size_t i = 0; i < MANY; i++) {
                list_init(&items[i].link);
                turn_wait(&turns, &items[i], GREEDY);
        }
}

static void end_turns(void)
{
        uv_close((uv_handle_t *)&turns.polled, NULL);
        uv_close((uv_handle_t *)&turns.task.idle, NULL);
}

CORE_FIXTURE(begin_turns, end_turns);

/* The one whose turn it is, and it. */
TEST(a_user_waits_for_one_turn_of_another_however_much_that_one_has)
{
        uint64_t until;
        core_until(served == 2);
        ck_assert(!turns_are_free(&turns, &until));
        unsigned at = served;
        turn_wait(&turns, &other, GREEDY + 1);
        core_until(before_other < MANY);
        ck_assert_uint_le(before_other, at + 1);
        core_until(served == MANY + 1);
        core_settle();
        ck_assert(turns_are_free(&turns, &until));
}

TEST(what_waits_already_keeps_its_place)
{
        turn_wait(&turns, &items[0], GREEDY);
        core_until(served == MANY);
        core_settle();
        ck_assert_uint_eq(served, MANY);
}

TEST(what_has_ended_is_not_served)
{
        for (size_t i = 0; i < MANY; i++)
                list_remove(&items[i].link);
        core_settle();
        ck_assert_uint_eq(served, 0);
}

/* ---- the thread ---- */

static void *read_nice(void *out)
{
        thread_begin("told");
        *(int *)out = getpriority(PRIO_PROCESS, 0);
        return NULL;
}

static int nice_of_a_new_thread(void)
{
        pthread_t thread;
        int nice = 99;
        ck_assert_int_eq(thread_start(&thread, NULL, read_nice, &nice), 0);
        pthread_join(thread, NULL);
        return nice;
}

FIXTURE();

TEST(the_loop_has_a_better_nice_value_than_its_threads, .to = 3)
{
        static const int given[] = {-3, 0, 4};
        if (setpriority(PRIO_PROCESS, 0, given[_i]) != 0 || !thread_raise_priority())
                SKIP("a better nice value needs a privilege");
        ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), given[_i] - THREAD_NICE_STEP);
        ck_assert_int_eq(nice_of_a_new_thread(), given[_i]);
}

TEST(without_the_privilege_all_threads_have_the_same_nice_value)
{
        int before = getpriority(PRIO_PROCESS, 0);
        if (geteuid() != 0)
                SKIP("only root can drop the privilege");
        must(setrlimit(RLIMIT_NICE, &(struct rlimit){0, 0}));
        must(setresuid(65534, 65534, 65534));
        ck_assert(!thread_raise_priority());
        ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), before);
        ck_assert_int_eq(nice_of_a_new_thread(), before);
}
