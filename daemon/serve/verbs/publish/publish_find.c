/* SPDX-License-Identifier: Apache-2.0
 *
 * publish_find: searches for a published model, and claims its name where there is none.
 *
 *   base examined (workers) > replied: hit, absent, mismatch, stale, claimed
 *          ^         \
 *          +-- paused: another client has the claim
 *
 * A model is stale where the files of its base are not those that it was made from. It is unloaded then, whoever asks:
 * the daemon has seen the files itself. The base that the client names may be the same by its source, by its files or
 * by its digest.
 */
#include "daemon/serve/access/access.h"
#include "daemon/serve/access/shares.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verb_task.h"
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"
#include "daemon/load/content/resolve.h"

#include <inttypes.h>
#include <string.h>

/* The bases that are examined: the one that the client names, and that of what is published under the name. */
enum { BASE_NAMED, BASE_RECORDED, BASE_PROBES };

struct publish_find {
        struct verb_task task;
        struct device *device;
        struct published *want;
        struct source_identity loaded; /* base_model: of its files, when they were loaded */
        struct encryption *encryption; /* of the base; a reference. NULL: it is not encrypted */
        struct keyring *keyring;       /* to read that from the base; a reference. NULL: a resident model tells */
        struct resolve_budget budget;  /* of its headers */
        bool by_text; /* the client may not have its base opened: it is the recorded one if it has the same text */
        struct base_probe probes[BASE_PROBES];
        size_t at;        /* the probe that is under way */
        uint64_t checked; /* the generation whose base is checked; 0: none */
};

static const struct req_publish_find *request_of(const struct publish_find *find)
{
        return &find->task.deferred.request.u.publish_find;
}

static void find_deinit(struct verb_task *task)
{
        struct publish_find *find = container_of(task, struct publish_find, task);
        for (size_t i = 0; i < BASE_PROBES; i++)
                base_probe_deinit(&find->probes[i]);
        published_free(find->want);
        encryption_free(find->encryption);
        keyring_free(find->keyring);
        quota_discharge(&find->budget.charge);
}

/* The published model of this name that serves on the device; NULL: none. */
static struct generation *find_published(struct resident *resident, const char *model, const struct device *device)
{
        struct generation *g = resident_on(resident, model, GENERATION_READY, device);
        return g != NULL && g->published != NULL ? g : NULL;
}

/* ---- models whose base has changed ---- */

/* Unloads a published model whose base has changed; its leases keep what they have mapped. */
static void drop_stale(struct generation *g)
{
        char shown[REDACTED_SOURCE];
        redact_source(shown, g->published->base.source);
        log_info("%s: generation %" PRIu64 " is unloaded: its base has changed (%s)", generation_name(g), g->number,
                 shown);
        end_reason_set(&g->end, END_UNLOADED, "its base has changed (%s)", shown);
        generation_drop_all(g);
}

/* Another version of the base was loaded from the same source, later than it was published: numbers ascend, also over
 * restarts, and an older version that is still resident has a lower one. */
static bool replaces(const struct generation *g, const struct generation *published)
{
        const struct published_base *base = &published->published->base;
        return g->state == GENERATION_READY && g->published == NULL && g->has_identity &&
               g->number > published->number && !base->query_lost &&
               memcmp(&g->identity, &base->identity, sizeof(base->identity)) != 0;
}

static bool is_replaced(const struct generation *published)
{
        const char *source = published->published->base.source;
        if (source == NULL)
                return false;
        resident_each_of_source(g, published->resident, source)
        {
                if (replaces(g, published))
                        return true;
        }
        return false;
}

void publish_tick(struct server *server)
{
        struct resident *resident = server->resident;
        bool compared = server->n_compared == resident->n_readied;
        server->n_compared = resident->n_readied;
        if (compared || resident->n_published == 0)
                return;
        list_each_item_safe (struct generation, g, &resident->in_state[GENERATION_READY], in_state)
                if (g->published != NULL && is_replaced(g))
                        drop_stale(g);
}

/* ---- the outcome ---- */

static void add_difference(void *context, const char *name, size_t len, const char *have, const char *want)
{
        items_add((struct items *)context, kstrn("field", name, len), kstr("have", have), kstr("want", want));
}

/* The digest of the model that was loaded from these files, if it is still known. */
static const struct generation *loaded_from(const struct resident *resident, const struct source_identity *identity)
{
        resident_each_identical(
                g, resident,
                identity) if (g->published == NULL &&
                              (g->state == GENERATION_READY || g->state == GENERATION_CACHED || generation_drains(g)) &&
                              memcmp(&g->identity, identity, sizeof(*identity)) == 0) return g;
        return NULL;
}

