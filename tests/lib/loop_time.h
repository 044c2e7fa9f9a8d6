/* SPDX-License-Identifier: Apache-2.0
 *
 * The longest iteration of a daemon's loop, in processor time as `status` reports it: of all daemons of a run,
 * compared with the target.
 */
#ifndef TESTS_LIB_LOOP_TIME_H
#define TESTS_LIB_LOOP_TIME_H

#include "tests/lib/fixture.h"

#define LOOP_TARGET_MS 5

struct loop_time {
        uint64_t longest_ns;
};

/* Adds the times of a `status` reply; keeps the longest. */
void loop_time_note(struct loop_time *time, const json_t *status);
void loop_time_ask(struct loop_time *time, streamer_client *c);

/* Prints "RUN: longest loop iteration 3.0 ms of processor time; target 5 ms: met". It never fails, because a virtual
 * machine's host may add its own time to the guest's. */
void loop_time_print(const struct loop_time *time, const char *run);
/* The same for `test_daemon`: call it just before fixture_end(). */
void loop_time_print_fixture(const char *run);

#endif
