/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/session.h"

#include "daemon/base/log.h"
#include "daemon/serve/access.h"
#include "daemon/serve/reply.h"

#include <inttypes.h>
#include <string.h>

/* ---- simple answers ---- */

void session_error(struct session *session, uint64_t id, const struct error *error)
{
        struct writer w;
        conn_writer(&w);
        writer_error(&w, id, error->code, error->text);
        conn_send(session->conn, &w, NULL, 0);
}

void session_ok(struct session *session, uint64_t id)
{
        struct writer w;
        conn_writer(&w);
        writer_reply(&w, id, 0);
        conn_send(session->conn, &w, NULL, 0);
}

static void no_model(struct session *session, uint64_t id, const char *model)
{
        struct error error;
        error_set(&error, STREAMER_ENOENT, "%s: no such model", model);
        session_error(session, id, &error);
}

static void reply_state(struct session *session, uint64_t id, const char *model, const char *state, uint64_t generation)
{
        struct writer w;
        conn_writer(&w);
        writer_reply(&w, id, 3);
        writer_kstr(&w, "model", model);
        writer_kstr(&w, "state", state);
        writer_ku64(&w, "generation", generation);
        conn_send(session->conn, &w, NULL, 0);
}

/* ---- deferred answers ---- */

struct deferred *deferred_new(struct session *session, struct request *request)
{
        struct deferred *d = calloc(1, sizeof(*d));
        if (d == NULL) {
                struct error error;
                error_set(&error, STREAMER_ENOMEM, "no memory");
                session_error(session, request->id, &error);
                request_deinit(request);
                return NULL;
        }
        d->session = session;
        d->request = *request;
        list_init(&d->in_server);
        list_append(&session->deferred, &d->in_session);
        session->n_deferred++;
        conn_hold(session->conn, session->n_deferred >= session->server->limits.requests_per_client);
        return d;
}

void deferred_free(struct deferred *d)
{
        struct session *session = d->session;
        list_remove(&d->in_session);
        list_remove(&d->in_server);
        load_unwatch(&d->watch);
        request_deinit(&d->request);
        free(d);
        if (session != NULL) {
                session->n_deferred--;
                conn_hold(session->conn, session->n_deferred >= session->server->limits.requests_per_client);
        }
}

/* The client is gone: what a worker still holds is freed when it comes home. */
static void deferred_orphan(struct deferred *d)
{
        list_remove(&d->in_session);
        d->session = NULL;
        if (d->request.verb == VERB_verify)
                verify_stop(&d->verify);
        else if (d->request.verb != VERB_ps)
                deferred_free(d);
}

/* ---- wait ---- */

/* False: nothing to say yet. */
static bool try_wait(struct session *session, const struct request *request)
{
        struct resident *resident = session->server->resident;
        const char *model = request->u.wait.model;
        struct generation *g = resident_ready(resident, model);
        if (g != NULL) {
                reply_state(session, request->id, model, "ready", g->number);
                return true;
        }
        if (resident_loading(resident, model) != NULL)
                return false;
        g = resident_failed(resident, model);
        if (g == NULL) {
                no_model(session, request->id, model);
                return true;
        }
        struct error error;
        error_set(&error, g->error.code == STREAMER_ECANCELED ? STREAMER_ECANCELED : STREAMER_EFAILED, "%s: %s", model,
                  g->error.text);
        session_error(session, request->id, &error);
        return true;
}

static bool try_gone(struct session *session, const struct request *request, uint64_t number)
{
        if (resident_numbered(session->server->resident, number) != NULL)
                return false;
        reply_state(session, request->id, request->u.unload.model, "gone", number);
        return true;
}

/* `generation`: the one that an unload waits for. */
static bool try_answer(struct session *session, const struct request *request, uint64_t generation)
{
        switch (request->verb) {
        case VERB_attach:
                return session_attach(session, request);
        case VERB_unload:
                return try_gone(session, request, generation);
        default:
                return try_wait(session, request);
        }
}

