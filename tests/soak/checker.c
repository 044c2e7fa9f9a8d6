/* SPDX-License-Identifier: Apache-2.0
 *
 * `make soak`: runs the model checker for CHECKER_STEPS steps (100,000), half with a host device and half with GPUs,
 * from CHECKER_SEED or a random seed, which it prints first; CHECKER_KIND ("host", "gpus") selects one. It ends after
 * CHECKER_SECONDS (1,800).
 */
#include "tests/lib/base.h"
#include "tests/model/checker.h"

static bool check(enum checker_kind kind, uint64_t seed, uint64_t steps)
{
        struct checker_counts counts = {0};
        char folder[PATH_SIZE];
        folder_make(folder, "streamerd-checker");
        printf("checker: %s: seed %" PRIu64 ", %" PRIu64 " steps\n", checker_kind_name(kind), seed, steps);
        fflush(stdout);
        checker_run(kind, folder, seed, steps, &counts);
        checker_print(&counts);
        fflush(stdout);
        folder_remove(folder);
        if (5 * counts.attaches >= counts.steps && 20 * counts.kills >= counts.steps)
                return true;
        printf("checker: too few attaches or kills for these steps\n");
        return false;
}

int main(void)
{
        uint64_t seed = env_number("CHECKER_SEED", clock_ns()), steps = env_number("CHECKER_STEPS", 100000);
        const char *only = getenv("CHECKER_KIND");
        bool passed = true;
        alarm((unsigned)env_number("CHECKER_SECONDS", 1800));
        for (enum checker_kind kind = 0; kind < CHECKER_KINDS; kind++) {
                if (only == NULL || *only == '\0')
                        passed = check(kind, seed, steps / CHECKER_KINDS) && passed;
                else if (strcmp(only, checker_kind_name(kind)) == 0)
                        passed = check(kind, seed, steps) && passed;
        }
        return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
