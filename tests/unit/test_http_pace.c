/* SPDX-License-Identifier: Apache-2.0
 *
 * How many ranges of a load are in flight, when one is cut in two or asked for twice, and when a server is too busy
 * for that. Time is the test's.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/io/http_pace.h"

#define SECOND UINT64_C(1000000000)

/* ---- the number in flight ---- */

static uint64_t clock_;

/* One window of as many blocks as the limit, at this rate; not shorter than a window may be. */
static void window(struct http_pace *pace, uint64_t bytes_per_second)
{
        unsigned n = pace->limit;
        for (unsigned i = 0; i < n; i++) {
                clock_ += (8 * MiB * SECOND) / bytes_per_second;
                http_pace_landed(pace, 8 * MiB, SECOND / 10, clock_);
        }
}

/* The one that settles, and the one that counts. */
static void measure(struct http_pace *pace, uint64_t bytes_per_second)
{
        window(pace, bytes_per_second);
        window(pace, bytes_per_second);
}

START_TEST(it_begins_with_a_quarter_and_grows_while_throughput_grows)
{
        struct http_pace pace;
        clock_ = SECOND;
        http_pace_init(&pace, 64, clock_);
        ck_assert_uint_eq(pace.limit, 16);
        http_pace_answered(&pace, SECOND / 1000);
        ck_assert_uint_eq(pace.limit, 16);
        measure(&pace, 100 * MiB);
        ck_assert_uint_eq(pace.limit, 32);
        measure(&pace, 200 * MiB);
        ck_assert_uint_eq(pace.limit, 64);
        measure(&pace, 400 * MiB);
        measure(&pace, 400 * MiB);
        ck_assert_uint_eq(pace.limit, 64);
}
END_TEST

START_TEST(four_are_not_divided)
{
        static const struct {
                unsigned most, first;
        } few[] = {{1, 1}, {2, 2}, {4, 4}, {8, 4}, {16, 4}, {20, 5}};
        struct http_pace pace;
        for (size_t i = 0; i < ARRAY_SIZE(few); i++) {
                http_pace_init(&pace, few[i].most, SECOND);
                ck_assert_uint_eq(pace.limit, few[i].first);
        }
}
END_TEST

START_TEST(where_more_brings_nothing_it_goes_back_and_tries_again_later)
{
        struct http_pace pace;
        clock_ = SECOND;
        http_pace_init(&pace, 64, clock_);
        measure(&pace, 100 * MiB);
        ck_assert_uint_eq(pace.limit, 32);
        measure(&pace, 100 * MiB);
        ck_assert_uint_eq(pace.limit, 16);
        window(&pace, 100 * MiB);
        for (int i = 0; i < 7; i++) {
                window(&pace, 100 * MiB);
                ck_assert_uint_eq(pace.limit, 16);
        }
        window(&pace, 100 * MiB);
        ck_assert_uint_eq(pace.limit, 32);
}
END_TEST

START_TEST(a_window_is_not_too_short_to_tell)
{
        struct http_pace pace;
        http_pace_init(&pace, 8, SECOND);
        for (unsigned i = 0; i < 100; i++)
                http_pace_landed(&pace, MiB, 1000, SECOND + i * 1000);
        ck_assert_uint_eq(pace.limit, 4);
}
END_TEST

START_TEST(a_server_that_is_far_gets_all_at_once)
{
        struct http_pace pace;
        http_pace_init(&pace, 64, SECOND);
        http_pace_answered(&pace, SECOND / 10);
        ck_assert_uint_eq(pace.limit, 64);
        http_pace_init(&pace, 64, SECOND);
        http_pace_answered(&pace, SECOND / 1000);
        http_pace_answered(&pace, SECOND / 10); /* the first told how far it is */
        ck_assert_uint_eq(pace.limit, 16);
        http_pace_init(&pace, 64, SECOND);
        http_pace_slow_down(&pace, 2 * SECOND);
        http_pace_answered(&pace, SECOND / 10); /* it has asked for less */
        ck_assert_uint_eq(pace.limit, 8);
}
END_TEST