/* Takes the request over. */
static void answer_or_defer(struct session *session, struct request *request)
{
        if (try_answer(session, request, 0)) {
                request_deinit(request);
                return;
        }
        struct deferred *d = deferred_new(session, request);
        if (d == NULL)
                return;
        if (d->request.verb == VERB_wait && d->request.u.wait.timeout_ms > 0)
                d->deadline_ns = now_ns() + d->request.u.wait.timeout_ms * UINT64_C(1000000);
        list_append(&session->server->waiting, &d->in_server);
}

static void answer_waiting(struct wake_item *item)
{
        struct server *server = container_of(item, struct server, answer);
        server->answer_posted = false;
        list_each_safe (pos, &server->waiting) {
                struct deferred *d = container_of(pos, struct deferred, in_server);
                if (try_answer(d->session, &d->request, d->generation))
                        deferred_free(d);
        }
}

static void check_deadlines(struct server *server, uint64_t now)
{
        list_each_safe (pos, &server->waiting) {
                struct deferred *d = container_of(pos, struct deferred, in_server);
                if (d->deadline_ns == 0 || now < d->deadline_ns)
                        continue;
                struct error error;
                error_set(&error, STREAMER_ETIMEOUT, "%s: still loading", d->request.u.wait.model);
                session_error(d->session, d->request.id, &error);
                deferred_free(d);
        }
}

/* ---- load ---- */

static void tell_op(struct op *op, struct load *load)
{
        struct load_progress p;
        struct writer w;
        load_progress(load, &p);
        bool bad = p.state == LOAD_FAILED || p.state == LOAD_CANCELLED;
        op->told_bytes = p.bytes;
        conn_writer(&w);
        writer_map(&w, bad ? 12 : 10);
        writer_kstr(&w, "event", "op");
        writer_ku64(&w, "op", op->id);
        writer_kstr(&w, "model", op->model);
        writer_ku64(&w, "generation", p.generation);
        writer_kstr(&w, "state", load_state_name(p.state));
        writer_ku64(&w, "bytes", p.bytes);
        writer_ku64(&w, "total", p.total);
        writer_ku64(&w, "tensors", p.tensors);
        writer_ku64(&w, "tensors_total", p.tensors_total);
        writer_ku64(&w, "elapsed_ns", p.elapsed_ns);
        if (bad) {
                writer_kstr(&w, "code", code_wire(load->error.code));
                writer_kstr(&w, "text", load->error.text);
        }
        conn_send(op->session->conn, &w, NULL, 0);
}

static void op_free(struct op *op)
{
        list_remove(&op->link);
        load_unwatch(&op->watch);
        op->session->server->n_ops--;
        free(op->model);
        free(op);
}

static void op_ended(struct load_watch *watch, struct load *load)
{
        struct op *op = container_of(watch, struct op, watch);
        tell_op(op, load);
        op_free(op);
}

static void dry_run_ended(struct load_watch *watch, struct load *load)
{
        struct deferred *d = container_of(watch, struct deferred, watch);
        struct writer w;
        if (load->state != LOAD_READY) {
                session_error(d->session, d->request.id, &load->error);
        } else {
                conn_writer(&w);
                reply_estimate(&w, load, d->request.id);
                conn_send(d->session->conn, &w, NULL, 0);
        }
        deferred_free(d);
}

static void watch_op(struct session *session, struct load *load, uint64_t id)
{
        struct op *op = calloc(1, sizeof(*op));
        char *model = strdup(load->name);
        if (op == NULL || model == NULL) {
                free(op);
                free(model);
                conn_close(session->conn, false); /* it would wait for ever */
                return;
        }
        op->session = session;
        op->id = id;
        op->model = model;
        list_append(&session->ops, &op->link);
        session->server->n_ops++;
        load_watch(load, &op->watch, op_ended);
}

