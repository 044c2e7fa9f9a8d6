/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs publish_begin, publish_segment, publish_commit and publish_abort: requests of the client that has the claim
 * (publish_find.c). A claim is a number that is valid on its own connection only.
 */
#include "daemon/serve/access/access.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include <inttypes.h>

/* NULL with *error. */
static struct publication *publication_of(struct session *session, uint64_t claim, struct error *error)
{
        list_each_item (struct publication, p, &session->publications, in_session)
                if (p->id == claim)
                        return p;
        error_set(error, STREAMER_ENOENT, "claim %" PRIu64 ": not held by this connection", claim);
        return NULL;
}

/* The step that is under way frees it. */
static void outlives_client(struct deferred *d)
{
}

/* The request is answered by a step of the publication (NULL: *error says why). NULL with *error. */
static struct deferred *defer(struct session *session, struct request *request, const struct publication *p,
                              struct error *error)
{
        struct deferred *d = p != NULL ? deferred_new(session, request, error) : NULL;
        if (d != NULL)
                d->orphaned = outlives_client;
        return d;
}

/* Answers an error, or the end of the client; false: neither. */
static bool answer_failure(struct deferred *d, const struct error *error)
{
        if (d->session != NULL && error->code == 0)
                return false;
        if (d->session != NULL)
                session_error(d->session, d->request.id, error);
        deferred_free(d);
        return true;
}

/* The step has begun, or (r < 0) has not: the request is answered now. */
static int begin_step(struct deferred *d, int r)
{
        if (r < 0)
                deferred_free(d);
        return r;
}

/* ---- begin ---- */

/* The client's lease keeps the memory that it is about to map. */
static void begun(struct publication *p, const struct error *error, void *context)
{
        struct deferred *d = context;
        struct error why = {0};
        struct lease *lease;
        if (answer_failure(d, error))
                return;
        struct session *session = d->session;
        if (attach_lease_new(session, p->generation, &lease, &why) < 0) {
                answer_failure(d, &why);
                publication_abort(p, &why);
                return;
        }
        const struct generation *g = p->generation;
        session_reply(session, d->request.id, ku64("lease", lease->id), khex("token", lease->token, LEASE_TOKEN),
                      kstr("model", p->name), ku64("generation", g->number), kstr("device", g->device->name),
                      kstr("device_kind", g->device->ops->kind));
        deferred_free(d);
}

int verb_publish_begin(struct session *session, struct request *request, struct error *error)
{
        const struct req_publish_begin *req = &request->u.publish_begin;
        const struct loads *loads = session->server->loads;
        struct publication *p = publication_of(session, req->claim, error);
        const struct model_settings settings = {.keep_alive_ns = loads->keep_alive_ns,
                                                .drain_timeout_ns = loads->drain_timeout_ns,
                                                .priority = PROTO_PRIORITY_DEFAULT};
        if (p == NULL || access_check_publish(session->server, session->conn, p->name, error) < 0)
                return error->code;
        const struct quota_limits limits = access_limits(session->server, session->conn);
        struct deferred *d = defer(session, request, p, error);
        return d != NULL ? begin_step(d, publication_begin(p, req->bytes, &settings, &limits, begun, d, error))
                         : error->code;
}

/* ---- segments ---- */

static void segment_added(struct publication *p, const struct error *error, void *context)
{
        struct deferred *d = context;
        struct error why = {0};
        struct fds fds = {.n = 0};
        if (answer_failure(d, error))
                return;
        struct session *session = d->session;
        const struct generation *g = p->generation;
        const struct segment *segment = &g->segments[g->n_segments - 1];
        bool reading = segment->lent && segment->writing_fd >= 0;         /* then it has a descriptor for each */
        if (session_check_fds(session, 2, "publish_segment", &why) < 0) { /* they were sent since the request */
                answer_failure(d, &why);
                publication_abort(p, &why);
                return;
        }
        if (reading)
                fds.v[fds.n++] = segment->writing_fd;
        if (segment->fd >= 0)
                fds.v[fds.n++] = segment->fd;
        session_reply_fds(session, d->request.id, &fds, ku64("number", g->n_segments - 1),
                          kmap("segment", REPLY_SEGMENT(segment, 0)),
                          kif(reading, kmap("reading", ku64("fd", 1))));
        deferred_free(d);
}

int verb_publish_segment(struct session *session, struct request *request, struct error *error)
{
        const struct req_publish_segment *req = &request->u.publish_segment;
        struct publication *p = publication_of(session, req->claim, error);
        if (p == NULL || session_check_fds(session, 2, "publish_segment", error) < 0)
                return error->code;
        struct deferred *d = defer(session, request, p, error);
        return d != NULL ? begin_step(d, publication_add_segment(p, req->bytes, segment_added, d, error)) : error->code;
}

/* ---- commit ---- */

static void committed(struct publication *p, const struct error *error, void *context)
{
        struct deferred *d = context;
        if (answer_failure(d, error))
                return;
        const struct generation *g = p->generation;
        const struct fds fds = {.v = {g->manifest.fd}, .n = 1};
        session_reply_fds(d->session, d->request.id, &fds, ku64("generation", g->number), reply_digest(g),
                          kstr("state", generation_state_name(g->state)), ku64("bytes", g->data_bytes),
                          kmap("manifest", ku64("fd", 0), ku64("size", g->manifest.size)));
        deferred_free(d);
}

int verb_publish_commit(struct session *session, struct request *request, struct error *error)
{
        const struct req_publish_commit *req = &request->u.publish_commit;
        struct publication *p = publication_of(session, req->claim, error);
        const struct published_storage table = {.segment =
                                                        req->segment > UINT32_MAX ? UINT32_MAX : (uint32_t)req->segment,
                                                .offset = req->offset,
                                                .bytes = req->bytes};
        struct deferred *d = defer(session, request, p, error);
        return d != NULL ? begin_step(d, publication_commit(p, &table, committed, d, error)) : error->code;
}

/* ---- abort ---- */

int verb_publish_abort(struct session *session, struct request *request, struct error *error)
{
        struct publication *p = publication_of(session, request->u.publish_abort.claim, error);
        if (p == NULL)
                return error->code;
        error_set(error, STREAMER_ECANCELED, "%s: the publication was aborted", p->name);
        publication_abort(p, error);
        session_ok(session, request->id);
        return 0;
}

void publish_abandon(struct session *session)
{
        while (!list_empty(&session->publications))
                publication_abandon(container_of(session->publications.next, struct publication, in_session));
}
