/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that is killed (kill -9) at a random moment, again and again, and looked at after each
 * start. Models' files are rewritten, loaded, unloaded and renamed to a second name meanwhile by a
 * client of its own; one model is pinned; one lease is held throughout.
 *
 * After each start
 *   - every model that is there is whole: each tensor, its digest, the model's digest
 *   - every name is in a state that it had: the one of the last look, one that the client was told of
 *     since, or the one that it was waiting for; and never one from before an unload that was answered
 *   - what is pinned comes back
 *   - the lease that is held reads the same bytes; the daemon has it, or it is lost
 * and at the end nothing is left in the store or in the books.
 */
#ifndef TESTS_LIB_KILLS_H
#define TESTS_LIB_KILLS_H

#include "tests/lib/stalls.h"

struct kills_counts {
        unsigned kills, early;       /* early: while it started */
        unsigned there, older, gone; /* names found: at the last state told, at an earlier one, not there */
        unsigned held, lost;         /* leases */
        struct stalls stalls;        /* of all these daemons' loops */
};

/* In this folder. Fails with seed and round in the text. */
void kills_run(const char *folder, uint64_t seed, unsigned kills, struct kills_counts *counts);

#endif
