/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop's longest stall: what counts as one, and that a loop which was held up shows it.
 */
#include "daemon/serve/stall.h"

#include "daemon/base/util.h"
#include "tests/lib/core.h"

#include <string.h>

#define MS UINT64_C(1000000)

/* Turns that were busy and waited for so many milliseconds each. */
static void turn(struct stall *stall, uint64_t busy_ms, uint64_t waited_ms)
{
        stall_turn(stall, stall->last_ns + (busy_ms + waited_ms) * MS, stall->last_idle_ns + waited_ms * MS);
}

static struct stall begun(void)
{
        struct stall stall = {.turns = 0};
        stall_turn(&stall, 1000 * MS, 500 * MS);
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
        stall_turn(&stall, stall.last_ns + 10 * MS, stall.last_idle_ns + 10 * MS + 1);
        ck_assert_uint_eq(stall.turns, 1);
        ck_assert_uint_eq(stall.longest_ns, 0);
}
END_TEST

/* ---- on a loop ---- */

/* What comes before the first turn has ended is nobody's: a timer that is due at once would be. */
static void hold_up(uv_timer_t *timer)
{
        const struct stall_watch *watch = timer->data;
        if (watch->stall.last_ns == 0)
                return;
        uint64_t until = now_ns() + 30 * MS;
        while (now_ns() < until)
                ;
        uv_close((uv_handle_t *)timer, NULL);
}

START_TEST(a_callback_that_takes_its_time_shows)
{
        struct stall_watch watch;
        uv_timer_t timer;
        stall_watch_start(&watch, &core_loop);
        uv_timer_init(&core_loop, &timer);
        timer.data = &watch;
        uv_timer_start(&timer, hold_up, 1, 1);
        core_until(watch.stall.longest_ns >= 30 * MS);
        uv_close((uv_handle_t *)&watch.prepare, NULL);
        core_settle();
}
END_TEST

int main(void)
{
        suite_begin("stall");
        TCase *turns = suite_group("turns", NULL, NULL, 10);
        tcase_add_test(turns, the_first_turn_tells_nothing);
        tcase_add_test(turns, waiting_is_no_stall);
        tcase_add_test(turns, the_longest_is_kept);
        tcase_add_test(turns, each_turn_is_counted_below_its_bound);
        tcase_add_test(turns, clocks_that_disagree_by_a_little_make_no_stall);
        TCase *loop = core_group("loop", NULL, NULL);
        tcase_add_test(loop, a_callback_that_takes_its_time_shows);
        return suite_run();
}
