/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs `reload`, `config` and `shutdown`. A reload is answered when the configuration has been read; several
 * requests at once get one answer each, of the last reading.
 */
#include "daemon/serve/verbs/verbs_private.h"

int verb_reload(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        struct deferred *d = deferred_new(session, request, error);
        if (d == NULL)
                return error->code;
        list_append(&server->reloads, &d->in_server);
        server->reload(server);
        return 0;
}

void verbs_reloaded(struct server *server, const struct error *error, const char *restart)
{
        /* A request that arrives meanwhile is answered by the next reload. */
        struct list asked;
        list_init(&asked);
        list_append_all(&asked, &server->reloads);
        while (!list_empty(&asked)) {
                struct deferred *d = container_of(asked.next, struct deferred, in_server);
                struct writer w;
                if (error != NULL) {
                        session_error(d->session, d->request.id, error);
                } else {
                        session_reply(&w, d->request.id, 1);
                        writer_kstr(&w, "restart", restart);
                        session_send(d->session, &w);
                }
                deferred_free(d);
        }
}

int verb_config(struct session *session, struct request *request, struct error *error)
{
        struct writer w, rows;
        (void)error;
        writer_init(&rows);
        size_t n = session->server->describe_config(session->server, &rows);
        session_reply(&w, request->id, 1);
        writer_karray(&w, "settings", n);
        writer_append(&w, &rows);
        writer_deinit(&rows);
        session_send(session, &w);
        return 0;
}

/* The daemon ends as on SIGTERM, at once or (drain) when no lease and no load is left. While it drains, verbs that
 * would begin either are refused. */
int verb_shutdown(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        bool drain = request->u.shutdown.drain;
        struct writer w;
        (void)error;
        server->ending = drain ? ENDING_DRAINED : ENDING_NOW;
        server->ended_by = session->conn->caller.uid;
        session_reply(&w, request->id, 2);
        writer_kstr(&w, "state", drain ? "draining" : "ending");
        writer_ku64(&w, "leases", server->leases.n);
        session_send(session, &w);
        return 0;
}
