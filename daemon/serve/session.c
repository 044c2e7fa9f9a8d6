/* SPDX-License-Identifier: Apache-2.0
 *
 * One client: its simple answers, the way from a frame to a verb, its beginning and its end.
 */
#include "daemon/serve/session.h"

#include "daemon/base/metric.h"
#include "daemon/serve/access.h"

#include <inttypes.h>
#include <string.h>

/* ---- simple answers ---- */

void session_reply(struct writer *writer, uint64_t id, size_t n_fields)
{
        conn_writer(writer);
        writer_reply(writer, id, n_fields);
}

void session_send_fds(struct session *session, struct writer *writer, const int *fds, size_t n_fds)
{
        session_tell_news(session);
        conn_send(session->conn, writer, fds, n_fds);
}

void session_send(struct session *session, struct writer *writer)
{
        session_send_fds(session, writer, NULL, 0);
}

void session_error(struct session *session, uint64_t id, const struct error *error)
{
        struct writer w;
        metric_add_code(METRIC_REQUEST_ERRORS, error->code, 1);
        conn_writer(&w);
        writer_error(&w, id, error->code, error->text);
        session_send(session, &w);
}

void session_ok(struct session *session, uint64_t id)
{
        struct writer w;
        session_reply(&w, id, 0);
        session_send(session, &w);
}

void session_no_model(struct session *session, uint64_t id, const char *model)
{
        struct error error;
        error_set(&error, STREAMER_ENOENT, "%s: no such model", model);
        session_error(session, id, &error);
}

void session_not(struct session *session, uint64_t id, const char *model, const char *what)
{
        struct error error;
        if (resident_any(session->server->resident, model) == NULL) {
                session_no_model(session, id, model);
                return;
        }
        error_set(&error, STREAMER_EFAILED, "%s: is not %s", model, what);
        session_error(session, id, &error);
}

void session_reply_state(struct session *session, uint64_t id, const char *model, const char *state,
                         uint64_t generation)
{
        struct writer w;
        session_reply(&w, id, 3);
        writer_kstr(&w, "model", model);
        writer_kstr(&w, "state", state);
        writer_ku64(&w, "generation", generation);
        session_send(session, &w);
}

/* ---- dispatch ---- */

static void on_hello(struct session *session, const struct request *request)
{
        const struct req_hello *req = &request->u.hello;
        struct server *server = session->server;
        if (req->min > PROTOCOL_MAX || req->max < PROTOCOL_MIN || req->min > req->max) {
                struct error error;
                error_set(&error, STREAMER_EPROTO,
                          "hello: protocol %u to %u is spoken here, not %" PRIu64 " to %" PRIu64, PROTOCOL_MIN,
                          PROTOCOL_MAX, req->min, req->max);
                session_error(session, request->id, &error);
                conn_close(session->conn, true);
                return;
        }
        session->greeted = true;
        session->client = req->client != NULL ? strdup(req->client) : NULL;
        struct writer w;
        session_reply(&w, request->id, 4);
        writer_ku64(&w, "protocol", req->max < PROTOCOL_MAX ? req->max : PROTOCOL_MAX);
        writer_kstr(&w, "version", STREAMERD_VERSION);
        writer_ku64(&w, "pid", (uint64_t)getpid());
        writer_key(&w, "devices");
        writer_array(&w, server->resident->n_devices);
        for (size_t i = 0; i < server->resident->n_devices; i++) {
                const struct device *d = server->resident->devices[i];
                writer_map(&w, 3);
                writer_kstr(&w, "device", d->name);
                writer_kstr(&w, "kind", d->ops->kind);
                writer_kstr(&w, "uuid", d->uuid);
        }
        session_send(session, &w);
}

/* Once more: for another model, or for all. */
static void on_subscribe(struct session *session, const struct request *request)
{
        const char *model = request->u.subscribe.model;
        char *subject = model != NULL ? strdup(model) : NULL;
        struct error error;
        if (model != NULL && subject == NULL) {
                error_set(&error, STREAMER_ENOMEM, "no memory");
                session_error(session, request->id, &error);
                return;
        }
        session_tell_news(session); /* of what it subscribed to before */
        free(session->subject);
        session->subject = subject;
        news_join(&session->server->news, &session->listener);
        session_ok(session, request->id);
}

static void on_ping(struct session *session, const struct request *request)
{
        session_ok(session, request->id);
}

/* These may be answered later: they take their request over. */
static void (*const later[VERB_COUNT])(struct session *, struct request *) = {
        [VERB_attach] = session_defer,  [VERB_wait] = session_defer,    [VERB_load] = session_load,
        [VERB_ps] = session_ps,         [VERB_doctor] = session_doctor, [VERB_probe] = session_probe,
        [VERB_reload] = session_reload, [VERB_unload] = session_unload, [VERB_verify] = session_verify,
};

