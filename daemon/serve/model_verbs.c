/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs about models that are there (list, show, verify, pin, unload) and about the daemon (status, version).
 */
#include "daemon/serve/session.h"

#include "daemon/serve/access.h"
#include "daemon/serve/reply.h"
#include "daemon/serve/status.h"

#include <inttypes.h>
#include <string.h>

/* ---- looking ---- */

void session_list(struct session *session, const struct request *request)
{
        struct writer w;
        conn_writer(&w);
        reply_list(&w, session->server, request);
        session_send(session, &w);
}

static void show_wanted(struct session *session, uint64_t id, const struct wanted *wanted)
{
        struct writer w;
        session_reply(&w, id, 1);
        writer_key(&w, "models");
        writer_array(&w, 1);
        reply_wanted(&w, wanted);
        session_send(session, &w);
}

void session_show(struct session *session, const struct request *request)
{
        const struct req_show *req = &request->u.show;
        struct resident *resident = session->server->resident;
        struct generation *g = resident_any(resident, req->model);
        struct wanted wanted;
        if (g == NULL && req->device == NULL && !req->tensors && wanted_find(session->server, req->model, &wanted)) {
                show_wanted(session, request->id, &wanted);
                return;
        }
        if (g == NULL) {
                session_no_model(session, request->id, req->model);
                return;
        }
        struct writer w;
        struct group group;
        struct error error = {0};
        group_find(&group, resident, req->model, g);
        if (req->device != NULL) {
                const struct device *device = resident_device(resident, req->device, NULL);
                g = device != NULL ? group_on(&group, device) : NULL;
        } else {
                g = group_on(&group, NULL);
        }
        if (g == NULL) {
                error_set(&error, STREAMER_ENOENT, "%s: not on device %s", req->model, req->device);
                session_error(session, request->id, &error);
                return;
        }
        conn_writer(&w);
        if (reply_show(&w, session->server, &group, g, request, &error) < 0) {
                writer_deinit(&w);
                session_error(session, request->id, &error);
                return;
        }
        session_send(session, &w);
}

void session_status(struct session *session, const struct request *request)
{
        struct writer w;
        struct error error = {0};
        conn_writer(&w);
        if (status_write(&w, session->server, request, &error) == 0) {
                session_send(session, &w);
                return;
        }
        writer_deinit(&w);
        session_error(session, request->id, &error);
}

void session_version(struct session *session, const struct request *request)
{
        struct writer w;
        session_reply(&w, request->id, 2);
        writer_kstr(&w, "version", STREAMERD_VERSION);
        writer_ku64(&w, "protocol", PROTOCOL_MAX);
        session_send(session, &w);
}

/* ---- verify ---- */

/* As in a group; but the last may have lost its name while it was verified, and the others are to be yet. */
static bool comes_after(const struct generation *g, const struct generation *last)
{
        return g->rank != last->rank ? g->rank > last->rank : g->device->number > last->device->number;
}

/* The next device's copy of what is verified, the first where `last` is NULL; NULL after the last. */
static struct generation *verify_next(const struct deferred *d, struct resident *resident,
                                      const struct generation *last)
{
        struct generation *ready = resident_ready(resident, d->request.u.verify.model);
        struct group group;
        if (ready == NULL || ready->number != d->generation)
                return NULL;
        group_find(&group, resident, d->request.u.verify.model, ready);
        for (size_t i = 0; i < group.n; i++)
                if (group.members[i]->state == GENERATION_READY &&
                    (last == NULL || comes_after(group.members[i], last)))
                        return group.members[i];
        return NULL;
}

static void reply_verified(struct deferred *d)
{
        struct group group;
        struct writer w;
        group_find(&group, d->session->server->resident, d->request.u.verify.model, d->verify.generation);
        session_reply(&w, d->request.id, 6);
        writer_kstr(&w, "model", d->request.u.verify.model);
        writer_ku64(&w, "generation", d->verify.generation->number);
        reply_group_digest(&w, &group);
        writer_ku64(&w, "tensors", d->verified_tensors);
        writer_ku64(&w, "bytes", d->verified_bytes);
        writer_ku64(&w, "devices", d->n_verified);
        session_send(d->session, &w);
}

