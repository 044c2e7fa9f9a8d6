/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's longest stall: what counts as one, and that a loop which was held up shows it.
 */
#include "daemon/serve/stall.h"

#include "daemon/base/prompt.h"
#include "daemon/base/util.h"
#include "tests/lib/core.h"

#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

/* A turn that was busy for so many milliseconds, some of them without a processor, and waited. */
static void turn_ready(struct stall *stall, uint64_t busy_ms, uint64_t ready_ms, uint64_t waited_ms)
{
        struct stall_clocks clocks = stall->last;
        clocks.now_ns += (busy_ms + waited_ms) * MS;
        clocks.idle_ns += waited_ms * MS;
        clocks.ready_ns += ready_ms * MS;
        clocks.ran_ns += (busy_ms - ready_ms) / 2 * MS;
        stall_turn(stall, &clocks);
}

static void turn(struct stall *stall, uint64_t busy_ms, uint64_t waited_ms)
{
        turn_ready(stall, busy_ms, 0, waited_ms);
}

static struct stall begun(void)
{
        struct stall stall = {.turns = 0};
        stall_turn(&stall, &(struct stall_clocks){.now_ns = 1000 * MS, .idle_ns = 500 * MS, .ready_ns = 100 * MS});
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

START_TEST(the_longest_turns_are_kept_with_their_time_and_processor)
{
        struct stall stall = begun();
        static const unsigned busy[] = {12, 9, 40, 11, 40, 10, 30, 13, 14, 15, 16};
        static const uint64_t want[STALL_KEPT] = {40, 40, 30, 16, 15, 14, 13, 12};
        for (size_t i = 0; i < ARRAY_SIZE(busy); i++) {
                stall.last.cpu = (unsigned)i;
                turn_ready(&stall, busy[i], 5, 1);
        }
        ck_assert_uint_eq(stall.n_kept, STALL_KEPT);
        for (size_t i = 0; i < STALL_KEPT; i++)
                ck_assert_uint_eq(stall.kept[i].ns, want[i] * MS);
        ck_assert_uint_eq(stall.kept[1].cpu, 4); /* of two as long the first comes first */
        ck_assert_uint_eq(stall.kept[2].own_ns, 25 * MS);
        ck_assert_uint_eq(stall.kept[2].ran_ns, 12 * MS);
        /* From 1000 ms on; those before it, and what they waited. */
        ck_assert_uint_eq(stall.kept[2].at_ns, (1000 + 12 + 9 + 40 + 11 + 40 + 10 + 7) * MS);
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

#define SLICE_NS 100000

/* Of the calling thread, as the kernel tells it. */
struct told {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
};

static struct told told(void)
{
        struct told told = {.size = sizeof(told)};
        must((int)syscall(SYS_sched_getattr, 0, &told, sizeof(told), 0));
        return told;
}

static void *tell(void *out)
{
        thread_begin("told");
        *(struct told *)out = told();
        return NULL;
}

static struct told told_of_a_new_thread(void)
{
        struct told of = {.policy = UINT32_MAX};
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, tell, &of), 0);
        pthread_join(thread, NULL);
        return of;
}

/* Older kernels take it, and tell nothing of it. */
static void has_short_slice(void)
{
        uint64_t slice = told().runtime;
        ck_assert(slice == SLICE_NS || slice == 0);
}

static void be_nobody(void)
{
        must(setrlimit(RLIMIT_RTPRIO, &(struct rlimit){0, 0}));
        must(setrlimit(RLIMIT_NICE, &(struct rlimit){0, 0}));
        must(setresuid(65534, 65534, 65534));
}

#define NEEDS_ROOT()                                                                                                   \
        do {                                                                                                           \
                if (geteuid() != 0)                                                                                    \
                        SKIP("only root can give the right away");                                                     \
        } while (0)
#define NEEDS(got, want)                                                                                               \
        do {                                                                                                           \
                if ((got) != (want))                                                                                   \
                        SKIP("a better place at the processor needs a right");                                         \
        } while (0)

