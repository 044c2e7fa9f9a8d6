/* SPDX-License-Identifier: Apache-2.0
 *
 * publish_find: searches for a published model, and claims its name where there is none.
 *
 *   base checked (worker) > answered: hit, absent, mismatch, stale, claimed
 *          ^         \
 *          +-- waits: another client has the claim
 *
 * A model is stale where the files of its base are not those that it was made from. It is unloaded then, whoever asks:
 * the daemon has seen the files itself. The base that the client names may be the same by its source, by its files or
 * by its digest.
 */
#include "daemon/serve/access/access.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/publish/publish_private.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/secret.h"

#include <inttypes.h>
#include <string.h>

/* Claims that one connection may have. */
#define CLAIMS_MAX 64

struct publish_find {
        struct list waiting; /* in server->finds */
        struct deferred *deferred;
        struct server *server;
        struct device *device;
        struct published *want;
        struct caller base_caller;
        struct source_roots *base_roots; /* a reference; NULL: the daemon's own */
        struct source_identity loaded;   /* base_model: of its files, when they were loaded */
        struct base_check *check;
        uint64_t checked; /* the generation whose base is checked; 0: none */
        uv_timer_t timer;
        bool timed, expired;
};

static const struct req_publish_find *request_of(const struct publish_find *find)
{
        return &find->deferred->request.u.publish_find;
}

static void on_timer_closed(uv_handle_t *timer)
{
        free(container_of(timer, struct publish_find, timer));
}

static void find_free(struct publish_find *find)
{
        list_remove(&find->waiting);
        if (find->deferred != NULL)
                deferred_free(find->deferred);
        published_free(find->want);
        base_check_free(find->check);
        source_roots_free(find->base_roots);
        if (find->timed)
                uv_close((uv_handle_t *)&find->timer, on_timer_closed);
        else
                free(find);
}

static void find_fail(struct publish_find *find, const struct error *error)
{
        session_error(find->deferred->session, find->deferred->request.id, error);
        find_free(find);
}

/* ---- the outcome ---- */

struct difference {
        struct writer items;
        size_t n;
};

static void add_difference(void *context, const char *name, size_t len, const char *have, const char *want)
{
        struct difference *difference = context;
        difference->n++;
        writer_map(&difference->items, 3);
        writer_key(&difference->items, "field");
        writer_strn(&difference->items, name, len);
        writer_kstr(&difference->items, "have", have);
        writer_kstr(&difference->items, "want", want);
}

/* The digest of the model that was loaded from these files, if it is still known. */
static const struct generation *loaded_from(const struct resident *resident, const struct source_identity *identity)
{
        list_each_item (const struct generation, g, &resident->generations, link)
                if (g->has_identity && g->published == NULL &&
                    (g->state == GENERATION_READY || g->state == GENERATION_CACHED || generation_drains(g)) &&
                    memcmp(&g->identity, identity, sizeof(*identity)) == 0)
                        return g;
        return NULL;
}

/* Of the same content, whatever its path. */
static bool same_base(const struct published_base *have, const struct published_base *want)
{
        if (have->source == NULL)
                return false;
        if (memcmp(&have->identity, &want->identity, sizeof(have->identity)) == 0)
                return true;
        return have->has_digest && want->has_digest && memcmp(have->digest, want->digest, DIGEST_SIZE) == 0;
}

static void compare(const struct publish_find *find, const struct generation *g, struct difference *difference)
{
        const struct published_base *have = &g->published->base, *want = &find->want->base;
        char shown[2][REDACTED_SOURCE];
        if (want->source != NULL && !same_base(have, want)) {
                if (have->source != NULL)
                        redact_source(shown[0], have->source);
                redact_source(shown[1], want->source);
                add_difference(difference, "base", strlen("base"), have->source != NULL ? shown[0] : NULL, shown[1]);
        }
        published_key_differs(g->published, find->want, add_difference, difference);
}

