/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs load, probe, cancel and wait, and those that change settings: set_priority, pin, unpin and keep_alive.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/model/ranks.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/events/events.h"
#include "daemon/serve/reply/reply.h"

#include <inttypes.h>
#include <string.h>
#include <sys/random.h>

/* ---- the dry run of a load: what it would need, read and find ---- */

/* Named victims: the list has to fit a reply. */
#define EVICTS_MAX 256

static void write_victim(struct writer *w, const void *data, size_t i)
{
        const struct generation *g = ((const struct admission_outlook *)data)->victims[i];
        writer_map_of(w, kstr("name", generation_name(g)), ku64("generation", g->number), ku64("bytes", g->charged));
}

/* What a device needs, the outcome of its admission, and the models that would be evicted. */
#define ESTIMATE_PAIRS(t, outlook)                                                                                     \
        kstr("device", (t)->device->name), ku64("needed", target_needs(t)), ku64("free", device_unused((t)->device)),  \
                ku64("budget", device_budget((t)->device)),                                                            \
                kbool("fits", (t)->resident || target_needs(t) <= device_unused((t)->device)),                         \
                ku64("segments", (t)->part->resolved.plan.n_segments),                                                 \
                ku64("blocks", (t)->part->resolved.plan.n_blocks),                                                     \
                ku64("copied_bytes", (t)->part->resolved.plan.copied_bytes), kbool("resident", (t)->resident),         \
                kstr("admission", admissions[(outlook).outcome]),                                                      \
                karray("evicts", write_victim, &(outlook),                                                             \
                       (outlook).n_victims < EVICTS_MAX ? (outlook).n_victims : EVICTS_MAX)

static const char *const admissions[] = {[ADMISSION_FITS] = "fits",
                                         [ADMISSION_PENDING] = "waits",
                                         [ADMISSION_EVICTS] = "evicts",
                                         [ADMISSION_BLOCKED] = "blocked"};

static void get_outlook(const struct load_target *target, struct admission_outlook *outlook)
{
        const struct load *load = target->load;
        *outlook = (struct admission_outlook){.outcome = ADMISSION_FITS};
        if (!target->resident)
                admission_estimate(load->loads->resident->admission, target->device, load->name, target_needs(target),
                                   !load->no_evict, outlook);
}

static void write_estimate(struct writer *w, const void *data, size_t i)
{
        const struct load_target *t = &((const struct load *)data)->targets[i];
        cleanup_with(admission_outlook_deinit) struct admission_outlook outlook;
        get_outlook(t, &outlook);
        writer_map_of(w, ESTIMATE_PAIRS(t, outlook));
}

/* Of a load that is ready: the plan of one that was cancelled may still be being made. */
static int reply_estimate(struct session *session, uint64_t id, const struct load *load)
{
        uint64_t files = 0, tensors = 0, bytes = 0;
        /* Replicas are of the same files, ranks each of their own. */
        for (size_t i = 0; i < (load->pattern != NULL ? load->n_targets : 1); i++) {
                const struct resolved *resolved = &load->targets[i].part->resolved;
                files += resolved->set.n_objects;
                tensors += resolved->plan.n_tensors;
                bytes += resolved->plan.bytes;
        }
        const struct source_notes *notes = load->parts[0].notes ?: &reply_no_notes;
        /* Of ranks: of the first. */
        const struct encryption *encryption = load->targets[0].part->resolved.encryption;
        if (load->n_targets > 1)
                return session_reply(session, id, kstr("name", load->name), reply_source(load->source),
                                     ku64("files", files), ku64("tensors", tensors), ku64("bytes", bytes),
                                     kif(encryption != NULL, kcall("encryption", reply_encryption, encryption)),
                                     REPLY_NOTES(notes), karray("devices", write_estimate, load, load->n_targets));
        const struct load_target *only = load->targets;
        cleanup_with(admission_outlook_deinit) struct admission_outlook outlook;
        get_outlook(only, &outlook);
        return session_reply(session, id, kstr("name", load->name), reply_source(load->source), ku64("files", files),
                             ku64("tensors", tensors), ku64("bytes", bytes),
                             kif(encryption != NULL, kcall("encryption", reply_encryption, encryption)),
                             REPLY_NOTES(notes), ESTIMATE_PAIRS(only, outlook));
}

/* ---- a load that attaches ---- */

