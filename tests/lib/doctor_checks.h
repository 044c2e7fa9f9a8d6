/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of the findings of `streamerctl doctor` for `test_daemon`, and that no probe is leaked.
 */
#pragma once

#include "tests/lib/fixture.h"

/* Set by doctor_ask(): the printed object and the exit code. */
extern json_t *doctor_said;
extern int doctor_code;
void doctor_ask(void);

/* Checks that a finding has this check and result, `part` in its text, and advice unless it is ok. */
void doctor_found(const char *result, const char *check, const char *part);

/* Checks that no probe is listed, no lease exists, and `used` bytes are in use. */
void doctor_check_no_leak(streamer_client *c, uint64_t used);

/* The fake driver (tests/lib/fake_cuda). */
const char *doctor_driver(void);
