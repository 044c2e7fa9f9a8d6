/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/events.h"

#include "daemon/base/log/log.h"
#include "daemon/serve/access/shares.h"
#include "daemon/serve/reply/reply.h"

#include <inttypes.h>

/* States that a session is sent in one step of the task. */
#define STEP_STATES 16

#define event_send(session, name, ...) conn_send((session)->conn, NULL, PAIRS(kstr("event", name), __VA_ARGS__))

/* ---- sessions that are due ---- */

/* Changes of models, or ends of loads, may have to be sent. */
static bool listens(const struct session *session)
{
        return !list_empty(&session->subscriber.link) || !list_empty(&session->ops);
}

/* It listens from now on. */
static void begin_to_listen(struct session *session)
{
        if (list_empty(&session->in_events))
                list_append(&session->server->up_to_date, &session->in_events);
}

static void mark_listening(struct server *server)
{
        list_append_all(&server->due, &server->up_to_date);
        loop_task_begin(&server->notify);
}

void events_mark(struct session *session)
{
        struct server *server = session->server;
        require(session->magic == SESSION_MAGIC);
        list_remove(&session->in_events);
        list_append(&server->due, &session->in_events);
        loop_task_begin(&server->notify);
}

/* ---- states of models ---- */

/* What was lost precedes the state that follows it. False: the client is up to date. */
static bool send_next_state(struct session *session)
{
        struct subscriber *subscriber = &session->subscriber;
        struct change c;
        bool more = changes_peek(&session->server->model_changes, subscriber, &c);
        if (subscriber->lost > 0) {
                event_send(session, "lost", ku64("count", subscriber->lost));
                subscriber->lost = 0;
        } else if (more) {
                bool failed = c.code != 0;
                subscriber->number = c.number;
                event_send(session, "model", kstr("model", subscriber->subject ?: c.name),
                           ku64("generation", c.generation), kstr("device", c.device), kstr("state", c.state),
                           ku64("bytes", c.bytes), ku64("tensors", c.tensors),
                           kif(failed, kstr("code", code_wire(c.code))), kif(failed, kstr("text", c.text)));
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

void events_subscribe(struct session *session, char *subject)
{
        events_notify(session);
        changes_subscribe(&session->server->model_changes, &session->subscriber, subject);
        begin_to_listen(session);
}

/* ---- watched loads ---- */

/* It became a name for generations that served already: nothing was read. */
static bool was_resident(const struct load *load)
{
        load_each_target (t, load)
                if (load->state != LOAD_READY || t->state != TARGET_SERVES)
                        return false;
        return true;
}

static size_t count_failed(const struct load *load)
{
        size_t n = 0;
        load_each_target (t, load)
                n += t->state == TARGET_FAILED;
        return n;
}

static void write_failed(struct writer *w, const void *data)
{
        const struct load *load = data;
        writer_array(w, count_failed(load));
        load_each_target (t, load)
                if (t->state == TARGET_FAILED)
                        writer_map_of(w, kstr("device", t->device->name), kstr("code", code_wire(t->error.code)),
                                      kstr("text", t->error.text));
}

static void write_eviction(struct writer *w, const void *data, size_t i)
{
        const struct load_eviction *e = &((const struct load_eviction *)data)[i];
        writer_map_of(w, kstr("name", e->name), ku64("generation", e->generation), kstr("device", e->device->name),
                      ku64("bytes", e->bytes));
}

int op_check(struct session *session, struct error *error)
{
        uid_t uid = session->conn->caller.uid;
        const struct server *server = session->server;
        uint64_t n = 0;
        list_each (pos, &session->ops)
                n++;
        if (n >= SHARE_OPS_PER_CLIENT)
                return error_set(error, STREAMER_ELIMIT, "load: this connection watches %d loads, the most that it may",
                                 SHARE_OPS_PER_CLIENT);
        if (!share_left(&server->users, server->limits, uid, QUOTA_OPS))
                return error_set(error, STREAMER_ELIMIT,
                                 "load: uid %u watches %" PRIu64 " loads, the most that a user may", (unsigned)uid,
                                 quotas_held(&server->users, uid, QUOTA_OPS));
        return 0;
}

struct op *op_new(struct session *session, struct load_request *request, uint64_t id)
{
        struct op *op = calloc(1, sizeof(*op));
        if (op == NULL ||
            quota_hold(&session->server->users, session->conn->caller.uid, &op->charge, QUOTA_OPS, 1) < 0) {
                log_warn("%s: process %d cannot watch the load, and its connection ends: no memory", request->name,
                         (int)session->conn->pid);
                free(op);
                conn_close(session->conn, false);
                return NULL;
        }
        op->magic = OP_MAGIC;
        op->session = session;
        op->id = id;
        list_init(&op->in_due);
        list_append(&session->ops, &op->link);
        if (list_empty(&session->in_watching))
                list_append(&session->server->watching, &session->in_watching);
        load_watch(request, &op->watch, NULL);
        begin_to_listen(session);
        return op;
}

static void op_free(struct op *op)
{
        require(op->magic == OP_MAGIC);
        list_remove(&op->link);
        list_remove(&op->in_due);
        if (list_empty(&op->session->ops))
                list_remove(&op->session->in_watching);
        load_unwatch(&op->watch);
        quota_discharge(&op->charge);
        op->magic = 0;
        free(op);
}

void op_send(struct op *op)
{
        const struct load_request *request = op->watch.request;
        const struct load *load = request->load;
        const struct error *error = load_request_error(request);
        struct load_progress p;
        require(op->magic == OP_MAGIC && request != NULL);
        load_progress(load, &p);
        p.state = load_request_state(request);
        op->sent_state = p.state;
        op->sent_restarts = p.restarts;
        bool bad = p.state == LOAD_FAILED || p.state == LOAD_CANCELLED;
        bool evicted = load_ended(p.state) && load->n_evictions > 0;
        const struct source_notes *notes = reply_notes(p.state == LOAD_READY ? load->targets[0].generation : NULL);
        event_send(op->session, "op", ku64("op", op->id), kif(op->request != 0, ku64("request", op->request)),
                   kstr("name", request->name), REPLY_PROGRESS(p), ku64("restarts", p.restarts),
                   kbool("resident", was_resident(load)), kif(bad, kstr("code", code_wire(error->code))),
                   kif(bad, kstr("text", error->text)), REPLY_NOTES(notes),
                   kif(evicted, karray("evicted", write_eviction, load->evictions, load->n_evictions)),
                   kif(load_ended(load->state) && count_failed(load) > 0, kcall("failed", write_failed, load)));
}

/* ---- ends of loads ---- */

/* The ops are examined once for each end. */
static bool send_next_end(struct session *session)
{
        if (session->ends_notified == session->server->loads->n_ended)
                return false;
        list_each_item (struct op, op, &session->ops, link) {
                if (op->watch.request->end_number == 0)
                        continue;
                send_states(session);
                op_send(op);
                op_free(op);
                return true;
        }
        session->ends_notified = session->server->loads->n_ended;
        return false;
}

void events_notify(struct session *session)
{
        persist_sync(&session->server->persist);
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
                   reply_digest(g), kif(failed, kstr("code", code_wire(generation_error(g)->code))),
                   kif(failed, kstr("text", generation_error(g)->text)));
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
        require(lease->owner == &session->leases);
        if (!list_empty(&lease->in_due) || (!has_arrivals(lease) && !has_revocation(lease)))
                return;
        list_append(&session->due_leases, &lease->in_due);
        events_mark(session);
}

void events_mark_leases(const struct generation *generation)
{
        list_each_item (struct lease, lease, &generation->leases, in_generation)
                if (lease->owner != NULL)
                        events_mark_lease(container_of(lease->owner, struct session, leases), lease);
}

/* The end of the load is notified before a revocation: every tensor has arrived and can be read. False: no lease is
 * due. */
static bool send_next_lease(struct session *session)
{
        struct lease *lease = list_item(session->due_leases.next, &session->due_leases, struct lease, in_due);
        if (lease == NULL)
                return false;
        if (has_arrivals(lease))
                send_arrivals(session, lease);
        else if (has_revocation(lease))
                send_revoked(session, lease);
        if (!has_arrivals(lease) && !has_revocation(lease))
                list_remove(&lease->in_due);
        return true;
}

/* ---- progress ---- */

/* Not one that waited for memory when its client was notified last, and still does; the end of one is an event of its
 * own. */
static bool has_progress(const struct op *op)
{
        const struct load_request *request = op->watch.request;
        bool waits = op->sent_state == LOAD_QUEUED && load_request_state(request) == LOAD_QUEUED &&
                     op->sent_restarts == request->load->restarts;
        return request->end_number == 0 && !waits;
}

/* Makes each op that has progress due; one that was not notified in the last round is due already. */
static void begin_round(struct session *session)
{
        session->progress_round = session->server->progress_round;
        list_each_item (struct op, op, &session->ops, link)
                if (list_empty(&op->in_due) && has_progress(op))
                        list_append(&session->due_ops, &op->in_due);
}

/* False: each op was notified in this round. */
static bool send_next_progress(struct session *session)
{
        if (session->progress_round != session->server->progress_round)
                begin_round(session);
        struct op *op = list_item(session->due_ops.next, &session->due_ops, struct op, in_due);
        if (op == NULL)
                return false;
        list_remove(&op->in_due);
        if (has_progress(op))
                op_send(op);
        return true;
}

static bool any_has_progress(const struct session *session)
{
        require(!list_empty(&session->ops));
        list_each_item (const struct op, op, &session->ops, link)
                if (has_progress(op))
                        return true;
        return false;
}

/* A round begins when all sessions are up to date, so with many of them each is notified less often. While all loads
 * wait for memory there is none: what ends the wait calls the loop. */
bool events_progress(struct server *server)
{
        bool any = false;
        if (!list_empty(&server->due))
                return !list_empty(&server->watching);
        server->progress_round++;
        list_each_item (struct session, session, &server->watching, in_watching) {
                if (!any_has_progress(session))
                        continue;
                events_mark(session);
                any = true;
        }
        return any;
}

/* ---- the task ---- */

/* A few frames. False: nothing is left that may be sent now. */
static bool send_some(struct session *session)
{
        int n = 0;
        while (n < STEP_STATES && conn_idle(session->conn) && send_next_state(session))
                n++;
        if (n == STEP_STATES || send_next_end(session))
                return true;
        return conn_idle(session->conn) && (send_next_lease(session) || send_next_progress(session));
}

bool events_send_next(struct loop_task *loop_task)
{
        struct server *server = container_of(loop_task, struct server, notify);
        struct session *session = list_item(server->due.next, &server->due, struct session, in_events);
        if (session == NULL)
                return false;
        require(session->magic == SESSION_MAGIC);
        persist_sync(&server->persist);
        bool more = send_some(session);
        list_remove(&session->in_events);
        if (more)
                list_append(&server->due, &session->in_events);
        else if (listens(session))
                list_append(&server->up_to_date, &session->in_events);
        return true;
}

void events_deinit(struct session *session)
{
        changes_unsubscribe(&session->server->model_changes, &session->subscriber);
        list_each_item_safe (struct op, op, &session->ops, link)
                op_free(op);
        list_remove(&session->in_events);
}

/* ---- marks ---- */

void events_changed(struct server *server, struct generation *generation, const char *removed)
{
        changes_add(&server->model_changes, generation, removed);
        if (!generation_state_is_reported(generation))
                events_mark_leases(generation);
        mark_listening(server);
}

void events_load_ended(struct loads *loads)
{
        mark_listening(loads->context);
}