/* 1: the base of this model has changed since; 0: it has not; else its files cannot be examined. */
static int is_stale(const struct publish_find *find, const struct generation *g, struct error *error)
{
        const struct base_probe *probe = &find->check->probes[BASE_RECORDED];
        if (g->published->base.source == NULL)
                return 0;
        if (probe->error.code == STREAMER_ENOENT)
                return 1;
        if (probe->error.code != 0)
                return error_set(error, probe->error.code, "%s: its base cannot be checked: %s", generation_name(g),
                                 probe->error.text);
        return memcmp(&probe->identity, &g->published->base.identity, sizeof(probe->identity)) != 0;
}

static struct publication *claim(struct publish_find *find, struct error *error)
{
        struct session *session = find->deferred->session;
        size_t n = 0;
        list_each_item (const struct publication, p, &session->publications, in_session)
                n += p != NULL;
        if (n >= CLAIMS_MAX) {
                error_set(error, STREAMER_ELIMIT, "publish_find: this connection has %zu claims", n);
                return NULL;
        }
        const struct publication_claim new = {.name = request_of(find)->model,
                                              .device = find->device,
                                              .published = find->want,
                                              .base_caller = &find->base_caller,
                                              .base_roots = find->base_roots,
                                              .caller = &session->conn->caller,
                                              .pid = session->conn->pid};
        find->want = NULL;
        struct publication *p = publication_new(&session->server->publications, &new);
        if (p == NULL)
                error_set(error, STREAMER_ENOMEM, "no memory");
        else
                list_append(&session->publications, &p->in_session);
        return p;
}

static void reply(struct publish_find *find, const char *state, const struct generation *hit,
                  const struct publication *other, const struct difference *difference, bool claims)
{
        struct session *session = find->deferred->session;
        struct error error = {0};
        const struct publication *p = claims ? claim(find, &error) : NULL;
        struct writer w;
        if (error.code != 0) {
                find_fail(find, &error);
                return;
        }
        bool differs = difference != NULL && difference->n > 0;
        session_reply(&w, find->deferred->request.id,
                      1u + (hit != NULL ? 2 : 0) + (other != NULL) + differs + (p != NULL ? 2 : 0));
        writer_kstr(&w, "state", state);
        if (hit != NULL) {
                writer_ku64(&w, "generation", hit->number);
                reply_digest(&w, "digest", hit);
        }
        if (other != NULL)
                writer_ku64(&w, "pid", other->pid > 0 ? (uint64_t)other->pid : 0);
        if (differs) {
                writer_karray(&w, "differs", difference->n);
                writer_append(&w, &difference->items);
        }
        if (p != NULL) {
                writer_ku64(&w, "claim", p->id);
                writer_ku64(&w, "granularity", p->device->layout.granularity);
        }
        session_send(session, &w);
        find_free(find);
}

static void find_start(struct publish_find *find);

static void find_wait(struct publish_find *find)
{
        if (find->expired)
                session_fail(find->deferred->session, find->deferred->request.id, STREAMER_ETIMEOUT,
                             "%s: another process is publishing it", request_of(find)->model);
        if (find->expired)
                find_free(find);
        else
                list_append(&find->server->finds, &find->waiting);
}

/* Its result on this turn of the loop, in which nothing else happens. */
static void find_decide(struct publish_find *find)
{
        struct server *server = find->server;
        const struct req_publish_find *req = request_of(find);
        struct generation *g = resident_on(server->resident, req->model, GENERATION_READY, find->device);
        const struct publication *other = publications_find(&server->publications, req->model, find->device);
        struct difference difference = {.n = 0};
        struct error error = {0};
        const char *state = "absent";
        if (g != NULL && g->published == NULL && req->claim) {
                error_set(&error, STREAMER_EBUSY, "%s: a model that was loaded has this name (%s)", req->model,
                          g->source);
                find_fail(find, &error);
                return;
        }
        if (g != NULL && g->published == NULL)
                g = NULL;
        int stale = g != NULL ? is_stale(find, g, &error) : 0;
        if (stale < 0) {
                find_fail(find, &error);
                return;
        }
        if (stale > 0) {
                state = "stale";
                publish_drop_stale(g);
                g = NULL;
        }
        writer_init(&difference.items);
        if (g != NULL) {
                compare(find, g, &difference);
                state = difference.n > 0 ? "mismatch" : "hit";
        }
        bool hit = g != NULL && difference.n == 0;
        if (hit && !(req->claim && req->replace))
                reply(find, state, g, NULL, NULL, false);
        else if (other != NULL && req->claim && req->wait)
                find_wait(find);
        else if (other != NULL)
                reply(find, "claimed", NULL, other, &difference, false);
        else
                reply(find, state, hit ? g : NULL, NULL, &difference, req->claim);
        writer_deinit(&difference.items);
}

