/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs of a connection (hello, ping, subscribe, whoami) and of the daemon itself (version, metrics, config,
 * reload, shutdown); the table of handlers by verb, and what sessions do beside answering requests.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/serve/access/access.h"
#include "daemon/serve/access/shares.h"
#include "daemon/serve/events/events.h"
#include "daemon/serve/monitor/monitor.h"
#include "daemon/base/commit.h"

#include <inttypes.h>
#include <string.h>

/* ---- the connection ---- */

static void write_device(struct writer *w, const void *data, size_t i)
{
        const struct device *d = ((const struct resident *)data)->devices[i];
        writer_map_of(w, kstr("device", d->name), kstr("kind", d->ops->kind), kstr("uuid", d->uuid));
}

int verb_hello(struct session *session, struct request *request, struct error *error)
{
        const struct req_hello *req = &request->u.hello;
        const struct resident *resident = session->server->resident;
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
        conn_accept_long_frames(session->conn);
        session->client = req->client != NULL ? strdup(req->client) : NULL;
        /* Written once, and left out where the client has the same list: they are most of what a client costs that
         * connects. */
        static struct items features;
        if (features.n == 0 || features.w.failed) {
                items_deinit(&features);
                items_init(&features);
                features.n = writer_features(&features.w, NULL);
        }
        return session_reply(session, request->id, ku64("protocol", req->max < PROTOCOL_MAX ? req->max : PROTOCOL_MAX),
                             kstr("version", STREAMERD_VERSION), ku64("pid", (uint64_t)getpid()),
                             karray("devices", write_device, resident, resident->n_devices),
                             ku64("features_number", features_number),
                             kif(req->features != features_number, kitems("features", &features)));
}

int verb_ping(struct session *session, struct request *request, struct error *error)
{
        return session_ok(session, request->id);
}

int verb_version(struct session *session, struct request *request, struct error *error)
{
        return session_reply(session, request->id, kstr("version", STREAMERD_VERSION), kstr("commit", build_commit),
                             ku64("protocol", PROTOCOL_MAX));
}

/* A second request replaces the first: another model, or all. */
int verb_subscribe(struct session *session, struct request *request, struct error *error)
{
        const char *model = request->u.subscribe.model;
        char *subject = model != NULL ? strdup(model) : NULL;
        if (model != NULL && subject == NULL)
                return error_no_memory(error);
        events_subscribe(session, subject);
        return session_ok(session, request->id);
}

static void write_listed(struct writer *w, const void *data, size_t i)
{
        writer_str(w, ((const struct role_list *)data)->v[i]);
}

/* Of slots from `first` to before `end`. Leaves out the amounts that are UINT64_MAX: limits. What is held is atomic. */
static void write_amounts(struct writer *w, const uint64_t *amounts, unsigned first, unsigned end)
{
        size_t n = 0;
        for (unsigned i = first; i < end; i++)
                n += load_relaxed(&amounts[i]) != UINT64_MAX;
        writer_map(w, n);
        for (unsigned i = first; i < end; i++)
                if (load_relaxed(&amounts[i]) != UINT64_MAX)
                        writer_ku64(w, quota_slot_name((enum quota_slot)i), load_relaxed(&amounts[i]));
}

static void write_limited(struct writer *w, const void *amounts)
{
        write_amounts(w, amounts, 0, QUOTA_SLOT_COUNT);
}

static void write_shares(struct writer *w, const void *amounts)
{
        write_amounts(w, amounts, QUOTA_SLOT_COUNT, QUOTA_HELD_COUNT);
}

int verb_whoami(struct session *session, struct request *request, struct error *error)
{
        static const struct quota_user nobody;
        const struct server *server = session->server;
        const struct conn *conn = session->conn;
        const struct role_grant grant = access_grant(server, conn);
        const struct role_rule *rule = grant.rule;
        const struct quota_limits limits = access_limits(server, conn);
        const struct quota_user *user = quotas_find(&server->users, conn->caller.uid) ?: &nobody;
        uint64_t shares[QUOTA_HELD_COUNT];
        char text[ROLE_TEXT];
        for (unsigned i = QUOTA_SLOT_COUNT; i < QUOTA_HELD_COUNT; i++)
                shares[i] = share_max(server->limits, conn->caller.uid, (enum quota_slot)i);
        return session_reply(
                session, request->id, ku64("uid", conn->caller.uid), ku64("gid", conn->caller.gid),
                kstr("role", role_name(grant.role)), kstr("rule", role_grant_text(&grant, text)),
                kif(rule != NULL && rule->roots.given, karray("roots", write_listed, &rule->roots, rule->roots.n)),
                kif(rule != NULL && rule->buckets.given,
                    karray("buckets", write_listed, &rule->buckets, rule->buckets.n)),
                kcall("limits", write_limited, limits.max), kcall("holds", write_limited, user->held),
                kmap("shares", kcall("limits", write_shares, shares), kcall("holds", write_shares, user->held)));
}

int verb_metrics(struct session *session, struct request *request, struct error *error)
{
        cleanup_free char *text = metrics_text(session->server);
        if (text == NULL)
                return error_no_memory(error);
        return session_reply(session, request->id, kstr("text", text));
}

/* ---- the configuration and the end ---- */

/* Answered when the configuration has been read; several requests at once get one answer each, of the last reading. */
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
        while (!list_empty(&server->reloads)) {
                struct deferred *d = container_of(server->reloads.next, struct deferred, in_server);
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
        return session_reply(session, request->id, kitems("settings", &rows));
}

/* The daemon ends as on SIGTERM, at once or (drain) when no lease and no load is left. While it drains, verbs that
 * would begin either are refused. */
int verb_shutdown(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        bool drain = request->u.shutdown.drain;
        server->ending = drain ? ENDING_DRAINED : ENDING_NOW;
        server->ended_by = session->conn->caller.uid;
        return session_reply(session, request->id, kstr("state", drain ? "draining" : "ending"),
                             ku64("leases", server->leases.n));
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
        fetch_expire_transfers(session, UINT64_MAX);
        probe_end(session);
        while (!list_empty(&session->publications))
                publication_abandon(container_of(session->publications.next, struct publication, in_session));
        while (!list_empty(&session->leases.held))
                lease_abandon(&session->server->leases,
                              container_of(session->leases.held.next, struct lease, in_owner));
        events_deinit(session); /* last: a publication that ends marks its publisher's lease */
}

static bool tick(struct server *server)
{
        if (server->file_bytes > 0)
                list_each_item (struct conn, conn, &server->conns, link)
                        fetch_expire_transfers(conn->context, now_ns());
        publish_tick(server);
        return server->file_bytes > 0;
}

const struct session_ops verbs_session_ops = {.verbs = handlers, .closed = on_closed, .tick = tick};
