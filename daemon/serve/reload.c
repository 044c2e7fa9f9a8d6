/* SPDX-License-Identifier: Apache-2.0
 *
 * The verb `reload`: whoever asks waits until the settings have been read. Several who ask at once
 * get one answer each, of the last reading.
 */
#include "daemon/serve/session.h"

/* Takes the request over. */
void session_reload(struct session *session, struct request *request)
{
        struct server *server = session->server;
        struct deferred *d = deferred_new(session, request);
        if (d == NULL)
                return;
        list_append(&server->reloads, &d->in_server);
        server->reload(server);
}

void sessions_reloaded(struct server *server, const struct error *error, const char *restart)
{
        list_each_safe (pos, &server->reloads) {
                struct deferred *d = container_of(pos, struct deferred, in_server);
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