START_TEST(a_thread_of_real_time_is_ahead_of_those_that_it_starts)
{
        NEEDS(prompt_this_thread(true), PROMPT_REALTIME);
        ck_assert_uint_eq(told().policy, SCHED_RR);
        ck_assert_uint_eq(told().priority, 1);
        ck_assert_uint_eq(told_of_a_new_thread().policy, SCHED_OTHER);
}
END_TEST

START_TEST(without_real_time_it_has_a_short_slice_and_a_better_nice_value_than_those_that_it_starts)
{
        int before = getpriority(PRIO_PROCESS, 0);
        NEEDS(prompt_this_thread(false), PROMPT_NICE);
        ck_assert_uint_eq(told().policy, SCHED_OTHER);
        ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), before - PROMPT_STEP);
        has_short_slice();
        ck_assert_int_eq(told_of_a_new_thread().nice, before);
}
END_TEST

/* The kernel gives them 0 or what their maker has. */
START_TEST(those_that_it_starts_have_the_nice_value_that_the_daemon_was_given)
{
        static const int given[] = {-3, 0, 4};
        NEEDS(setpriority(PRIO_PROCESS, 0, given[_i / 2]), 0);
        prompt_this_thread(_i % 2 != 0);
        ck_assert_int_eq(told_of_a_new_thread().nice, given[_i / 2]);
}
END_TEST

START_TEST(without_a_right_it_has_a_short_slice_alone)
{
        int before = getpriority(PRIO_PROCESS, 0);
        NEEDS_ROOT();
        be_nobody();
        ck_assert_int_eq(prompt_this_thread(true), PROMPT_SLICE);
        ck_assert_uint_eq(told().policy, SCHED_OTHER);
        ck_assert_int_eq(getpriority(PRIO_PROCESS, 0), before);
        has_short_slice();
}
END_TEST

static bool lost(void *arg)
{
        (void)arg;
        return prompt_lost();
}

START_TEST(a_thread_of_real_time_that_never_sleeps_becomes_one_like_others)
{
        NEEDS(prompt_this_thread(true), PROMPT_REALTIME);
        ck_assert(!prompt_lost());
        while (told().policy != SCHED_OTHER)
                poll(NULL, 0, 0); /* never sleeps; the thread sanitizer hands signals on in such calls */
        ck_assert(eventually(lost, NULL, 10000));
        ck_assert(!prompt_lost());
        has_short_slice();
}
END_TEST

START_TEST(a_stricter_limit_of_somebody_else_stays)
{
        struct rlimit time;
        NEEDS_ROOT();
        must(setrlimit(RLIMIT_RTTIME, &(struct rlimit){200000, 5000000}));
        prompt_this_thread(true);
        must(getrlimit(RLIMIT_RTTIME, &time));
        ck_assert_uint_eq(time.rlim_cur, 200000);
        ck_assert_uint_eq(time.rlim_max, 5000000);
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
        tcase_add_test(turns, the_longest_turns_are_kept_with_their_time_and_processor);
        tcase_add_test(turns, clocks_that_disagree_by_a_little_make_no_stall);
        TCase *loop = core_group("loop", NULL, NULL);
        tcase_add_test(loop, a_callback_that_takes_its_time_shows);
        TCase *who = suite_group("who", NULL, NULL, 10);
        tcase_add_test(who, a_thread_of_real_time_is_ahead_of_those_that_it_starts);
        tcase_add_test(who, without_real_time_it_has_a_short_slice_and_a_better_nice_value_than_those_that_it_starts);
        tcase_add_loop_test(who, those_that_it_starts_have_the_nice_value_that_the_daemon_was_given, 0, 6);
        tcase_add_test(who, without_a_right_it_has_a_short_slice_alone);
        tcase_add_test(who, a_thread_of_real_time_that_never_sleeps_becomes_one_like_others);
        tcase_add_test(who, a_stricter_limit_of_somebody_else_stays);
        return suite_run();
}
