/* SPDX-License-Identifier: Apache-2.0
 *
 * What time does to models. One that is kept alive for so long goes when nobody has held it since; a
 * generation that drains is taken from those who hold it when its time is over.
 */
#ifndef DAEMON_RESIDENT_EXPIRY_H
#define DAEMON_RESIDENT_EXPIRY_H

#include "daemon/resident/resident.h"

/* How long it stays if nobody uses it from now on; 0: for ever, or it is held. */
uint64_t generation_expires_in(const struct generation *generation, uint64_t now);

/* Lets go what is due. Now and then. */
void resident_expire(struct resident *resident, uint64_t now);

#endif
