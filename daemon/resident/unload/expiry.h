/* SPDX-License-Identifier: Apache-2.0
 *
 * Expiry: unloads models whose keep-alive is over, and revokes the leases of generations that have drained for
 * longer than their drain timeout.
 */
#ifndef DAEMON_RESIDENT_UNLOAD_EXPIRY_H
#define DAEMON_RESIDENT_UNLOAD_EXPIRY_H

#include "daemon/resident/model.h"

/* How long it stays without a further use; 0: without limit, or it is in use. */
uint64_t generation_expires_in(const struct generation *generation, uint64_t now);

/* Handles what is due. Called about once a second. */
void resident_expire(struct resident *resident, uint64_t now);

#endif
