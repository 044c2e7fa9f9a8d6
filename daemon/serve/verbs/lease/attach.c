/* SPDX-License-Identifier: Apache-2.0
 *
 * Attach and detach.
 *
 * An attach is answered once its generation has tables and segments.
 */
#include "daemon/base/fallback/peer.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* ---- the generation ----
 *
 * The one that serves, else the one that loads; if the request names a generation or a digest, only that one. For a
 * model on several devices the client names one. */

static bool digest_is(const struct generation *g, const char *hex)
{
        char text[2 * DIGEST_SIZE + 1];
        hex_encode(text, g->digest, DIGEST_SIZE);
        return strcasecmp(text, hex) == 0;
}

/* What the name leads to in this state, if it is the generation that was asked for. */
static struct generation *asked_for(struct resident *resident, const struct req_attach *req,
                                    enum generation_state state, const struct device *device)
{
        struct generation *g = resident_on(resident, req->model, state, device);
        return g != NULL && (req->generation == 0 || g->number == req->generation) ? g : NULL;
}

/* Devices that have it in this state, each once; "cuda:0, cuda:1". */
static size_t devices_of(struct resident *resident, const struct req_attach *req, enum generation_state state,
                         const struct device **first, char *names, size_t size)
{
        size_t n = 0;
        names[0] = '\0';
        for (size_t i = 0; i < resident->n_devices; i++) {
                const struct device *device = resident->devices[i];
                if (asked_for(resident, req, state, device) == NULL)
                        continue;
                *first = n++ == 0 ? device : *first;
                format_append(names, size, "%s%s", n > 1 ? ", " : "", device->name);
        }
        return n;
}

/* The only device where it serves, else where it loads; NULL: none. */
static int choose_device(struct resident *resident, const struct req_attach *req, const struct device **device,
                         struct error *error)
{
        char names[400];
        *device = NULL;
        size_t n = devices_of(resident, req, GENERATION_READY, device, names, sizeof(names));
        if (n == 0)
                n = devices_of(resident, req, GENERATION_LOADING, device, names, sizeof(names));
        if (req->device == NULL && n > 1)
                return error_set(error, STREAMER_EINVAL, "%s: is on several devices, one must be named: %s", req->model,
                                 names);
        if (req->device == NULL)
                return 0;
        *device = resident_device(resident, req->device, NULL);
        if (*device == NULL || (resident_on(resident, req->model, GENERATION_READY, *device) == NULL &&
                                resident_on(resident, req->model, GENERATION_LOADING, *device) == NULL &&
                                resident_on(resident, req->model, GENERATION_FAILED, *device) == NULL && n > 0))
                return error_set(error, STREAMER_ENOENT, "%s: not on device %s (it is on: %s)", req->model, req->device,
                                 n > 0 ? names : "none");
        return 0;
}

static int not_there(struct resident *resident, const struct req_attach *req, const struct device *device,
                     struct error *error)
{
        const struct generation *failed = resident_on(resident, req->model, GENERATION_FAILED, device);
        if (failed != NULL)
                return error_set(error, failed->error.code, "%s: %s", req->model, failed->error.text);
        if (resident_on(resident, req->model, GENERATION_CACHED, device) != NULL)
                return error_set(error, STREAMER_ENOENT, "%s: is in the host cache: load brings it back", req->model);
        return resident_no_model(resident, req->model, error);
}

/* A load from the host cache has a manifest before all bytes are copied, and no arrival log. */
bool attach_can_follow(const struct generation *g)
{
        return g->manifest.fd >= 0 && g->arrival.fd >= 0;
}

/* Any model that is ready: of one that loads the digest is not known. */
static int by_digest(struct resident *resident, const struct req_attach *req, struct generation **out,
                     struct error *error)
{
        const struct device *device = NULL;
        if (req->digest == NULL)
                return error_set(error, STREAMER_EINVAL, "attach: a model or a digest is required");
        if (req->device != NULL && (device = resident_device(resident, req->device, error)) == NULL)
                return error->code;
        list_each_item (struct generation, g, &resident->generations, link)
                if (g->state == GENERATION_READY && (device == NULL || g->device == device) &&
                    (req->generation == 0 || g->number == req->generation) && digest_is(g, req->digest)) {
                        *out = g;
                        return 0;
                }
        return error_set(error, STREAMER_ENOENT, "attach: no model that is ready has the digest %s", req->digest);
}