/* Of the same content, whatever its path. */
static bool same_base(const struct publish_find *find, const struct published_base *have)
{
        const struct published_base *want = &find->want->base;
        if (have->source == NULL)
                return false;
        if (find->by_text)
                return !have->query_lost && strcmp(have->source, want->source) == 0;
        if (memcmp(&have->identity, &want->identity, sizeof(have->identity)) == 0)
                return true;
        return have->has_digest && want->has_digest && memcmp(have->digest, want->digest, DIGEST_SIZE) == 0;
}

static void compare(const struct publish_find *find, const struct generation *g, struct items *differences)
{
        const struct published_base *have = &g->published->base, *want = &find->want->base;
        char shown[2][REDACTED_SOURCE];
        if (want->source != NULL && !same_base(find, have)) {
                if (have->source != NULL)
                        redact_source(shown[0], have->source);
                redact_source(shown[1], want->source);
                add_difference(differences, "base", strlen("base"), have->source != NULL ? shown[0] : NULL, shown[1]);
        }
        published_key_differs(g->published, find->want, add_difference, differences);
}

/* Of a base whose query is not known any more: whether the client's answers the question which base is meant, or the
 * server says without the query what it said with it. Else the base may have changed, or not. */
static int check_base_without_query(const struct publish_find *find, const struct generation *g, struct error *error)
{
        const struct base_probe *probe = &find->probes[BASE_RECORDED];
        const struct published_base *base = &g->published->base;
        char shown[REDACTED_SOURCE];
        require(base->query_lost && base->has_answers);
        bool is_same = probe->error.code == 0 && probe->has_answers &&
                       memcmp(probe->answers, base->answers, sizeof(base->answers)) == 0;
        if (is_same || (find->want->base.source != NULL && !find->by_text))
                return 0;
        redact_source(shown, base->source);
        if (probe->error.code != 0)
                return error_set(
                        error, probe->error.code,
                        "%s: its base cannot be checked: the query of its URL is not persisted, and without it: "
                        "%s",
                        generation_name(g), probe->error.text);
        return error_set(error, STREAMER_EFAILED,
                         "%s: its base cannot be checked: the query of its URL is not persisted, and without it the "
                         "server gives another version (%s)",
                         generation_name(g), shown);
}

/* Whether the base of this model has changed since. If it has not, it can be compared with the one that the client
 * names; or an error. */
static int check_base(const struct publish_find *find, const struct generation *g, bool *stale, struct error *error)
{
        const struct base_probe *probe = &find->probes[BASE_RECORDED];
        const struct published_base *base = &g->published->base;
        const struct conn *conn = find->task.deferred.session->conn;
        int r = base->query_lost ? check_base_without_query(find, g, error) : 0;
        if (r < 0)
                return r;
        *stale = base->source != NULL && !base->query_lost && probe->error.code == STREAMER_ENOENT;
        if (*stale)
                return 0;
        if (base->source != NULL && !base->query_lost && probe->error.code != 0)
                return error_set(error, probe->error.code, "%s: its base cannot be checked: %s", generation_name(g),
                                 probe->error.text);
        *stale = base->source != NULL && !base->query_lost &&
                 memcmp(&probe->identity, &base->identity, sizeof(probe->identity)) != 0;
        if (*stale || !find->by_text || same_base(find, base))
                return 0;
        const struct role_grant grant = access_grant(find->task.server, conn);
        char text[ROLE_TEXT];
        return error_set(error, STREAMER_EPERM,
                         "publish_find: base: comparing it with the published model's requires role '%s', unless the "
                         "two are written alike; uid %u has role '%s' (%s)",
                         role_name(ROLE_LOAD), (unsigned)conn->caller.uid, role_name(grant.role),
                         role_grant_text(&grant, text));
}

/* NULL with *error. */
static struct publication *claim(struct publish_find *find, struct session *session, struct error *error)
{
        struct server *server = session->server;
        uid_t uid = session->conn->caller.uid;
        size_t n = 0;
        list_each (pos, &session->publications)
                n++;
        if (n >= SHARE_CLAIMS_PER_CLIENT) {
                error_set(error, STREAMER_ELIMIT, "publish_find: this connection has %zu claims", n);
                return NULL;
        }
        if (!share_left(&server->users, server->limits, uid, QUOTA_CLAIMS)) {
                error_set(error, STREAMER_ELIMIT,
                          "publish_find: uid %u has %" PRIu64 " claims, the most that a user may", (unsigned)uid,
                          quotas_held(&server->users, uid, QUOTA_CLAIMS));
                return NULL;
        }
        struct publication *p =
                publication_new(&server->publications, request_of(find)->model, find->device, &session->conn->caller);
        if (p == NULL) {
                error_no_memory(error);
                return NULL;
        }
        p->published = find->want;
        p->encryption = find->encryption;
        find->encryption = NULL;
        p->base = find->probes[BASE_NAMED];
        p->pid = session->conn->pid;
        p->user = find->task.work.user;
        find->want = NULL;
        find->probes[BASE_NAMED] = (struct base_probe){.source = NULL};
        list_append(&session->publications, &p->in_session);
        return p;
}

