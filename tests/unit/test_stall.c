/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's longest stall: what counts as one, and that a loop which was held up shows it.
 */
#include "daemon/serve/stall.h"

#include "daemon/base/prompt.h"
#include "daemon/base/util.h"
#include "tests/lib/core.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

/* A turn that was busy for so many milliseconds, some of them without a processor, and waited. */
static void turn_ready(struct stall *stall, uint64_t busy_ms, uint64_t ready_ms, uint64_t waited_ms)
{
        struct stall_clocks clocks = stall->last;
        clocks.now_ns += (busy_ms + waited_ms) * MS;
        clocks.idle_ns += waited_ms * MS;
        clocks.ready_ns += ready_ms * MS;
        stall_turn(stall, &clocks);
}

static void turn(struct stall *stall, uint64_t busy_ms, uint64_t waited_ms)
{
        turn_ready(stall, busy_ms, 0, waited_ms);
}

static struct stall begun(void)
{
        struct stall stall = {.turns = 0};
        stall_turn(&stall, &(struct stall_clocks){1000 * MS, 500 * MS, 100 * MS});
        return stall;
}

START_TEST(the_first_turn_tells_nothing)
{
        struct stall stall = begun();
        ck_assert_uint_eq(stall.turns, 0);
        ck_assert_uint_eq(stall.longest_ns, 0);
}
END_TEST

START_TEST(waiting_is_no_stall)
{
        struct stall stall = begun();
        turn(&stall, 0, 60000);
        ck_assert_uint_eq(stall.turns, 1);
        ck_assert_uint_eq(stall.longest_ns, 0);
}
END_TEST

START_TEST(the_longest_is_kept)
{
        struct stall stall = begun();
        turn(&stall, 7, 100);
        turn(&stall, 40, 0);
        turn(&stall, 3, 5);
        ck_assert_uint_eq(stall.turns, 3);
        ck_assert_uint_eq(stall.longest_ns, 40 * MS);
}
END_TEST

START_TEST(time_without_a_processor_is_not_the_loop_s_own)
{
        struct stall stall = begun();
        turn_ready(&stall, 60, 45, 5);
        ck_assert_uint_eq(stall.longest_ns, 60 * MS);
        ck_assert_uint_eq(stall.longest_own_ns, 15 * MS);
        turn_ready(&stall, 20, 2, 5);
        ck_assert_uint_eq(stall.longest_ns, 60 * MS);
        ck_assert_uint_eq(stall.longest_own_ns, 18 * MS);
}
END_TEST

START_TEST(a_processor_that_came_late_to_an_idle_loop_makes_no_stall)
{
        struct stall stall = begun();
        turn_ready(&stall, 1, 30, 40);
        ck_assert_uint_eq(stall.longest_ns, 1 * MS);
        ck_assert_uint_eq(stall.longest_own_ns, 0);
}
END_TEST

START_TEST(each_turn_is_counted_below_its_bound)
{
        struct stall stall = begun();
        static const unsigned busy[] = {0, 1, 4, 5, 49, 50, 999, 1000, 5000};
        static const uint64_t want[STALL_BUCKETS] = {1, 2, 1, 0, 1, 1, 0, 1, 2};
        for (size_t i = 0; i < ARRAY_SIZE(busy); i++)
                turn(&stall, busy[i], i);
        ck_assert_mem_eq(stall.counts, want, sizeof(want));
}
END_TEST

START_TEST(clocks_that_disagree_by_a_little_make_no_stall)
{
        struct stall stall = begun();
        struct stall_clocks clocks = stall.last;
        clocks.now_ns += 10 * MS;
        clocks.idle_ns += 10 * MS + 1;
        stall_turn(&stall, &clocks);
        ck_assert_uint_eq(stall.turns, 1);
        ck_assert_uint_eq(stall.longest_ns, 0);
}
END_TEST

/* ---- on a loop ---- */

static void hold_up(uv_timer_t *timer)
{
        (void)timer;
        uint64_t until = now_ns() + 30 * MS;
        while (now_ns() < until)
                ;
}

START_TEST(a_callback_that_takes_its_time_shows)
{
        struct stall_watch watch;
        uv_timer_t timer;
        stall_watch_start(&watch, &core_loop);
        uv_timer_init(&core_loop, &timer);
        uv_timer_start(&timer, hold_up, 1, 1);
        /* Time without a processor before a turn began may be taken off it: some turn has less of that. */
        core_until(watch.stall.longest_ns >= 30 * MS && watch.stall.longest_own_ns > 0);
        ck_assert_uint_le(watch.stall.longest_own_ns, watch.stall.longest_ns);
        uv_close((uv_handle_t *)&timer, NULL);
        uv_close((uv_handle_t *)&watch.prepare, NULL);
        core_settle();
        stall_watch_deinit(&watch);
}
END_TEST

/* ---- who runs it ---- */

static void *nice_of(void *nice)
{
        *(int *)nice = getpriority(PRIO_PROCESS, 0);
        return NULL;
}

START_TEST(a_prompt_thread_is_served_before_those_that_it_starts)
{
        pthread_t thread;
        int before = getpriority(PRIO_PROCESS, 0), started = -100;
        if (!prompt_this_thread())
                SKIP("a better nice value needs a right");
        ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), before - PROMPT_STEP);
        ck_assert_int_eq(pthread_create(&thread, NULL, nice_of, &started), 0);
        pthread_join(thread, NULL);
        ck_assert_int_gt(started, before - PROMPT_STEP);
}
END_TEST

START_TEST(without_the_right_nothing_changes)
{
        int before = getpriority(PRIO_PROCESS, 0);
        if (geteuid() != 0)
                SKIP("only root can give the right away");
        must(setrlimit(RLIMIT_NICE, &(struct rlimit){0, 0}));
        must(setresuid(65534, 65534, 65534));
        ck_assert(!prompt_this_thread());
        ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), before);
}
END_TEST

int main(void)
{
        suite_begin("stall");
        TCase *turns = suite_group("turns", NULL, NULL, 10);
        tcase_add_test(turns, the_first_turn_tells_nothing);
        tcase_add_test(turns, waiting_is_no_stall);
        tcase_add_test(turns, the_longest_is_kept);
        tcase_add_test(turns, time_without_a_processor_is_not_the_loop_s_own);
        tcase_add_test(turns, a_processor_that_came_late_to_an_idle_loop_makes_no_stall);
        tcase_add_test(turns, each_turn_is_counted_below_its_bound);
        tcase_add_test(turns, clocks_that_disagree_by_a_little_make_no_stall);
        TCase *loop = core_group("loop", NULL, NULL);
        tcase_add_test(loop, a_callback_that_takes_its_time_shows);
        TCase *who = suite_group("who", NULL, NULL, 10);
        tcase_add_test(who, a_prompt_thread_is_served_before_those_that_it_starts);
        tcase_add_test(who, without_the_right_nothing_changes);
        return suite_run();
}
