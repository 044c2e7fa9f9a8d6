/* SPDX-License-Identifier: Apache-2.0
 *
 * The status line for `systemctl status`: loads, models and leases, and preloads that are not ready.
 */
#ifndef DAEMON_SERVE_MONITOR_SD_STATUS_H
#define DAEMON_SERVE_MONITOR_SD_STATUS_H

#include "daemon/serve/server_state.h"

/* About once a second: sends the line to the service manager, if any, when it has changed. */
void sd_status_send(struct server *server);

#endif
