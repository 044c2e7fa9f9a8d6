/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/events.h"

#include "daemon/base/log/log.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/reply/reply.h"

#include <inttypes.h>
#include <string.h>

void event_writer(struct writer *w, const char *event, size_t n_fields)
{
        conn_writer(w);
        writer_map(w, n_fields);
        writer_kstr(w, "event", event);
}

/* It became a name for generations that served already: nothing was read. */
static bool was_resident(const struct load *load)
{
        load_each_target (t, load)
                if (load->state != LOAD_READY || t->state != TARGET_SERVES)
                        return false;
        return true;
}

static void write_op(struct writer *w, struct op *op)
{
        struct load *load = op->watch.load;
        struct load_progress p;
        load_progress(load, &p);
        bool bad = p.state == LOAD_FAILED || p.state == LOAD_CANCELLED;
        size_t n_failed = 0;
        load_each_target (t, load)
                n_failed += load_ended(p.state) && t->state == TARGET_FAILED;
        event_writer(w, "op", 12u + 2 * bad + (n_failed > 0) + (op->request != 0));
        writer_ku64(w, "op", op->id);
        if (op->request != 0)
                writer_ku64(w, "request", op->request);
        writer_kstr(w, "name", load->name);
        reply_progress(w, &p);
        writer_ku64(w, "restarts", p.restarts);
        writer_kbool(w, "resident", was_resident(load));
        if (bad) {
                writer_kstr(w, "code", code_wire(load->error.code));
                writer_kstr(w, "text", load->error.text);
        }
        if (n_failed == 0)
                return;
        writer_karray(w, "failed", n_failed);
        load_each_target (t, load) {
                if (t->state != TARGET_FAILED)
                        continue;
                writer_map(w, 3);
                writer_kstr(w, "device", t->device->name);
                writer_kstr(w, "code", code_wire(t->error.code));
                writer_kstr(w, "text", t->error.text);
        }
}

int op_check(struct session *session, struct error *error)
{
        uid_t uid = session->conn->caller.uid;
        const struct quota_user *user = quotas_find(&session->server->users, uid);
        uint64_t held = user != NULL ? user->held[QUOTA_OPS] : 0;
        if (session->n_ops >= OPS_MAX)
                return error_set(error, STREAMER_ELIMIT, "load: this connection watches %d loads, the most that it may",
                                 OPS_MAX);
        if (held >= OPS_SHARE * OPS_MAX && !access_grant(session->server, session->conn).own)
                return error_set(error, STREAMER_ELIMIT,
                                 "load: uid %u watches %" PRIu64 " loads, the most that a user may", (unsigned)uid,
                                 held);
        return 0;
}

struct op *op_new(struct session *session, struct load *load, uint64_t id)
{
        struct op *op = calloc(1, sizeof(*op));
        if (op == NULL ||
            quota_charge_restored(&session->server->users, session->conn->caller.uid, &op->charge, QUOTA_OPS, 1) < 0) {
                log_warn("%s: process %d cannot watch the load, and its connection ends: no memory", load->name,
                         (int)session->conn->pid);
                free(op);
                conn_close(session->conn, false);
                return NULL;
        }
        op->magic = OP_MAGIC;
        op->session = session;
        op->id = id;
        op->progress_round = session->server->progress_round;
        list_append(&session->ops, &op->link);
        session->n_ops++;
        session->server->n_ops++;
        load_watch(load, &op->watch, NULL);
        return op;
}

void op_free(struct op *op)
{
        require(op->magic == OP_MAGIC);
        list_remove(&op->link);
        op->session->n_ops--;
        op->session->server->n_ops--;
        load_unwatch(&op->watch);
        quota_discharge(&op->charge);
        op->magic = 0;
        free(op);
}

void op_send(struct op *op)
{
        struct writer w;
        require(op->magic == OP_MAGIC);
        write_op(&w, op);
        conn_send(op->session->conn, &w, NULL, 0);
}
