/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/file_transfer.h"

#include "daemon/serve/access/access.h"

#include <inttypes.h>
#include <string.h>

struct transfer {
        struct list in_session, in_server;
        uint64_t id;
        char *file, *data;
        uint64_t size, sent, until_ns;
        struct file_memory memory;
};

/* ---- memory ---- */

static void grant_waiting(struct server *server)
{
        list_each_item_safe (struct file_memory, m, &server->file_memory, waiting) {
                if (server->file_bytes + m->bytes > TRANSFER_BYTES_MAX)
                        return;
                if (!m->unlimited && m->charge.user->held[QUOTA_FETCHED] + m->bytes > TRANSFER_USER_MAX)
                        continue;
                server->file_bytes += m->bytes;
                quota_adjust(&m->charge, m->bytes);
                list_remove(&m->waiting);
                m->granted(m);
        }
}

int file_memory_request(struct file_memory *m, const struct session *session, uint64_t bytes,
                        void (*granted)(struct file_memory *), struct error *error)
{
        struct server *server = session->server;
        bool unlimited = access_grant(server, session->conn).own;
        *m = (struct file_memory){.bytes = bytes, .granted = granted, .unlimited = unlimited};
        list_init(&m->waiting);
        if (bytes <= TRANSFER_PAGE) {
                granted(m);
                return 0;
        }
        if (quota_charge_restored(&server->users, session->conn->caller.uid, &m->charge, QUOTA_FETCHED, 0) < 0)
                return error_no_memory(error);
        m->server = server;
        list_append(&server->file_memory, &m->waiting);
        grant_waiting(server);
        return 0;
}

void file_memory_release(struct file_memory *m)
{
        struct server *server = m->server;
        if (server == NULL)
                return;
        list_remove(&m->waiting);
        server->file_bytes -= m->charge.amount;
        quota_discharge(&m->charge);
        m->server = NULL;
        if (!server->turn.shutting_down)
                grant_waiting(server);
}

/* ---- pages ---- */

static void transfer_free(struct transfer *t)
{
        list_remove(&t->in_session);
        list_remove(&t->in_server);
        file_memory_release(&t->memory);
        free(t->file);
        free(t->data);
        free(t);
}

static void send_page(struct session *session, uint64_t id, struct transfer *t)
{
        uint64_t left = t->size - t->sent, n = left < TRANSFER_PAGE ? left : TRANSFER_PAGE;
        struct writer w;
        session_reply(&w, id, 3u + (n < left));
        writer_kstr(&w, "file", t->file);
        writer_ku64(&w, "size", t->size);
        writer_str(&w, "data");
        writer_bin(&w, t->data + t->sent, n);
        if (n < left)
                writer_ku64(&w, "more", t->id);
        t->sent += n;
        if (n == left)
                transfer_free(t);
        session_send(session, &w);
}

void transfer_send_consume(struct session *session, uint64_t id, const char *file, char *data, uint64_t size,
                           struct file_memory *memory, uint64_t until_ns)
{
        struct transfer *t = calloc(1, sizeof(*t));
        char *name = strdup(file);
        if (t == NULL || name == NULL) {
                session_fail(session, id, STREAMER_ENOMEM, "no memory");
                file_memory_release(memory);
                free(name);
                free(data);
                free(t);
                return;
        }
        t->id = ++session->server->last_transfer;
        t->file = name;
        t->data = data;
        t->size = size;
        t->until_ns = until_ns;
        t->memory = *memory; /* granted, so no list has it */
        list_init(&t->memory.waiting);
        *memory = (struct file_memory){.server = NULL};
        list_append(&session->transfers, &t->in_session);
        list_append(&session->server->transfers, &t->in_server);
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

void transfers_free(struct session *session)
{
        list_each_item_safe (struct transfer, t, &session->transfers, in_session)
                transfer_free(t);
}

void transfers_tick(struct server *server, uint64_t now)
{
        list_each_item_safe (struct transfer, t, &server->transfers, in_server)
                if (now >= t->until_ns)
                        transfer_free(t);
}
