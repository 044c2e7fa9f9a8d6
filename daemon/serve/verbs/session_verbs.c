/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs hello, ping, version, subscribe, whoami and metrics; the table of handlers by verb, and what sessions do
 * beside answering requests.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/serve/access/access.h"
#include "daemon/serve/events/events.h"
#include "daemon/serve/monitor/monitor.h"
#include "daemon/serve/file_transfer.h"

#include <inttypes.h>
#include <string.h>

/* ---- hello, ping, version ---- */

int verb_hello(struct session *session, struct request *request, struct error *error)
{
        const struct req_hello *req = &request->u.hello;
        struct server *server = session->server;
        (void)error;
        if (req->min > PROTOCOL_MAX || req->max < PROTOCOL_MIN || req->min > req->max) {
                session_fail(session, request->id, STREAMER_EPROTO,
                             "hello: this daemon (" STREAMERD_VERSION ") speaks protocol %u to %u, the client %" PRIu64
                             " to %" PRIu64 ": the %s is older",
                             PROTOCOL_MIN, PROTOCOL_MAX, req->min, req->max,
                             req->min > PROTOCOL_MAX ? "daemon" : "client");
                conn_close(session->conn, true);
                return 0;
        }
        session->greeted = true;
        session->client = req->client != NULL ? strdup(req->client) : NULL;
        struct writer w, features;
        session_reply(&w, request->id, 5);
        writer_ku64(&w, "protocol", req->max < PROTOCOL_MAX ? req->max : PROTOCOL_MAX);
        writer_kstr(&w, "version", STREAMERD_VERSION);
        writer_ku64(&w, "pid", (uint64_t)getpid());
        writer_karray(&w, "devices", server->resident->n_devices);
        for (size_t i = 0; i < server->resident->n_devices; i++) {
                const struct device *d = server->resident->devices[i];
                writer_map(&w, 3);
                writer_kstr(&w, "device", d->name);
                writer_kstr(&w, "kind", d->ops->kind);
                writer_kstr(&w, "uuid", d->uuid);
        }
        writer_init(&features);
        writer_karray(&w, "features", writer_features(&features, NULL));
        writer_append(&w, &features);
        writer_deinit(&features);
        session_send(session, &w);
        return 0;
}

int verb_ping(struct session *session, struct request *request, struct error *error)
{
        (void)error;
        session_ok(session, request->id);
        return 0;
}

int verb_version(struct session *session, struct request *request, struct error *error)
{
        struct writer w;
        (void)error;
        session_reply(&w, request->id, 2);
        writer_kstr(&w, "version", STREAMERD_VERSION);
        writer_ku64(&w, "protocol", PROTOCOL_MAX);
        session_send(session, &w);
        return 0;
}

/* ---- subscribe ---- */

/* A second request replaces the first: another model, or all. */
int verb_subscribe(struct session *session, struct request *request, struct error *error)
{
        const char *model = request->u.subscribe.model;
        char *subject = model != NULL ? strdup(model) : NULL;
        if (model != NULL && subject == NULL)
                return error_no_memory(error);
        events_notify(session); /* of what it subscribed to before */
        changes_subscribe(&session->server->model_changes, &session->subscriber, subject);
        session_ok(session, request->id);
        return 0;
}

/* ---- whoami ---- */

static void write_list(struct writer *w, const char *key, const struct role_list *list)
{
        writer_karray(w, key, list->n);
        for (size_t i = 0; i < list->n; i++)
                writer_str(w, list->v[i]);
}

int verb_whoami(struct session *session, struct request *request, struct error *error)
{
        const struct conn *conn = session->conn;
        const struct server *server = session->server;
        struct writer w;
        const struct role_grant grant = access_grant(server, conn);
        const struct quota_limits limits = access_limits(server, conn);
        size_t n_limits = 0;
        (void)error;
        for (size_t i = 0; i < QUOTA_SLOT_COUNT; i++)
                n_limits += limits.max[i] != UINT64_MAX;
        bool roots = grant.rule != NULL && grant.rule->roots.given;
        bool buckets = grant.rule != NULL && grant.rule->buckets.given;
        session_reply(&w, request->id, 6u + roots + buckets);
        writer_ku64(&w, "uid", conn->caller.uid);
        writer_ku64(&w, "gid", conn->caller.gid);
        writer_kstr(&w, "role", role_name(grant.role));
        writer_kstr(&w, "rule", grant.text);
        if (roots)
                write_list(&w, "roots", &grant.rule->roots);
        if (buckets)
                write_list(&w, "buckets", &grant.rule->buckets);
        writer_kmap(&w, "limits", n_limits);
        for (size_t i = 0; i < QUOTA_SLOT_COUNT; i++)
                if (limits.max[i] != UINT64_MAX)
                        writer_ku64(&w, quota_slot_name((enum quota_slot)i), limits.max[i]);
        const struct quota_user *user = quotas_find(&server->users, conn->caller.uid);
        writer_kmap(&w, "holds", QUOTA_SLOT_COUNT);
        for (size_t i = 0; i < QUOTA_SLOT_COUNT; i++)
                writer_ku64(&w, quota_slot_name((enum quota_slot)i), user != NULL ? user->held[i] : 0);
        session_send(session, &w);
        return 0;
}

/* ---- metrics ---- */

int verb_metrics(struct session *session, struct request *request, struct error *error)
{
        struct writer w;
        cleanup_free char *text = metrics_text(session->server);
        if (text == NULL)
                return error_no_memory(error);
        session_reply(&w, request->id, 1);
        writer_kstr(&w, "text", text);
        session_send(session, &w);
        return 0;
}

/* ---- the session's operations ---- */

static session_verb *const handlers[VERB_COUNT] = {
#define V(name) [VERB_##name] = verb_##name,
        VERBS(V)
#undef V
};

static void on_closed(struct session *session)
{
        while (!list_empty(&session->deferred))
                deferred_orphan(container_of(session->deferred.next, struct deferred, in_session));
        transfers_expire(session, UINT64_MAX);
        probe_end(session);
        publish_abandon(session);
        attach_abandon_leases(session);
        events_deinit(session); /* last: a publication that ends marks its publisher's lease */
}

const struct session_ops verbs_session_ops = {
        .verbs = handlers, .notify = events_notify, .drained = events_mark, .closed = on_closed, .tick = publish_tick};
