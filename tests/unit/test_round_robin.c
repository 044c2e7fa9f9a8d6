/* SPDX-License-Identifier: Apache-2.0
 *
 * Round robin over subscribers: each is served once per round while others are added and removed.
 */
#include "tests/lib/suite.h"

#include "daemon/serve/events/round_robin.h"

#define CROWD 5

static struct round_robin round_robin;
static struct round_robin_member subscribers[CROWD];

static void begin(void)
{
        round_robin_init(&round_robin);
        for (size_t i = 0; i < CROWD; i++)
                round_robin_add(&round_robin, &subscribers[i]);
}

static void assert_served(size_t first, size_t n)
{
        for (size_t i = 0; i < n; i++)
                ck_assert_ptr_eq(round_robin_next(&round_robin), &subscribers[first + i]);
}

START_TEST(each_subscriber_is_served_once_per_round)
{
        ck_assert_ptr_null(round_robin_next(&round_robin)); /* none has begun */
        for (int i = 0; i < 3; i++) {
                ck_assert(round_robin_begin(&round_robin));
                assert_served(0, CROWD);
                ck_assert_ptr_null(round_robin_next(&round_robin));
        }
}
END_TEST

START_TEST(an_unfinished_round_continues)
{
        ck_assert(round_robin_begin(&round_robin));
        assert_served(0, 2);
        ck_assert(!round_robin_begin(&round_robin));
        assert_served(2, CROWD - 2);
        ck_assert_ptr_null(round_robin_next(&round_robin));
        ck_assert(round_robin_begin(&round_robin));
        assert_served(0, CROWD);
}
END_TEST

START_TEST(a_new_subscriber_is_served_from_the_next_round)
{
        struct round_robin_member late;
        ck_assert(round_robin_begin(&round_robin));
        assert_served(0, 2);
        round_robin_add(&round_robin, &late);
        assert_served(2, CROWD - 2);
        ck_assert_ptr_null(round_robin_next(&round_robin));
        ck_assert(round_robin_begin(&round_robin));
        assert_served(0, 2);
        ck_assert_ptr_eq(round_robin_next(&round_robin), &late); /* it was added after those two */
        assert_served(2, CROWD - 2);
        ck_assert_ptr_null(round_robin_next(&round_robin));
}
END_TEST

START_TEST(a_removed_subscriber_is_not_served_and_delays_none)
{
        ck_assert(round_robin_begin(&round_robin));
        assert_served(0, 1);
        for (size_t i = 1; i < CROWD; i++)
                list_remove(&subscribers[i].link);
        ck_assert_ptr_null(round_robin_next(&round_robin));
        ck_assert(round_robin_begin(&round_robin));
        assert_served(0, 1);
        list_remove(&subscribers[0].link);
        ck_assert(!round_robin_begin(&round_robin));
        ck_assert_ptr_null(round_robin_next(&round_robin));
}
END_TEST

int main(void)
{
        suite_begin("round robin");
        TCase *tests = suite_group("rounds", begin, NULL, 10);
        tcase_add_test(tests, each_subscriber_is_served_once_per_round);
        tcase_add_test(tests, an_unfinished_round_continues);
        tcase_add_test(tests, a_new_subscriber_is_served_from_the_next_round);
        tcase_add_test(tests, a_removed_subscriber_is_not_served_and_delays_none);
        return suite_run();
}
