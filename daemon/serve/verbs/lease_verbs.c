/* SPDX-License-Identifier: Apache-2.0
 *
 * attach, detach and reclaim.
 *
 * An attach is answered once its generation has tables and segments. A client reclaims a lease after its connection, or
 * the daemon, was lost:
 *
 *   of this run          the lease is found by its token, and moves to the new connection
 *   of an earlier run    the same, if its process was found; of another PID namespace, it may not be: then the snapshot
 *                        has the token, and the lease is made from it
 *
 * Only the process that got the token may use it. A lease that has ended, or whose model has changed, is "lost".
 */
#include "daemon/base/fallback/peer.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/events/events.h"
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
        unsigned char digest[DIGEST_SIZE];
        return hex_decode(digest, hex, DIGEST_SIZE) && memcmp(digest, g->digest, DIGEST_SIZE) == 0;
}

/* What the name leads to in this state, if it is the generation that was asked for. */
static struct generation *asked_for(struct resident *resident, const struct req_attach *req,
                                    enum generation_state state, const struct device *device)
{
        struct generation *g = resident_on(resident, req->model, state, device);
        return g != NULL && (req->generation == 0 || g->number == req->generation) ? g : NULL;
}

/* Any model that is ready, of those that the caller may attach to: of one that loads the digest is not known. */
static int by_digest(const struct session *session, const struct req_attach *req, struct generation **out,
                     struct error *error)
{
        struct resident *resident = session->server->resident;
        const struct device *device = NULL;
        unsigned char digest[DIGEST_SIZE];
        int denied = 0;
        if (req->digest == NULL)
                return error_set(error, STREAMER_EINVAL, "attach: a model or a digest is required");
        if (req->device != NULL && (device = resident_device(resident, req->device, error)) == NULL)
                return error->code;
        bool is_digest = hex_decode(digest, req->digest, DIGEST_SIZE);
        for (struct generation *g = is_digest ? resident_first_ready_digest(resident, digest) : NULL; g != NULL;
             g = generation_next_ready_digest(g)) {
                if ((device != NULL && g->device != device) || (req->generation != 0 && g->number != req->generation))
                        continue;
                *out = g;
                int r = access_check_attach(session->server, session->conn, g, error);
                if (r == 0)
                        return 0;
                denied = r;
        }
        if (denied < 0)
                return denied;
        return error_set(error, STREAMER_ENOENT, "attach: no model that is ready has the digest %s", req->digest);
}

struct places {
        const struct device *devices[RESIDENT_DEVICES];
        size_t n;
};

/* The devices where it serves, else those where it loads. */
static void find_devices(struct resident *resident, const struct req_attach *req, struct places *on)
{
        static const enum generation_state states[] = {GENERATION_READY, GENERATION_LOADING};
        on->n = 0;
        for (size_t s = 0; s < ARRAY_SIZE(states) && on->n == 0; s++)
                for (size_t i = 0; i < resident->n_devices; i++)
                        if (asked_for(resident, req, states[s], resident->devices[i]) != NULL)
                                on->devices[on->n++] = resident->devices[i];
}

#define DEVICES_TEXT 400

static const char *list_devices(char names[DEVICES_TEXT], const struct places *on)
{
        names[0] = '\0';
        for (size_t i = 0; i < on->n; i++)
                format_append(names, DEVICES_TEXT, "%s%s", i > 0 ? ", " : "", on->devices[i]->name);
        return names;
}

/* A generation of this number, 0: any, has the name on this device, NULL: on any. */
static bool is_named(const struct resident *resident, const char *name, uint64_t number, const struct device *device)
{
        resident_each_named(n, resident, name)
        {
                const struct generation *g = n->generation;
                if ((number == 0 || g->number == number) && (device == NULL || g->device == device) &&
                    !list_empty(&g->names))
                        return true;
        }
        return false;
}

/* The device that is asked for, else the only one of the model; NULL: it is on none. */
static int select_device(struct resident *resident, const struct req_attach *req, const struct device **device,
                         struct error *error)
{
        char names[DEVICES_TEXT];
        struct places on;
        find_devices(resident, req, &on);
        if (req->device == NULL && on.n > 1)
                return error_set(error, STREAMER_EINVAL, "%s: is on several devices, one must be named: %s", req->model,
                                 list_devices(names, &on));
        if (req->device == NULL) {
                *device = on.n > 0 ? on.devices[0] : NULL;
                return 0;
        }
        *device = resident_device(resident, req->device, NULL);
        if (*device == NULL || (on.n > 0 && !is_named(resident, req->model, 0, *device)))
                return error_set(error, STREAMER_ENOENT, "%s: not on device %s (it is on: %s)", req->model, req->device,
                                 on.n > 0 ? list_devices(names, &on) : "none");
        return 0;
}