/* The request must identify one device of the load. */
static int check_open(struct resident *resident, const struct req_load *req, struct error *error)
{
        if (req->dry_run || !req->watch)
                return error_set(error, STREAMER_EINVAL, "load: attach goes with watch, and not with dry_run");
        if (req->device == NULL && req->devices.n > 1)
                return error_set(error, STREAMER_EINVAL, "load: device: one of the devices must be named to attach to");
        if (req->device == NULL)
                return 0;
        const struct device *named = resident_device(resident, req->device, error);
        if (named == NULL)
                return error->code;
        for (size_t i = 0; i < req->devices.n; i++)
                if (resident_device(resident, req->devices.v[i], NULL) == named)
                        return 0;
        if (req->devices.n == 0 && resident->n_devices == 1)
                return 0;
        return error_set(error, STREAMER_EINVAL, "load: device: the model is not loaded to %s", req->device);
}

/* Attaches to the generation that the load produces, whatever else serves the name: the load references it until its
 * watchers have been called, and it may have been unloaded meanwhile. */
static int open_target(struct session *session, const struct request *request, const struct load_request *begun,
                       struct error *error)
{
        const char *name = request->u.load.device;
        const struct load *load = begun->load;
        const struct device *device = resident_device(load->loads->resident, name, NULL);
        const struct load_target *target = &load->targets[0];
        for (size_t i = 0; name != NULL && i < load->n_targets; i++)
                if (load->targets[i].device == device)
                        target = &load->targets[i];
        if (load_request_error(begun)->code != 0) {
                *error = *load_request_error(begun);
                return error->code;
        }
        if (target->state == TARGET_FAILED) {
                *error = target->error;
                return error->code;
        }
        struct generation *g = target_generation(target);
        bool serves = g != NULL && (g->state == GENERATION_READY || g->state == GENERATION_DRAINING);
        if (!serves && (g == NULL || g->state != GENERATION_LOADING || !attach_can_follow(g)))
                return DEFERRED_WAITS;
        return attach_reply_lease(session, request->id, g, begun->name, error);
}

static int try_open(struct session *session, const struct request *request, const struct deferred *deferred,
                    struct error *error)
{
        return open_target(session, request, deferred->watch.request, error);
}

/* The first event reports that the load was accepted; the reply brings the lease. A load that
 * this request joined may have all that an attach needs, and no change to come that would wake a deferred request. */
static int begin_open(struct session *session, const struct request *request, struct load_request *begun,
                      struct error *error)
{
        struct op *op = op_new(session, begun, ++session->server->last_op);
        if (op == NULL)
                return 0; /* the connection ends */
        op->request = request->id;
        events_notify(session);
        op_send(op);
        return open_target(session, request, begun, error);
}

/* ---- a probe: a small built-in model, for a client that attaches to it and compares the bytes ----
 *
 *   loading > ready (answered) > the session ends > freed with its last lease
 *       \-> failed (answered)
 *
 * It is loaded like any model, within the budget and by the device's thread, and charged to the client's user. A
 * session has one at a time, which is unloaded when the session ends. */

#define PROBE_NAME 32

/* Of the model, and of its source. */
static const char *probe_name(char name[PROBE_NAME], uint64_t seed)
{
        snprintf(name, PROBE_NAME, PROBE_SCHEME "%" PRIu64, seed);
        return name;
}

void probe_end(struct session *session)
{
        struct server *server = session->server;
        char name[PROBE_NAME];
        if (session->probe == 0)
                return;
        probe_name(name, session->probe);
        session->probe = 0;
        struct load *load = loads_find(server->loads, name);
        if (load != NULL)
                load_cancel(load);
        struct generation *g = resident_any(server->resident, name);
        if (g != NULL && !generation_drains(g))
                generation_drop_name(g, name);
}

static int reply_probe(struct session *session, uint64_t id, const struct load *load)
{
        const struct generation *g = load->targets[0].generation;
        return session_reply(session, id, kstr("name", load->name), kstr("device", g->device->name),
                             ku64("generation", g->number), reply_digest(g), ku64("seed", session->probe),
                             ku64("load_ns", g->load_ns));
}

/* ---- loads ---- */

