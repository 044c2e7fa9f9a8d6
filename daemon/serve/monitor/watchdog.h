/* SPDX-License-Identifier: Apache-2.0
 *
 * Notifies the service manager that the daemon is ready, and that its loop turns.
 */
#ifndef DAEMON_SERVE_MONITOR_WATCHDOG_H
#define DAEMON_SERVE_MONITOR_WATCHDOG_H

#include <uv.h>

struct watchdog {
        uv_timer_t alive, ready;
};

/* Sends WATCHDOG=1, if the manager expects it. The timers are closed with the loop's other handles. */
void watchdog_start(struct watchdog *watchdog, uv_loop_t *loop);

/* The daemon serves, or has reloaded its configuration: repeated until the manager has received it. */
void watchdog_notify_ready(struct watchdog *watchdog);

#endif