static void (*const at_once[VERB_COUNT])(struct session *, const struct request *) = {
        [VERB_hello] = on_hello,
        [VERB_ping] = on_ping,
        [VERB_version] = session_version,
        [VERB_whoami] = session_whoami,
        [VERB_list] = session_list,
        [VERB_show] = session_show,
        [VERB_status] = session_status,
        [VERB_metrics] = session_metrics,
        [VERB_subscribe] = on_subscribe,
        [VERB_cancel] = session_cancel,
        [VERB_set_priority] = session_set_priority,
        [VERB_pin] = session_pin,
        [VERB_unpin] = session_pin,
        [VERB_reclaim] = session_reclaim,
        [VERB_detach] = session_detach,
};

/* Takes the request over. */
static void dispatch(struct session *session, struct request *request)
{
        if (later[request->verb] != NULL) {
                later[request->verb](session, request);
                return;
        }
        require(at_once[request->verb] != NULL);
        at_once[request->verb](session, request);
        request_deinit(request);
}

static void on_frame(struct conn *conn, const void *data, size_t len)
{
        struct session *session = conn->context;
        struct request request;
        struct error error = {0};
        int r = request_decode(&request, data, len, error.text, sizeof(error.text));
        if (r < 0) {
                error.code = r;
                session_error(session, request.id, &error);
                /* Well-formed, but its id could not be taken out: whoever waits for that has to be told. */
                if (r == STREAMER_ENOMEM && request.id == 0)
                        conn_close(conn, true);
                return;
        }
        bool hello = request.verb == VERB_hello;
        if (hello == session->greeted) {
                error_set(&error, STREAMER_EPROTO, hello ? "hello: said before" : "%s: hello comes first",
                          verb_desc(request.verb)->name);
                session_error(session, request.id, &error);
                request_deinit(&request);
                if (!hello)
                        conn_close(conn, true);
                return;
        }
        if (access_check(session->server, conn, request.verb, &error) < 0 ||
            access_check_model(session->server, conn, &request, &error) < 0) {
                session_error(session, request.id, &error);
                request_deinit(&request);
                return;
        }
        dispatch(session, &request);
}

/* ---- life ---- */

static void on_closed(struct conn *conn)
{
        struct session *session = conn->context;
        struct server *server = session->server;
        list_remove(&conn->link);
        server->n_conns--;
        user_discharge(&session->charge);
        news_leave(&server->news, &session->listener);
        list_each_safe (pos, &session->ops)
                op_free(container_of(pos, struct op, link));
        while (!list_empty(&session->deferred))
                deferred_orphan(container_of(session->deferred.next, struct deferred, in_session));
        session_end_probe(session);
        session_abandon_leases(session);
        free(session->subject);
        free(session->client);
        free(session);
}

static void on_drained(struct conn *conn)
{
        struct session *session = conn->context;
        session_tell_news(session);
        list_each (pos, &session->leases) {
                struct lease *lease = container_of(pos, struct lease, in_owner);
                if (lease->dirty)
                        session_tell_lease(session, lease);
        }
}

static void charge_connection(struct session *session)
{
        struct error error = {0};
        user_discharge(&session->charge);
        if (access_charge(session->server, session->conn, &session->charge, USER_CONNECTIONS, 1, &error) == 0)
                return;
        session_error(session, 0, &error);
        conn_close(session->conn, true);
}

/* It was nobody's so far. */
static void on_introduced(struct conn *conn)
{
        charge_connection(conn->context);
}

static const struct conn_ops conn_ops = {
        .introduced = on_introduced, .frame = on_frame, .drained = on_drained, .closed = on_closed};

void session_new(struct server *server, int fd)
{
        struct session *session = calloc(1, sizeof(*session));
        if (session == NULL) {
                close(fd);
                return;
        }
        session->server = server;
        list_init(&session->ops);
        list_init(&session->leases);
        list_init(&session->deferred);
        session->conn = conn_new_consume_fd(server->loop, fd, &conn_ops, &server->limits.conn, &server->turn);
        if (session->conn == NULL) {
                free(session);
                return;
        }
        session->conn->context = session;
        list_append(&server->conns, &session->conn->link);
        server->n_conns++;
        charge_connection(session);
}

void session_refuse_consume_fd(const struct server *server, int fd)
{
        struct writer w;
        char text[96];
        snprintf(text, sizeof(text), "%" PRIu64 " connections are open, no more are taken (limits.connections)",
                 server->n_conns);
        metric_add_code(METRIC_REQUEST_ERRORS, STREAMER_ELIMIT, 1);
        conn_writer(&w);
        writer_error(&w, 0, STREAMER_ELIMIT, text);
        if (!w.failed) {
                frame_put_header((unsigned char *)w.buf.data, w.buf.size - FRAME_HEADER);
                frame_send_fds(fd, w.buf.data, w.buf.size, NULL, 0);
        }
        writer_deinit(&w);
        close(fd);
}
