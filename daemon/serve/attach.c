/* SPDX-License-Identifier: Apache-2.0
 *
 * Attach, detach, and what a lease is told while its model loads.
 *
 * An attach is answered when there is something to hand out: tables and segments (attach_choice.h says of what).
 */
#include "daemon/base/pidfd.h"
#include "daemon/serve/access.h"
#include "daemon/serve/attach_choice.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/session.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ---- the client's process ---- */

struct process *session_process(struct session *session, struct error *error)
{
        const struct conn *conn = session->conn;
        uint64_t began;
        int fd = pidfd_of_client(conn->fd, conn->pid, conn->since_boot_ns, &began);
        if (fd < 0) {
                error_errno(error, STREAMER_EUNSUPPORTED, errno, "the client's process cannot be watched");
                return NULL;
        }
        struct process *process =
                leases_process_consume_fd(&session->server->leases, conn->pid, conn->caller.uid, fd, began);
        if (process == NULL)
                error_set(error, STREAMER_ENOMEM, "no memory");
        return process;
}

/* ---- limits ---- */

#define RECOUNT_NS UINT64_C(2000000)

static uint64_t fds_in_flight(struct server *server)
{
        uint64_t n = 0;
        list_each (pos, &server->conns) {
                struct conn *conn = container_of(pos, struct conn, link);
                if (conn->fds_sent > 0)
                        n += conn_fds_in_flight(conn);
        }
        return n;
}

/* All that were sent since they were counted may still be in flight. Counting asks the kernel of each connection, so it
 * is done where that might be too many, and not for each of a crowd. */
static bool fds_have_room(struct server *server, unsigned n_fds)
{
        uint64_t now = now_ns();
        if (server->fds_out + n_fds > server->limits.fds_in_flight && now >= server->fds_counted_ns + RECOUNT_NS) {
                server->fds_out = fds_in_flight(server);
                server->fds_counted_ns = now;
        }
        return server->fds_out + n_fds <= server->limits.fds_in_flight;
}

static int check_limits(struct session *session, unsigned n_fds, struct error *error)
{
        struct server *server = session->server;
        if (session->n_leases >= server->limits.leases_per_client)
                return error_set(error, STREAMER_ELIMIT,
                                 "attach: this connection holds %" PRIu64 " leases (limits.leases_per_client)",
                                 session->n_leases);
        if (session->conn->fds_sent > 0 && conn_fds_in_flight(session->conn) + n_fds > server->limits.fds_per_client)
                return error_set(error, STREAMER_ELIMIT,
                                 "attach: this client does not take its descriptors (limits.fds_per_client)");
        if (!fds_have_room(server, n_fds))
                return error_set(error, STREAMER_ELIMIT,
                                 "attach: too many descriptors are on their way to clients (limits.fds_in_flight)");
        return 0;
}

/* Legacy handles open in the daemon's PID namespace only and are writable in the client; whether the
 * client still maps the memory shows in nothing but its life. */
static int check_trust(const struct session *session, const struct generation *g, struct error *error)
{
        const struct conn *conn = session->conn;
        if (!(g->device->caps & DEVICE_SHARED_WRITABLE))
                return 0;
        if (conn->pid <= 0)
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "attach: cuda-ipc does not reach another PID namespace; run both in one, or let the "
                                 "device hand out cuda-vmm-fd (handles, in the daemon's settings)");
        if (g->was_shared && g->shared_by != conn->caller.uid && !session->server->share_across_uids)
                return error_set(error, STREAMER_EPERM,
                                 "attach: processes of uid %u have had this memory, and could write to it "
                                 "(cuda.across_uids allows it to others; cuda-vmm-fd is mapped for reading)",
                                 (unsigned)g->shared_by);
        return 0;
}

/* From when it is handed out: who was refused for another reason has not had it. */
static void note_trust(const struct session *session, struct generation *g)
{
        g->was_shared = (g->device->caps & DEVICE_SHARED_WRITABLE) != 0;
        g->shared_by = session->conn->caller.uid;
}

