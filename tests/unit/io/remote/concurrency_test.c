/* SPDX-License-Identifier: Apache-2.0
 *
 * The number of ranges in flight for a load, when one is hedged, and backing off from a busy server. The
 * test sets the time.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/io/remote/concurrency.h"

/* ---- the number in flight ---- */

static uint64_t clock_;
static struct concurrency pace;

/* One window of as many blocks as the limit, at this rate; not shorter than a window may be. */
static void window(uint64_t bytes_per_second)
{
        unsigned n = pace.limit;
        for (unsigned i = 0; i < n; i++) {
                clock_ += (8 * MiB * SECOND) / bytes_per_second;
                concurrency_add_block(&pace, 8 * MiB, SECOND / 10, clock_);
        }
}

/* The one that settles, and the one that counts. */
static void measure(uint64_t bytes_per_second)
{
        window(bytes_per_second);
        window(bytes_per_second);
}

TEST(concurrency_starts_at_a_quarter_and_grows_with_throughput)
{
        clock_ = SECOND;
        concurrency_init(&pace, 64, clock_);
        ck_assert_uint_eq(pace.limit, 16);
        concurrency_answered(&pace, SECOND / 1000);
        ck_assert_uint_eq(pace.limit, 16);
        measure(100 * MiB);
        ck_assert_uint_eq(pace.limit, 32);
        measure(200 * MiB);
        ck_assert_uint_eq(pace.limit, 64);
        measure(400 * MiB);
        measure(400 * MiB);
        ck_assert_uint_eq(pace.limit, 64);
}

TEST(the_initial_concurrency_is_at_least_four)
{
        static const struct {
                unsigned most, first;
        } few[] = {{1, 1}, {2, 2}, {4, 4}, {8, 4}, {16, 4}, {20, 5}};
        for (size_t i = 0; i < ARRAY_SIZE(few); i++) {
                concurrency_init(&pace, few[i].most, SECOND);
                ck_assert_uint_eq(pace.limit, few[i].first);
        }
}

TEST(concurrency_falls_back_without_a_gain_in_throughput)
{
        clock_ = SECOND;
        concurrency_init(&pace, 64, clock_);
        measure(100 * MiB);
        ck_assert_uint_eq(pace.limit, 32);
        measure(100 * MiB);
        ck_assert_uint_eq(pace.limit, 16);
        window(100 * MiB);
        for (int i = 0; i < 7; i++) {
                window(100 * MiB);
                ck_assert_uint_eq(pace.limit, 16);
        }
        window(100 * MiB);
        ck_assert_uint_eq(pace.limit, 32);
}

TEST(a_window_is_long_enough_to_judge)
{
        concurrency_init(&pace, 8, SECOND);
        for (unsigned i = 0; i < 100; i++)
                concurrency_add_block(&pace, MiB, 1000, SECOND + i * 1000);
        ck_assert_uint_eq(pace.limit, 4);
}

TEST(a_distant_server_gets_full_concurrency_at_once)
{
        concurrency_init(&pace, 64, SECOND);
        concurrency_answered(&pace, SECOND / 10);
        ck_assert_uint_eq(pace.limit, 64);
        concurrency_init(&pace, 64, SECOND);
        concurrency_answered(&pace, SECOND / 1000);
        concurrency_answered(&pace, SECOND / 10); /* the first reply measured the distance */
        ck_assert_uint_eq(pace.limit, 16);
        concurrency_init(&pace, 64, SECOND);
        concurrency_slow_down(&pace, 2 * SECOND);
        concurrency_answered(&pace, SECOND / 10); /* it has asked for less */
        ck_assert_uint_eq(pace.limit, 8);
}

/* ---- growth of concurrency ---- */

static uint64_t total_bytes;

/* A tenth of a second at this rate. */
static void receive_bytes(uint64_t bytes_per_second)
{
        clock_ += SECOND / 10;
        total_bytes += bytes_per_second / 10;
        concurrency_add_bytes(&pace, total_bytes, clock_);
}

/* One second of an even flow. */
static void flows(void)
{
        clock_ = SECOND;
        total_bytes = 0;
        concurrency_init(&pace, 8, clock_);
        for (int i = 0; i < 11; i++)
                receive_bytes(1000 * MiB);
}

TEST(bytes_at_an_unchanged_rate_flow)
{
        concurrency_init(&pace, 8, SECOND);
        ck_assert(concurrency_is_saturated(&pace)); /* nothing is known */
        flows();
        ck_assert(concurrency_is_saturated(&pace));
        for (int i = 0; i < 20; i++) {
                receive_bytes(800 * MiB);
                ck_assert(concurrency_is_saturated(&pace));
        }
        receive_bytes(2000 * MiB);
        ck_assert(concurrency_is_saturated(&pace));
}

