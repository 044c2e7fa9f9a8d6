/* SPDX-License-Identifier: Apache-2.0
 *
 * unload: removes a name, on one device or on all.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/sys/sysfile.h"
#include "daemon/resident/model_set.h"
#include "daemon/serve/access/access.h"

#include <inttypes.h>
#include <string.h>

static bool last_name(const struct generation *g)
{
        return g->names.next == g->names.prev;
}

/* Adds the generations of the name in this state, on one device or (NULL) on all; at most one on each. Where others
 * were found, failures are added only of their loads, which reached some of their devices. */
static void unload_find(struct model_set *group, struct resident *resident, enum generation_state state,
                        const struct device *device)
{
        size_t before = group->n;
        for (size_t i = 0; i < resident->n_devices && group->n < MODEL_SET_MAX; i++) {
                struct device *d = resident->devices[i];
                struct generation *g =
                        device == NULL || device == d ? resident_on(resident, group->name, state, d) : NULL;
                bool adds = state != GENERATION_FAILED || before == 0;
                for (size_t k = 0; g != NULL && k < before; k++)
                        adds = adds || group->members[k]->number == g->number;
                if (g != NULL && adds)
                        group->members[group->n++] = g;
        }
}

/* All or nothing: if one is in use, none is unloaded. */
static int unload_check(struct resident *resident, const struct req_unload *req, const struct device *device,
                        struct model_set *group, struct error *error)
{
        *group = (struct model_set){.name = req->model};
        unload_find(group, resident, GENERATION_READY, device);
        if (group->n == 0 && resident_on(resident, req->model, GENERATION_LOADING, device) != NULL)
                return error_set(error, STREAMER_EBUSY, "%s: is loading (cancel ends that)", req->model);
        unload_find(group, resident, GENERATION_CACHED, device);
        unload_find(group, resident, GENERATION_FAILED, device);
        if (group->n == 0 && device != NULL && resident_any(resident, req->model) != NULL)
                return error_set(error, STREAMER_ENOENT, "%s: not on device %s", req->model, req->device);
        if (group->n == 0)
                return resident_no_model(resident, req->model, error);
        uint64_t leases = 0;
        for (size_t i = 0; i < group->n; i++)
                if (last_name(group->members[i]))
                        leases += group->members[i]->n_leases;
        if (leases == 0 || req->drain || req->force)
                return 0;
        return error_set(error, STREAMER_EBUSY,
                         "%s: in use by %" PRIu64 " lease%s (--drain refuses new leases, --force revokes them)",
                         req->model, leases, leases == 1 ? "" : "s");
}

/* Whether the unloaded memory is free, except what leases hold. */
static bool is_unloaded(struct resident *resident, const struct req_unload *req, uint64_t number)
{
        const struct device *device = req->device != NULL ? resident_device(resident, req->device, NULL) : NULL;
        resident_each_named(n, resident, req->model)
        {
                const struct generation *g = n->generation;
                if (list_empty(&g->names) && g->number <= number && g->n_leases == 0 &&
                    (req->device == NULL || g->device == device))
                        return false;
        }
        return true;
}

static int try_unloaded(struct session *session, const struct request *request, const struct deferred *deferred,
                        struct error *error)
{
        const struct req_unload *req = &request->u.unload;
        if (!is_unloaded(session->server->resident, req, deferred->generation))
                return DEFERRED_WAITS;
        return session_reply_state(session, request->id, req->model, "unloaded", deferred->generation);
}

/* Applies --force or a drain timeout to generations that lost the name earlier and are still leased, if they belong to
 * the caller or it is an admin. The newest one's number; 0: none. */
static uint64_t unload_draining(struct session *session, const struct req_unload *req, const struct device *device)
{
        uint64_t number = 0;
        const struct role_grant grant = access_grant(session->server, session->conn);
        resident_each_named(n, session->server->resident, req->model)
        {
                struct generation *g = n->generation;
                bool mine = grant.role >= ROLE_ADMIN || generation_owner(g) == session->conn->caller.uid;
                if (g->state != GENERATION_DRAINING || g->n_leases == 0 || !mine ||
                    (device != NULL && g->device != device))
                        continue;
                number = g->number;
                generation_drain_for(g, req->drain_timeout_ms * MS);
                if (req->force)
                        generation_revoke(g);
        }
        return number;
}

/* Replies once the memory is free, so that the next load finds the capacity; at once where leases hold it. */
static int unload_all(struct session *session, struct request *request, const struct model_set *group,
                      struct error *error)
{
        const struct req_unload *req = &request->u.unload;
        const struct conn *conn = session->conn;
        uint64_t number = 0, timeout_ns = req->drain_timeout_ms * MS;
        char comm[SYSFILE_COMM] = "";
        const char *stays_as = NULL; /* the oldest other name of a model that keeps one */
        bool held = false;
        if (conn->pid > 0)
                sysfile_comm(comm, conn->pid);
        if (timeout_ns == 0)
                timeout_ns = session->server->loads->defaults.drain_timeout_ns;
        for (size_t i = 0; i < group->n; i++) {
                struct generation *g = group->members[i];
                held = held || (last_name(g) && g->n_leases > 0);
                number = g->number > number ? g->number : number;
                bool revocable = g->n_leases > 0 && last_name(g) && g->state == GENERATION_READY;
                if (revocable)
                        generation_drain_for(g, timeout_ns);
                end_reason_set(&g->end, END_UNLOADED, "by uid %u, pid %d%s%s", (unsigned)conn->caller.uid,
                               (int)conn->pid, comm[0] != '\0' ? " " : "", comm);
                generation_drop_name(g, req->model);
                if (revocable && req->force)
                        generation_revoke(g);
                if (!list_empty(&g->names) && stays_as == NULL)
                        stays_as = generation_name(g);
        }
        if (held || req->drain || is_unloaded(session->server->resident, req, number))
                return session_reply(session, request->id, kstr("name", req->model),
                                     kstr("state", held ? "draining" : "unloaded"), ku64("generation", number),
                                     kif(stays_as != NULL, kstr("stays_as", stays_as)));
        struct deferred *d = deferred_new(session, request, error);
        if (d == NULL)
                return error->code;
        d->generation = number;
        deferred_await_change(d, d->request.u.unload.model, try_unloaded);
        return 0;
}

int verb_unload(struct session *session, struct request *request, struct error *error)
{
        const struct req_unload *req = &request->u.unload;
        struct resident *resident = session->server->resident;
        /* NULL: on all */
        const struct device *device = req->device != NULL ? resident_device(resident, req->device, NULL) : NULL;
        struct model_set group;
        if (req->device != NULL && device == NULL)
                return error_set(error, STREAMER_ENOENT, "%s: not on device %s", req->model, req->device);
        int r = unload_check(resident, req, device, &group, error);
        bool accepted = r == 0 || r == STREAMER_ENOENT;
        bool revokes = accepted && (req->force || req->drain_timeout_ms > 0);
        uint64_t draining = revokes ? unload_draining(session, req, device) : 0;
        bool desired = accepted && desired_forget(&session->server->desired, req->model, req->device);
        if (r == 0)
                return unload_all(session, request, &group, error);
        if (!desired && draining == 0)
                return r;
        return session_reply_state(session, request->id, req->model, desired ? "unloaded" : "draining",
                                   desired ? 0 : draining);
}
