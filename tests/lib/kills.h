/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that is killed (kill -9) at a random moment, again and again, and looked at after each
 * start. Models' files are rewritten, loaded, loaded under a second name, unloaded, pinned, unpinned
 * and given other priorities meanwhile by a client of its own; one model is pinned, and one lease held,
 * throughout. The daemon has a store of the service manager, or the state file alone.
 *
 * After each start
 *   - every model that is there is whole: each tensor, its digest, the model's digest
 *   - every name is in a state that it had: the one of the last look, one that the client was told of
 *     since, or the one that it was waiting for; and, where a store keeps it and nothing was pinned,
 *     never one from before an unload that was answered
 *   - so are its pin and its priority
 *   - what was pinned all the while comes back; without a store nothing else does
 *   - the state file can be read at any moment, and soon says what is pinned
 *   - the lease that is held reads the same bytes; the daemon has it, or it is lost
 * and at the end nothing is left in the store or in the books.
 */
#ifndef TESTS_LIB_KILLS_H
#define TESTS_LIB_KILLS_H

#include "tests/lib/stalls.h"

struct kills_counts {
        unsigned kills, early;       /* early: while it started */
        unsigned there, older, gone; /* names found: at the last state told, at an earlier one, not there */
        unsigned pinned;             /* names found pinned */
        unsigned held, lost;         /* leases */
        struct stalls stalls;        /* of all these daemons' loops */
};

/* In this folder, with such a store or without. Fails with seed and round in the text. */
void kills_run(const char *folder, bool stored, uint64_t seed, unsigned kills, struct kills_counts *counts);

#endif
