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
        server->reload_begin(server->reload);
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
                if (error != NULL)
                        session_error(d->session, d->request.id, error);
                else
                        session_reply(d->session, d->request.id, kstr("restart", restart));
                deferred_free(d);
        }
}

int verb_config(struct session *session, struct request *request, struct error *error)
{
        cleanup_with(items_deinit) struct items rows;
        items_init(&rows);
        session->server->describe_config(session->server->reload, &rows);
        session_reply(session, request->id, kitems("settings", &rows));
        return 0;
}

/* The daemon ends as on SIGTERM, at once or (drain) when no lease and no load is left. While it drains, verbs that
 * would begin either are refused. */
int verb_shutdown(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        bool drain = request->u.shutdown.drain;
        server->ending = drain ? ENDING_DRAINED : ENDING_NOW;
        server->ended_by = session->conn->caller.uid;
        session_reply(session, request->id, kstr("state", drain ? "draining" : "ending"),
                      ku64("leases", server->leases.n));
        return 0;
}