static int parse_load(const struct req_load *req, struct load_args *out, struct error *error)
{
        bool sha256 = req->verify != NULL && strcmp(req->verify, "sha256") == 0;
        bool ranks = req->layout != NULL && strcmp(req->layout, "rank") == 0;
        *out = (struct load_args){.source = req->source,
                                  .name = req->name,
                                  .devices = req->devices.v,
                                  .n_devices = req->devices.n,
                                  .pattern = ranks ? req->pattern ?: RANKS_PATTERN : NULL,
                                  .sha256 = sha256,
                                  .dry_run = req->dry_run,
                                  .wait = req->wait,
                                  .no_evict = req->no_evict,
                                  .retention = {.keep_alive_ns = req->keep_alive_ms * MS,
                                                .drain_timeout_ns = req->drain_timeout_ms * MS,
                                                .priority = (uint32_t)req->priority,
                                                .pinned = req->pin}};
        if (req->name != NULL && req->named_after != NULL)
                return error_set(error, STREAMER_EINVAL, "load: named_after goes without name");
        if (req->verify != NULL && !sha256 && strcmp(req->verify, "none") != 0)
                return error_set(error, STREAMER_EINVAL, "load: verify: '%s' is neither none nor sha256", req->verify);
        if (req->layout != NULL && !ranks && strcmp(req->layout, "replica") != 0)
                return error_set(error, STREAMER_EINVAL, "load: layout: '%s' is neither replica nor rank", req->layout);
        if (req->pattern != NULL && !ranks)
                return error_set(error, STREAMER_EINVAL, "load: pattern: only the layout 'rank' has one");
        return 0;
}

/* Answers a load that attaches, a dry run or a probe. */
static void load_done(struct load_watch *watch, struct load_request *begun)
{
        struct deferred *d = container_of(watch, struct deferred, watch);
        const struct load *load = begun->load;
        bool probe = d->request.verb == VERB_probe;
        bool ready = load_request_state(begun) == LOAD_READY;
        struct error error = *load_request_error(begun);
        int r = error.code;
        if (ready && probe)
                r = reply_probe(d->session, d->request.id, load);
        else if (ready && d->request.u.load.attach)
                r = open_target(d->session, &d->request, begun, &error);
        else if (ready)
                r = reply_estimate(d->session, d->request.id, load);
        if (r == DEFERRED_WAITS)
                r = session_state_error(d->session, begun->name, "ready", &error);
        if (r < 0)
                session_error(d->session, d->request.id, &error);
        if (r < 0 && probe)
                probe_end(d->session);
        deferred_free(d);
}

/* `try` (may be NULL) may answer earlier. */
static int await_end(struct session *session, struct request *request, struct load_request *begun, deferred_try_fn *try,
                     struct error *error)
{
        struct deferred *d = deferred_new(session, request, error);
        if (d == NULL)
                return error->code;
        load_watch(begun, &d->watch, load_done);
        if (try != NULL)
                deferred_await_change(d, begun->name, try);
        return 0;
}

int verb_load(struct session *session, struct request *request, struct error *error)
{
        const struct req_load *req = &request->u.load;
        const struct quota_limits limits = access_limits(session->server, session->conn);
        struct load_args args;
        struct load_request *begun;
        cleanup_free char *name = NULL;
        int r = parse_load(req, &args, error);
        /* Rules about names apply to a default name, too. */
        if (r == 0 && args.name == NULL) {
                r = loads_default_name(session->server->loads, req->source, req->named_after, &name, error);
                args.name = name;
        }
        args.limits = &limits;
        args.users = &session->server->users;
        args.caller = &session->conn->caller;
        r = r ?: (req->attach ? check_open(session->server->resident, req, error) : 0)
              ?: (req->watch ? op_check(session, error) : 0)
              ?: access_check_load(session->server, session->conn, &args, error)
              ?: loads_begin(session->server->loads, &args, &begun, error);
        if (r < 0)
                return r;
        if (!req->attach && !req->dry_run) {
                uint64_t op = ++session->server->last_op;
                session_reply(session, request->id, ku64("op", op), kstr("name", begun->name));
                if (req->watch)
                        op_new(session, begun, op);
                return 0;
        }
        r = req->attach ? begin_open(session, request, begun, error) : DEFERRED_WAITS;
        return r == DEFERRED_WAITS ? await_end(session, request, begun, req->attach ? try_open : NULL, error) : r;
}

/* New bytes each time: bytes that an earlier probe left in memory must not match. */
int verb_probe(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        const struct quota_limits limits = access_limits(server, session->conn);
        const char *device = request->u.probe.device;
        uint64_t seed;
        char name[PROBE_NAME];
        struct load_request *begun;
        if (session->probe != 0)
                return error_set(error, STREAMER_EBUSY, "probe: this connection has one already");
        if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) != (ssize_t)sizeof(seed) || seed == 0)
                seed = now_ns();
        const struct load_args args = {.name = probe_name(name, seed),
                                       .source = name,
                                       .devices = &device,
                                       .n_devices = device != NULL,
                                       .probe = true,
                                       .caller = &session->conn->caller,
                                       .users = &server->users,
                                       .limits = &limits};
        int r = loads_begin(server->loads, &args, &begun, error);
        if (r < 0)
                return r;
        session->probe = seed;
        r = await_end(session, request, begun, NULL, error);
        if (r < 0)
                probe_end(session);
        return r;
}