/* ---- the reply ---- */

static uint64_t arrived_count(const struct generation *g)
{
        const struct arrival_header *log = g->arrival.map;
        return log == NULL ? 0 : __atomic_load_n(&log->count, __ATOMIC_ACQUIRE);
}

static void write_fd(struct writer *w, const char *key, size_t fd, uint64_t size)
{
        writer_key(w, key);
        writer_map(w, 2);
        writer_ku64(w, "fd", fd);
        writer_ku64(w, "size", size);
}

static void write_segments(struct writer *w, const struct generation *g, size_t first_fd, int *fds, size_t *n_fds)
{
        writer_key(w, "segments");
        writer_array(w, g->n_segments);
        for (unsigned i = 0; i < g->n_segments; i++) {
                struct handle handle;
                g->device->ops->handle(&g->segments[i], &handle);
                writer_map(w, 7);
                writer_kstr(w, "kind", handle.kind);
                if (handle.fd >= 0) {
                        writer_ku64(w, "fd", first_fd + i);
                        fds[(*n_fds)++] = handle.fd;
                } else {
                        writer_key(w, "handle");
                        writer_bin(w, handle.bytes, handle.n_bytes);
                }
                writer_ku64(w, "size", g->segments[i].size);
                writer_ku64(w, "offset", 0);
                writer_kstr(w, "uuid", g->device->uuid);
                writer_ku64(w, "generation", g->number);
                reply_digest(w, "digest", g);
        }
}

static void send_attach(struct session *session, uint64_t id, const struct lease *lease, const char *model)
{
        const struct generation *g = lease->generation;
        int fds[FRAME_FDS_MAX];
        size_t n = 0;
        struct writer w;
        session_reply(&w, id, lease->following ? 14 : 13);
        writer_ku64(&w, "lease", lease->id);
        writer_key(&w, "token");
        writer_hex(&w, lease->token, sizeof(lease->token));
        writer_kstr(&w, "model", model);
        writer_ku64(&w, "generation", g->number);
        reply_digest(&w, "digest", g);
        writer_kstr(&w, "state", generation_state_name(g->state));
        writer_kstr(&w, "device", g->device->name);
        writer_kstr(&w, "device_kind", g->device->ops->kind);
        writer_kstr(&w, "device_uuid", g->device->uuid);
        writer_ku64(&w, "bytes", g->data_bytes);
        write_fd(&w, "manifest", n, g->manifest.size);
        fds[n++] = g->manifest.fd;
        if (lease->following) {
                write_fd(&w, "arrival", n, g->arrival.size);
                fds[n++] = g->arrival.fd;
        }
        writer_ku64(&w, "arrived", lease->told);
        write_segments(&w, g, n, fds, &n);
        session->server->fds_out += n;
        session_send_fds(session, &w, fds, n);
}