/* ---- the base ---- */

static void find_checked(struct base_check *check)
{
        struct publish_find *find = check->context;
        if (find->deferred->session == NULL) {
                find_free(find);
                return;
        }
        const struct generation *g =
                resident_on(find->server->resident, request_of(find)->model, GENERATION_READY, find->device);
        if (g != NULL && g->published != NULL && g->number != find->checked) {
                find_start(find); /* it was published while another one was checked */
                return;
        }
        const struct base_probe *probe = &check->probes[BASE_WANTED];
        if (probe->source != NULL && probe->error.code != 0) {
                find_fail(find, &probe->error);
                return;
        }
        if (probe->source != NULL && request_of(find)->base_model != NULL &&
            memcmp(&probe->identity, &find->loaded, sizeof(probe->identity)) != 0) {
                struct error error;
                error_set(&error, STREAMER_EFAILED, "base: %s: its files have changed since it was loaded",
                          request_of(find)->base_model);
                find_fail(find, &error);
                return;
        }
        if (probe->source != NULL) {
                struct published_base *base = &find->want->base;
                const struct generation *loaded = loaded_from(find->server->resident, &probe->identity);
                base->identity = probe->identity;
                base->has_digest = loaded != NULL;
                if (loaded != NULL)
                        memcpy(base->digest, loaded->digest, DIGEST_SIZE);
        }
        find_decide(find);
}

static bool is_wanted(const struct base_check *check)
{
        const struct publish_find *find = check->context;
        return find->deferred->session != NULL;
}

/* Examines the files of the base that the client names, and of the base of what is published under the name. */
static void find_start(struct publish_find *find)
{
        struct server *server = find->server;
        const struct generation *g =
                resident_on(server->resident, request_of(find)->model, GENERATION_READY, find->device);
        const char *wanted = find->want->base.source;
        struct error error;
        base_check_free(find->check);
        find->check = base_check_new(server->pool, server->loads->sources);
        find->checked = g != NULL && g->published != NULL ? g->number : 0;
        int r = find->check != NULL ? 0 : STREAMER_ENOMEM;
        if (r == 0 && wanted != NULL)
                r = base_check_add(find->check, BASE_WANTED, wanted, &find->base_caller, find->base_roots);
        if (r == 0 && find->checked != 0 && g->published->base.source != NULL)
                r = base_check_add(find->check, BASE_RECORDED, g->published->base.source, &g->caller, NULL);
        if (r == 0) {
                base_check_start(find->check, find_checked, is_wanted, find);
                return;
        }
        error_set(&error, STREAMER_ENOMEM, "no memory");
        find_fail(find, &error);
}

/* ---- waiting ---- */

void publish_claim_ended(struct publications *publications)
{
        struct server *server = container_of(publications, struct server, publications);
        while (!list_empty(&server->finds)) {
                struct publish_find *find = container_of(server->finds.next, struct publish_find, waiting);
                list_remove(&find->waiting);
                if (find->deferred->session == NULL)
                        find_free(find);
                else
                        find_start(find);
        }
}

static void on_timeout(uv_timer_t *timer)
{
        struct publish_find *find = container_of(timer, struct publish_find, timer);
        find->expired = true;
        if (list_empty(&find->waiting))
                return; /* its base is being checked */
        list_remove(&find->waiting);
        find_wait(find);
}

void publish_abandon_finds(struct server *server)
{
        list_each_item_safe (struct publish_find, find, &server->finds, waiting)
                if (find->deferred->session == NULL)
                        find_free(find);
}

