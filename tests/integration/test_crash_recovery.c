/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that is killed at random moments; `make soak` repeats it more often.
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

START_TEST(a_kill_at_any_moment_restores_a_past_state)
{
        kill_often(true);
}
END_TEST

START_TEST(a_kill_without_a_store_restores_the_pinned_models)
{
        kill_often(false);
}
END_TEST

int main(void)
{
        suite_begin("crash recovery");
        TCase *tests = suite_group("kills", NULL, NULL, 120);
        tcase_add_test(tests, a_kill_at_any_moment_restores_a_past_state);
        tcase_add_test(tests, a_kill_without_a_store_restores_the_pinned_models);
        return suite_run();
}
