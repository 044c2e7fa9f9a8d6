/* SPDX-License-Identifier: Apache-2.0
 *
 * Attach and detach.
 *
 * An attach is answered once its generation (attach_select.h) has tables and segments.
 */
#include "daemon/base/fallback/pidfd.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ---- the client's process ---- */

struct process *attach_process(struct session *session, struct error *error)
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
                error_no_memory(error);
        return process;
}

/* ---- limits ---- */

/* Legacy handles open in the daemon's PID namespace only, and are writable in the client. Only the exit of its process
 * proves that the client no longer maps the memory. */
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

/* ---- the reply ---- */

struct attached {
        const struct generation *generation;
        struct fds *fds;
};

static void write_segments(struct writer *w, const void *data)
{
        const struct attached *attached = data;
        const struct generation *g = attached->generation;
        size_t first = attached->fds->n;
        writer_array(w, g->n_segments);
        for (unsigned i = 0; i < g->n_segments; i++) {
                struct handle handle;
                g->device->ops->handle(&g->segments[i], &handle);
                writer_map_of(w, REPLY_SEGMENT(handle, g, i, first + i), ku64("generation", g->number),
                              reply_digest(g));
                if (handle.fd >= 0)
                        attached->fds->v[attached->fds->n++] = handle.fd;
        }
}

static void reply_attach(struct session *session, uint64_t id, const struct lease *lease, const char *model)
{
        const struct generation *g = lease->generation;
        const struct device *d = g->device;
        struct fds fds = {.v = {g->manifest.fd, g->arrival.fd}, .n = lease->state == LEASE_LOADING ? 2 : 1};
        const struct attached attached = {g, &fds};
        session_reply_fds(
                session, id, &fds, ku64("lease", lease->id), khex("token", lease->token, LEASE_TOKEN),
                kstr("model", model), ku64("generation", g->number), reply_digest(g),
                kstr("state", generation_state_name(g->state)), kstr("device", d->name),
                kstr("device_kind", d->ops->kind), kstr("device_uuid", d->uuid), ku64("bytes", g->data_bytes),
                kmap("manifest", ku64("fd", 0), ku64("size", g->manifest.size)),
                kif(lease->state == LEASE_LOADING, kmap("arrival", ku64("fd", 1), ku64("size", g->arrival.size))),
                ku64("arrived", lease->notified_arrivals), kcall("segments", write_segments, &attached));
}

int attach_lease_new(struct session *session, struct generation *g, struct lease **out, struct error *error)
{
        if (session->n_leases >= session->server->limits->leases_per_client)
                return error_set(error, STREAMER_ELIMIT,
                                 "attach: this connection holds %" PRIu64 " leases (limits.leases_per_client)",
                                 session->n_leases);
        int r = check_trust(session, g, error);
        if (r < 0)
                return r;
        struct quota_charge charge = {.user = NULL};
        r = access_charge(session->server, session->conn, &charge, QUOTA_LEASES, 1, error);
        struct process *process = r == 0 ? attach_process(session, error) : NULL;
        if (process == NULL) {
                quota_discharge(&charge);
                return error->code;
        }
        struct lease *lease = lease_new(&session->server->leases, process, g, session);
        if (lease == NULL) {
                quota_discharge(&charge);
                process_reap(process);
                return error_no_memory(error);
        }
        lease->charge = charge;
        g->was_shared = (g->device->caps & DEVICE_SHARED_WRITABLE) != 0;
        g->shared_by = session->conn->caller.uid;
        if (process->client == NULL && session->client != NULL)
                process->client = strdup(session->client);
        list_append(&session->leases, &lease->in_owner);
        session->n_leases++;
        *out = lease;
        return 0;
}

int attach_reply_lease(struct session *session, uint64_t id, struct generation *g, const char *model,
                       struct error *error)
{
        struct lease *lease;
        int r = session_check_fds(session, g->n_segments + 2, "attach", error);
        if (r == 0)
                r = access_check_published(session->server, session->conn, g, error);
        if (r == 0)
                r = attach_lease_new(session, g, &lease, error);
        if (r < 0)
                return r;
        lease->notified_arrivals = lease->state == LEASE_LOADING ? generation_arrived(g) : g->n_tensors;
        reply_attach(session, id, lease, model);
        return 0;
}

/* The model is not resident, and the daemon will load it. */
static bool is_desired(const struct server *server, const struct req_attach *req)
{
        if (req->model == NULL || req->generation != 0 || resident_any(server->resident, req->model) != NULL)
                return false;
        const struct desired_model *desired = desired_find(&server->desired, req->model);
        return desired != NULL && !desired_failed(desired);
}

static int try_attach(struct session *session, const struct request *request, const struct deferred *deferred,
                      struct error *error)
{
        (void)deferred;
        const struct req_attach *req = &request->u.attach;
        struct generation *g = NULL;
        int r = attach_select(session->server->resident, req, &g, error);
        if (r < 0 && is_desired(session->server, req))
                return DEFERRED_WAITS;
        if (r != 0)
                return r;
        return attach_reply_lease(session, request->id, g, req->model != NULL ? req->model : generation_name(g), error);
}

int verb_attach(struct session *session, struct request *request, struct error *error)
{
        return deferred_wait(session, request, try_attach, request->u.attach.model, request->u.attach.timeout_ms,
                             error);
}

/* ---- afterwards ---- */

int verb_detach(struct session *session, struct request *request, struct error *error)
{
        list_each_item (struct lease, lease, &session->leases, in_owner) {
                if (lease->id != request->u.detach.lease)
                        continue;
                session->n_leases--;
                if (session->server->trust_detach || !(lease->generation->device->caps & DEVICE_SHARED_WRITABLE))
                        lease_end(&session->server->leases, lease);
                else
                        lease_abandon(&session->server->leases, lease);
                session_ok(session, request->id);
                return 0;
        }
        return error_set(error, STREAMER_ENOENT, "lease %" PRIu64 ": not held by this connection",
                         request->u.detach.lease);
}

void attach_abandon_leases(struct session *session)
{
        while (!list_empty(&session->leases))
                lease_abandon(&session->server->leases, container_of(session->leases.next, struct lease, in_owner));
        session->n_leases = 0;
}
