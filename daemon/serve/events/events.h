/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: notifies clients of changes of models, of the loads that they watch, of their leases, and of the daemon's
 * end.
 */
#ifndef DAEMON_SERVE_EVENTS_EVENTS_H
#define DAEMON_SERVE_EVENTS_EVENTS_H

#include "daemon/serve/session.h"

/* Begins an event; n_fields counts `event`, its first one. */
void event_writer(struct writer *writer, const char *event, size_t n_fields);

/* Notifies a client of the changes and the ends of its loads that it has not been notified of, in their order. */
void events_notify(struct session *session);

/* Sends what the client has not been notified of yet about a lease: tensors that arrived, the end of the load, a
 * revocation. Marks the lease where the connection is not writable. */
void events_notify_lease(struct session *session, struct lease *lease);

/* ---- watched loads ---- */

/* A load that this client watches. */
struct op {
        struct list link;
        struct round_robin_member round_robin; /* it is notified of the progress */
        struct session *session;
        struct load_watch watch;
        uint64_t id;
        uint64_t request; /* of a load that attaches, which is answered later; else 0 */
        char *model;
};

/* NULL on ENOMEM: the connection ends, since the client would wait for ever. */
struct op *op_new(struct session *session, struct load *load, uint64_t id);
void op_free(struct op *op);

/* Sends an event about the progress. */
void op_send_progress(struct op *op);
/* Sends the event of the end, and frees the op. All that happened before was sent before. */
void op_send_end(struct op *op);

/* ---- the server's ---- */

/* A change of this generation: soon answers deferred requests, and notifies leases and subscribers. */
void events_changed(struct server *server, struct generation *generation);
/* Notifies one lease, one subscriber, one watcher of a load, and one watcher of a load that has ended. */
bool events_send_next(struct loop_task *loop_task);
/* Tensors have arrived (loads->arrived): soon notifies the leases that follow the load. */
void events_arrived(struct loads *loads, struct generation *generation);
/* The daemon has begun to end (conn_turn_shutdown): notifies and closes one connection. */
bool events_send_shutdown(struct loop_task *loop_task);

#endif
