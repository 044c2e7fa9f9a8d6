/* SPDX-License-Identifier: Apache-2.0
 *
 * What happens in the daemon and sessions are told of: changes, arrivals, progress, the end.
 *
 * All but the end is told by one chore, a piece of which tells one lease, one subscriber, one watcher of a load and
 * one of a load that has ended: each crowd is told in its own order, and none waits for another to be through. The
 * end has a chore of its own, and is the last that anybody is told: it comes to all at once, in that none is read or
 * told of anything else from then on.
 */
#include "daemon/serve/session.h"

#include "daemon/resident/expiry.h"

#include <string.h>

/* Of changes that some have not heard of yet. */
#define NEWS_BYTES (1 * MiB)

/* ---- ends of loads ---- */

/* The earliest end of one of its loads, and the number of the last that counts. 0: none of them has ended. */
static uint64_t first_end(const struct session *session, uint64_t last)
{
        uint64_t first = 0;
        list_each (pos, &session->ops) {
                uint64_t end = container_of(pos, struct op, link)->watch.load->end_number;
                if (end != 0 && end <= last && (first == 0 || end < first))
                        first = end;
        }
        return first;
}

/* Those up to `last`. Its ops are looked through once for each load that ends, whatever it is sent meanwhile. */
static void tell_ends(struct session *session, uint64_t last)
{
        if (session->ends_told >= last)
                return;
        for (uint64_t end; (end = first_end(session, last)) != 0;)
                list_each_safe (pos, &session->ops) {
                        struct op *op = container_of(pos, struct op, link);
                        if (op->watch.load->end_number == end)
                                op_tell_end(op);
                }
        session->ends_told = last;
}

/* ---- subscribers ---- */

static void tell_lost(struct session *session)
{
        struct writer w;
        if (session->events_lost == 0 || !conn_writable(session->conn))
                return;
        conn_writer(&w);
        writer_map(&w, 2);
        writer_kstr(&w, "event", "lost");
        writer_ku64(&w, "count", session->events_lost);
        session->events_lost = 0;
        conn_send(session->conn, &w, NULL, 0);
}