/* ---- replies ---- */

/* NULL: the client has not claimed the name, or another one has. */
#define reply_claim(claim)                                                                                             \
        kif((claim) != NULL, ku64("claim", (claim)->id)),                                                              \
                kif((claim) != NULL, ku64("granularity", (claim)->device->layout.granularity)),                        \
                kif((claim) != NULL && (claim)->device->layout.small > 0, ku64("page", (claim)->device->layout.page)), \
                kif((claim) != NULL && (claim)->device->layout.small > 0,                                              \
                    ku64("small", (claim)->device->layout.small))

static int reply_hit(struct session *session, uint64_t id, const struct generation *g, const struct publication *claim)
{
        return session_reply(session, id, kstr("state", "hit"), ku64("generation", g->number), reply_digest(g),
                             reply_claim(claim));
}

static int reply_mismatch(struct session *session, uint64_t id, const struct items *differences,
                          const struct publication *claim)
{
        return session_reply(session, id, kstr("state", "mismatch"), kitems("differs", differences),
                             reply_claim(claim));
}

static int reply_absent(struct session *session, uint64_t id, bool stale, const struct publication *claim)
{
        return session_reply(session, id, kstr("state", stale ? "stale" : "absent"), reply_claim(claim));
}

static int reply_claimed(struct session *session, uint64_t id, const struct publication *other)
{
        return session_reply(session, id, kstr("state", "claimed"),
                             ku64("pid", other->pid > 0 ? (uint64_t)other->pid : 0));
}

/* On this turn of the loop, in which nothing else happens, replies (0), or fails. DEFERRED_WAITS: another client has
 * the claim. */
static int find_decide(struct publish_find *find, struct session *session, struct error *error)
{
        const struct req_publish_find *req = request_of(find);
        struct server *server = session->server;
        uint64_t id = find->task.deferred.request.id;
        const struct publication *own = NULL;
        cleanup_with(items_deinit) struct items differences;
        items_init(&differences);
        if (req->claim && publication_check_name(server->resident, req->model, find->device, error) < 0)
                return error->code;
        struct generation *g = find_published(server->resident, req->model, find->device);
        bool stale = false;
        if (g != NULL && check_base(find, g, &stale, error) < 0)
                return error->code;
        if (stale) {
                drop_stale(g);
                g = NULL;
        }
        if (g != NULL)
                compare(find, g, &differences);
        bool hit = g != NULL && differences.n == 0;
        if (hit && !(req->claim && req->replace))
                return reply_hit(session, id, g, NULL);
        const struct publication *other = publications_find(&server->publications, req->model, find->device);
        if (other != NULL)
                return req->wait ? DEFERRED_WAITS : reply_claimed(session, id, other);
        if (req->claim && (own = claim(find, session, error)) == NULL)
                return error->code;
        if (hit)
                return reply_hit(session, id, g, own);
        return g != NULL ? reply_mismatch(session, id, &differences, own) : reply_absent(session, id, stale, own);
}

/* Searches again when no other client has the claim. */
static int find_retry(struct session *session, const struct request *request, const struct deferred *deferred,
                      struct error *error)
{
        struct publish_find *find = container_of(deferred, struct publish_find, task.deferred);
        if (publications_find(&session->server->publications, request->u.publish_find.model, find->device) == NULL)
                verb_task_resume(&find->task);
        return DEFERRED_WAITS;
}

/* ---- the base ---- */

/* False: none is left to examine. */
static bool probe_next(struct publish_find *find)
{
        while (find->at < BASE_PROBES && find->probes[find->at].source == NULL)
                find->at++;
        if (find->at == BASE_PROBES)
                return false;
        verb_task_set_deadline(&find->task);
        verb_task_submit_source(&find->task, find->probes[find->at].source);
        return true;
}

