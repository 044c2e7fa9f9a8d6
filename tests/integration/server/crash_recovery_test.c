/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that is killed at random moments: KILLS times (10; `make soak`: 200) with a store and as often without, from
 * KILLS_SEED or a random seed, which is printed first.
 */
#include "tests/lib/kills.h"
#include "tests/lib/suite.h"

FIXTURE(.timeout = getenv("KILLS") != NULL ? 450 : 120);

/* With a store a past state; with the state file alone the pinned models. */
TEST(a_kill_at_any_moment_restores_what_was_promised, .to = 2)
{
        struct kills_counts counts = {0};
        bool stored = _i == 0;
        uint64_t seed = env_number("KILLS_SEED", clock_ns()), kills = env_number("KILLS", 10);
        char *folder = suite_path("%s", stored ? "stored" : "state-file");
        must(mkdir(folder, 0700));
        printf("kills: %s: seed %ju, %ju kills\n", stored ? "with a store" : "state file alone", (uintmax_t)seed,
               (uintmax_t)kills);
        fflush(stdout);
        kills_run(folder, stored, seed, (unsigned)kills, &counts);
        printf("kills: %u, %u of them while it started; names: %u as last told, %u as before that, %u not there, %u "
               "pinned; leases: %u held, %u lost\n",
               counts.kills, counts.early, counts.there, counts.older, counts.gone, counts.pinned, counts.held,
               counts.lost);
        ck_assert_uint_ge(counts.kills, kills);
        ck_assert_uint_gt(counts.there, 0);
}
