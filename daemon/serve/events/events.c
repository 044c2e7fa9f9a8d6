/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/events.h"

#include "daemon/serve/reply/reply.h"

/* States that a session is sent in one step of the task. */
#define STEP_STATES 16

/* ---- sessions that are due ---- */

/* All of them. */
static void mark_all(struct server *server)
{
        server->marks++;
        list_append_all(&server->due, &server->up_to_date);
        loop_task_begin(&server->notify);
}

void events_mark(struct session *session)
{
        struct server *server = session->server;
        require(session->magic == SESSION_MAGIC && !session->closed);
        if (session->marks != server->marks)
                return; /* it is in `due` */
        session->marks--;
        list_remove(&session->in_events);
        list_append(&server->due, &session->in_events);
        loop_task_begin(&server->notify);
}

/* ---- states of models ---- */

static void send_change(struct session *session, const struct change *change)
{
        const char *subject = session->subscriber.subject;
        bool failed = change->code != 0;
        event_send(session, "model", kstr("model", subject != NULL ? subject : change->name),
                   ku64("generation", change->generation), kstr("device", change->device), kstr("state", change->state),
                   ku64("bytes", change->bytes), ku64("tensors", change->tensors),
                   kif(failed, kstr("code", code_wire(change->code))), kif(failed, kstr("text", change->text)));
}

/* What was lost precedes the state that follows it. False: the client is up to date. */
static bool send_next_state(struct session *session)
{
        struct subscriber *subscriber = &session->subscriber;
        struct change change;
        bool more = changes_peek(&session->server->model_changes, subscriber, &change);
        if (subscriber->lost > 0) {
                event_send(session, "lost", ku64("count", subscriber->lost));
                subscriber->lost = 0;
        } else if (more) {
                changes_advance(subscriber, &change);
                send_change(session, &change);
        } else {
                return false;
        }
        return true;
}

static void send_states(struct session *session)
{
        while (conn_writable(session->conn) && send_next_state(session))
                ;
}

/* ---- ends of loads ---- */

/* The earliest; NULL: none. The ops are examined once for each load that ends. */
static struct op *ended_op(struct session *session)
{
        struct op *first = NULL;
        if (session->ends_notified == session->server->loads->n_ended)
                return NULL;
        list_each_item (struct op, op, &session->ops, link) {
                uint64_t end = op->watch.load->end_number;
                if (end != 0 && (first == NULL || end < first->watch.load->end_number))
                        first = op;
        }
        if (first == NULL)
                session->ends_notified = session->server->loads->n_ended;
        return first;
}

static bool send_next_end(struct session *session)
{
        struct op *op = ended_op(session);
        if (op == NULL)
                return false;
        send_states(session);
        op_send(op);
        op_free(op);
        return true;
}

void events_notify(struct session *session)
{
        send_states(session);
        while (send_next_end(session))
                ;
}

/* ---- leases ---- */

/* The model was unloaded by force; memory that the client has mapped stays valid. */
static void send_revoked(struct session *session, struct lease *lease)
{
        lease_set_state(lease, LEASE_REVOKED);
        event_send(session, "lease", ku64("lease", lease->id), ku64("arrived", generation_arrived(lease->generation)),
                   kstr("state", "revoked"), kstr("code", code_wire(STREAMER_EREVOKED)),
                   kstr("text", "the model was unloaded by force; detach to give its memory back"));
}

static void send_arrivals(struct session *session, struct lease *lease)
{
        const struct generation *g = lease->generation;
        uint64_t count = generation_arrived(g);
        bool ended = g->state != GENERATION_LOADING, failed = g->state == GENERATION_FAILED;
        lease->notified_arrivals = count;
        if (ended)
                lease_set_state(lease, LEASE_HELD);
        event_send(session, "lease", ku64("lease", lease->id), ku64("arrived", count),
                   kstr("state", !ended   ? "loading"
                                 : failed ? "failed"
                                          : "ready"),
                   reply_digest(g), kif(failed, kstr("code", code_wire(g->error.code))),
                   kif(failed, kstr("text", g->error.text)));
}

