/* SPDX-License-Identifier: Apache-2.0
 *
 * Failing calls of a daemon: the test's interface to tests/lib/fault.
 */
#pragma once

#include "tests/lib/fault/calls.h"

#include <stdbool.h>

/* Creates the shared page in `folder`. Daemons that are started before faults_hide() use it. */
void faults_begin(const char *folder);
void faults_show(void); /* sets the environment of later daemons */
void faults_hide(void);

const char *fault_name(enum fault_call call);

/* The nth call from now on (0: the next) fails. */
void fault_arm(enum fault_call call, uint64_t nth);
/* The same, but the program is killed before it makes the call. */
void fault_arm_kill(enum fault_call call, uint64_t nth);
/* Disarms it. True if the armed call has failed. */
bool fault_disarm(void);

/* Whether a text names the cause of the call's failure. */
bool fault_is_named(enum fault_call call, const char *text);
/* "FILE:LINE FILE:LINE ...": where the last call failed, the innermost inlined function first; never freed. */
char *fault_site(const char *program);
/* Whether tests/fault-silent.txt lists the call for a file of the site. */
bool fault_is_silent(enum fault_call call, const char *site);

uint64_t fault_seen(enum fault_call call);
uint64_t fault_failed(enum fault_call call);
