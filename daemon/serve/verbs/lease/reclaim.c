/* SPDX-License-Identifier: Apache-2.0
 *
 * reclaim: a client claims a lease again after its connection, or the daemon, was lost.
 *
 *   of this run          the lease is found by its token, and moves to the new connection
 *   of an earlier run    the same, if its process's pidfd was restored; else a row of the journal has the token, and
 * the lease is made from it
 *
 * Only the process that got the token may use it. A lease that has ended, or whose model has changed, is "lost".
 */
#include "daemon/serve/events/events.h"
#include "daemon/serve/verbs/verbs_private.h"

#include <inttypes.h>
#include <string.h>

/* Across PID namespaces one end sees no process id: then the token alone decides. */
static bool same_process(const struct conn *conn, pid_t pid, uid_t uid)
{
        return conn->caller.uid == uid && (conn->pid <= 0 || pid <= 0 || conn->pid == pid);
}

/* When the client attached: it has no digest. */
static bool was_loading(const struct req_reclaim *req)
{
        return req->digest[0] == '\0';
}

static bool same_model(const struct generation *g, const struct req_reclaim *req)
{
        char digest[2 * DIGEST_SIZE + 1];
        if (was_loading(req))
                return g->number == req->generation;
        hex_encode(digest, g->digest, DIGEST_SIZE);
        return g->number == req->generation && strcmp(digest, req->digest) == 0 &&
               (g->state == GENERATION_READY || generation_drains(g));
}

static int lost(struct error *error)
{
        return error_set(error, STREAMER_ELOST, "reclaim: the daemon does not hold this lease any more");
}

static int foreign(const struct session *session, struct error *error)
{
        return error_set(error, STREAMER_EPERM, "reclaim: the lease is another process's (uid %u, pid %d)",
                         (unsigned)session->conn->caller.uid, (int)session->conn->pid);
}

/* The process of the row was not restored: the client is that process. */
static int restore(struct session *session, const unsigned char token[LEASE_TOKEN], const struct req_reclaim *req,
                   struct lease **lease, struct error *error)
{
        struct server *server = session->server;
        struct journal_lease *row = persist_lease_row(&server->persist, token);
        struct generation *g = row != NULL ? persist_generation(&server->persist, row->model) : NULL;
        if (g == NULL || !same_model(g, req))
                return lost(error);
        if (!same_process(session->conn, (pid_t)row->pid, row->uid))
                return foreign(session, error);
        struct process *process = attach_process(session, error);
        if (process == NULL)
                return error->code;
        *lease = persist_lease_restore(&server->persist, process, g, row);
        if (*lease == NULL) {
                process_reap(process);
                return error_no_memory(error);
        }
        return 0;
}

static int reclaim(struct session *session, const struct req_reclaim *req, struct lease **lease, struct error *error)
{
        unsigned char token[LEASE_TOKEN];
        *lease = NULL;
        if (strlen(req->token) != 2 * LEASE_TOKEN || strspn(req->token, "0123456789abcdef") != 2 * LEASE_TOKEN)
                return error_set(error, STREAMER_EINVAL, "reclaim: token: 32 hexadecimal digits are needed");
        for (size_t i = 0; i < LEASE_TOKEN; i++)
                sscanf(req->token + 2 * i, "%2hhx", &token[i]);
        if (session->n_leases >= session->server->limits->leases_per_client)
                return error_set(error, STREAMER_ELIMIT,
                                 "reclaim: this connection holds %" PRIu64 " leases (limits.leases_per_client)",
                                 session->n_leases);
        *lease = leases_by_token(&session->server->leases, token);
        if (*lease == NULL)
                return restore(session, token, req, lease, error);
        const struct process *process = (*lease)->process;
        if (!same_process(session->conn, process->pid, process->uid))
                return foreign(session, error);
        return same_model((*lease)->generation, req) ? 0 : lost(error);
}

int verb_reclaim(struct session *session, struct request *request, struct error *error)
{
        struct lease *lease = NULL;
        int r = reclaim(session, &request->u.reclaim, &lease, error);
        if (r < 0)
                return r;
        const struct generation *g = lease->generation;
        struct session *before = lease->owner; /* if the old connection has not been seen to close yet */
        bool loading = was_loading(&request->u.reclaim);
        if (before != NULL)
                before->n_leases--;
        /* An event may have got lost with the old connection: the reply says that the lease is revoked. */
        lease_claim(lease, session,
                    loading                          ? LEASE_LOADING
                    : g->state == GENERATION_REVOKED ? LEASE_REVOKED
                                                     : LEASE_HELD);
        list_append(&session->leases, &lease->in_owner);
        session->n_leases++;
        session_reply(session, request->id, ku64("lease", lease->id), ku64("generation", g->number),
                      kstr("state", g->state == GENERATION_REVOKED ? "revoked" : generation_state_name(g->state)));
        lease->notified_arrivals = 0;
        events_mark_lease(session, lease);
        return 0;
}
