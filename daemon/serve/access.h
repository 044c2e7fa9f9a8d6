/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may do what. Root and the daemon's own user do all; members of the socket's group attach and
 * load, and look; nobody else does anything.
 */
#ifndef DAEMON_SERVE_ACCESS_H
#define DAEMON_SERVE_ACCESS_H

#include "daemon/serve/server.h"

/* 0, or STREAMER_EPERM naming the rule. */
int access_check(const struct server *server, const struct conn *conn, enum verb verb, struct error *error);

#endif