static bool has_arrivals(const struct lease *lease)
{
        const struct generation *g = lease->generation;
        return lease->state == LEASE_LOADING &&
               (g->state != GENERATION_LOADING || generation_arrived(g) != lease->notified_arrivals);
}

static bool has_revocation(const struct lease *lease)
{
        return lease->state == LEASE_HELD && lease->generation->state == GENERATION_REVOKED;
}

void events_mark_lease(struct session *session, struct lease *lease)
{
        if (lease->event_pending || (!has_arrivals(lease) && !has_revocation(lease)))
                return;
        lease->event_pending = true;
        list_remove(&lease->in_owner);
        list_append(session->leases.next, &lease->in_owner); /* first */
        events_mark(session);
}

void events_mark_leases(const struct generation *generation)
{
        list_each_item (struct lease, lease, &generation->leases, in_generation)
                if (lease->owner != NULL)
                        events_mark_lease(lease->owner, lease);
}

/* The end of the load is notified before a revocation: every tensor has arrived and can be read. */
static bool send_next_lease(struct session *session)
{
        struct lease *lease = list_item(session->leases.next, &session->leases, struct lease, in_owner);
        if (lease == NULL || !lease->event_pending)
                return false;
        if (has_arrivals(lease))
                send_arrivals(session, lease);
        else if (has_revocation(lease))
                send_revoked(session, lease);
        if (has_arrivals(lease) || has_revocation(lease))
                return true;
        lease->event_pending = false;
        list_remove(&lease->in_owner);
        list_append(&session->leases, &lease->in_owner);
        return true;
}

/* ---- progress ---- */

static bool send_next_progress(struct session *session)
{
        struct op *op = list_item(session->ops.next, &session->ops, struct op, link);
        uint64_t round = session->server->progress_round;
        if (op == NULL || op->progress_round == round)
                return false;
        op->progress_round = round;
        list_remove(&op->link);
        list_append(&session->ops, &op->link);
        if (op->watch.load->end_number == 0)
                op_send(op);
        return true;
}

/* A round begins when all sessions are up to date, so with many of them each is notified less often. */
void events_progress(struct server *server)
{
        if (server->n_ops == 0 || !list_empty(&server->due))
                return;
        server->progress_round++;
        mark_all(server);
}

/* ---- the task ---- */

/* A few frames. False: nothing is left that may be sent now. */
static bool send_some(struct session *session)
{
        const struct conn *conn = session->conn;
        struct change change;
        for (int i = 0; i < STEP_STATES && conn_idle(conn); i++)
                if (!send_next_state(session))
                        break;
        if (send_next_end(session))
                return true;
        if (!conn_idle(conn))
                return false;
        return send_next_lease(session) || send_next_progress(session) || session->subscriber.lost > 0 ||
               changes_peek(&session->server->model_changes, &session->subscriber, &change);
}

bool events_send_next(struct loop_task *loop_task)
{
        struct server *server = container_of(loop_task, struct server, notify);
        struct session *session = list_item(server->due.next, &server->due, struct session, in_events);
        if (session == NULL)
                return false;
        require(session->magic == SESSION_MAGIC);
        list_remove(&session->in_events);
        bool more = send_some(session);
        session->marks = server->marks - more;
        list_append(more ? &server->due : &server->up_to_date, &session->in_events);
        return true;
}

void events_deinit(struct session *session)
{
        changes_unsubscribe(&session->server->model_changes, &session->subscriber);
        list_each_item_safe (struct op, op, &session->ops, link)
                op_free(op);
        list_remove(&session->in_events);
        session->closed = true;
}

/* ---- marks ---- */

void events_changed(struct server *server, struct generation *generation, const char *removed)
{
        changes_add(&server->model_changes, generation, removed);
        events_mark_leases(generation);
        mark_all(server);
}

void events_load_ended(struct loads *loads)
{
        mark_all(loads->context);
}