int verb_cancel(struct session *session, struct request *request, struct error *error)
{
        const char *model = request->u.cancel.model;
        struct load *load = loads_find(session->server->loads, model);
        if (load != NULL)
                load_cancel(load);
        else if (!publications_cancel(&session->server->publications, model) &&
                 !desired_forget(&session->server->desired, model, NULL))
                return session_state_error(session, model, "loading", error);
        return session_reply(session, request->id, kstr("name", model));
}

/* ---- wait: answered when the model is ready, or when no load of it is under way or will begin ---- */

static int try_wait(struct session *session, const struct request *request, const struct deferred *deferred,
                    struct error *error)
{
        struct resident *resident = session->server->resident;
        const char *model = request->u.wait.model;
        struct generation *g = resident_ready(resident, model);
        const struct generation *loading = resident_on(resident, model, GENERATION_LOADING, NULL);
        if (g != NULL && loading != NULL && loading->number == g->number)
                return DEFERRED_WAITS; /* on further devices */
        if (g != NULL)
                return session_reply_state(session, request->id, model, "ready", g->number);
        const struct desired_model *desired = desired_find(&session->server->desired, model);
        if (loading != NULL || (desired != NULL && !desired_failed(desired)))
                return DEFERRED_WAITS;
        g = resident_on(resident, model, GENERATION_FAILED, NULL);
        const struct error *why = g != NULL ? generation_error(g) : desired != NULL ? &desired->error : NULL;
        if (why == NULL)
                return resident_no_model(resident, model, error);
        return error_set(error, why->code == STREAMER_ECANCELED ? STREAMER_ECANCELED : STREAMER_EFAILED, "%s: %s",
                         model, why->text);
}

int verb_wait(struct session *session, struct request *request, struct error *error)
{
        return deferred_wait(session, request, try_wait, request->u.wait.model, request->u.wait.timeout_ms, error);
}

/* ---- settings of what the name reaches: resident, loading or desired ---- */

/* `failures`: failed loads count; `desired`: the daemon will load it. */
static int change_settings(struct session *session, const char *model, const struct settings_change *change,
                           bool failures, bool desired, struct error *error)
{
        const struct server *server = session->server;
        const struct role_grant grant = access_grant(server, session->conn);
        int r = loads_change_settings(server->loads, model, failures, session->conn->caller.uid,
                                      grant.role >= ROLE_ADMIN, change, error);
        return r != 0 || desired ? r : resident_no_model(server->resident, model, error);
}

int verb_set_priority(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        const char *model = request->u.set_priority.model;
        uint32_t priority = (uint32_t)request->u.set_priority.priority;
        const struct settings_change change = {SETTING_PRIORITY, {.priority = priority}};
        if (priority == 0)
                return error_set(error, STREAMER_EINVAL, "set_priority: it is within 1 to %d", PROTO_PRIORITY_MAX);
        bool desired = desired_set_priority(&server->desired, model, priority);
        if (change_settings(session, model, &change, true, desired, error) < 0)
                return error->code;
        return session_reply(session, request->id, kstr("name", model), ku64("priority", priority));
}

int verb_keep_alive(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        const char *model = request->u.keep_alive.model;
        uint64_t keep_alive_ns = request->u.keep_alive.keep_alive_ms * MS;
        if (keep_alive_ns == 0)
                keep_alive_ns = server->loads->defaults.keep_alive_ns;
        const struct settings_change change = {SETTING_KEEP_ALIVE, {.keep_alive_ns = keep_alive_ns}};
        bool desired = desired_set_keep_alive(&server->desired, model, keep_alive_ns);
        if (change_settings(session, model, &change, false, desired, error) < 0)
                return error->code;
        return session_reply(session, request->id, kstr("name", model), ku64("keep_alive_ns", keep_alive_ns));
}

static int set_pin(struct session *session, const struct request *request, const char *model, bool pinned,
                   struct error *error)
{
        struct server *server = session->server;
        const struct settings_change change = {SETTING_PINNED, {.pinned = pinned}};
        bool desired = desired_pin(&server->desired, model, pinned);
        if (change_settings(session, model, &change, false, desired, error) < 0)
                return error->code;
        return session_reply(session, request->id, kstr("name", model), kbool("pinned", pinned));
}

int verb_pin(struct session *session, struct request *request, struct error *error)
{
        return set_pin(session, request, request->u.pin.model, true, error);
}

int verb_unpin(struct session *session, struct request *request, struct error *error)
{
        return set_pin(session, request, request->u.unpin.model, false, error);
}
