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

/* ---- replies ---- */

/* The client's lease keeps the memory that it is about to map. */
static int reply_begun(struct publication *p, struct session *session, uint64_t id, struct error *error)
{
        const struct generation *g = p->generation;
        const struct lease *lease = attach_lease_new(session, p->generation, error);
        if (lease == NULL) {
                publication_abort(p, error);
                return error->code;
        }
        return session_reply(session, id, ku64("lease", lease->id), khex("token", lease->token, LEASE_TOKEN),
                             kstr("model", p->name), ku64("generation", g->number), kstr("device", g->device->name),
                             kstr("device_kind", g->device->ops->kind));
}

/* Its descriptors were counted as the request began; what others have taken since may exceed the limit by them. */
static int reply_segment(struct publication *p, struct session *session, uint64_t id, struct error *error)
{
        const struct generation *g = p->generation;
        const struct segment *segment = &g->segments[g->n_segments - 1];
        bool reading = segment->lent && segment->writing_fd >= 0; /* then it has a descriptor for each */
        struct fds fds = {.n = 0};
        if (reading)
                fds.v[fds.n++] = segment->writing_fd;
        if (segment->fd >= 0)
                fds.v[fds.n++] = segment->fd;
        return session_reply_fds(session, id, &fds, ku64("number", g->n_segments - 1),
                                 kmap("segment", REPLY_SEGMENT(segment, 0)),
                                 kif(reading, kmap("reading", ku64("fd", 1))));
}

static int reply_committed(struct publication *p, struct session *session, uint64_t id, struct error *error)
{
        const struct generation *g = p->generation;
        const struct fds fds = {.v = {g->manifest.fd}, .n = 1};
        return session_reply_fds(session, id, &fds, ku64("generation", g->number), reply_digest(g),
                                 kstr("state", generation_state_name(g->state)), ku64("bytes", g->data_bytes),
                                 kmap("manifest", ku64("fd", 0), ku64("size", g->manifest.size)));
}

/* ---- steps ---- */

static publication_done_fn step_done;

static int begin(struct publication *p, struct deferred *d, struct error *error)
{
        const struct server *server = d->session->server;
        const struct quota_limits limits = access_limits(server, d->session->conn);
        const struct req_publish_begin *req = &d->request.u.publish_begin;
        return access_check_publish(server, d->session->conn, p->name, error)
                       ?: publication_begin(p, req->bytes, req->tensors, &server->loads->defaults, &limits, step_done,
                                            d, error);
}

static int add_segment(struct publication *p, struct deferred *d, struct error *error)
{
        const struct quota_limits limits = access_limits(d->session->server, d->session->conn);
        return session_check_fds(d->session, 2, "publish_segment", error)
                       ?: publication_add_segment(p, d->request.u.publish_segment.bytes, &limits, step_done, d, error);
}

static int commit(struct publication *p, struct deferred *d, struct error *error)
{
        const struct req_publish_commit *req = &d->request.u.publish_commit;
        uint32_t segment = req->segment > UINT32_MAX ? UINT32_MAX : (uint32_t)req->segment;
        const struct published_storage table = {.segment = segment, .offset = req->offset, .bytes = req->bytes};
        const struct quota_limits limits = access_limits(d->session->server, d->session->conn);
        return publication_commit(p, &table, &limits, step_done, d, error);
}

static const struct {
        int (*begin)(struct publication *p, struct deferred *d, struct error *error);
        int (*reply)(struct publication *p, struct session *session, uint64_t id, struct error *error);
} steps[VERB_COUNT] = {[VERB_publish_begin] = {begin, reply_begun},
                       [VERB_publish_segment] = {add_segment, reply_segment},
                       [VERB_publish_commit] = {commit, reply_committed}};

/* Answers the request, unless its client has disconnected. */
static void step_done(struct publication *p, const struct error *error, void *context)
{
        struct deferred *d = context;
        struct error why = *error;
        if (d->session != NULL && why.code == 0)
                steps[d->request.verb].reply(p, d->session, d->request.id, &why);
        if (d->session != NULL && why.code != 0)
                session_error(d->session, d->request.id, &why);
        deferred_free(d);
}

/* step_done() frees it. */
static void outlives_client(struct deferred *d)
{
}

/* A step of the publication with this claim, which replies when it is done. */
static int start_step(struct session *session, struct request *request, uint64_t claim, struct error *error)
{
        struct publication *p = publication_of(session, claim, error);
        struct deferred *d = p != NULL ? deferred_new(session, request, error) : NULL;
        if (d == NULL)
                return error->code;
        d->orphaned = outlives_client;
        int r = steps[d->request.verb].begin(p, d, error);
        if (r < 0)
                deferred_free(d);
        return r;
}

int verb_publish_begin(struct session *session, struct request *request, struct error *error)
{
        return start_step(session, request, request->u.publish_begin.claim, error);
}

int verb_publish_segment(struct session *session, struct request *request, struct error *error)
{
        return start_step(session, request, request->u.publish_segment.claim, error);
}

int verb_publish_commit(struct session *session, struct request *request, struct error *error)
{
        return start_step(session, request, request->u.publish_commit.claim, error);
}

int verb_publish_abort(struct session *session, struct request *request, struct error *error)
{
        struct publication *p = publication_of(session, request->u.publish_abort.claim, error);
        if (p == NULL)
                return error->code;
        error_set(error, STREAMER_ECANCELED, "%s: the publication was aborted", p->name);
        publication_abort(p, error);
        return session_ok(session, request->id);
}
