/* SPDX-License-Identifier: Apache-2.0
 *
 * Lease events: what a client is notified of about a lease: tensors that arrive, the end of the load, a revocation.
 */
#ifndef DAEMON_SERVE_EVENTS_LEASE_EVENTS_H
#define DAEMON_SERVE_EVENTS_LEASE_EVENTS_H

#include "daemon/serve/session.h"

/* Sends what the client has not been notified of yet, or marks the lease where the connection is not writable. */
void lease_events_send(struct session *session, struct lease *lease);

#endif
