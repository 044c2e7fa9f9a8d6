/* SPDX-License-Identifier: Apache-2.0
 *
 * Failing calls of a daemon: the test's side of tests/lib/fault.
 */
#ifndef TESTS_LIB_FAULTS_H
#define TESTS_LIB_FAULTS_H

#include "tests/lib/fault/calls.h"

#include <stdbool.h>

/* Makes the page in `folder`. Daemons that are started between this and faults_hide() carry it. */
void faults_begin(const char *folder);
void faults_show(void); /* the environment of daemons to come */
void faults_hide(void);

const char *fault_name(enum fault_call call);

/* The nth call from now on (0: the next) fails. */
void fault_arm(enum fault_call call, uint64_t nth);
/* Nothing fails any more. True if the armed call has failed meanwhile. */
bool fault_disarm(void);

uint64_t fault_seen(enum fault_call call);
uint64_t fault_failed(enum fault_call call);

#endif
