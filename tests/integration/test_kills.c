/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon killed at random moments; `make soak` does it more often.
 */
#include "tests/lib/kills.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <sys/stat.h>

#define KILLS 10

static void kill_often(bool stored)
{
        struct kills_counts counts = {0};
        const char *text = getenv("KILLS_SEED");
        char *folder = suite_path("%s", stored ? "stored" : "state-file");

        must(mkdir(folder, 0700));
        kills_run(folder, stored, text ? strtoull(text, NULL, 10) : clock_ns(), KILLS, &counts);
        ck_assert_uint_ge(counts.kills, KILLS);
        ck_assert_uint_gt(counts.there, 0);
}

START_TEST(after_a_kill_at_any_moment_there_is_a_state_that_was)
{
        kill_often(true);
}
END_TEST

START_TEST(after_a_kill_without_a_store_there_is_what_was_pinned)
{
        kill_often(false);
}
END_TEST

int main(void)
{
        suite_begin("kills");
        TCase *tests = suite_group("kills", NULL, NULL, 120);
        tcase_add_test(tests, after_a_kill_at_any_moment_there_is_a_state_that_was);
        tcase_add_test(tests, after_a_kill_without_a_store_there_is_what_was_pinned);
        return suite_run();
}
