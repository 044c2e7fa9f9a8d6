/* SPDX-License-Identifier: Apache-2.0
 *
 * One task of the loop notifies of everything but the daemon's end. Each step notifies one lease, one subscriber, one
 * watcher of a load and one watcher of a load that has ended, so none of these groups waits for another. The daemon's
 * end has its own task and is the last event: once it begins, no connection is read or sent anything else.
 */
#include "daemon/serve/events/events.h"

#include "daemon/serve/deferred.h"
#include "daemon/serve/reply/reply.h"

/* Of events that some subscribers have not received. */
#define EVENT_LOG_BYTES (1 * MiB)

void event_writer(struct writer *w, const char *event, size_t n_fields)
{
        conn_writer(w);
        writer_map(w, n_fields);
        writer_kstr(w, "event", event);
}

/* ---- ends of loads ---- */

/* Up to `last`, the earliest first. The ops are examined once for each load that ends, whatever the session is sent
 * meanwhile. */
static void notify_ends(struct session *session, uint64_t last)
{
        while (session->ends_notified < last) {
                uint64_t first = UINT64_MAX;
                list_each_item (const struct op, op, &session->ops, link) {
                        uint64_t end = op->watch.load->end_number;
                        if (end != 0 && end <= last && end < first)
                                first = end;
                }
                list_each_item_safe (struct op, op, &session->ops, link)
                        if (op->watch.load->end_number == first)
                                op_send_end(op);
                if (first == UINT64_MAX)
                        session->ends_notified = last;
        }
}

/* ---- subscribers ---- */

static void notify_lost(struct session *session)
{
        struct writer w;
        if (session->events_lost == 0 || !conn_writable(session->conn))
                return;
        event_writer(&w, "lost", 2);
        writer_ku64(&w, "count", session->events_lost);
        session->events_lost = 0;
        conn_send(session->conn, &w, NULL, 0);
}

static void notify_item(struct session *session, const struct model_event *item)
{
        notify_ends(session, item->ends);
        if (!model_event_concerns(item, session->subject))
                return;
        if (!conn_writable(session->conn)) {
                session->events_lost++;
                return;
        }
        notify_lost(session);
        struct writer w;
        event_writer(&w, "model", item->code != 0 ? 9 : 7);
        writer_kstr(&w, "model", session->subject != NULL ? session->subject : item->names);
        writer_ku64(&w, "generation", item->number);
        writer_kstr(&w, "device", item->device);
        writer_kstr(&w, "state", item->state);
        writer_ku64(&w, "bytes", item->bytes);
        writer_ku64(&w, "tensors", item->tensors);
        if (item->code != 0) {
                writer_kstr(&w, "code", code_wire(item->code));
                writer_kstr(&w, "text", item->text);
        }
        conn_send(session->conn, &w, NULL, 0);
}

void events_notify(struct session *session)
{
        const struct model_event *item;
        if (conn_awaits_shutdown(session->conn))
                return;
        while ((item = event_log_next(&session->server->event_log, &session->subscriber)) != NULL)
                notify_item(session, item);
        notify_ends(session, session->server->loads->n_ended);
        notify_lost(session);
}

static bool notify_subscriber(struct server *server)
{
        struct subscriber *subscriber = event_log_next_subscriber(&server->event_log);
        if (subscriber == NULL)
                return false;
        notify_item(container_of(subscriber, struct session, subscriber),
                    event_log_next(&server->event_log, subscriber));
        return true;
}

/* The first subscriber of an ended load, with all events before that end. */
static bool notify_end(struct server *server)
{
        const struct load_watch *watch = loads_subscriber(server->loads);
        if (watch == NULL)
                return false;
        struct session *session = container_of(watch, struct op, watch)->session;
        uint64_t end = watch->load->end_number;
        const struct model_event *item;
        while ((item = event_log_peek(&server->event_log, &session->subscriber)) != NULL && item->ends < end)
                notify_item(session, event_log_next(&server->event_log, &session->subscriber));
        notify_ends(session, end);
        return true;
}

/* ---- leases ---- */

/* The model was unloaded by force; memory that the client has mapped stays valid. */
static void notify_revoked(struct session *session, struct lease *lease)
{
        const struct generation *g = lease->generation;
        lease->dirty = !conn_writable(session->conn);
        if (lease->dirty)
                return;
        lease_set_state(lease, LEASE_REVOKED);
        struct writer w;
        event_writer(&w, "lease", 6);
        writer_ku64(&w, "lease", lease->id);
        writer_ku64(&w, "arrived", generation_arrived(g));
        writer_kstr(&w, "state", "revoked");
        writer_kstr(&w, "code", code_wire(STREAMER_EREVOKED));
        writer_kstr(&w, "text", "the model was unloaded by force; detach to give its memory back");
        session_send(session, &w);
}