static void find_start(struct verb_task *task)
{
        struct publish_find *find = container_of(task, struct publish_find, task);
        const struct generation *g = find_published(task->server->resident, request_of(find)->model, find->device);
        int r = 0;
        base_probe_deinit(&find->probes[BASE_RECORDED]);
        find->at = 0;
        find->checked = g != NULL ? g->number : 0;
        task->deferred.why = "the files of its base are still being examined";
        if (g != NULL && g->published->base.source != NULL)
                r = base_probe_init(&find->probes[BASE_RECORDED], g->published->base.source, g->caller,
                                    find->task.server->loads->sources->roots);
        if (r < 0) {
                error_no_memory(&task->error);
                verb_task_finish(task);
        } else if (!probe_next(find)) {
                verb_task_submit(task, WORK_LANE_CPU); /* a start in the midst of another request replies to none */
        }
}

/* How the base is encrypted, by its headers. One that is, and cannot be read any more, is by a key that is not known.
 */
static void read_encryption(struct publish_find *find, const struct base_probe *probe)
{
        const struct loads *loads = find->task.server->loads;
        const struct sources sources = sources_for(loads->sources, probe->roots, &probe->caller);
        const struct resolve_opts opts = {
                .layout = &find->device->layout, .block_size = loads->block_size, .keyring = find->keyring};
        struct resolved resolved = {.borrowed = false};
        struct error error = {0};
        int r = source_open(&sources, probe->source, false, &resolved.set, &error)
                        ?: resolve_plan(&resolved, &opts, &find->budget, &error);
        if (r == 0)
                find->encryption = encryption_ref(resolved.encryption);
        else if (resolved.refused && (find->encryption = encryption_unknown()) == NULL)
                error_no_memory(&find->task.error);
        else if (r == STREAMER_ENOMEM || r == STREAMER_ELIMIT)
                find->task.error = error;
        resolve_deinit(&resolved);
        find->keyring = keyring_free(find->keyring);
}

static void find_run(struct verb_task *task)
{
        struct publish_find *find = container_of(task, struct publish_find, task);
        if (find->at == BASE_PROBES)
                return;
        struct base_probe *probe = &find->probes[find->at];
        base_probe_run(probe, task->server->loads->sources);
        if (find->at == BASE_NAMED && find->keyring != NULL && probe->error.code == 0)
                read_encryption(find, probe);
}

/* The base that the client names, as it is now. */
static int take_named(struct publish_find *find, struct error *error)
{
        const struct base_probe *probe = &find->probes[BASE_NAMED];
        const char *base_model = request_of(find)->base_model;
        struct published_base *base = &find->want->base;
        if (probe->source == NULL)
                return 0;
        if (probe->error.code != 0) {
                *error = probe->error;
                return error->code;
        }
        if (base_model != NULL && memcmp(&probe->identity, &find->loaded, sizeof(probe->identity)) != 0)
                return error_set(error, STREAMER_EFAILED, "base: %s: its files have changed since it was loaded",
                                 base_model);
        const struct generation *loaded = loaded_from(find->task.server->resident, &probe->identity);
        base->identity = probe->identity;
        base->has_answers = probe->has_answers;
        memcpy(base->answers, probe->answers, sizeof(base->answers));
        base->has_digest = loaded != NULL;
        if (loaded != NULL && find->encryption == NULL)
                find->encryption = encryption_ref(loaded->encryption);
        if (loaded != NULL)
                memcpy(base->digest, loaded->digest, DIGEST_SIZE);
        return 0;
}

static void find_done(struct verb_task *task)
{
        struct publish_find *find = container_of(task, struct publish_find, task);
        struct session *session = task->deferred.session;
        if (session == NULL) {
                verb_task_end(task);
                return;
        }
        find->at += find->at < BASE_PROBES;
        if (probe_next(find))
                return;
        const struct generation *g = find_published(task->server->resident, request_of(find)->model, find->device);
        if (g != NULL && g->number != find->checked) {
                find_start(task); /* it was published while another one was checked */
                return;
        }
        int r = take_named(find, &task->error) ?: find_decide(find, session, &task->error);
        if (r == DEFERRED_WAITS)
                verb_task_pause(task, request_of(find)->model, find_retry);
        else if (r < 0)
                verb_task_finish(task);
        else
                verb_task_end(task);
}

static const struct verb_task_ops find_ops = {
        .start = find_start, .run = find_run, .done = find_done, .deinit = find_deinit};

/* A model that was loaded from this source, an encrypted one before others; NULL: none is resident. */
static const struct generation *loaded_as(const struct resident *resident, const char *canonical)
{
        const struct generation *found = NULL;
        resident_each_of_source(g, resident, canonical)
        {
                if (g->published == NULL && (found == NULL || found->encryption == NULL))
                        found = g;
        }
        return found;
}

