/* SPDX-License-Identifier: Apache-2.0
 *
 * A short run of the model checker: against each kind of daemon with a fixed seed, and against one of them with a
 * random seed. `make soak` runs more steps.
 */
#include "tests/lib/base.h"
#include "tests/model/checker.h"
#include "tests/lib/suite.h"

/* The kinds of step that each run takes about ten times or more: a rarer one (a drain, an expiry, a publisher killed)
 * may be missing, because the order of concurrent steps decides which models are there. */
static void check_host_counts(const struct checker_counts *counts)
{
        ck_assert_uint_gt(counts->evicted, 0);
        ck_assert_uint_gt(counts->drain_timeouts, 0);
        ck_assert_uint_gt(counts->replaced, 0);
        ck_assert_uint_gt(counts->revoked, 0);
        ck_assert_uint_gt(counts->pins, 0);
        ck_assert_uint_gt(counts->no_evict, 0);
        ck_assert_uint_gt(counts->joins, 0);
        ck_assert_uint_gt(counts->waits, 0);
        ck_assert_uint_gt(counts->by_digest, 0);
        ck_assert_uint_gt(counts->by_generation, 0);
        ck_assert_uint_gt(counts->breaks, 0);
        ck_assert_uint_gt(counts->left_disconnected, 0);
        ck_assert_uint_gt(counts->events, 0);
        ck_assert_uint_gt(counts->published, 0);
        ck_assert_uint_gt(counts->publish_aborts, 0);
}

static void check_gpu_counts(const struct checker_counts *counts)
{
        ck_assert_uint_gt(counts->replicas, 0);
        ck_assert_uint_gt(counts->partial, 0);
        ck_assert_uint_gt(counts->single_device_unloads, 0);
        ck_assert_uint_gt(counts->cached, 0);
        ck_assert_uint_gt(counts->restored, 0);
        ck_assert_uint_gt(counts->dropped_from_cache, 0);
        ck_assert_uint_gt(counts->ranks, 0);
        ck_assert_uint_gt(counts->ranks_evicted, 0);
}

static void check(enum checker_kind kind, uint64_t seed, struct checker_counts *counts)
{
        char *folder = suite_path("seed-%ju", (uintmax_t)seed);
        must(mkdir(folder, 0700));
        *counts = (struct checker_counts){0};
        checker_run(kind, folder, seed, suite_short() ? 700 : 1600, counts);
        checker_print(counts);
}

FIXTURE(.timeout = 120);

/* The counts ensure that the run covers each kind of step. */
TEST(the_daemon_matches_the_model, .to = CHECKER_KINDS)
{
        struct checker_counts counts;
        check((enum checker_kind)_i, (uint64_t)_i + 1, &counts);
        ck_assert_uint_ge(5 * counts.attaches, counts.steps);
        ck_assert_uint_ge(20 * counts.kills, counts.steps);
        if (suite_short())
                SKIP("the short set has too few steps to count each kind");
        check_host_counts(&counts);
        if (_i == CHECKER_GPUS)
                check_gpu_counts(&counts);
}

/* A random run may miss some kinds of steps, so it checks only the frequent ones. */
TEST(the_daemon_matches_the_model_from_a_random_seed)
{
        struct checker_counts counts;
        uint64_t seed = clock_ns();
        check(seed % CHECKER_KINDS, seed, &counts);
        ck_assert_uint_gt(counts.attaches, 0);
        ck_assert_uint_gt(counts.kills, 0);
}
