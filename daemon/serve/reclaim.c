/* SPDX-License-Identifier: Apache-2.0
 *
 * A client comes back for a lease: its connection was gone, or the daemon was.
 *
 *   of this run           the lease is found by its token, and changes hands
 *   of the run before     the same, where its process's pidfd was taken back with it
 *                         else a row in the book has the token, and the lease is made anew
 *
 * Whoever does not hold the token, in the process that got it, gets nothing. What is not there any
 * more, or is another model by now, is "lost".
 */
#include "daemon/serve/reply.h"
#include "daemon/serve/session.h"

#include <inttypes.h>
#include <string.h>

static int parse_token(const char *text, unsigned char token[BOOK_TOKEN])
{
        if (strlen(text) != 2 * BOOK_TOKEN || strspn(text, "0123456789abcdef") != 2 * BOOK_TOKEN)
                return -1;
        for (size_t i = 0; i < BOOK_TOKEN; i++)
                sscanf(text + 2 * i, "%2hhx", &token[i]);
        return 0;
}

/* Process ids differ between PID namespaces, where one end sees none: the token alone decides there. */
static bool same_process(const struct conn *conn, pid_t pid, uid_t uid)
{
        return conn->caller.uid == uid && (conn->pid <= 0 || pid <= 0 || conn->pid == pid);
}

/* As far as the client knows: there was no digest yet. */
static bool was_loading(const struct req_reclaim *req)
{
        return req->digest[0] == '\0';
}

static bool same_model(const struct generation *g, const struct req_reclaim *req)
{
        char digest[2 * DIGEST_SIZE + 1];
        if (was_loading(req))
                return g->number == req->generation;
        for (size_t i = 0; i < DIGEST_SIZE; i++)
                snprintf(digest + 2 * i, 3, "%02x", g->digest[i]);
        return g->number == req->generation && strcmp(digest, req->digest) == 0 &&
               (g->state == GENERATION_READY || g->state == GENERATION_DRAINING);
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

/* Nobody knew its process: the client itself is it. */
static int restore(struct session *session, const unsigned char token[BOOK_TOKEN], const struct req_reclaim *req,
                   struct lease **lease, struct error *error)
{
        struct server *server = session->server;
        struct book_lease *row = keep_row(&server->keep, token);
        struct generation *g = row != NULL ? keep_generation(&server->keep, row->model) : NULL;
        if (g == NULL || !same_model(g, req))
                return lost(error);
        if (!same_process(session->conn, (pid_t)row->pid, row->uid))
                return foreign(session, error);
        struct process *process = session_process(session, error);
        if (process == NULL)
                return error->code;
        *lease = lease_restore(&server->leases, process, g, row);
        if (*lease == NULL) {
                process_settle(process);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        keep_adopt(&server->keep, *lease);
        return 0;
}

/* Where its old connection has not been seen to end yet, it ends here. */
static void leave_owner(struct lease *lease)
{
        struct session *before = lease->owner;
        list_remove(&lease->in_owner);
        if (before != NULL)
                before->n_leases--;
        lease->owner = NULL;
}

static int reclaim(struct session *session, const struct req_reclaim *req, struct lease **lease, struct error *error)
{
        unsigned char token[BOOK_TOKEN];
        *lease = NULL;
        if (parse_token(req->token, token) < 0)
                return error_set(error, STREAMER_EINVAL, "reclaim: token: 32 hexadecimal digits are needed");
        if (session->n_leases >= session->server->limits.leases_per_client)
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

void session_reclaim(struct session *session, const struct request *request)
{
        struct error error = {0};
        struct lease *lease = NULL;
        if (reclaim(session, &request->u.reclaim, &lease, &error) < 0) {
                session_error(session, request->id, &error);
                return;
        }
        const struct generation *g = lease->generation;
        leave_owner(lease);
        lease->owner = session;
        lease->following = was_loading(&request->u.reclaim);
        lease->dirty = false;
        lease->revoked = g->quarantined; /* an event may have got lost with the old connection: the reply says it */
        list_append(&session->leases, &lease->in_owner);
        session->n_leases++;
        struct writer w;
        session_reply(&w, request->id, 3);
        writer_ku64(&w, "lease", lease->id);
        writer_ku64(&w, "generation", g->number);
        writer_kstr(&w, "state", lease->revoked ? "revoked" : generation_state_name(g->state));
        session_send(session, &w);
        if (!lease->following)
                return;
        lease->told = 0;
        session_tell_lease(session, lease);
}
