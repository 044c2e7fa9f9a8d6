/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that are answered later, and wait, which is nothing else.
 */
#include "daemon/serve/session.h"

/* ---- deferred answers ---- */

static void refuse_for_memory(struct session *session, uint64_t id)
{
        struct error error;
        error_set(&error, STREAMER_ENOMEM, "no memory");
        session_error(session, id, &error);
}

struct deferred *deferred_new(struct session *session, struct request *request)
{
        struct deferred *d = calloc(1, sizeof(*d));
        if (d == NULL) {
                refuse_for_memory(session, request->id);
                request_deinit(request);
                return NULL;
        }
        d->session = session;
        d->request = *request;
        list_init(&d->in_server);
        list_append(&session->deferred, &d->in_session);
        session->n_deferred++;
        conn_hold(session->conn, session->n_deferred >= session->server->limits.requests_per_client);
        return d;
}

void deferred_free(struct deferred *d)
{
        struct session *session = d->session;
        list_remove(&d->in_session);
        list_remove(&d->in_server);
        if (session != NULL)
                deadlines_remove(&session->server->deadlines, &d->deadline);
        load_unwatch(&d->watch);
        request_deinit(&d->request);
        free(d);
        if (session != NULL) {
                session->n_deferred--;
                conn_hold(session->conn, session->n_deferred >= session->server->limits.requests_per_client);
        }
}

/* The client is gone: what a worker still holds is freed when it comes home. */
void deferred_orphan(struct deferred *d)
{
        list_remove(&d->in_session);
        deadlines_remove(&d->session->server->deadlines, &d->deadline);
        d->session = NULL;
        if (d->request.verb == VERB_verify)
                verify_stop(&d->verify);
        else if (d->request.verb != VERB_ps && d->request.verb != VERB_doctor)
                deferred_free(d);
}

/* ---- wait ---- */

static void wait_failed(struct session *session, const struct request *request, int code, const char *why)
{
        struct error error;
        error_set(&error, code == STREAMER_ECANCELED ? STREAMER_ECANCELED : STREAMER_EFAILED, "%s: %s",
                  request->u.wait.model, why);
        session_error(session, request->id, &error);
}

/* False: nothing to say yet. What is wanted and was not begun will be. */
static bool try_wait(struct session *session, const struct request *request)
{
        struct resident *resident = session->server->resident;
        const char *model = request->u.wait.model;
        struct generation *g = resident_ready(resident, model);
        const struct generation *loading = resident_loading(resident, model);
        if (g != NULL && loading != NULL && loading->number == g->number)
                return false; /* on further devices */
        if (g != NULL) {
                session_reply_state(session, request->id, model, "ready", g->number);
                return true;
        }
        struct wanted wanted = {.name = NULL};
        bool is_wanted = wanted_find(session->server, model, &wanted);
        if (loading != NULL || (is_wanted && !wanted.failed))
                return false;
        g = resident_failed(resident, model);
        if (g != NULL)
                wait_failed(session, request, g->error.code, g->error.text);
        else if (is_wanted)
                wait_failed(session, request, wanted.code, wanted.error);
        else
                session_no_model(session, request->id, model);
        return true;
}

static bool try_gone(struct session *session, const struct request *request, uint64_t number)
{
        if (!session_unloaded(session->server->resident, &request->u.unload, number))
                return false;
        session_reply_state(session, request->id, request->u.unload.model, "gone", number);
        return true;
}

/* `generation`: the one that an unload waits for. */
static bool try_answer(struct session *session, const struct request *request, uint64_t generation)
{
        switch (request->verb) {
        case VERB_attach:
                return session_attach(session, request);
        case VERB_unload:
                return try_gone(session, request, generation);
        default:
                return try_wait(session, request);
        }
}

static uint64_t timeout_ms(const struct request *request)
{
        switch (request->verb) {
        case VERB_attach:
                return request->u.attach.timeout_ms;
        case VERB_wait:
                return request->u.wait.timeout_ms;
        default:
                return 0;
        }
}

/* STREAMER_ENOMEM. */
static int set_deadline(struct server *server, struct deferred *d)
{
        uint64_t ms = timeout_ms(&d->request);
        if (ms == 0)
                return 0;
        int r = deadlines_add(&server->deadlines, &d->deadline, ns_after(now_ns(), ms * MS));
        if (r == 0 && deadlines_first(&server->deadlines) == &d->deadline)
                server_await_deadline(server);
        return r;
}

/* Takes the request over. */
void session_defer(struct session *session, struct request *request)
{
        if (try_answer(session, request, 0)) {
                request_deinit(request);
                return;
        }
        struct deferred *d = deferred_new(session, request);
        if (d == NULL)
                return;
        if (set_deadline(session->server, d) < 0) {
                refuse_for_memory(session, d->request.id);
                deferred_free(d);
                return;
        }
        list_append(&session->server->waiting, &d->in_server);
}

/* Who was looked at goes behind the others, so that those who were not since the last change come first. */
bool deferred_answer(struct chore *chore)
{
        struct server *server = container_of(chore, struct server, answer);
        struct deferred *d = container_of(server->waiting.next, struct deferred, in_server);
        if (server->turn.parting || list_empty(&server->waiting) || d->looked == server->changes)
                return false;
        d->looked = server->changes;
        list_remove(&d->in_server);
        list_append(&server->waiting, &d->in_server);
        if (try_answer(d->session, &d->request, d->generation))
                deferred_free(d);
        return true;
}

static const char *waits_for(const struct request *request)
{
        return request->verb == VERB_attach ? request->u.attach.model : request->u.wait.model;
}

/* Who waited for the earliest time comes first; the timer waits for who is left. */
bool deferred_answer_late(struct chore *chore)
{
        struct server *server = container_of(chore, struct server, late);
        struct deadline *first = deadlines_first(&server->deadlines);
        if (server->turn.parting || first == NULL)
                return false;
        if (now_ns() < first->at_ns) {
                server_await_deadline(server);
                return false;
        }
        struct deferred *d = container_of(first, struct deferred, deadline);
        struct error error;
        error_set(&error, STREAMER_ETIMEOUT, "%s: still loading", waits_for(&d->request));
        session_error(d->session, d->request.id, &error);
        deferred_free(d);
        return true;
}
