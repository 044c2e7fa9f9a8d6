/* SPDX-License-Identifier: Apache-2.0
 *
 * `make soak`: the model checker for CHECKER_STEPS steps (100,000), from CHECKER_SEED or a seed of its
 * own, which it prints first. It is ended after CHECKER_SECONDS (1,800).
 */
#include "tests/lib/base.h"
#include "tests/lib/checker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
        struct checker_counts counts = {0};
        char folder[PATH_SIZE];
        uint64_t seed = env_number("CHECKER_SEED", clock_ns()), steps = env_number("CHECKER_STEPS", 100000);
        folder_make(folder, "streamerd-checker");
        printf("checker: seed %" PRIu64 ", %" PRIu64 " steps\n", seed, steps);
        fflush(stdout);
        alarm((unsigned)env_number("CHECKER_SECONDS", 1800));
        checker_run(folder, seed, steps, &counts);
        checker_print(&counts);
        folder_remove(folder);
        if (5 * counts.attaches < counts.steps || 20 * counts.kills < counts.steps) {
                printf("checker: too few attaches or kills for these steps\n");
                return EXIT_FAILURE;
        }
        return EXIT_SUCCESS;
}
