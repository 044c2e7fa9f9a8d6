/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that is killed at random moments; `make soak` repeats it more often.
 */
#include "tests/lib/kills.h"
#include "tests/lib/suite.h"

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

FIXTURE(.timeout = 120);

TEST(a_kill_at_any_moment_restores_a_past_state)
{
        kill_often(true);
}

TEST(a_kill_without_a_store_restores_the_pinned_models)
{
        kill_often(false);
}
