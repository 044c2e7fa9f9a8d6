/* SPDX-License-Identifier: Apache-2.0
 *
 * What the service manager hears from the loop: that it serves, and that it turns.
 */
#ifndef DAEMON_SERVE_MANAGER_H
#define DAEMON_SERVE_MANAGER_H

#include <uv.h>

struct manager {
        uv_timer_t alive, ready;
};

/* Feeds the manager's watchdog, where it has one. The timers are closed with the loop's other handles. */
void manager_start(struct manager *manager, uv_loop_t *loop);

/* The daemon serves, or has read its settings again: said until it is heard. */
void manager_tell_ready(struct manager *manager);

#endif