/* ---- models whose base has changed ---- */

void publish_drop_stale(struct generation *g)
{
        char shown[REDACTED_SOURCE];
        redact_source(shown, g->published->base.source);
        log_info("%s: generation %" PRIu64 " is unloaded: its base has changed (%s)", generation_name(g), g->number,
                 shown);
        end_reason_set(&g->end, END_UNLOADED, "its base has changed (%s)", shown);
        generation_drop_all(g);
}

/* Another version of the base was loaded from the same source. */
static bool is_replaced(const struct resident *resident, const struct published_base *base)
{
        list_each_item (const struct generation, g, &resident->generations, link)
                if (g->state == GENERATION_READY && g->has_identity && base->source != NULL &&
                    strcmp(g->source, base->source) == 0 &&
                    memcmp(&g->identity, &base->identity, sizeof(base->identity)) != 0)
                        return true;
        return false;
}

void publish_tick(struct server *server)
{
        list_each_item_safe (struct generation, g, &server->resident->generations, link)
                if (g->state == GENERATION_READY && g->published != NULL &&
                    is_replaced(server->resident, &g->published->base))
                        publish_drop_stale(g);
}

/* ---- the verb ---- */

/* The base: a source that the caller may load, or that of a model that is resident. */
static int set_base(struct publish_find *find, const struct session *session, const struct req_publish_find *req,
                    struct error *error)
{
        cleanup_free char *canonical = NULL;
        struct published_base base = {.source = NULL};
        const struct role_grant grant = access_grant(session->server, session->conn);
        find->base_caller = session->conn->caller;
        if (req->base != NULL && req->base_model != NULL)
                return error_set(error, STREAMER_EINVAL, "publish_find: base and base_model exclude each other");
        if (req->base != NULL) {
                int r = source_canonical(req->base, &canonical, error);
                if (r == 0)
                        r = role_check_source(&grant, canonical, error);
                if (r < 0)
                        return r;
                find->base_roots = source_roots_ref(grant.rule != NULL ? grant.rule->opened : NULL);
                base.source = canonical;
        } else if (req->base_model != NULL) {
                const struct generation *g = resident_ready(session->server->resident, req->base_model);
                if (g == NULL || g->published != NULL)
                        return error_set(error, STREAMER_ENOENT, "base: %s: %s", req->base_model,
                                         g == NULL ? "no such model" : "it was published itself");
                find->base_caller = g->caller;
                find->loaded = g->identity;
                base.source = g->source;
        }
        return published_set_base(find->want, &base) == 0 ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
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
        if (r == 0 && (*device)->ops->lend == NULL)
                r = error_set(error, STREAMER_EUNSUPPORTED, "%s: a client cannot publish on this device",
                              (*device)->name);
        return r == 0 ? access_check_publish(server, session->conn, req->model, error) : r;
}

void verb_publish_find(struct session *session, struct request *request)
{
        const struct req_publish_find *req = &request->u.publish_find;
        struct error error = {0};
        struct device *device;
        struct publish_find *find = NULL;
        int r = check_request(session, req, &device, &error);
        if (r == 0 && (find = calloc(1, sizeof(*find))) == NULL)
                r = error_set(&error, STREAMER_ENOMEM, "no memory");
        if (r < 0) {
                session_error(session, request->id, &error);
                return;
        }
        list_init(&find->waiting);
        find->server = session->server;
        find->device = device;
        r = published_new(&find->want, req->key.v, req->key.n, &error);
        if (r == 0)
                r = set_base(find, session, req, &error);
        if (r < 0)
                session_error(session, request->id, &error);
        uint64_t timeout_ms = req->timeout_ms;
        if (r < 0 || (find->deferred = deferred_new(session, request)) == NULL) {
                find_free(find);
                return;
        }
        find->deferred->orphaned = deferred_outlives_client;
        if (timeout_ms > 0) {
                find->timed = true;
                uv_timer_init(session->server->loop, &find->timer);
                uv_timer_start(&find->timer, on_timeout, timeout_ms, 0);
        }
        find_start(find);
}
