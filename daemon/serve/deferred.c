/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/deferred.h"

#include "daemon/base/hash.h"
#include "daemon/serve/access/shares.h"

#include <inttypes.h>
#include <string.h>

/* ---- life ---- */

/* The session has n unanswered requests more. */
static void count(struct session *session, int n)
{
        session->n_deferred += (uint64_t)n;
        conn_block(session->conn, CONN_BLOCK_REQUESTS,
                   session->n_deferred >= session->server->limits->requests_per_client);
}

void *deferred_new_sized(size_t size, struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        uid_t uid = session->conn->caller.uid;
        if (!share_left(&server->users, server->limits, uid, QUOTA_REQUESTS)) {
                error_set(error, STREAMER_ELIMIT,
                          "uid %u has %" PRIu64 " unanswered requests, the most that it may "
                          "(limits.requests_per_client)",
                          (unsigned)uid, quotas_held(&server->users, uid, QUOTA_REQUESTS));
                return NULL;
        }
        struct deferred *d = calloc(1, size);
        if (d == NULL || quota_hold(&server->users, uid, &d->charge, QUOTA_REQUESTS, 1) < 0) {
                free(d);
                error_no_memory(error);
                return NULL;
        }
        d->magic = DEFERRED_MAGIC;
        d->session = session;
        d->request = *request;
        request->memory = NULL;
        list_init(&d->in_server);
        tree_node_init(&d->in_timed);
        list_append(&session->deferred, &d->in_session);
        count(session, 1);
        return d;
}

static void leave_session(struct deferred *d)
{
        list_remove(&d->in_session);
        list_remove(&d->in_server);
        if (d->session != NULL) {
                tree_remove(&d->session->server->timed, &d->in_timed);
                count(d->session, -1);
        }
        d->session = NULL;
}

void deferred_free(struct deferred *d)
{
        require(d->magic == DEFERRED_MAGIC);
        d->magic = 0;
        leave_session(d);
        load_unwatch(&d->watch);
        request_deinit(&d->request);
        quota_discharge(&d->charge);
        free(d);
}

void deferred_orphan(struct deferred *d)
{
        leave_session(d);
        if (d->orphaned != NULL)
                d->orphaned(d);
        else
                deferred_free(d);
}

void deferred_time_out(struct deferred *d, const struct error *error)
{
        session_error(d->session, d->request.id, error);
        deferred_orphan(d);
}

/* ---- waiting ---- */

/* Why the model is not ready. */
static int not_ready(struct server *server, const char *model, struct error *error)
{
        const struct publication *p = publications_find(&server->publications, model, NULL);
        if (p == NULL)
                return error_set(error, STREAMER_ETIMEOUT, "%s: still loading", model);
        if (p->pid == 0)
                return error_set(error, STREAMER_ETIMEOUT, "%s: another process is still publishing it", model);
        return error_set(error, STREAMER_ETIMEOUT, "%s: process %d is still publishing it", model, (int)p->pid);
}

static struct deferred *timed(const struct tree_node *node)
{
        return container_of(node, struct deferred, in_timed);
}

static int compare_deadlines(const struct tree_node *a, const struct tree_node *b)
{
        int r = ORDER(timed(a)->deadline_ns, timed(b)->deadline_ns);
        return r != 0 ? r : ORDER((uintptr_t)a, (uintptr_t)b);
}

void deferred_set_deadline(struct deferred *d, const char *model, const char *why, uint64_t timeout_ms)
{
        d->subject = model;
        d->why = why;
        d->deadline_ns = ns_after(now_ns(), timeout_ms * MS);
        tree_insert(&d->session->server->timed, &d->in_timed);
}

/* The requests that wait for it. Others may be among them, which a recheck leaves as they are. */
static struct list *waiting_for(struct server *server, const char *subject)
{
        return bucket(&server->waiting, hash_text(subject));
}

static void wait_for_change(struct deferred *d)
{
        require(d->subject != NULL && d->try != NULL && list_empty(&d->in_server));
        list_append(waiting_for(d->session->server, d->subject), &d->in_server);
}

void deferred_await_change(struct deferred *d, const char *subject, deferred_try_fn *try)
{
        require(d->subject == NULL || strcmp(d->subject, subject) == 0);
        d->subject = subject;
        d->try = try;
        if (list_empty(&d->in_server)) /* else it has expired */
                wait_for_change(d);
}

int deferred_wait(struct session *session, struct request *request, deferred_try_fn *try, const char *model,
                  uint64_t timeout_ms, struct error *error)
{
        int r = try(session, request, NULL, error);
        if (r != DEFERRED_WAITS)
                return r;
        if (timeout_ms == 1) /* the client only looks */
                return not_ready(session->server, model, error);
        struct deferred *d = deferred_new(session, request, error);
        if (d == NULL)
                return error->code;
        if (timeout_ms > 0)
                deferred_set_deadline(d, model, NULL, timeout_ms);
        deferred_await_change(d, model, try);
        return 0;
}

uint64_t deferred_tick(struct server *server, uint64_t now)
{
        struct deferred *d;
        while ((d = tree_item(tree_first(&server->timed), struct deferred, in_timed)) != NULL) {
                if (now < d->deadline_ns)
                        return d->deadline_ns;
                tree_remove(&server->timed, &d->in_timed); /* the next tick leaves it where it is in recheck */
                list_remove(&d->in_server);
                list_append(&server->recheck, &d->in_server);
                loop_task_begin(&server->answer);
        }
        return UINT64_MAX;
}

void deferred_recheck(struct server *server, const char *subject)
{
        struct list *waiting = waiting_for(server, subject);
        if (list_empty(waiting))
                return;
        deferred_tick(server, now_ns()); /* first, in the order of their deadlines */
        list_append_all(&server->recheck, waiting);
        loop_task_begin(&server->answer);
}

static bool answer_next(struct loop_task *loop_task)
{
        struct server *server = container_of(loop_task, struct server, answer);
        struct deferred *d = list_item(server->recheck.next, &server->recheck, struct deferred, in_server);
        struct error error = {0};
        if (server->closing || d == NULL)
                return false;
        if (d->deadline_ns != 0 && now_ns() >= d->deadline_ns) {
                if (d->why == NULL)
                        not_ready(server, d->subject, &error);
                else
                        error_set(&error, STREAMER_ETIMEOUT, "%s: %s", d->subject, d->why);
                deferred_time_out(d, &error);
                return true;
        }
        list_remove(&d->in_server);
        wait_for_change(d);
        int r = d->try(d->session, &d->request, d, &error);
        if (r == DEFERRED_WAITS) /* it may have been freed */
                return true;
        if (r < 0)
                session_error(d->session, d->request.id, &error);
        deferred_free(d);
        return true;
}

void deferred_init(struct server *server)
{
        buckets_init(&server->waiting);
        list_init(&server->recheck);
        tree_init(&server->timed, compare_deadlines);
        loop_task_init(&server->answer, server->loop, answer_next);
}
