/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/events.h"

#include "daemon/base/log/log.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/reply/reply.h"

#include <inttypes.h>
#include <string.h>

/* It became a name for generations that served already: nothing was read. */
static bool was_resident(const struct load *load)
{
        load_each_target (t, load)
                if (load->state != LOAD_READY || t->state != TARGET_SERVES)
                        return false;
        return true;
}

static size_t count_failed(const struct load *load)
{
        size_t n = 0;
        load_each_target (t, load)
                n += t->state == TARGET_FAILED;
        return n;
}

static void write_failed(struct writer *w, const void *data)
{
        const struct load *load = data;
        writer_array(w, count_failed(load));
        load_each_target (t, load)
                if (t->state == TARGET_FAILED)
                        writer_map_of(w, kstr("device", t->device->name), kstr("code", code_wire(t->error.code)),
                                      kstr("text", t->error.text));
}

int op_check(struct session *session, struct error *error)
{
        uid_t uid = session->conn->caller.uid;
        const struct quota_user *user = quotas_find(&session->server->users, uid);
        uint64_t held = user != NULL ? user->held[QUOTA_OPS] : 0;
        if (session->n_ops >= OPS_MAX)
                return error_set(error, STREAMER_ELIMIT, "load: this connection watches %d loads, the most that it may",
                                 OPS_MAX);
        if (held >= OPS_SHARE * OPS_MAX && !access_is_own(session->conn))
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
        struct load *load = op->watch.load;
        struct load_progress p;
        require(op->magic == OP_MAGIC);
        load_progress(load, &p);
        bool bad = p.state == LOAD_FAILED || p.state == LOAD_CANCELLED;
        event_send(op->session, "op", ku64("op", op->id), kif(op->request != 0, ku64("request", op->request)),
                   kstr("name", load->name), REPLY_PROGRESS(p), ku64("restarts", p.restarts),
                   kbool("resident", was_resident(load)), kif(bad, kstr("code", code_wire(load->error.code))),
                   kif(bad, kstr("text", load->error.text)),
                   kif(load_ended(p.state) && count_failed(load) > 0, kcall("failed", write_failed, load)));
}
