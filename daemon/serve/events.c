/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens in the daemon and sessions are told of: changes, arrivals, progress, the end.
 */
#include "daemon/serve/session.h"

#include "daemon/resident/expiry.h"

#include <string.h>

static bool wants(const struct session *session, const struct generation *g)
{
        if (!session->subscribed || session->conn->closing)
                return false;
        if (g->lost_name)
                return session->subject == NULL || strcmp(g->last_name, session->subject) == 0;
        return session->subject == NULL || generation_has_name(g, session->subject) ||
               (list_empty(&g->names) && strcmp(g->last_name, session->subject) == 0);
}

/* The name by which it asked, where it asked for one. */
static const char *told_name(const struct session *session, const struct generation *g)
{
        if (session->subject != NULL)
                return session->subject;
        return g->lost_name ? g->last_name : generation_name(g);
}

static void tell_subscriber(struct session *session, const struct generation *g)
{
        if (!conn_writable(session->conn)) {
                session->events_lost++;
                return;
        }
        bool failed = g->state == GENERATION_FAILED;
        struct writer w;
        conn_writer(&w);
        writer_map(&w, failed ? 9 : 7);
        writer_kstr(&w, "event", "model");
        writer_kstr(&w, "model", told_name(session, g));
        writer_ku64(&w, "generation", g->number);
        writer_kstr(&w, "device", g->device->name);
        writer_kstr(&w, "state", generation_state_name(g->lost_name ? GENERATION_GONE : g->state));
        writer_ku64(&w, "bytes", g->data_bytes);
        writer_ku64(&w, "tensors", g->n_tensors);
        if (failed) {
                writer_kstr(&w, "code", code_wire(g->error.code));
                writer_kstr(&w, "text", g->error.text);
        }
        session_send(session, &w);
}

void sessions_answer_soon(struct server *server)
{
        server->changes++;
        if (server->answer_posted || list_empty(&server->waiting))
                return;
        server->answer_posted = true;
        wake_post(server->wake, &server->answer);
}

static void tell_leases(struct generation *generation)
{
        list_each (pos, &generation->leases) {
                struct lease *lease = container_of(pos, struct lease, in_generation);
                if (lease->owner != NULL)
                        session_tell_lease(lease->owner, lease);
        }
}

void sessions_changed(struct server *server, struct generation *generation)
{
        tell_leases(generation);
        list_each (pos, &server->conns) {
                struct session *session = container_of(pos, struct conn, link)->context;
                if (wants(session, generation))
                        tell_subscriber(session, generation);
        }
        sessions_answer_soon(server);
}

void sessions_arrived(struct server *server, struct generation *generation)
{
        tell_leases(generation);
        sessions_answer_soon(server);
}

void sessions_progress(struct server *server)
{
        deferred_check_deadlines(server, now_ns());
        resident_expire(server->resident, now_ns());
        if (server->n_ops == 0)
                return;
        list_each (pos, &server->conns) {
                struct session *session = container_of(pos, struct conn, link)->context;
                list_each (link, &session->ops) {
                        struct op *op = container_of(link, struct op, link);
                        if (op->watch.load != NULL && conn_writable(session->conn))
                                op_tell(op, op->watch.load);
                }
        }
}

void sessions_tick(struct server *server, uint64_t now)
{
        list_each_safe (pos, &server->conns)
                conn_tick(container_of(pos, struct conn, link), now);
}

void sessions_shutdown(struct server *server)
{
        list_each_safe (pos, &server->conns) {
                struct conn *conn = container_of(pos, struct conn, link);
                if (!conn->closing) {
                        struct writer w;
                        conn_writer(&w);
                        writer_map(&w, 1);
                        writer_kstr(&w, "event", "shutdown");
                        conn_send(conn, &w, NULL, 0);
                }
                conn_close(conn, true);
        }
}
