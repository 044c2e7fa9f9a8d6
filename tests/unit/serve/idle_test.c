/* SPDX-License-Identifier: Apache-2.0
 *
 * When a daemon with --exit-idle has been idle for long enough.
 */
#include "daemon/serve/server_state.h"
#include "tests/lib/suite.h"

#define LIMIT UINT64_C(1000)

TEST(the_idle_time_elapses_after_its_limit)
{
        struct idle idle = {.limit_ns = LIMIT, .since_ns = 5000};
        ck_assert(!idle_elapsed(&idle, false, 5000));
        ck_assert(!idle_elapsed(&idle, false, 5000 + LIMIT - 1));
        ck_assert(idle_elapsed(&idle, false, 5000 + LIMIT));
}

TEST(the_idle_time_restarts_while_busy)
{
        struct idle idle = {.limit_ns = LIMIT, .since_ns = 5000};
        ck_assert(!idle_elapsed(&idle, true, 9000));
        ck_assert(!idle_elapsed(&idle, false, 9000 + LIMIT - 1));
        ck_assert(idle_elapsed(&idle, false, 9000 + LIMIT));
}

TEST(the_idle_time_restarts_after_activity_between_two_checks)
{
        struct idle idle = {.limit_ns = LIMIT, .since_ns = 5000};
        idle_reset(&idle, 5999);
        ck_assert(!idle_elapsed(&idle, false, 6500));
        ck_assert(idle_elapsed(&idle, false, 5999 + LIMIT));
}

TEST(the_idle_time_never_elapses_without_a_limit)
{
        struct idle idle = {.since_ns = 0};
        ck_assert(!idle_elapsed(&idle, false, UINT64_MAX));
}
