/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs `reload` and `config`. A reload is answered when the configuration has been read; several requests at
 * once get one answer each, of the last reading.
 */
#include "daemon/serve/verbs/verbs_private.h"

void verb_reload(struct session *session, struct request *request)
{
        struct server *server = session->server;
        struct deferred *d = deferred_new(session, request);
        if (d == NULL)
                return;
        list_append(&server->reloads, &d->in_server);
        server->reload(server);
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

struct rows {
        struct writer w;
        size_t n;
};

static void write_row(void *arg, const struct config_row *row)
{
        struct rows *rows = arg;
        rows->n++;
        writer_map(&rows->w, 4);
        writer_kstr(&rows->w, "key", row->key);
        writer_kstr(&rows->w, "value", row->value);
        writer_kstr(&rows->w, "origin", row->origin);
        writer_kstr(&rows->w, "from", row->from);
}

void verb_config(struct session *session, struct request *request)
{
        struct rows rows = {.n = 0};
        struct writer w;
        writer_init(&rows.w);
        session->server->describe_config(session->server, write_row, &rows);
        session_reply(&w, request->id, 1);
        writer_karray(&w, "settings", rows.n);
        writer_append(&w, &rows.w);
        writer_deinit(&rows.w);
        session_send(session, &w);
}