/* Why nothing of the model serves or loads on the device. */
static int explain_none(struct resident *resident, const struct req_attach *req, const struct device *device,
                        struct error *error)
{
        if (!is_named(resident, req->model, req->generation, device) && req->generation != 0)
                return error_set(error, STREAMER_ENOENT, "%s: no generation %" PRIu64, req->model, req->generation);
        const struct generation *failed = resident_on(resident, req->model, GENERATION_FAILED, device);
        if (failed != NULL)
                return error_set(error, generation_error(failed)->code, "%s: %s", req->model,
                                 generation_error(failed)->text);
        if (resident_on(resident, req->model, GENERATION_CACHED, device) != NULL)
                return error_set(error, STREAMER_ENOENT, "%s: is in the host cache: load brings it back", req->model);
        return resident_no_model(resident, req->model, error);
}

/* 0 with *out; DEFERRED_WAITS: to be repeated after a change; or an error. */
static int attach_select(struct session *session, const struct req_attach *req, struct generation **out,
                         struct error *error)
{
        struct resident *resident = session->server->resident;
        const struct device *device;
        if (req->model == NULL)
                return by_digest(session, req, out, error);
        if (select_device(resident, req, &device, error) < 0)
                return error->code;
        struct generation *ready = asked_for(resident, req, GENERATION_READY, device);
        struct generation *loading = asked_for(resident, req, GENERATION_LOADING, device);
        if (ready != NULL && (req->digest == NULL || digest_is(ready, req->digest))) {
                *out = ready;
                return 0;
        }
        if (loading == NULL && ready != NULL)
                return error_set(error, STREAMER_EDIGEST, "%s: its digest is not %s", req->model, req->digest);
        if (loading == NULL)
                return explain_none(resident, req, device, error);
        /* The digest of what loads is not known yet. */
        if (req->ready || req->digest != NULL || !attach_can_follow(loading))
                return DEFERRED_WAITS;
        *out = loading;
        return 0;
}

/* ---- leases ---- */

/* The client's, watched; it is freed with its last lease (process_reap() where it gets none). NULL with *error. */
static struct process *client_process(struct session *session, struct error *error)
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

static int check_leases(const struct session *session, const char *verb, struct error *error)
{
        if (session->leases.n < session->server->limits->leases_per_client)
                return 0;
        return error_set(error, STREAMER_ELIMIT, "%s: this connection holds %zu leases (limits.leases_per_client)",
                         verb, session->leases.n);
}

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

struct lease *attach_lease_new(struct session *session, struct generation *g, struct error *error)
{
        struct quota_charge charge = {.user = NULL};
        struct lease *lease = NULL;
        int r = check_leases(session, "attach", error)
                        ?: check_trust(session, g, error)
                        ?: access_charge(session->server, session->conn, &charge, QUOTA_LEASES, 1, error);
        struct process *process = r == 0 ? client_process(session, error) : NULL;
        if (process != NULL && (lease = lease_new(&session->server->leases, process, g, &session->leases)) == NULL) {
                process_reap(process);
                error_no_memory(error);
        }
        if (lease == NULL) {
                quota_discharge(&charge);
                return NULL;
        }
        lease->charge = charge;
        g->was_shared = (g->device->caps & DEVICE_SHARED_WRITABLE) != 0;
        g->shared_by = session->conn->caller.uid;
        if (process->client == NULL && session->client != NULL)
                process->client = strdup(session->client);
        return lease;
}

/* ---- attach and detach ---- */

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

