/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of a network thread: how long it waits.
 */
#include "daemon/io/http_transfer.h"

#include "tests/lib/suite.h"

#define LONG_MS 20000u
#define SOON UINT64_C(5000000000)

static struct http_loop loop;

static void begin(void)
{
        struct error error = {0};
        ck_assert_int_eq(http_loop_init(&loop, &error), 0);
}

static void end(void)
{
        http_loop_deinit(&loop);
}

/* Each turn looks at the sockets twice: it must not sleep after the first look has taken the wake. */
START_TEST(a_wake_before_a_turn_ends_its_wait)
{
        uint64_t began = clock_ns();
        http_loop_wake(&loop);
        http_loop_run(&loop, LONG_MS);
        ck_assert_uint_lt(clock_ns() - began, SOON);
}
END_TEST

START_TEST(without_a_wake_it_waits_as_long_as_it_may)
{
        uint64_t began = clock_ns();
        http_loop_wake(&loop);
        http_loop_run(&loop, 50);
        http_loop_run(&loop, 50);
        ck_assert_uint_ge(clock_ns() - began, UINT64_C(49000000));
}
END_TEST

int main(void)
{
        suite_begin("http_loop");
        TCase *t = suite_group("waiting", begin, end, 30);
        tcase_add_test(t, a_wake_before_a_turn_ends_its_wait);
        tcase_add_test(t, without_a_wake_it_waits_as_long_as_it_may);
        return suite_run();
}
