/* SPDX-License-Identifier: Apache-2.0
 *
 * `make soak`: KILLS times (200) kill -9 at a random moment, of a daemon with an fd store, and as often of one with a
 * state file only; from KILLS_SEED or a random seed, which it prints first. It ends after KILLS_SECONDS (900).
 */
#include "tests/lib/base.h"
#include "tests/lib/kills.h"

static void run(bool stored, uint64_t seed, unsigned kills)
{
        struct kills_counts counts = {0};
        char folder[PATH_SIZE];
        const char *with = stored ? "kills, with a store" : "kills, state file alone";
        folder_make(folder, "streamerd-kills");
        kills_run(folder, stored, seed, kills, &counts);
        printf("%s: %u, %u of them while it started; names: %u as last told, %u as before that, %u not there, %u "
               "pinned; leases: %u held, %u lost\n",
               with, counts.kills, counts.early, counts.there, counts.older, counts.gone, counts.pinned, counts.held,
               counts.lost);
        folder_remove(folder);
}

int main(void)
{
        uint64_t seed = env_number("KILLS_SEED", clock_ns()), kills = env_number("KILLS", 200);
        printf("kills: seed %" PRIu64 ", %" PRIu64 " kills each\n", seed, kills);
        fflush(stdout);
        alarm((unsigned)env_number("KILLS_SECONDS", 900));
        run(true, seed, (unsigned)kills);
        run(false, seed, (unsigned)kills);
        return EXIT_SUCCESS;
}