static void reply_load(struct session *session, const struct request *request, struct load *load)
{
        uint64_t op = ++session->server->last_op;
        struct writer w;
        conn_writer(&w);
        writer_reply(&w, request->id, 2);
        writer_ku64(&w, "op", op);
        writer_kstr(&w, "model", load->name);
        conn_send(session->conn, &w, NULL, 0);
        if (request->u.load.watch)
                watch_op(session, load, op);
}

static int parse_load(const struct req_load *req, struct load_request *out, struct error *error)
{
        *out = (struct load_request){.source = req->source, .name = req->name, .dry_run = req->dry_run};
        if (req->verify != NULL && strcmp(req->verify, "sha256") == 0)
                out->sha256 = true;
        else if (req->verify != NULL && strcmp(req->verify, "none") != 0)
                return error_set(error, STREAMER_EINVAL, "load: verify: '%s' is neither none nor sha256", req->verify);
        if (req->devices.n > 1)
                return error_set(error, STREAMER_EUNSUPPORTED, "load: several devices at once are not supported");
        if (req->devices.n == 1)
                out->device = req->devices.v[0];
        return 0;
}

static void on_load(struct session *session, struct request *request)
{
        struct load_request load_request;
        struct error error = {0};
        struct load *load;
        int r = parse_load(&request->u.load, &load_request, &error);
        if (r == 0) {
                load_request.caller = &session->conn->caller;
                r = loads_begin(session->server->loads, &load_request, &load, &error);
        }
        if (r < 0) {
                session_error(session, request->id, &error);
        } else if (load_request.dry_run) {
                struct deferred *d = deferred_new(session, request);
                if (d != NULL)
                        load_watch(load, &d->watch, dry_run_ended);
                return;
        } else {
                reply_load(session, request, load);
        }
        request_deinit(request);
}

static void on_cancel(struct session *session, const struct request *request)
{
        const char *model = request->u.cancel.model;
        struct load *load = loads_find(session->server->loads, model);
        if (load == NULL) {
                struct error error;
                bool known = resident_any(session->server->resident, model) != NULL;
                error_set(&error, known ? STREAMER_EFAILED : STREAMER_ENOENT, "%s: %s", model,
                          known ? "is not loading" : "no such model");
                session_error(session, request->id, &error);
                return;
        }
        load_cancel(load);
        struct writer w;
        conn_writer(&w);
        writer_reply(&w, request->id, 1);
        writer_kstr(&w, "model", model);
        conn_send(session->conn, &w, NULL, 0);
}

/* ---- looking ---- */

static void on_list(struct session *session, const struct request *request)
{
        struct writer w;
        conn_writer(&w);
        reply_list(&w, session->server, request);
        conn_send(session->conn, &w, NULL, 0);
}

static void on_show(struct session *session, const struct request *request)
{
        struct generation *g = resident_any(session->server->resident, request->u.show.model);
        if (g == NULL) {
                no_model(session, request->id, request->u.show.model);
                return;
        }
        struct writer w;
        struct error error = {0};
        conn_writer(&w);
        if (reply_show(&w, g, request, &error) < 0) {
                writer_deinit(&w);
                session_error(session, request->id, &error);
                return;
        }
        conn_send(session->conn, &w, NULL, 0);
}

static void on_status(struct session *session, const struct request *request)
{
        struct writer w;
        conn_writer(&w);
        reply_status(&w, session->server, request->id);
        conn_send(session->conn, &w, NULL, 0);
}

static void on_version(struct session *session, const struct request *request)
{
        struct writer w;
        conn_writer(&w);
        writer_reply(&w, request->id, 2);
        writer_kstr(&w, "version", STREAMERD_VERSION);
        writer_ku64(&w, "protocol", PROTOCOL_MAX);
        conn_send(session->conn, &w, NULL, 0);
}

/* ---- verify, unload ---- */

