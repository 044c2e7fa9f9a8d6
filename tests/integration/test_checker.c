/* SPDX-License-Identifier: Apache-2.0
 *
 * The model checker in short: seeds that are always the same, and one that never is. `make soak` takes
 * as many steps as anybody wants.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker.h"
#include "tests/lib/suite.h"

#include <sys/stat.h>

static void check(uint64_t seed)
{
        struct checker_counts counts = {0};
        char *folder = suite_path("seed-%ju", (uintmax_t)seed);
        must(mkdir(folder, 0700));
        checker_run(folder, seed, suite_short() ? 800 : 2000, &counts);
        /* A run in which little happens shows little. */
        ck_assert_uint_ge(5 * counts.attaches, counts.steps);
        ck_assert_uint_ge(20 * counts.kills, counts.steps);
        if (suite_short())
                return;
        ck_assert_uint_gt(counts.evicted, 0);
        ck_assert_uint_gt(counts.drains, 0);
        ck_assert_uint_gt(counts.replaced, 0);
        ck_assert_uint_gt(counts.taken, 0);
        ck_assert_uint_gt(counts.pins, 0);
        ck_assert_uint_gt(counts.expired, 0);
        ck_assert_uint_gt(counts.no_evict, 0);
        ck_assert_uint_gt(counts.joins, 0);
        ck_assert_uint_gt(counts.waits, 0);
}

START_TEST(the_daemon_does_what_its_model_says)
{
        check((uint64_t)_i + 1);
}
END_TEST

START_TEST(the_daemon_does_what_its_model_says_from_any_seed)
{
        check(clock_ns());
}
END_TEST

int main(void)
{
        suite_begin("checker");
        TCase *tests = suite_group("checker", NULL, NULL, 120);
        tcase_add_loop_test(tests, the_daemon_does_what_its_model_says, 0, 2);
        tcase_add_test(tests, the_daemon_does_what_its_model_says_from_any_seed);
        return suite_run();
}