/* ---- whether a server has time for more ---- */

static uint64_t came_;

/* A tenth of a second at this rate. */
static void comes(struct http_pace *pace, uint64_t bytes_per_second)
{
        clock_ += SECOND / 10;
        came_ += bytes_per_second / 10;
        http_pace_came(pace, came_, clock_);
}

/* One second of an even flow. */
static void flows(struct http_pace *pace)
{
        clock_ = SECOND;
        came_ = 0;
        http_pace_init(pace, 8, clock_);
        for (int i = 0; i < 11; i++)
                comes(pace, 1000 * MiB);
}

START_TEST(bytes_that_come_as_fast_as_ever_flow)
{
        struct http_pace pace;
        http_pace_init(&pace, 8, SECOND);
        ck_assert(http_pace_flows(&pace)); /* nothing is known */
        flows(&pace);
        ck_assert(http_pace_flows(&pace));
        for (int i = 0; i < 20; i++) {
                comes(&pace, 800 * MiB);
                ck_assert(http_pace_flows(&pace));
        }
        comes(&pace, 2000 * MiB);
        ck_assert(http_pace_flows(&pace));
}
END_TEST

START_TEST(bytes_that_come_much_more_slowly_do_not)
{
        struct http_pace pace;
        flows(&pace);
        comes(&pace, 400 * MiB);
        ck_assert(http_pace_flows(&pace)); /* once is an accident */
        comes(&pace, 400 * MiB);
        ck_assert(!http_pace_flows(&pace));
        for (int i = 0; i < 4; i++)
                comes(&pace, 1000 * MiB);
        ck_assert(http_pace_flows(&pace));
        comes(&pace, 0);
        ck_assert(!http_pace_flows(&pace));
}
END_TEST

/* However long it takes to the first byte: that is not what the later ones are compared with. */
START_TEST(a_flow_begins_with_the_first_byte)
{
        struct http_pace pace;
        clock_ = SECOND;
        came_ = 0;
        http_pace_init(&pace, 8, clock_);
        for (int i = 0; i < 100; i++)
                comes(&pace, 0);
        for (int i = 0; i < 10; i++)
                comes(&pace, 1000 * MiB);
        comes(&pace, 400 * MiB);
        comes(&pace, 400 * MiB);
        ck_assert(!http_pace_flows(&pace));
}
END_TEST

START_TEST(a_sample_is_not_too_short_to_tell)
{
        struct http_pace pace;
        flows(&pace);
        for (unsigned i = 1; i < 100; i++)
                ck_assert(!http_pace_came(&pace, came_, clock_ + i * SECOND / 1000));
        ck_assert(http_pace_flows(&pace));
        ck_assert(http_pace_came(&pace, came_, clock_ + SECOND / 10));
        ck_assert(!http_pace_flows(&pace));
}
END_TEST

START_TEST(a_run_is_split_where_a_second_of_it_is_left)
{
        struct http_pace pace;
        flows(&pace);
        comes(&pace, 0);
        ck_assert_uint_eq(http_pace_split(&pace), SIZE_MAX);
        http_pace_landed(&pace, MiB, SECOND / 10, SECOND);
        ck_assert_uint_eq(http_pace_split(&pace), 11);
        flows(&pace);
        comes(&pace, 0);
        http_pace_landed(&pace, MiB, 10 * SECOND, SECOND);
        ck_assert_uint_eq(http_pace_split(&pace), 2);
}
END_TEST

START_TEST(nothing_is_split_while_bytes_flow)
{
        struct http_pace pace;
        flows(&pace);
        http_pace_landed(&pace, MiB, SECOND / 10, SECOND);
        ck_assert_uint_eq(http_pace_split(&pace), SIZE_MAX);
}
END_TEST