static void verify_ended(struct verify *verify)
{
        struct deferred *d = container_of(verify, struct deferred, verify);
        if (d->session != NULL && verify->error.code != 0) {
                struct error error;
                error_set(&error, verify->error.code, "%s: %s", d->request.u.verify.model, verify->error.text);
                session_error(d->session, d->request.id, &error);
        } else if (d->session != NULL) {
                struct writer w;
                conn_writer(&w);
                writer_reply(&w, d->request.id, 5);
                writer_kstr(&w, "model", d->request.u.verify.model);
                writer_ku64(&w, "generation", verify->generation->number);
                reply_digest(&w, "digest", verify->generation);
                writer_ku64(&w, "tensors", verify->tensors);
                writer_ku64(&w, "bytes", verify->bytes);
                conn_send(d->session->conn, &w, NULL, 0);
        }
        deferred_free(d);
}

static void on_verify(struct session *session, struct request *request)
{
        const char *model = request->u.verify.model;
        struct generation *g = resident_ready(session->server->resident, model);
        if (g == NULL) {
                struct error error;
                bool known = resident_any(session->server->resident, model) != NULL;
                error_set(&error, known ? STREAMER_EFAILED : STREAMER_ENOENT, "%s: %s", model,
                          known ? "is not ready" : "no such model");
                session_error(session, request->id, &error);
                request_deinit(request);
                return;
        }
        struct deferred *d = deferred_new(session, request);
        if (d != NULL)
                verify_start(&d->verify, session->server->pool, g, verify_ended);
}

/* Takes the request over. */
static void on_unload(struct session *session, struct request *request)
{
        const char *model = request->u.unload.model;
        struct resident *resident = session->server->resident;
        struct generation *g = resident_ready(resident, model);
        struct error error = {0};
        if (g == NULL && resident_loading(resident, model) != NULL)
                error_set(&error, STREAMER_EBUSY, "%s: is loading (cancel ends that)", model);
        else if (g == NULL && (g = resident_failed(resident, model)) == NULL)
                error_set(&error, STREAMER_ENOENT, "%s: no such model", model);
        else if (g->n_leases > 0 && !request->u.unload.drain && g->state == GENERATION_READY &&
                 g->names.next == g->names.prev)
                error_set(&error, STREAMER_EBUSY, "%s: in use by %u lease%s (--drain refuses new ones)", model,
                          g->n_leases, g->n_leases == 1 ? "" : "s");
        if (error.code != 0) {
                session_error(session, request->id, &error);
                request_deinit(request);
                return;
        }
        bool held = g->n_leases > 0;
        bool last = g->state == GENERATION_READY && g->names.next == g->names.prev;
        uint64_t number = g->number;
        generation_drop_name(g, model);
        if (held || request->u.unload.drain || !last || resident_numbered(resident, number) == NULL) {
                reply_state(session, request->id, model, held ? "draining" : "gone", number);
                request_deinit(request);
                return;
        }
        /* Its memory is on its way back: whoever loads next shall find the room. */
        struct deferred *d = deferred_new(session, request);
        if (d == NULL)
                return;
        d->generation = number;
        list_append(&session->server->waiting, &d->in_server);
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
        struct writer w;
        conn_writer(&w);
        writer_reply(&w, request->id, 4);
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
        conn_send(session->conn, &w, NULL, 0);
}

