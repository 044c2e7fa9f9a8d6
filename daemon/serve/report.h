/* SPDX-License-Identifier: Apache-2.0
 *
 * What `systemctl status` says of the daemon: one line about its loads, models and leases,
 * and about preloads that are not there yet.
 */
#ifndef DAEMON_SERVE_REPORT_H
#define DAEMON_SERVE_REPORT_H

#include "daemon/serve/server.h"

/* The line; NUL-terminated, cut where it is too long. */
void report_line(const struct server *server, char *line, size_t size);

/* About once a second: tells the service manager, where there is one and the line has changed. */
void report_tell(struct server *server);

#endif
