/* SPDX-License-Identifier: Apache-2.0
 *
 * Events: notifies clients of changes of models, of the loads that they watch and of their leases.
 *
 * What happens only marks, because the caller is in the midst of a change. One task of the loop sends: it takes the
 * sessions in turn (server->due), and sends each a few frames in a step. A session to which nothing is left to send is
 * up to date until the next mark; one that neither subscribes nor watches a load is only marked for itself. There is no
 * other queue:
 *
 *   states      of models: a position in the order of changes (changes.h)
 *   ends        of watched loads: an ended one stays until its ops are notified
 *   leases      of which tensors arrive, or that are revoked: session->due_leases
 *   progress    ops that were not notified in this round of a timer: session->due_ops; of a load that waits for
 *               memory there is no progress
 *
 * A client is sent events only while nothing is unsent to it, so one that does not read has one of them queued, and
 * later receives the latest state of each. There are two exceptions: an end is always sent, since its client requested
 * it; and before an end or a reply is sent, the client is notified of the states that preceded it, unless much is
 * unsent (conn_writable).
 */
#pragma once

#include "daemon/serve/server_state.h"

/* ---- a session's ---- */

/* It has something to be sent, or may be sent events again: the task examines it. */
void events_mark(struct session *session);
/* To the states of this model, which it takes over, or (NULL) of all; in place of an earlier subscription, of which the
 * client is notified first. */
void events_subscribe(struct session *session, char *subject);
/* Before a reply: notifies the client of the states and the ends that preceded it. */
void events_notify(struct session *session);
/* The lease may have to be notified: of tensors that arrived, of the end of the load, of a revocation. */
void events_mark_lease(struct session *session, struct lease *lease);
/* It closes and has no leases; nothing may mark it any more. */
void events_deinit(struct session *session);

/* ---- watched loads ---- */

/* A load that this client watches. */
#define OP_MAGIC 0x6f706f70u

struct op {
        unsigned magic;     /* OP_MAGIC */
        struct list link;   /* in session->ops */
        struct list in_due; /* in session->due_ops */
        struct session *session;
        struct load_watch watch;
        struct quota_charge charge;
        uint64_t id;
        uint64_t request; /* of a load that attaches, which is answered later; else 0 */
        /* Of the last event. */
        enum load_state sent_state;
        uint64_t sent_restarts;
};

/* STREAMER_ELIMIT: the client, or its user, watches as many loads as it may. */
int op_check(struct session *session, struct error *error);
/* NULL on ENOMEM: the connection ends, since the client would wait for ever. */
struct op *op_new(struct session *session, struct load_request *request, uint64_t id);
/* Sends an event about the progress, or the end. */
void op_send(struct op *op);

/* ---- the server's ---- */

void events_changed(struct server *server, struct generation *generation, const char *removed);
/* Tensors of the generation have arrived. */
void events_mark_leases(const struct generation *generation);
void events_load_ended(struct loads *loads);
/* A few times a second, of the loads that are watched. False: none has progress before the loop is called again. */
bool events_progress(struct server *server);
/* A step of server->notify. */
bool events_send_next(struct loop_task *loop_task);
