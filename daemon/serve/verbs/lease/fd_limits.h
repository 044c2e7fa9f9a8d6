/* SPDX-License-Identifier: Apache-2.0
 *
 * How many descriptors may be on their way to clients: limits.fds_per_client and limits.fds_in_flight.
 */
#ifndef DAEMON_SERVE_VERBS_LEASE_FD_LIMITS_H
#define DAEMON_SERVE_VERBS_LEASE_FD_LIMITS_H

#include "daemon/serve/session.h"

/* May a reply to this verb bring n more? 0, or STREAMER_ELIMIT. */
int fd_limits_check(struct session *session, unsigned n, const char *verb, struct error *error);
/* Sends a reply with its descriptors, and counts them. */
void fd_limits_send(struct session *session, struct writer *writer, const int *fds, size_t n);

#endif
