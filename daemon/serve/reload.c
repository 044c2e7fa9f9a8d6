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
        /* Whoever asks while they are told is told of the next reading. */
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
