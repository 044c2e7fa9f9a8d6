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

static uint64_t setting(const char *name, uint64_t otherwise)
{
        const char *text = getenv(name);
        return text != NULL && text[0] != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

int main(void)
{
        struct checker_counts counts = {0};
        char folder[PATH_SIZE];
        uint64_t seed = setting("CHECKER_SEED", clock_ns()), steps = setting("CHECKER_STEPS", 100000);
        folder_make(folder, "streamerd-checker");
        printf("checker: seed %" PRIu64 ", %" PRIu64 " steps\n", seed, steps);
        fflush(stdout);
        alarm((unsigned)setting("CHECKER_SECONDS", 1800));
        checker_run(folder, seed, steps, &counts);
        printf("checker:");
        checker_print(&counts);
        folder_remove(folder);
        if (5 * counts.attaches < counts.steps || 20 * counts.kills < counts.steps) {
                printf("checker: too few attaches or kills for these steps\n");
                return EXIT_FAILURE;
        }
        return EXIT_SUCCESS;
}
