/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that is killed (kill -9) at random moments and checked after each start. Meanwhile a client rewrites models'
 * files, and loads, aliases, unloads, pins, unpins and prioritises models; one model is pinned and one lease held
 * throughout. The daemon has the fd store of a service manager, or the state file only.
 *
 * After each start
 *   - every resident model is complete: each tensor, its digest, the model's digest
 *   - every name is in one of its states since the last check: that of the check, one that was reported to the client,
 * or one that the client was waiting for; with a store, and if nothing was pinned, never one from before an
 * acknowledged unload
 *   - so are its pin and its priority
 *   - what was pinned throughout is restored; without a store nothing else is
 *   - the state file is readable at any moment, and soon has the current pins
 *   - the held lease reads the same bytes; the daemon has it, or it is lost
 * and at the end the store has no more than the snapshots.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct kills_counts {
        unsigned kills, early;       /* early: during startup */
        unsigned there, older, gone; /* names: in the last reported state, in an earlier one, not resident */
        unsigned pinned;             /* pinned names */
        unsigned held, lost;         /* leases */
};

/* Runs in this directory, with or without an fd store. Fails with the seed and the round. */
void kills_run(const char *folder, bool stored, uint64_t seed, unsigned kills, struct kills_counts *counts);