/* One device after another. */
static void verify_ended(struct verify *verify)
{
        struct deferred *d = container_of(verify, struct deferred, verify);
        const struct generation *g = verify->generation;
        d->n_verified++;
        d->verified_tensors += verify->tensors;
        d->verified_bytes += verify->bytes;
        if (d->session != NULL && verify->error.code != 0) {
                struct error error;
                error_set(&error, verify->error.code, "%s: %s: %s", d->request.u.verify.model, g->device->name,
                          verify->error.text);
                session_error(d->session, d->request.id, &error);
        } else if (d->session != NULL) {
                struct generation *next = verify_next(d, d->session->server->resident, g);
                if (next != NULL) {
                        verify_start(verify, d->session->server->pool, d->session->server->reader, next, verify_ended);
                        return;
                }
                reply_verified(d);
        }
        deferred_free(d);
}

void session_verify(struct session *session, struct request *request)
{
        const char *model = request->u.verify.model;
        struct resident *resident = session->server->resident;
        struct generation *ready = resident_ready(resident, model);
        if (ready == NULL) {
                session_not(session, request->id, model, "ready");
                request_deinit(request);
                return;
        }
        struct deferred *d = deferred_new(session, request);
        if (d == NULL)
                return;
        d->generation = ready->number;
        verify_start(&d->verify, session->server->pool, session->server->reader, verify_next(d, resident, NULL),
                     verify_ended);
}

/* ---- pin, unpin ---- */

void session_pin(struct session *session, const struct request *request)
{
        const char *model = request->u.pin.model; /* unpin has the same field at the same place */
        bool pin = request->verb == VERB_pin;
        struct resident *resident = session->server->resident;
        size_t n = 0;
        list_each (pos, &resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (!generation_reached(g, model) || g->state == GENERATION_FAILED)
                        continue;
                g->pinned = pin;
                generation_changed(g);
                n++;
        }
        bool wanted = wanted_pin(session->server, model, pin);
        if (n == 0 && !wanted) {
                session_no_model(session, request->id, model);
                return;
        }
        if (wanted)
                sessions_answer_soon(session->server);
        struct writer w;
        session_reply(&w, request->id, 2);
        writer_kstr(&w, "model", model);
        writer_kbool(&w, "pinned", pin);
        session_send(session, &w);
}

/* ---- unload ---- */

static bool last_name(const struct generation *g)
{
        return g->names.next == g->names.prev;
}

/* What goes by the name in this state, on one device or (NULL) on all; there is at most one on each. */
static void unload_find(struct group *group, struct resident *resident, enum generation_state state,
                        const struct device *device)
{
        for (size_t i = 0; i < resident->n_devices && group->n < GROUP_MAX; i++) {
                struct device *d = resident->devices[i];
                struct generation *g =
                        device == NULL || device == d ? resident_on(resident, group->name, state, d) : NULL;
                if (g != NULL)
                        group->members[group->n++] = g;
        }
}

/* Where a load reached some of its devices only, what the others say of it goes, too. */
static void add_failed_replicas(struct group *group, struct resident *resident, const struct device *device)
{
        struct group failed = {.name = group->name};
        size_t ready = group->n;
        unload_find(&failed, resident, GENERATION_FAILED, device);
        for (size_t i = 0; i < failed.n; i++)
                for (size_t k = 0; k < ready && group->n < GROUP_MAX; k++)
                        if (failed.members[i]->number == group->members[k]->number) {
                                group->members[group->n++] = failed.members[i];
                                break;
                        }
}

/* All or nothing: one that is in use keeps the others. */
static int unload_check(struct resident *resident, const struct req_unload *req, struct group *group,
                        struct error *error)
{
        const struct device *device = NULL;
        *group = (struct group){.name = req->model};
        if (req->device != NULL && (device = resident_device(resident, req->device, NULL)) == NULL)
                return error_set(error, STREAMER_ENOENT, "%s: not on device %s", req->model, req->device);
        unload_find(group, resident, GENERATION_READY, device);
        if (group->n == 0 && resident_on(resident, req->model, GENERATION_LOADING, device) != NULL)
                return error_set(error, STREAMER_EBUSY, "%s: is loading (cancel ends that)", req->model);
        unload_find(group, resident, GENERATION_CACHED, device);
        if (group->n == 0)
                unload_find(group, resident, GENERATION_FAILED, device);
        else
                add_failed_replicas(group, resident, device);
        if (group->n == 0 && device != NULL && resident_any(resident, req->model) != NULL)
                return error_set(error, STREAMER_ENOENT, "%s: not on device %s", req->model, req->device);
        if (group->n == 0)
                return error_set(error, STREAMER_ENOENT, "%s: no such model", req->model);
        uint64_t leases = 0;
        for (size_t i = 0; i < group->n; i++)
                if (last_name(group->members[i]))
                        leases += group->members[i]->n_leases;
        if (leases == 0 || req->drain || req->force)
                return 0;
        return error_set(error, STREAMER_EBUSY,
                         "%s: in use by %" PRIu64 " lease%s (--drain refuses new ones, --force takes it)", req->model,
                         leases, leases == 1 ? "" : "s");
}

