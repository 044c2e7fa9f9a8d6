/* SPDX-License-Identifier: Apache-2.0
 *
 * `make soak`: KILLS times (200) kill -9 at a random moment, from KILLS_SEED or a seed of its own, which
 * it prints first. It is ended after KILLS_SECONDS (900).
 */
#include "tests/lib/base.h"
#include "tests/lib/kills.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
        struct kills_counts counts = {0};
        char folder[PATH_SIZE];
        uint64_t seed = env_number("KILLS_SEED", clock_ns()), kills = env_number("KILLS", 200);

        folder_make(folder, "streamerd-kills");
        printf("kills: seed %" PRIu64 ", %" PRIu64 " kills\n", seed, kills);
        fflush(stdout);
        alarm((unsigned)env_number("KILLS_SECONDS", 900));
        kills_run(folder, seed, (unsigned)kills, &counts);
        printf("kills: %u, %u of them while it started; names: %u as last told, %u as before that, %u not there; "
               "leases: %u held, %u lost\n",
               counts.kills, counts.early, counts.there, counts.older, counts.gone, counts.held, counts.lost);
        stalls_print(&counts.stalls, "kills");
        folder_remove(folder);
        return EXIT_SUCCESS;
}
