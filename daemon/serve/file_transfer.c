/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/file_transfer.h"

#include "daemon/serve/access/access.h"

#include <inttypes.h>
#include <string.h>

/* ---- memory ---- */

static void grant_waiting(struct server *server)
{
        list_each_item_safe (struct transfer, t, &server->file_memory, waiting) {
                if (server->file_bytes + t->size > TRANSFER_BYTES_MAX)
                        return;
                if (!t->own && t->charge.user->held[QUOTA_FETCHED] + t->size > TRANSFER_USER_MAX)
                        continue;
                server->file_bytes += t->size;
                quota_adjust(&t->charge, t->size);
                list_remove(&t->waiting);
                verb_task_submit_source(t->task, t->source);
        }
}

struct transfer *transfer_new(const struct session *session, const char *file, uint64_t size, struct error *error)
{
        struct server *server = session->server;
        struct transfer *t = calloc(1, sizeof(*t) + strlen(file) + 1);
        if (t == NULL || (size > TRANSFER_PAGE && quota_charge_restored(&server->users, session->conn->caller.uid,
                                                                        &t->charge, QUOTA_FETCHED, 0) < 0)) {
                free(t);
                error_no_memory(error);
                return NULL;
        }
        list_init(&t->in_session);
        list_init(&t->waiting);
        t->server = server;
        t->own = access_grant(server, session->conn).own;
        t->size = size;
        strcpy(t->file, file);
        return t;
}

void transfer_await_memory(struct transfer *t, struct verb_task *task, const char *source)
{
        t->task = task;
        t->source = source;
        if (t->charge.user == NULL) {
                verb_task_submit_source(task, source);
                return;
        }
        list_append(&t->server->file_memory, &t->waiting);
        grant_waiting(t->server);
}

void transfer_free(struct transfer *t)
{
        if (t == NULL)
                return;
        struct server *server = t->server;
        list_remove(&t->in_session);
        list_remove(&t->waiting);
        server->file_bytes -= t->charge.amount;
        bool counted = t->charge.user != NULL;
        quota_discharge(&t->charge);
        free(t->data);
        free(t);
        if (counted && !server->closing)
                grant_waiting(server);
}

/* ---- pages ---- */

static void send_page(struct session *session, uint64_t id, struct transfer *t)
{
        uint64_t left = t->size - t->sent, n = left < TRANSFER_PAGE ? left : TRANSFER_PAGE;
        session_reply(session, id, kstr("file", t->file), ku64("size", t->size), kbin("data", t->data + t->sent, n),
                      kif(n < left, ku64("more", t->id)));
        t->sent += n;
        if (n == left)
                transfer_free(t);
}

void transfer_send_consume(struct session *session, uint64_t id, struct transfer *t, uint64_t until_ns)
{
        t->id = ++session->server->last_transfer;
        t->until_ns = until_ns;
        list_append(&session->transfers, &t->in_session);
        send_page(session, id, t);
}

int transfer_send_next(struct session *session, uint64_t id, uint64_t more, struct error *error)
{
        list_each_item (struct transfer, t, &session->transfers, in_session)
                if (t->id == more) {
                        send_page(session, id, t);
                        return 0;
                }
        return error_set(error, STREAMER_ENOENT, "fetch: this connection has no transfer %" PRIu64 ": its time is over",
                         more);
}

void transfers_expire(struct session *session, uint64_t now)
{
        list_each_item_safe (struct transfer, t, &session->transfers, in_session)
                if (now >= t->until_ns)
                        transfer_free(t);
}
