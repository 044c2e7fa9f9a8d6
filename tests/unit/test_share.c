/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted shares: how much each may hold, and who is next.
 */
#include "daemon/io/share.h"

#include "daemon/base/util.h"
#include "tests/lib/suite.h"

/* ---- how much ---- */

static unsigned part(unsigned weight, unsigned heaviest, unsigned n)
{
        struct share share;
        share_init(&share, weight, 0);
        return share_of(&share, heaviest, n);
}

START_TEST(the_heaviest_holds_half)
{
        ck_assert_uint_eq(part(100, 100, 32), 16);
        ck_assert_uint_eq(part(1, 1, 32), 16);
        ck_assert_uint_eq(part(SHARE_WEIGHT_MAX, SHARE_WEIGHT_MAX, 32), 16);
}
END_TEST

START_TEST(the_lighter_holds_less)
{
        ck_assert_uint_eq(part(100, 300, 32), 8);
        ck_assert_uint_eq(part(1, SHARE_WEIGHT_MAX, 32), 1);
}
END_TEST

START_TEST(one_is_always_held)
{
        for (unsigned n = 0; n < 3; n++)
                ck_assert_uint_eq(part(1, 100, n), 1);
}
END_TEST

START_TEST(a_large_number_does_not_overflow)
{
        ck_assert_uint_eq(part(SHARE_WEIGHT_MAX, SHARE_WEIGHT_MAX, 4000000000u), 2000000000u);
}
END_TEST

/* One step towards what it may hold: takes one more, or gives one back. */
static bool step(unsigned *held, unsigned may)
{
        if (*held == may)
                return false;
        *held += *held < may ? 1 : -1u;
        return true;
}

/* Two that take and give back in turn until both hold what they may. */
static void settle(unsigned n, unsigned wa, unsigned wb, unsigned *a, unsigned *b)
{
        unsigned heaviest = wa > wb ? wa : wb;
        *a = *b = 0;
        for (bool moved = true; moved;) {
                moved = step(a, part(wa, heaviest, n - *b));
                moved = step(b, part(wb, heaviest, n - *a)) || moved;
        }
}

START_TEST(what_two_hold_stands_in_the_ratio_of_their_weights)
{
        unsigned a, b;
        settle(900, 100, 100, &a, &b);
        ck_assert_uint_eq(a, 300);
        ck_assert_uint_eq(b, 300);
        settle(900, 400, 100, &a, &b);
        ck_assert_uint_eq(a, 400);
        ck_assert_uint_eq(b, 100);
        ck_assert_uint_eq(900 - a - b, 400); /* left for whoever comes next */
}
END_TEST

/* ---- who is next ---- */

#define N 3

/* Of one test, in its process. */
static struct share shares[N];
static uint64_t now;

static void begin(unsigned n, unsigned weight)
{
        for (unsigned i = 0; i < n; i++)
                share_init(&shares[i], weight, now);
}

struct served {
        unsigned count[N];
};

/* Gives `turns` blocks to whoever is due, of those in the mask; counts them by share. */
static struct served serve(unsigned turns, unsigned mask)
{
        struct served served = {0};
        for (unsigned t = 0; t < turns; t++) {
                unsigned first = N;
                for (unsigned i = 0; i < N; i++)
                        if ((mask & 1u << i) && (first == N || share_before(&shares[i], &shares[first])))
                                first = i;
                share_take(&shares[first], &now, 8 * MiB);
                served.count[first]++;
        }
        return served;
}

START_TEST(turns_follow_the_weights)
{
        for (unsigned i = 0; i < N; i++)
                share_init(&shares[i], 100u << i, now);
        struct served served = serve(7000, 7);
        for (unsigned i = 0; i < N; i++) {
                ck_assert_uint_ge(served.count[i], (1000u << i) - 2);
                ck_assert_uint_le(served.count[i], (1000u << i) + 2);
        }
}
END_TEST

START_TEST(small_blocks_come_more_often_than_large_ones)
{
        struct share small, large;
        unsigned n_small = 0, n_large = 0;
        share_init(&small, 100, now);
        share_init(&large, 100, now);
        for (unsigned i = 0; i < 900; i++) {
                if (share_before(&small, &large))
                        share_take(&small, &now, MiB), n_small++;
                else
                        share_take(&large, &now, 8 * MiB), n_large++;
        }
        ck_assert_uint_ge(n_small, 8 * n_large - 8);
        ck_assert_uint_le(n_small, 8 * n_large + 8);
}
END_TEST

START_TEST(who_comes_late_gets_its_share_from_then_on_and_no_more)
{
        begin(1, 100);
        serve(1000, 1);
        share_init(&shares[1], 100, now);
        struct served both = serve(100, 3);
        ck_assert_uint_ge(both.count[0], 49);
        ck_assert_uint_ge(both.count[1], 49);
}
END_TEST

START_TEST(who_has_a_head_start_goes_first_for_so_many_bytes_and_no_more)
{
        begin(1, 100);
        serve(1000, 1);
        share_init(&shares[1], 100, now);
        share_head_start(&shares[1], 16 * 8 * MiB);
        ck_assert_uint_ge(serve(17, 3).count[1], 16);
        struct served both = serve(100, 3);
        ck_assert_uint_ge(both.count[0], 49);
        ck_assert_uint_ge(both.count[1], 49);
}
END_TEST

START_TEST(who_could_not_take_any_has_saved_nothing_up)
{
        begin(2, 100);
        serve(1000, 1); /* the second is held up */
        struct served after = serve(100, 3);
        ck_assert_uint_ge(after.count[0], 48);
        ck_assert_uint_ge(after.count[1], 48);
}
END_TEST

START_TEST(a_new_weight_counts_at_once)
{
        begin(2, 100);
        serve(100, 3);
        shares[1].weight = 900;
        struct served after = serve(1000, 3);
        ck_assert_uint_ge(after.count[1], 895);
        ck_assert_uint_le(after.count[1], 905);
}
END_TEST

START_TEST(time_that_wraps_round_is_still_time)
{
        now = UINT64_MAX - 100;
        begin(2, 100);
        struct served served = serve(100, 3);
        ck_assert_uint_eq(served.count[0], 50);
        ck_assert_uint_eq(served.count[1], 50);
}
END_TEST

int main(void)
{
        suite_begin("share");
        TCase *held = suite_group("held", NULL, NULL, 10);
        tcase_add_test(held, the_heaviest_holds_half);
        tcase_add_test(held, the_lighter_holds_less);
        tcase_add_test(held, one_is_always_held);
        tcase_add_test(held, a_large_number_does_not_overflow);
        tcase_add_test(held, what_two_hold_stands_in_the_ratio_of_their_weights);
        TCase *next = suite_group("next", NULL, NULL, 10);
        tcase_add_test(next, turns_follow_the_weights);
        tcase_add_test(next, small_blocks_come_more_often_than_large_ones);
        tcase_add_test(next, who_comes_late_gets_its_share_from_then_on_and_no_more);
        tcase_add_test(next, who_has_a_head_start_goes_first_for_so_many_bytes_and_no_more);
        tcase_add_test(next, who_could_not_take_any_has_saved_nothing_up);
        tcase_add_test(next, a_new_weight_counts_at_once);
        tcase_add_test(next, time_that_wraps_round_is_still_time);
        return suite_run();
}