int attach_reply_lease(struct session *session, uint64_t id, struct generation *g, const char *model,
                       struct error *error)
{
        const struct device *d = g->device;
        int r = session_check_fds(session, g->n_segments + 2, "attach", error)
                        ?: access_check_attach(session->server, session->conn, g, error);
        struct lease *lease = r == 0 ? attach_lease_new(session, g, error) : NULL;
        if (lease == NULL)
                return error->code;
        bool loading = lease->state == LEASE_LOADING;
        lease->notified_arrivals = loading ? generation_arrived(g) : g->n_tensors;
        struct fds fds; /* without zeroing all of it */
        const struct attached attached = {g, &fds};
        fds.v[0] = g->manifest.fd;
        fds.v[1] = g->arrival.fd;
        fds.n = loading ? 2 : 1;
        return session_reply_fds(
                session, id, &fds, ku64("lease", lease->id), khex("token", lease->token, LEASE_TOKEN),
                kstr("model", model), ku64("generation", g->number), reply_digest(g),
                kstr("state", generation_state_name(g->state)), kstr("device", d->name),
                kstr("device_kind", d->ops->kind), kstr("device_uuid", d->uuid), ku64("bytes", g->data_bytes),
                kmap("manifest", ku64("fd", 0), ku64("size", g->manifest.size)),
                kif(loading, kmap("arrival", ku64("fd", 1), ku64("size", g->arrival.size))),
                ku64("arrived", lease->notified_arrivals), karray("segments", write_segment, &attached, g->n_segments));
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
        int r = attach_select(session, req, &g, error);
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

int verb_detach(struct session *session, struct request *request, struct error *error)
{
        struct leases *leases = &session->server->leases;
        struct lease *lease = lease_of_owner(leases, &session->leases, request->u.detach.lease);
        if (lease == NULL)
                return error_set(error, STREAMER_ENOENT, "lease %" PRIu64 ": not held by this connection",
                                 request->u.detach.lease);
        if (session->server->trust_detach || !(lease->generation->device->caps & DEVICE_SHARED_WRITABLE))
                lease_end(leases, lease);
        else
                lease_abandon(leases, lease);
        return session_ok(session, request->id);
}

/* ---- reclaim ---- */

/* Across PID namespaces one end sees no process id: then the token alone decides. */
static bool same_process(const struct conn *conn, pid_t pid, uid_t uid)
{
        return conn->caller.uid == uid && (conn->pid <= 0 || pid <= 0 || conn->pid == pid);
}

/* The client has no digest if it attached during the load. */
static bool same_model(const struct generation *g, const struct req_reclaim *req)
{
        bool serves = (g->state == GENERATION_READY || generation_drains(g)) && digest_is(g, req->digest);
        return g->number == req->generation && (req->digest[0] == '\0' || serves);
}

/* The lease; one of an earlier run, whose process was not restored, is made from its record: the client is that
 * process. NULL with *error. */
static struct lease *find_lease(struct session *session, const struct req_reclaim *req, struct error *error)
{
        struct persist *persist = &session->server->persist;
        struct conn *conn = session->conn;
        unsigned char token[LEASE_TOKEN];
        bool valid = hex_decode(token, req->token, LEASE_TOKEN);
        require(valid);
        struct lease *lease = leases_by_token(&session->server->leases, token);
        const struct lease_record *record = lease == NULL ? persist_unverified(persist, token) : NULL;
        struct generation *g = lease != NULL    ? lease->generation
                               : record != NULL ? persist_generation(persist, record->model)
                                                : NULL;
        int r = 0;
        if ((lease != NULL && !same_process(conn, lease->process->pid, lease->process->uid)) ||
            (record != NULL && !same_process(conn, (pid_t)record->pid, record->uid)))
                r = error_set(error, STREAMER_EPERM, "reclaim: the lease is another process's (uid %u, pid %d)",
                              (unsigned)conn->caller.uid, (int)conn->pid);
        else if (g == NULL || !same_model(g, req))
                r = error_set(error, STREAMER_ELOST, "reclaim: the daemon does not hold this lease any more");
        if (r < 0)
                return NULL;
        if (lease != NULL)
                return lease;
        struct process *process = client_process(session, error);
        if (process != NULL && (lease = persist_lease_restore(persist, process, g, record)) == NULL) {
                process_reap(process);
                error_no_memory(error);
        }
        return lease;
}

int verb_reclaim(struct session *session, struct request *request, struct error *error)
{
        const struct req_reclaim *req = &request->u.reclaim;
        if (strlen(req->token) != 2 * LEASE_TOKEN || strspn(req->token, "0123456789abcdef") != 2 * LEASE_TOKEN)
                return error_set(error, STREAMER_EINVAL, "reclaim: token: 32 hexadecimal digits are needed");
        struct lease *lease = check_leases(session, "reclaim", error) == 0 ? find_lease(session, req, error) : NULL;
        if (lease == NULL)
                return error->code;
        const struct generation *g = lease->generation;
        /* An event may have got lost with the old connection: the reply says that the lease is revoked. */
        lease_claim(lease, &session->leases,
                    req->digest[0] == '\0'           ? LEASE_LOADING
                    : g->state == GENERATION_REVOKED ? LEASE_REVOKED
                                                     : LEASE_HELD);
        session_reply(session, request->id, ku64("lease", lease->id), ku64("generation", g->number),
                      kstr("state", g->state == GENERATION_REVOKED ? "revoked" : generation_state_name(g->state)));
        lease->notified_arrivals = 0;
        events_mark_lease(session, lease);
        return 0;
}