static int lease_begin(struct session *session, struct generation *g, const struct request *request,
                       struct error *error)
{
        int r = check_limits(session, g->n_segments + 2, error);
        if (r == 0)
                r = check_trust(session, g, error);
        if (r < 0)
                return r;
        struct user_charge charge = {.user = NULL};
        r = access_charge(session->server, session->conn, &charge, USER_LEASES, 1, error);
        struct process *process = r == 0 ? session_process(session, error) : NULL;
        if (process == NULL) {
                user_discharge(&charge);
                return error->code;
        }
        struct lease *lease = lease_new(&session->server->leases, process, g, session);
        if (lease == NULL) {
                user_discharge(&charge);
                process_settle(process);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        lease->charge = charge;
        note_trust(session, g);
        if (process->client == NULL && session->client != NULL)
                process->client = strdup(session->client);
        list_append(&session->leases, &lease->in_owner);
        session->n_leases++;
        lease->following = g->state == GENERATION_LOADING;
        lease->told = lease->following ? arrived_count(g) : g->n_tensors;
        send_attach(session, request->id, lease, request->u.attach.model);
        return 0;
}

/* Nothing of it is there, and it will be loaded without anybody's asking. */
static bool is_to_come(const struct server *server, const struct req_attach *req)
{
        struct wanted wanted;
        return resident_any(server->resident, req->model) == NULL && req->generation == 0 &&
               wanted_find(server, req->model, &wanted) && !wanted.failed;
}

bool session_attach(struct session *session, const struct request *request)
{
        const struct req_attach *req = &request->u.attach;
        struct error error = {0};
        struct generation *g = NULL;
        enum choice choice = attach_choose(session->server->resident, req, &g, &error);
        if (choice == CHOICE_WAIT || (choice == CHOICE_ERROR && is_to_come(session->server, req)))
                return false;
        if (choice == CHOICE_ERROR || lease_begin(session, g, request, &error) < 0)
                session_error(session, request->id, &error);
        return true;
}

/* ---- afterwards ---- */

void session_detach(struct session *session, const struct request *request)
{
        list_each (pos, &session->leases) {
                struct lease *lease = container_of(pos, struct lease, in_owner);
                if (lease->id != request->u.detach.lease)
                        continue;
                session->n_leases--;
                if (session->server->trust_detach || !(lease->generation->device->caps & DEVICE_SHARED_WRITABLE))
                        lease_end(&session->server->leases, lease);
                else
                        lease_abandon(&session->server->leases, lease);
                session_ok(session, request->id);
                return;
        }
        struct error error;
        error_set(&error, STREAMER_ENOENT, "lease %" PRIu64 ": not held by this connection", request->u.detach.lease);
        session_error(session, request->id, &error);
}

/* The model was taken by force: what the client has mapped stays, but nobody else has it. */
static void tell_revoked(struct session *session, struct lease *lease)
{
        const struct generation *g = lease->generation;
        lease->dirty = !conn_writable(session->conn);
        if (lease->dirty)
                return;
        lease->revoked = true;
        struct writer w;
        conn_writer(&w);
        writer_map(&w, 6);
        writer_kstr(&w, "event", "lease");
        writer_ku64(&w, "lease", lease->id);
        writer_ku64(&w, "arrived", arrived_count(g));
        writer_kstr(&w, "state", "revoked");
        writer_kstr(&w, "code", code_wire(STREAMER_EREVOKED));
        writer_kstr(&w, "text", "the model was unloaded by force; detach to give its memory back");
        session_send(session, &w);
}

static void tell_progress(struct session *session, struct lease *lease)
{
        const struct generation *g = lease->generation;
        uint64_t count = arrived_count(g);
        bool ended = g->state != GENERATION_LOADING, failed = g->state == GENERATION_FAILED;
        if (!lease->following || (!ended && count == lease->told))
                return;
        lease->dirty = !conn_writable(session->conn);
        if (lease->dirty)
                return;
        lease->told = count;
        lease->following = !ended;
        struct writer w;
        conn_writer(&w);
        writer_map(&w, failed ? 7 : 5);
        writer_kstr(&w, "event", "lease");
        writer_ku64(&w, "lease", lease->id);
        writer_ku64(&w, "arrived", count);
        writer_kstr(&w, "state", !ended ? "loading" : failed ? "failed" : "ready");
        reply_digest(&w, "digest", g);
        if (failed) {
                writer_kstr(&w, "code", code_wire(g->error.code));
                writer_kstr(&w, "text", g->error.text);
        }
        session_send(session, &w);
}

/* What was taken had been loaded to its end, and who follows is told that before: every tensor is there to be read. */
void session_tell_lease(struct session *session, struct lease *lease)
{
        lease->dirty = false;
        tell_progress(session, lease);
        if (!lease->dirty && lease->generation->quarantined && !lease->revoked)
                tell_revoked(session, lease);
}

void session_abandon_leases(struct session *session)
{
        while (!list_empty(&session->leases))
                lease_abandon(&session->server->leases, container_of(session->leases.next, struct lease, in_owner));
        session->n_leases = 0;
}