static bool is_on(const struct generation *g, const char *device)
{
        return device == NULL || strcmp(g->device->name, device) == 0 || strcmp(g->device->uuid, device) == 0;
}

bool session_unloaded(const struct resident *resident, const struct req_unload *req, uint64_t number)
{
        list_each (pos, &resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                if (list_empty(&g->names) && g->number <= number && g->n_leases == 0 &&
                    strcmp(g->last_name, req->model) == 0 && is_on(g, req->device))
                        return false;
        }
        return true;
}

/* What lost the name before, drained or replaced, and is held still: force takes it from its holders, too, and a
 * time to drain counts for it. Its own user may, or an admin. 0 where there is none; else the newest's number. */
static uint64_t unload_draining(struct session *session, const struct req_unload *req)
{
        struct role_grant grant;
        uint64_t number = 0;
        access_grant(session->server, session->conn, &grant);
        list_each (pos, &session->server->resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                bool mine = grant.role >= ROLE_ADMIN || generation_owner(g) == session->conn->caller.uid;
                if (g->state != GENERATION_DRAINING || g->n_leases == 0 || g->quarantined || !mine ||
                    strcmp(g->last_name, req->model) != 0 || !is_on(g, req->device))
                        continue;
                number = g->number;
                if (req->force)
                        generation_revoke(g);
                else
                        g->drained_by_ns = ns_after(now_ns(), req->drain_timeout_ms * MS);
        }
        return number;
}

static void unload_one(struct session *session, struct generation *g, const struct req_unload *req)
{
        uint64_t timeout_ns = req->drain_timeout_ms * MS;
        bool leased = g->n_leases > 0 && last_name(g) && g->state == GENERATION_READY;
        if (timeout_ns == 0)
                timeout_ns = session->server->loads->drain_timeout_ns;
        if (leased && timeout_ns > 0)
                g->drained_by_ns = ns_after(now_ns(), timeout_ns);
        generation_drop_name(g, req->model);
        if (leased && req->force)
                generation_revoke(g);
}

/* Takes the request over. */
void session_unload(struct session *session, struct request *request)
{
        const struct req_unload *req = &request->u.unload;
        struct resident *resident = session->server->resident;
        struct group group;
        struct error error = {0};
        int r = unload_check(resident, req, &group, &error);
        uint64_t draining = 0;
        if ((r == 0 || r == STREAMER_ENOENT) && (req->force || req->drain_timeout_ms > 0))
                draining = unload_draining(session, req);
        bool wanted = (r == 0 || r == STREAMER_ENOENT) && wanted_forget(session->server, req->model, req->device);
        if (wanted && r < 0) {
                sessions_answer_soon(session->server);
                session_reply_state(session, request->id, req->model, "gone", 0);
                request_deinit(request);
                return;
        }
        if (r == STREAMER_ENOENT && draining > 0) {
                session_reply_state(session, request->id, req->model, "draining", draining);
                request_deinit(request);
                return;
        }
        if (r < 0) {
                session_error(session, request->id, &error);
                request_deinit(request);
                return;
        }
        bool held = false;
        uint64_t number = 0;
        for (size_t i = 0; i < group.n; i++) {
                struct generation *g = group.members[i];
                held = held || g->n_leases > 0;
                number = g->number > number ? g->number : number;
                unload_one(session, g, req);
        }
        if (held || req->drain || session_unloaded(resident, req, number)) {
                session_reply_state(session, request->id, req->model, held ? "draining" : "gone", number);
                request_deinit(request);
                return;
        }
        /* Its memory is on its way back: whoever loads next shall find the room. */
        struct deferred *d = deferred_new(session, request);
        if (d == NULL)
                return;
        d->generation = number;
        list_append(&session->server->waiting, &d->in_server);
}
