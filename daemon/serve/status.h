/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of `status` that says how the daemon itself is: preloads, threads that hang, the loop's stalls.
 */
#ifndef DAEMON_SERVE_STATUS_H
#define DAEMON_SERVE_STATUS_H

#include "daemon/serve/server.h"

#define STATUS_HEALTH 3 /* keys that status_health() writes */
void status_health(struct writer *writer, const struct server *server);

#endif