START_TEST(slowing_down_halves_it_once_for_all_that_was_in_flight)
{
        struct http_pace pace;
        clock_ = SECOND;
        http_pace_init(&pace, 32, clock_);
        measure(&pace, 100 * MiB);
        for (int i = 0; i < 10; i++)
                http_pace_slow_down(&pace, clock_ += SECOND / 100);
        ck_assert_uint_eq(pace.limit, 8);
        http_pace_slow_down(&pace, clock_ += SECOND);
        ck_assert_uint_eq(pace.limit, 4);
        measure(&pace, 100 * MiB);
        ck_assert_uint_eq(pace.limit, 5);
        for (int i = 0; i < 20; i++)
                http_pace_slow_down(&pace, clock_ += SECOND);
        ck_assert_uint_eq(pace.limit, 1);
}
END_TEST

/* A server that had 64 in flight was asked for less once, and serves all that it is asked for from then on. */
static void slowed_once(struct http_pace *pace)
{
        clock_ = SECOND;
        http_pace_init(pace, 256, clock_);
        http_pace_slow_down(pace, clock_ += SECOND);
        ck_assert_uint_eq(pace->limit, 32);
}

/* Eight windows, which are four measures. */
START_TEST(after_slowing_down_it_grows_by_one_and_then_as_before)
{
        static const unsigned limits[] = {33, 34, 35, 70, 140, 256};
        struct http_pace pace;
        slowed_once(&pace);
        for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
                measure(&pace, (100 * MiB) << i);
                ck_assert_uint_eq(pace.limit, limits[i]);
        }
}
END_TEST

/* The windows before that do not count. */
START_TEST(slowed_down_again_it_grows_by_one_again)
{
        struct http_pace pace;
        slowed_once(&pace);
        for (int i = 0; i < 3; i++)
                measure(&pace, (100 * MiB) << i);
        ck_assert_uint_eq(pace.limit, 35);
        http_pace_slow_down(&pace, clock_ += SECOND);
        ck_assert_uint_eq(pace.limit, 17);
        for (int i = 0; i < 3; i++)
                measure(&pace, (100 * MiB) << i);
        ck_assert_uint_eq(pace.limit, 20);
}
END_TEST

START_TEST(a_straggler_takes_three_times_as_long_as_others)
{
        struct http_pace pace;
        http_pace_init(&pace, 8, 0);
        ck_assert_uint_eq(http_pace_straggler(&pace), 0);
        http_pace_landed(&pace, MiB, SECOND, SECOND);
        ck_assert_uint_eq(http_pace_straggler(&pace), 3 * SECOND);
        http_pace_init(&pace, 8, 0);
        http_pace_landed(&pace, MiB, 1000, SECOND);
        ck_assert_uint_eq(http_pace_straggler(&pace), SECOND / 2);
}
END_TEST

int main(void)
{
        suite_begin("http pace");
        TCase *t = suite_group("decisions", NULL, NULL, 20);
        tcase_add_test(t, it_begins_with_a_quarter_and_grows_while_throughput_grows);
        tcase_add_test(t, four_are_not_divided);
        tcase_add_test(t, where_more_brings_nothing_it_goes_back_and_tries_again_later);
        tcase_add_test(t, a_window_is_not_too_short_to_tell);
        tcase_add_test(t, a_server_that_is_far_gets_all_at_once);
        tcase_add_test(t, bytes_that_come_as_fast_as_ever_flow);
        tcase_add_test(t, bytes_that_come_much_more_slowly_do_not);
        tcase_add_test(t, a_flow_begins_with_the_first_byte);
        tcase_add_test(t, a_sample_is_not_too_short_to_tell);
        tcase_add_test(t, a_run_is_split_where_a_second_of_it_is_left);
        tcase_add_test(t, nothing_is_split_while_bytes_flow);
        tcase_add_test(t, slowing_down_halves_it_once_for_all_that_was_in_flight);
        tcase_add_test(t, after_slowing_down_it_grows_by_one_and_then_as_before);
        tcase_add_test(t, slowed_down_again_it_grows_by_one_again);
        tcase_add_test(t, a_straggler_takes_three_times_as_long_as_others);
        return suite_run();
}
