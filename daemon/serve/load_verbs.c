/* SPDX-License-Identifier: Apache-2.0
 *
 * load, cancel, set_priority, and what the client that asked is told of a load until its end.
 */
#include "daemon/serve/session.h"

#include "daemon/serve/access.h"
#include "daemon/model/ranks.h"
#include "daemon/serve/reply.h"

#include <string.h>

/* ---- the devices that did not get it ---- */

static size_t count_failed(const struct load *load)
{
        size_t n = 0;
        for (size_t i = 0; i < load->n_targets; i++)
                n += load->targets[i].failed;
        return n;
}

static void write_failed(struct writer *w, const struct load *load, size_t n)
{
        writer_key(w, "failed");
        writer_array(w, n);
        for (size_t i = 0; i < load->n_targets; i++) {
                const struct load_target *t = &load->targets[i];
                if (!t->failed)
                        continue;
                writer_map(w, 3);
                writer_kstr(w, "device", t->device->name);
                writer_kstr(w, "code", code_wire(t->error.code));
                writer_kstr(w, "text", t->error.text);
        }
}

/* ---- what a watcher is told ---- */

static void write_op(struct writer *w, struct op *op)
{
        struct load *load = op->watch.load;
        struct load_progress p;
        load_progress(load, &p);
        bool bad = p.state == LOAD_FAILED || p.state == LOAD_CANCELLED;
        size_t n_failed = load_ended(p.state) ? count_failed(load) : 0;
        op->told_bytes = p.bytes;
        conn_writer(w);
        writer_map(w, 10u + 2 * bad + (n_failed > 0));
        writer_kstr(w, "event", "op");
        writer_ku64(w, "op", op->id);
        writer_kstr(w, "model", op->model);
        reply_progress(w, &p);
        if (bad) {
                writer_kstr(w, "code", code_wire(load->error.code));
                writer_kstr(w, "text", load->error.text);
        }
        if (n_failed > 0)
                write_failed(w, load, n_failed);
}

void op_tell(struct op *op)
{
        struct writer w;
        write_op(&w, op);
        session_send(op->session, &w);
}

void op_free(struct op *op)
{
        list_remove(&op->link);
        list_remove(&op->beat.link);
        load_unwatch(&op->watch);
        free(op->model);
        free(op);
}

void op_tell_end(struct op *op)
{
        struct writer w;
        write_op(&w, op);
        conn_send(op->session->conn, &w, NULL, 0);
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
                session_send(d->session, &w);
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
        beat_join(&session->server->progress_beat, &op->beat);
        load_follow(load, &op->watch);
}

static void reply_load(struct session *session, const struct request *request, struct load *load)
{
        uint64_t op = ++session->server->last_op;
        struct writer w;
        session_reply(&w, request->id, 2);
        writer_ku64(&w, "op", op);
        writer_kstr(&w, "model", load->name);
        session_send(session, &w);
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
        out->priority = (unsigned)req->priority;
        out->wait = req->wait;
        out->no_evict = req->no_evict;
        out->pin = req->pin;
        out->keep_alive_ns = req->keep_alive_ms * MS;
        out->drain_timeout_ns = req->drain_timeout_ms * MS;
        out->devices = req->devices.v;
        out->n_devices = req->devices.n;
        bool ranks = req->layout != NULL && strcmp(req->layout, "rank") == 0;
        if (req->layout != NULL && !ranks && strcmp(req->layout, "replica") != 0)
                return error_set(error, STREAMER_EINVAL, "load: layout: '%s' is neither replica nor rank", req->layout);
        if (req->pattern != NULL && !ranks)
                return error_set(error, STREAMER_EINVAL, "load: pattern: only the layout 'rank' has one");
        if (ranks)
                out->pattern = req->pattern != NULL ? req->pattern : RANKS_PATTERN;
        return 0;
}

void session_load(struct session *session, struct request *request)
{
        struct load_request load_request;
        struct user_limits limits;
        struct error error = {0};
        struct load *load;
        int r = parse_load(&request->u.load, &load_request, &error);
        if (r == 0)
                r = access_check_load(session->server, session->conn, &load_request, &error);
        if (r == 0) {
                access_limits(session->server, session->conn, &limits);
                load_request.limits = &limits;
                load_request.users = &session->server->users;
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

void session_cancel(struct session *session, const struct request *request)
{
        const char *model = request->u.cancel.model;
        struct load *load = loads_find(session->server->loads, model);
        if (load != NULL) {
                load_cancel(load);
        } else if (wanted_forget(session->server, model, NULL)) {
                sessions_answer_soon(session->server);
        } else {
                session_not(session, request->id, model, "loading");
                return;
        }
        struct writer w;
        session_reply(&w, request->id, 1);
        writer_kstr(&w, "model", model);
        session_send(session, &w);
}

/* For the load that is under way, and for what is resident. */
void session_set_priority(struct session *session, const struct request *request)
{
        const char *model = request->u.set_priority.model;
        unsigned priority = (unsigned)request->u.set_priority.priority;
        struct resident *resident = session->server->resident;
        struct load *load = loads_find(session->server->loads, model);
        unsigned n = 0;
        struct error error;
        if (priority == 0) {
                error_set(&error, STREAMER_EINVAL, "set_priority: it is within 1 to %d", PROTO_PRIORITY_MAX);
                session_error(session, request->id, &error);
                return;
        }
        list_each (pos, &resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (!generation_reached(g, model))
                        continue;
                g->priority = priority;
                remember_changed(&session->server->remember);
                n++;
        }
        if (load != NULL)
                load_set_priority(load, priority);
        bool wanted = wanted_set_priority(session->server, model, priority);
        if (n == 0 && !wanted) {
                session_no_model(session, request->id, model);
                return;
        }
        struct writer w;
        session_reply(&w, request->id, 2);
        writer_kstr(&w, "model", model);
        writer_ku64(&w, "priority", priority);
        session_send(session, &w);
}
