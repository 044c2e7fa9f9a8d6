/* SPDX-License-Identifier: Apache-2.0
 *
 * How long, and how often, the library tries to reach a daemon that restarts.
 */
#include "client/patience.h"
#include "client/util.h"
#include "tests/lib/suite.h"

TEST(it_ends_with_the_callers_deadline)
{
        const int64_t deadline = now_ns() + 1000000;
        struct patience patience = patience_begin(deadline);
        ck_assert_int_eq(patience.end, deadline);
        ck_assert(!patience_pause(&patience)); /* there is less time than a pause takes */
}

TEST(it_ends_after_three_seconds_without_a_deadline)
{
        const int64_t from = now_ns();
        struct patience patience = patience_begin(NEVER);
        ck_assert_int_ge(patience.end, from + 3000000000);
        ck_assert_int_le(patience.end, now_ns() + 3000000000);
}

TEST(its_pauses_grow_to_a_fifth_of_a_second)
{
        struct patience patience = patience_begin(NEVER);
        patience.end = NEVER;
        ck_assert(patience_pause(&patience));
        ck_assert_int_eq(patience.pause_ns, 20000000);
        patience.pause_ns = 150000000;
        ck_assert(patience_pause(&patience));
        ck_assert_int_eq(patience.pause_ns, 200000000);
}
