/* SPDX-License-Identifier: Apache-2.0
 *
 * A short run of the model checker: against each kind of daemon with a fixed seed, and against one of them with a
 * random seed. `make soak` sets CHECKER_STEPS: a long run against each kind, from CHECKER_SEED or a random seed, which
 * is printed first; CHECKER_KIND ("host", "gpus") selects one.
 */
#include "tests/model/checker.h"
#include "tests/lib/suite.h"

// clang-format off
/* The kinds of step that each run takes about ten times or more. A rarer one (a drain, an expiry, a publisher killed), or
 * one that comes in groups (the host cache drops a model), may be missing, because the order of concurrent steps decides
 * which models are there. */
#define HOST_COUNTS(X) \
        X(evicted) X(drain_timeouts) X(replaced) X(revoked) X(pins) X(no_evict) X(joins) X(waits) X(by_digest) X(disk_hits) X(damages) \
        X(two_names) X(replaced_while_read) X(denied) X(by_others) \
        X(by_generation) X(breaks) X(left_disconnected) X(events) X(published) X(publish_aborts)
#define GPU_COUNTS(X) \
        X(replicas) X(partial) X(single_device_unloads) X(cached) X(restored) X(ranks) X(ranks_evicted)
// clang-format on
#define STEPS (suite_short() ? 700u : 1600u)
#define IS_COUNTED(name) ck_assert_uint_gt(counts.name, 0);

static uint64_t soak_steps(void)
{
        return env_number("CHECKER_STEPS", 0);
}

static void check(enum checker_kind kind, uint64_t seed, uint64_t steps, struct checker_counts *counts)
{
        char *folder = suite_path("seed-%ju", (uintmax_t)seed);
        must(mkdir(folder, 0755));
        must(chmod(suite_folder(), 0755)); /* another user connects */
        *counts = (struct checker_counts){0};
        printf("checker: %s: seed %" PRIu64 ", %" PRIu64 " steps\n", checker_kind_name(kind), seed, steps);
        fflush(stdout);
        checker_run(kind, folder, seed, steps, counts);
        checker_print(counts);
}

FIXTURE(.timeout = soak_steps() > 0 ? 1800 : 300);

/* The counts ensure that the run covers each kind of step. */
TEST(the_daemon_matches_the_model, .to = CHECKER_KINDS)
{
        struct checker_counts counts;
        const char *only = getenv("CHECKER_KIND");
        const enum checker_kind kind = (enum checker_kind)_i;
        bool all = only == NULL || *only == '\0', soak = soak_steps() > 0;
        if (!all && strcmp(only, checker_kind_name(kind)) != 0)
                return;
        check(kind, env_number("CHECKER_SEED", soak ? clock_ns() : (uint64_t)_i + 1),
              soak ? soak_steps() / (all ? CHECKER_KINDS : 1) : STEPS, &counts);
        ck_assert_uint_ge(5 * counts.attaches, counts.steps);
        ck_assert_uint_ge(20 * counts.kills, counts.steps);
        if (suite_short())
                SKIP("the short set has too few steps to count each kind");
        HOST_COUNTS(IS_COUNTED)
        if (kind == CHECKER_GPUS) {
                GPU_COUNTS(IS_COUNTED)
        }
}

/* A random run may miss some kinds of steps, so it checks only the frequent ones. */
TEST(the_daemon_matches_the_model_from_a_random_seed)
{
        struct checker_counts counts;
        uint64_t seed = clock_ns();
        check(seed % CHECKER_KINDS, seed, STEPS, &counts);
        ck_assert_uint_gt(counts.attaches, 0);
        ck_assert_uint_gt(counts.kills, 0);
}