/* 0 with *out; DEFERRED_WAITS: to be repeated after a change; or an error. */
static int attach_select(struct resident *resident, const struct req_attach *req, struct generation **out,
                         struct error *error)
{
        const struct device *device;
        if (req->model == NULL)
                return by_digest(resident, req, out, error);
        int r = choose_device(resident, req, &device, error);
        if (r < 0)
                return r;
        bool known = req->generation == 0;
        list_each_item (const struct generation, g, &resident->generations, link)
                known = known || (g->number == req->generation && (device == NULL || g->device == device) &&
                                  generation_has_name(g, req->model));
        if (!known)
                return error_set(error, STREAMER_ENOENT, "%s: no generation %" PRIu64, req->model, req->generation);
        struct generation *ready = asked_for(resident, req, GENERATION_READY, device);
        struct generation *loading = asked_for(resident, req, GENERATION_LOADING, device);
        bool differs = ready != NULL && req->digest != NULL && !digest_is(ready, req->digest);
        *out = ready != NULL ? ready : loading;
        if (*out == NULL)
                return not_there(resident, req, device, error);
        if (ready != NULL && !differs)
                return 0;
        /* The digest of what loads is not known. */
        if (loading != NULL)
                return attach_can_follow(loading) && !req->ready && req->digest == NULL ? 0 : DEFERRED_WAITS;
        return error_set(error, STREAMER_EDIGEST, "%s: its digest is not %s", req->model, req->digest);
}

/* ---- the client's process ---- */

struct process *attach_process(struct session *session, struct error *error)
{
        const struct conn *conn = session->conn;
        uint64_t began;
        int fd = pidfd_of_client(conn->fd, conn->pid, conn->since_boot_ns, &began);
        if (fd < 0 && began == 0) {
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

static void write_segment(struct writer *w, const void *data, size_t i)
{
        const struct attached *attached = data;
        const struct generation *g = attached->generation;
        struct fds *fds = attached->fds;
        const struct segment *segment = &g->segments[i];
        writer_map_of(w, REPLY_SEGMENT(segment, fds->n), ku64("generation", g->number), reply_digest(g));
        if (segment->fd >= 0)
                fds->v[fds->n++] = segment->fd;
}

static void reply_attach(struct session *session, uint64_t id, const struct lease *lease, const char *model)
{
        const struct generation *g = lease->generation;
        const struct device *d = g->device;
        struct fds fds; /* without zeroing all of it */
        const struct attached attached = {g, &fds};
        fds.v[0] = g->manifest.fd;
        fds.v[1] = g->arrival.fd;
        fds.n = lease->state == LEASE_LOADING ? 2 : 1;
        session_reply_fds(
                session, id, &fds, ku64("lease", lease->id), khex("token", lease->token, LEASE_TOKEN),
                kstr("model", model), ku64("generation", g->number), reply_digest(g),
                kstr("state", generation_state_name(g->state)), kstr("device", d->name),
                kstr("device_kind", d->ops->kind), kstr("device_uuid", d->uuid), ku64("bytes", g->data_bytes),
                kmap("manifest", ku64("fd", 0), ku64("size", g->manifest.size)),
                kif(lease->state == LEASE_LOADING, kmap("arrival", ku64("fd", 1), ku64("size", g->arrival.size))),
                ku64("arrived", lease->notified_arrivals), karray("segments", write_segment, &attached, g->n_segments));
}

int attach_lease_new(struct session *session, struct generation *g, struct lease **out, struct error *error)
{
        if (session->n_leases >= session->server->limits->leases_per_client)
                return error_set(error, STREAMER_ELIMIT,
                                 "attach: this connection holds %" PRIu64 " leases (limits.leases_per_client)",
                                 session->n_leases);
        struct quota_charge charge = {.user = NULL};
        int r = check_trust(session, g, error)
                        ?: access_charge(session->server, session->conn, &charge, QUOTA_LEASES, 1, error);
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
        int r = session_check_fds(session, g->n_segments + 2, "attach", error)
                        ?: access_check_published(session->server, session->conn, g, error)
                        ?: attach_lease_new(session, g, &lease, error);
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