static void notify_progress(struct session *session, struct lease *lease)
{
        const struct generation *g = lease->generation;
        uint64_t count = generation_arrived(g);
        bool ended = g->state != GENERATION_LOADING, failed = g->state == GENERATION_FAILED;
        if (lease->state != LEASE_LOADING || (!ended && count == lease->told))
                return;
        lease->dirty = !conn_writable(session->conn);
        if (lease->dirty)
                return;
        lease->told = count;
        if (ended)
                lease_set_state(lease, LEASE_HELD);
        struct writer w;
        event_writer(&w, "lease", failed ? 7 : 5);
        writer_ku64(&w, "lease", lease->id);
        writer_ku64(&w, "arrived", count);
        writer_kstr(&w, "state", !ended ? "loading" : failed ? "failed" : "ready");
        reply_digest(&w, "digest", g);
        if (failed) {
                writer_kstr(&w, "code", code_wire(g->error.code));
                writer_kstr(&w, "text", g->error.text);
        }
        session_send(session, &w);
}

/* The end of the load is notified before the revocation: every tensor has arrived and can be read. */
void events_notify_lease(struct session *session, struct lease *lease)
{
        lease->dirty = false;
        notify_progress(session, lease);
        if (lease->state == LEASE_HELD && lease->generation->quarantined)
                notify_revoked(session, lease);
}

/* A lease that was examined moves to the end of the list, and so does its generation. */
static bool notify_lease(struct server *server)
{
        if (list_empty(&server->unnotified))
                return false;
        struct generation *g = container_of(server->unnotified.next, struct generation, unnotified);
        struct lease *lease = container_of(g->leases.next, struct lease, in_generation);
        list_remove(&g->unnotified);
        if (list_empty(&g->leases) || lease->looked == g->changes)
                return true;
        lease->looked = g->changes;
        list_remove(&lease->in_generation);
        list_append(&g->leases, &lease->in_generation);
        list_append(&server->unnotified, &g->unnotified);
        if (lease->owner != NULL)
                events_notify_lease(lease->owner, lease);
        return true;
}

/* ---- progress ---- */

static bool notify_watcher(struct server *server)
{
        struct round_robin_member *member = round_robin_next(&server->progress_round);
        if (member == NULL)
                return false;
        struct op *op = container_of(member, struct op, round_robin);
        if (op->watch.load->end_number == 0 && conn_writable(op->session->conn))
                op_send_progress(op);
        return true;
}

/* ---- changes ---- */

bool events_send_next(struct loop_task *loop_task)
{
        struct server *server = container_of(loop_task, struct server, notify);
        if (server->turn.shutting_down)
                return false;
        bool lease = notify_lease(server), subscriber = notify_subscriber(server), watcher = notify_watcher(server),
             end = notify_end(server);
        return lease || subscriber || watcher || end;
}

/* Soon notifies the leases, and rechecks the requests that wait. */
static void generation_touched(struct server *server, struct generation *generation)
{
        generation->changes++;
        list_remove(&generation->unnotified);
        list_append(&server->unnotified, &generation->unnotified);
        loop_task_begin(&server->notify);
        deferred_recheck(server);
}

/* Sends events now if they arise faster than the task sends them: none is lost, and their memory is bounded. */
void events_changed(struct server *server, struct generation *generation)
{
        server->event_log.ends = server->loads->n_ended;
        if (!server->turn.shutting_down && event_log_add(&server->event_log, generation) < 0) {
                /* Without memory for the event, subscribers are notified that one was lost. */
                list_each_item (const struct conn, conn, &server->conns, link) {
                        struct session *session = conn->context;
                        if (session->subscriber.at == NULL)
                                continue;
                        events_notify(session);
                        session->events_lost++;
                        notify_lost(session);
                }
        }
        while (!server->turn.shutting_down && server->event_log.bytes > EVENT_LOG_BYTES && notify_subscriber(server))
                ;
        generation_touched(server, generation);
}

void events_arrived(struct loads *loads, struct generation *generation)
{
        generation_touched(loads->context, generation);
}

/* ---- the end ---- */

bool events_send_shutdown(struct loop_task *loop_task)
{
        struct server *server = container_of(loop_task, struct server, shutdown);
        if (list_empty(&server->conns))
                return false;
        struct conn *conn = container_of(server->conns.next, struct conn, link);
        list_remove(&conn->link);
        list_append(&server->notified, &conn->link);
        if (conn_begin_shutdown(conn)) {
                struct writer w;
                event_writer(&w, "shutdown", 1);
                session_send(conn->context, &w);
        }
        conn_close(conn, true);
        return true;
}
