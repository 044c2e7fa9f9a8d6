/* SPDX-License-Identifier: Apache-2.0
 *
 * Failing calls of a daemon: the test's interface to tests/lib/fault.
 */
#ifndef TESTS_LIB_FAULT_INJECTION_H
#define TESTS_LIB_FAULT_INJECTION_H

#include "tests/lib/fault/calls.h"

#include <stdbool.h>

/* Creates the shared page in `folder`. Daemons that are started before faults_hide() use it. */
void faults_begin(const char *folder);
void faults_show(void); /* sets the environment of later daemons */
void faults_hide(void);

const char *fault_name(enum fault_call call);

/* The nth call from now on (0: the next) fails. */
void fault_arm(enum fault_call call, uint64_t nth);
/* Disarms it. True if the armed call has failed. */
bool fault_disarm(void);

uint64_t fault_seen(enum fault_call call);
uint64_t fault_failed(enum fault_call call);

#endif
