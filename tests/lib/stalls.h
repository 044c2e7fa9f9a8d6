/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a daemon's loop kept everybody waiting, as `status` tells it: the longest of all daemons of
 * a run, beside what is aimed at.
 */
#ifndef TESTS_LIB_STALLS_H
#define TESTS_LIB_STALLS_H

#include "tests/lib/stage.h"

#define STALL_TARGET_MS 50

struct stalls {
        uint64_t longest_ns, own_ns; /* own: without the time that the loop had no processor */
};

/* From a reply of `status`; the longer ones stay. */
void stalls_note(struct stalls *stalls, const json_t *status);
void stalls_ask(struct stalls *stalls, streamer_client *c);

/* "RUN: longest stall of the loop 60.1 ms, its own 3.0 ms; target 50 ms: MISSED" on a line. It is said, and
 * fails nothing: how much else the machine does is not the daemon's matter. */
void stalls_print(const struct stalls *stalls, const char *run);
/* Of the stage's daemon: the last thing before stage_end(). */
void stalls_print_stage(const char *run);

#endif
