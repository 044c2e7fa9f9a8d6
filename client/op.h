/* SPDX-License-Identifier: Apache-2.0
 *
 * A load that this client watches. Its record is fed by the daemon's events, from whichever thread
 * reads the socket.
 */
#ifndef CLIENT_OP_H
#define CLIENT_OP_H

#include "client/channel.h"

/* Lock held: an event of an operation. */
void op_event(struct streamer_client *c, const msgpack_object *event);

#endif
