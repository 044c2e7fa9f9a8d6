/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs about models that are there: list, show, status, version, verify, unload.
 */
#include "daemon/serve/session.h"

#include "daemon/serve/reply.h"

#include <inttypes.h>

/* ---- looking ---- */

void session_list(struct session *session, const struct request *request)
{
        struct writer w;
        conn_writer(&w);
        reply_list(&w, session->server, request);
        conn_send(session->conn, &w, NULL, 0);
}

void session_show(struct session *session, const struct request *request)
{
        struct generation *g = resident_any(session->server->resident, request->u.show.model);
        if (g == NULL) {
                session_no_model(session, request->id, request->u.show.model);
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

void session_status(struct session *session, const struct request *request)
{
        struct writer w;
        conn_writer(&w);
        reply_status(&w, session->server, request->id);
        conn_send(session->conn, &w, NULL, 0);
}

void session_version(struct session *session, const struct request *request)
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

void session_verify(struct session *session, struct request *request)
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
void session_unload(struct session *session, struct request *request)
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
                session_reply_state(session, request->id, model, held ? "draining" : "gone", number);
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
