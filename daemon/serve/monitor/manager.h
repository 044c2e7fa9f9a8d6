/* SPDX-License-Identifier: Apache-2.0
 *
 * Notifies the service manager that the daemon is ready, that its loop turns, and what it does: the status line for
 * `systemctl status` has loads, models and leases, and preloads that are not ready.
 */
#ifndef DAEMON_SERVE_MONITOR_MANAGER_H
#define DAEMON_SERVE_MONITOR_MANAGER_H

#include "daemon/serve/server_state.h"

struct manager {
        uv_timer_t alive, ready;
};

/* Sends WATCHDOG=1, if the manager expects it. The timers are closed with the loop's other handles. */
void manager_start(struct manager *manager, uv_loop_t *loop);

/* The daemon serves, or has reloaded its configuration: repeated until the manager has received it. */
void manager_notify_ready(struct manager *manager);

/* About once a second: sends the status line, when it has changed. */
void manager_send_status(struct server *server);

#endif
