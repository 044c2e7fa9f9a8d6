/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop of a network thread: how long it waits.
 */
#include "daemon/io/http/transfer.h"

#include "tests/lib/suite.h"

#define LONG_MS 20000u
#define SOON UINT64_C(15000000000)

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

FIXTURE(.all = {begin, end});

/* Each iteration polls the sockets twice: it must not sleep after the first poll has consumed the wake. */
TEST(a_wake_before_the_wait_ends_it)
{
        uint64_t began = clock_ns();
        http_loop_wake(&loop);
        http_loop_run(&loop, LONG_MS);
        ck_assert_uint_lt(clock_ns() - began, SOON);
}

TEST(without_a_wake_the_loop_waits_for_its_timeout)
{
        uint64_t began = clock_ns();
        http_loop_wake(&loop);
        http_loop_run(&loop, 50);
        http_loop_run(&loop, 50);
        ck_assert_uint_ge(clock_ns() - began, UINT64_C(49000000));
}
