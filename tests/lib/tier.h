/* SPDX-License-Identifier: Apache-2.0
 *
 * The host cache of a daemon, as `status` tells of it.
 */
#ifndef TESTS_LIB_TIER_H
#define TESTS_LIB_TIER_H

#include "tests/lib/stage.h"

uint64_t tier_used(streamer_client *c); /* bytes */
/* Until it has so many: what is evicted comes there, and goes, off the daemon's loop. */
void tier_await(streamer_client *c, uint64_t bytes);

#endif
