/* SPDX-License-Identifier: Apache-2.0
 *
 * What `streamerctl doctor` says of the daemon `stage`, and that none of its probes is left.
 */
#ifndef TESTS_LIB_DOCTOR_H
#define TESTS_LIB_DOCTOR_H

#include "tests/lib/stage.h"

/* Asks: the object that it prints, and its exit code. */
extern json_t *doctor_said;
extern int doctor_code;
void doctor_ask(void);

/* There is such a line: this check, this result, with `part` in its text, and advice unless it is ok. */
void doctor_found(const char *result, const char *check, const char *part);

/* No probe is listed, nobody has a lease, and this much is used. */
void doctor_left(streamer_client *c, uint64_t used);

/* The driver that stands in (tests/lib/fake). */
const char *doctor_driver(void);

/* A daemon with these flags, for one test: its client. */
streamer_client *doctor_begin(const char *const *flags);
void doctor_end(streamer_client *c);

#endif
