/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: notifies clients of changes of models, of the loads that they watch, of their leases, and of the daemon's
 * end.
 */
#ifndef DAEMON_SERVE_EVENTS_EVENTS_H
#define DAEMON_SERVE_EVENTS_EVENTS_H

#include "daemon/serve/session.h"

/* Notifies a client of the changes and the ends of its loads that it has not been notified of, in their order. */
void events_notify(struct session *session);

/* ---- the server's ---- */

/* A change of this generation: soon answers deferred requests, and notifies leases and subscribers. */
void events_changed(struct server *server, struct generation *generation);
/* Notifies one lease, one subscriber, one watcher of a load, and one watcher of a load that has ended. */
bool events_send_next(struct loop_task *loop_task);
/* Tensors have arrived: soon notifies the leases that follow the load. */
void events_arrived(struct server *server, struct generation *generation);
/* Ten times a second: models expire, and watchers are soon notified of progress. */
void events_progress(struct server *server);
/* The daemon ends: soon notifies and closes all connections. */
void events_shutdown(struct server *server);
/* Notifies and closes one connection. */
bool events_send_shutdown(struct loop_task *loop_task);

#endif
