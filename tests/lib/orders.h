/* SPDX-License-Identifier: Apache-2.0
 *
 * Random orders of completion in one process. While a test explores them, each piece of work of a pool, and each call
 * of a fake device (segments, copies, events), waits until it is chosen. Work is held by the linker's --wrap: it
 * replaces work_submit() in tests/unit.
 */
#pragma once

#include "tests/lib/core.h"

void orders_begin(uint64_t seed);
/* When every other thread sleeps: lets the waiting one of the highest priority continue, or runs the loop for some
 * turns. Priorities are random. False if nothing waits, and the loop has nothing to do. */
bool orders_step(void);
/* Below n, at random. */
unsigned orders_choose(unsigned n);
void orders_end(void); /* nothing waits */