TEST(bytes_at_a_much_lower_rate_do_not_flow)
{
        flows();
        receive_bytes(400 * MiB);
        ck_assert(concurrency_is_saturated(&pace)); /* once is an accident */
        receive_bytes(400 * MiB);
        ck_assert(!concurrency_is_saturated(&pace));
        for (int i = 0; i < 4; i++)
                receive_bytes(1000 * MiB);
        ck_assert(concurrency_is_saturated(&pace));
        receive_bytes(0);
        ck_assert(!concurrency_is_saturated(&pace));
}

/* The time to the first byte does not count for the later comparison. */
TEST(a_flow_begins_with_the_first_byte)
{
        clock_ = SECOND;
        total_bytes = 0;
        concurrency_init(&pace, 8, clock_);
        for (int i = 0; i < 100; i++)
                receive_bytes(0);
        for (int i = 0; i < 10; i++)
                receive_bytes(1000 * MiB);
        receive_bytes(400 * MiB);
        receive_bytes(400 * MiB);
        ck_assert(!concurrency_is_saturated(&pace));
}

TEST(a_sample_is_long_enough_to_judge)
{
        flows();
        for (unsigned i = 1; i < 100; i++)
                concurrency_add_bytes(&pace, total_bytes, clock_ + i * SECOND / 1000);
        ck_assert(concurrency_is_saturated(&pace));
        concurrency_add_bytes(&pace, total_bytes, clock_ + SECOND / 10);
        ck_assert(!concurrency_is_saturated(&pace));
}

TEST(a_slow_down_halves_concurrency_once_for_all_requests_in_flight)
{
        clock_ = SECOND;
        concurrency_init(&pace, 32, clock_);
        measure(100 * MiB);
        for (int i = 0; i < 10; i++)
                concurrency_slow_down(&pace, clock_ += SECOND / 100);
        ck_assert_uint_eq(pace.limit, 8);
        concurrency_slow_down(&pace, clock_ += SECOND);
        ck_assert_uint_eq(pace.limit, 4);
        measure(100 * MiB);
        ck_assert_uint_eq(pace.limit, 5);
        for (int i = 0; i < 20; i++)
                concurrency_slow_down(&pace, clock_ += SECOND);
        ck_assert_uint_eq(pace.limit, 1);
}

/* A server slowed down once at 64 requests in flight, and serves every request from then on. */
static void slowed_once(void)
{
        clock_ = SECOND;
        concurrency_init(&pace, 256, clock_);
        concurrency_slow_down(&pace, clock_ += SECOND);
        ck_assert_uint_eq(pace.limit, 32);
}

/* Eight windows, which are four measures. */
TEST(after_a_slow_down_concurrency_grows_by_one_then_as_before)
{
        static const unsigned limits[] = {33, 34, 35, 70, 140, 256};
        slowed_once();
        for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
                measure((100 * MiB) << i);
                ck_assert_uint_eq(pace.limit, limits[i]);
        }
}

/* The windows before that do not count. */
TEST(after_another_slow_down_concurrency_grows_by_one_again)
{
        slowed_once();
        for (int i = 0; i < 3; i++)
                measure((100 * MiB) << i);
        ck_assert_uint_eq(pace.limit, 35);
        concurrency_slow_down(&pace, clock_ += SECOND);
        ck_assert_uint_eq(pace.limit, 17);
        for (int i = 0; i < 3; i++)
                measure((100 * MiB) << i);
        ck_assert_uint_eq(pace.limit, 20);
}

TEST(a_straggler_takes_three_times_as_long_as_others)
{
        concurrency_init(&pace, 8, 0);
        ck_assert_uint_eq(concurrency_straggler(&pace), 0);
        concurrency_add_block(&pace, MiB, SECOND, SECOND);
        ck_assert_uint_eq(concurrency_straggler(&pace), 3 * SECOND);
        concurrency_init(&pace, 8, 0);
        concurrency_add_block(&pace, MiB, 1000, SECOND);
        ck_assert_uint_eq(concurrency_straggler(&pace), SECOND / 2);
}

TEST(a_request_is_silent_after_three_times_the_usual_answer)
{
        concurrency_init(&pace, 64, SECOND);
        ck_assert_uint_eq(concurrency_silence(&pace), 2 * SECOND);
        concurrency_answered(&pace, SECOND / 1000);
        ck_assert_uint_eq(concurrency_silence(&pace), SECOND / 2);
        concurrency_init(&pace, 64, SECOND);
        concurrency_answered(&pace, SECOND);
        ck_assert_uint_eq(concurrency_silence(&pace), 3 * SECOND);
}

/* One in a hundred changes nothing; a server that has become slow is known to be so. */
TEST(a_late_answer_hardly_counts_as_usual)
{
        concurrency_init(&pace, 64, SECOND);
        concurrency_answered(&pace, SECOND / 1000);
        concurrency_answered(&pace, 2 * SECOND);
        ck_assert_uint_eq(concurrency_silence(&pace), SECOND / 2);
        for (int i = 0; i < 50; i++)
                concurrency_answered(&pace, 2 * SECOND);
        ck_assert_uint_gt(concurrency_silence(&pace), 5 * SECOND);
}