/* Whether the base is encrypted, which a resident model tells, or its files do. */
static int find_encryption(struct publish_find *find, const struct session *session, const char *canonical,
                           struct error *error)
{
        struct server *server = session->server;
        const struct generation *loaded = loaded_as(server->resident, canonical);
        uid_t uid = session->conn->caller.uid;
        if (loaded != NULL) {
                find->encryption = encryption_ref(loaded->encryption);
                return 0;
        }
        if (!request_of(find)->claim || find->by_text)
                return 0;
        find->keyring = keyring_ref(server->loads->keyring);
        find->budget.user_max = share_max(server->limits, uid, QUOTA_TABLES);
        return quota_hold(&server->users, uid, &find->budget.charge, QUOTA_TABLES, 0) < 0 ? error_no_memory(error) : 0;
}

/* The base: a source, which is opened only for callers who may load it, or that of a model that is resident. */
static int set_base(struct publish_find *find, const struct session *session, const struct req_publish_find *req,
                    struct error *error)
{
        cleanup_free char *canonical = NULL;
        const char *source = NULL;
        const struct role_grant grant = access_grant(session->server, session->conn);
        const struct caller *caller = &session->conn->caller;
        struct source_roots *roots = session->server->loads->sources->roots;
        if (req->base != NULL && req->base_model != NULL)
                return error_set(error, STREAMER_EINVAL, "publish_find: base and base_model exclude each other");
        if (req->base != NULL) {
                int r = source_canonical(req->base, &canonical, error) ?: role_check_source(&grant, canonical, error);
                if (r < 0)
                        return r;
                find->by_text = grant.role < ROLE_LOAD;
                r = find_encryption(find, session, canonical, error);
                if (r < 0)
                        return r;
                roots = grant.roots ?: roots;
                source = canonical;
        } else if (req->base_model != NULL) {
                const struct generation *g = resident_ready(session->server->resident, req->base_model);
                if (g == NULL || g->published != NULL)
                        return error_set(error, STREAMER_ENOENT, "base: %s: %s", req->base_model,
                                         g == NULL ? "no such model" : "it was published itself");
                caller = g->caller;
                find->loaded = g->identity;
                find->encryption = encryption_ref(g->encryption);
                source = g->source;
        }
        if (source == NULL)
                return 0;
        find->want->base.source = strdup(source);
        if (find->want->base.source == NULL ||
            (!find->by_text && base_probe_init(&find->probes[BASE_NAMED], source, caller, roots) < 0))
                return error_no_memory(error);
        return 0;
}

static int check_request(const struct session *session, const struct req_publish_find *req, struct device **device,
                         struct error *error)
{
        const struct server *server = session->server;
        const struct role_grant grant = access_grant(server, session->conn);
        *device = resident_device(server->resident, req->device, error);
        if (*device == NULL)
                return error->code;
        if (!req->claim)
                return 0;
        int r = role_check(&grant, session->conn->caller.uid, VERB_publish_begin, error);
        if (r == 0 && ((*device)->caps & DEVICE_SHARED_WRITABLE) && !server->publish_cuda_ipc)
                r = error_set(error, STREAMER_EUNSUPPORTED,
                              "%s: cuda-ipc leaves published memory writable for every client (publish.cuda_ipc allows "
                              "it; handles: cuda-vmm-fd does not)",
                              (*device)->name);
        return r ?: access_check_publish(server, session->conn, req->model, error);
}

static bool is_remote(const char *source)
{
        return source != NULL && !source_is_local(source);
}

int verb_publish_find(struct session *session, struct request *request, struct error *error)
{
        const struct req_publish_find *req = &request->u.publish_find;
        struct device *device;
        int r = check_request(session, req, &device, error);
        if (r < 0)
                return r;
        struct publish_find *find = verb_task_new(sizeof(*find), &find_ops, session, request, error);
        if (find == NULL)
                return error->code;
        find->device = device;
        r = published_new(&find->want, req->key.v, req->key.n, error) ?: set_base(find, session, req, error);
        const struct generation *g = find_published(session->server->resident, req->model, device);
        bool remote =
                r == 0 && (is_remote(find->want->base.source) || (g != NULL && is_remote(g->published->base.source)));
        if (r == 0 && req->timeout_ms > 0)
                deferred_set_deadline(&find->task.deferred, req->model,
                                      "the workers are busy with other requests of this user", req->timeout_ms);
        return verb_task_begin(&find->task, r, remote ? QUOTA_FIND_REMOTE : QUOTA_FIND_LOCAL, error);
}