static void tell_item(struct session *session, const struct item *item)
{
        tell_ends(session, item->ends);
        if (!item_concerns(item, session->subject))
                return;
        if (!conn_writable(session->conn)) {
                session->events_lost++;
                return;
        }
        tell_lost(session);
        struct writer w;
        conn_writer(&w);
        writer_map(&w, item->code != 0 ? 9 : 7);
        writer_kstr(&w, "event", "model");
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

/* A client that has not heard of the daemon's end is sent nothing meanwhile: it hears this before that. */
static bool is_to_part(const struct session *session)
{
        return session->server->turn.parting && !session->conn->parting;
}

void session_tell_news(struct session *session)
{
        const struct item *item;
        if (is_to_part(session))
                return;
        while ((item = news_next(&session->server->news, &session->listener)) != NULL)
                tell_item(session, item);
        tell_ends(session, session->server->loads->n_ended);
        tell_lost(session);
}

static bool tell_a_subscriber(struct server *server)
{
        struct listener *listener = news_behind(&server->news);
        if (listener == NULL)
                return false;
        tell_item(container_of(listener, struct session, listener), news_next(&server->news, listener));
        return true;
}

/* The first in line, and all that came before its load's end. */
static bool tell_an_end(struct server *server)
{
        const struct load_watch *watch = loads_follower(server->loads);
        if (watch == NULL)
                return false;
        struct session *session = container_of(watch, struct op, watch)->session;
        uint64_t end = watch->load->end_number;
        const struct item *item;
        while ((item = news_peek(&server->news, &session->listener)) != NULL && item->ends < end)
                tell_item(session, news_next(&server->news, &session->listener));
        tell_ends(session, end);
        return true;
}

/* No memory to note the change in: they hear that there was one. */
static void lose_change(struct server *server)
{
        list_each (pos, &server->conns) {
                struct session *session = container_of(pos, struct conn, link)->context;
                if (session->listener.at == NULL)
                        continue;
                session_tell_news(session);
                session->events_lost++;
                tell_lost(session);
        }
}

/* Where changes come faster than they are told they wait for that: they are not lost, and do not pile up. */
static void note_change(struct server *server, const struct generation *generation)
{
        if (server->turn.parting)
                return;
        server->news.ends = server->loads->n_ended;
        if (news_add(&server->news, generation) < 0)
                lose_change(server);
        while (server->news.bytes > NEWS_BYTES && tell_a_subscriber(server))
                ;
}

/* ---- leases ---- */

static void leases_changed(struct server *server, struct generation *generation)
{
        generation->changes++;
        list_remove(&generation->telling);
        list_append(&server->telling, &generation->telling);
        chore_begin(&server->tell);
}

/* Who was looked at goes behind the others, and so does the generation. */
static bool tell_a_lease(struct server *server)
{
        if (list_empty(&server->telling))
                return false;
        struct generation *g = container_of(server->telling.next, struct generation, telling);
        struct lease *lease = container_of(g->leases.next, struct lease, in_generation);
        list_remove(&g->telling);
        if (list_empty(&g->leases) || lease->looked == g->changes)
                return true;
        lease->looked = g->changes;
        list_remove(&lease->in_generation);
        list_append(&g->leases, &lease->in_generation);
        list_append(&server->telling, &g->telling);
        if (lease->owner != NULL)
                session_tell_lease(lease->owner, lease);
        return true;
}

/* ---- progress ---- */

static bool tell_a_watcher(struct server *server)
{
        struct beat_member *member = beat_next(&server->progress_beat);
        if (member == NULL)
                return false;
        struct op *op = container_of(member, struct op, beat);
        if (op->watch.load->end_number == 0 && conn_writable(op->session->conn))
                op_tell(op);
        return true;
}

/* ---- changes ---- */

bool sessions_tell(struct chore *chore)
{
        struct server *server = container_of(chore, struct server, tell);
        if (server->turn.parting)
                return false;
        bool lease = tell_a_lease(server), subscriber = tell_a_subscriber(server), watcher = tell_a_watcher(server),
             end = tell_an_end(server);
        return lease || subscriber || watcher || end;
}

void sessions_answer_soon(struct server *server)
{
        server->changes++;
        if (!list_empty(&server->waiting))
                chore_begin(&server->answer);
}

void sessions_changed(struct server *server, struct generation *generation)
{
        note_change(server, generation);
        leases_changed(server, generation);
        sessions_answer_soon(server);
}

void sessions_load_ended(struct server *server)
{
        chore_begin(&server->tell);
}

void sessions_arrived(struct server *server, struct generation *generation)
{
        leases_changed(server, generation);
        sessions_answer_soon(server);
}

/* ---- at times ---- */

void sessions_progress(struct server *server)
{
        resident_expire(server->resident, now_ns());
        if (beat_begin(&server->progress_beat))
                chore_begin(&server->tell);
}

void sessions_tick(struct server *server, uint64_t now)
{
        list_each_safe (pos, &server->conns)
                conn_tick(container_of(pos, struct conn, link), now);
}

/* ---- the end ---- */

/* Who has been told goes behind the others. */
bool sessions_part(struct chore *chore)
{
        struct server *server = container_of(chore, struct server, part);
        struct conn *conn = container_of(server->conns.next, struct conn, link);
        if (list_empty(&server->conns) || conn->parting)
                return false;
        list_remove(&conn->link);
        list_append(&server->conns, &conn->link);
        conn_part(conn);
        if (!conn->closing) {
                struct writer w;
                conn_writer(&w);
                writer_map(&w, 1);
                writer_kstr(&w, "event", "shutdown");
                session_send(conn->context, &w);
        }
        conn_close(conn, true);
        return true;
}

/* For all of them the daemon ends here: who waits to be told of it is sent nothing that happens meanwhile. */
void sessions_shutdown(struct server *server)
{
        conn_turn_part(&server->turn);
        chore_begin(&server->part);
}
