/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon killed at random moments; `make soak` does it more often.
 */
#include "tests/lib/kills.h"
#include "tests/lib/suite.h"

#include <stdlib.h>

#define KILLS 10

START_TEST(after_a_kill_at_any_moment_there_is_a_state_that_was)
{
        struct kills_counts counts = {0};
        const char *text = getenv("KILLS_SEED");

        kills_run(suite_folder(), text ? strtoull(text, NULL, 10) : clock_ns(), KILLS, &counts);
        ck_assert_uint_ge(counts.kills, KILLS);
        ck_assert_uint_gt(counts.there, 0);
}
END_TEST

int main(void)
{
        suite_begin("kills");
        TCase *tests = suite_group("kills", NULL, NULL, 120);
        tcase_add_test(tests, after_a_kill_at_any_moment_there_is_a_state_that_was);
        return suite_run();
}