/* Takes the request over. */
static void dispatch(struct session *session, struct request *request)
{
        switch (request->verb) {
        case VERB_load:
                on_load(session, request);
                return;
        case VERB_verify:
                on_verify(session, request);
                return;
        case VERB_ps:
                session_ps(session, request);
                return;
        case VERB_unload:
                on_unload(session, request);
                return;
        case VERB_attach:
        case VERB_wait:
                answer_or_defer(session, request);
                return;
        case VERB_hello:
                on_hello(session, request);
                break;
        case VERB_ping:
                session_ok(session, request->id);
                break;
        case VERB_version:
                on_version(session, request);
                break;
        case VERB_cancel:
                on_cancel(session, request);
                break;
        case VERB_list:
                on_list(session, request);
                break;
        case VERB_show:
                on_show(session, request);
                break;
        case VERB_status:
                on_status(session, request);
                break;
        case VERB_detach:
                session_detach(session, request);
                break;
        case VERB_subscribe:
                session->subscribed = true;
                session_ok(session, request->id);
                break;
        case VERB_COUNT:
                require(false);
        }
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
        if (access_check(session->server, conn, request.verb, &error) < 0) {
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
        server_count_user(server, conn->caller.uid, -1);
        list_each_safe (pos, &session->ops)
                op_free(container_of(pos, struct op, link));
        while (!list_empty(&session->deferred))
                deferred_orphan(container_of(session->deferred.next, struct deferred, in_session));
        session_abandon_leases(session);
        free(session);
}

static void on_drained(struct conn *conn)
{
        struct session *session = conn->context;
        if (session->events_lost > 0) {
                struct writer w;
                conn_writer(&w);
                writer_map(&w, 2);
                writer_kstr(&w, "event", "lost");
                writer_ku64(&w, "count", session->events_lost);
                conn_send(conn, &w, NULL, 0);
                session->events_lost = 0;
        }
        list_each (pos, &session->leases) {
                struct lease *lease = container_of(pos, struct lease, in_owner);
                if (lease->dirty)
                        session_tell_lease(session, lease);
        }
}

static const struct conn_ops conn_ops = {.frame = on_frame, .drained = on_drained, .closed = on_closed};

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
        session->conn = conn_new_consume_fd(server->loop, fd, &conn_ops, &server->limits.conn);
        if (session->conn == NULL) {
                free(session);
                return;
        }
        server->answer.fn = answer_waiting;
        session->conn->context = session;
        list_append(&server->conns, &session->conn->link);
        server->n_conns++;
        server_count_user(server, session->conn->caller.uid, 1);
        if (server_user_conns(server, session->conn->caller.uid) > server->limits.connections_per_uid &&
            session->conn->caller.uid != 0 && session->conn->caller.uid != geteuid()) {
                struct error error;
                error_set(&error, STREAMER_ELIMIT, "uid %u has %" PRIu64 " connections",
                          (unsigned)session->conn->caller.uid, server->limits.connections_per_uid);
                session_error(session, 0, &error);
                conn_close(session->conn, true);
        }
}

/* ---- the server's side ---- */

static void tell_subscriber(struct session *session, const struct generation *g)
{
        if (!conn_writable(session->conn)) {
                session->events_lost++;
                return;
        }
        bool failed = g->state == GENERATION_FAILED;
        struct writer w;
        conn_writer(&w);
        writer_map(&w, failed ? 8 : 6);
        writer_kstr(&w, "event", "model");
        writer_kstr(&w, "model", generation_name(g));
        writer_ku64(&w, "generation", g->number);
        writer_kstr(&w, "state", generation_state_name(g->state));
        writer_ku64(&w, "bytes", g->data_bytes);
        writer_ku64(&w, "tensors", g->n_tensors);
        if (failed) {
                writer_kstr(&w, "code", code_wire(g->error.code));
                writer_kstr(&w, "text", g->error.text);
        }
        conn_send(session->conn, &w, NULL, 0);
}

static void answer_soon(struct server *server)
{
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
                if (session->subscribed && !session->conn->closing)
                        tell_subscriber(session, generation);
        }
        answer_soon(server);
}

void sessions_arrived(struct server *server, struct generation *generation)
{
        tell_leases(generation);
        answer_soon(server);
}

void sessions_progress(struct server *server)
{
        check_deadlines(server, now_ns());
        if (server->n_ops == 0)
                return;
        list_each (pos, &server->conns) {
                struct session *session = container_of(pos, struct conn, link)->context;
                list_each (link, &session->ops) {
                        struct op *op = container_of(link, struct op, link);
                        if (op->watch.load != NULL && conn_writable(session->conn))
                                tell_op(op, op->watch.load);
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
