/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/verb_task.h"

#include "daemon/io/http/http.h"
#include "daemon/serve/access/access.h"
#include "daemon/serve/access/shares.h"

/* ---- shares ---- */

/* A user that does not read its replies gets no further ones. */
static bool may_start(const struct verb_task *task)
{
        const struct conn *conn = task->deferred.session->conn;
        const struct server *server = task->server;
        return share_left(&server->users, server->limits, conn->caller.uid, task->running.slot) &&
               !conn_output_full(conn);
}

static void task_start(struct verb_task *task)
{
        list_remove(&task->link);
        list_append(&task->server->started, &task->link);
        quota_adjust(&task->running, 1);
        if (task->ops->start != NULL) {
                task->ops->start(task);
                return;
        }
        verb_task_set_deadline(task);
        verb_task_submit_source(task, task->source);
}

/* A task may end at once, which is no reason to start others here. */
static void start_alone(struct verb_task *task)
{
        struct server *server = task->server;
        if (server->starting || server->closing || !may_start(task))
                return;
        server->starting = true;
        task_start(task);
        server->starting = false;
}

/* A task has ended or is paused: starts what may start, in the order of the requests. */
static void start_queued(struct server *server)
{
        if (server->starting || server->closing)
                return;
        server->starting = true;
        list_each_item_safe (struct verb_task, task, &server->queued, link)
                if (may_start(task))
                        task_start(task);
        server->starting = false;
}

/* ---- life ---- */

static void task_free(struct verb_task *task)
{
        if (task->ops->deinit != NULL)
                task->ops->deinit(task);
        source_roots_free(task->roots);
        free(task->source);
        quota_discharge(&task->running);
        list_remove(&task->link);
        deferred_free(&task->deferred);
}

void verb_task_end(struct verb_task *task)
{
        struct server *server = task->server;
        bool started = task->running.amount > 0;
        task_free(task);
        if (started)
                start_queued(server);
}

void verb_task_finish(struct verb_task *task)
{
        struct session *session = task->deferred.session;
        if (session != NULL && task->error.code != 0)
                session_error(session, task->deferred.request.id, &task->error);
        else if (session != NULL)
                task->ops->reply(task, session);
        verb_task_end(task);
}

/* Its client has disconnected, or is answered. */
static void abandon(struct deferred *deferred)
{
        struct verb_task *task = container_of(deferred, struct verb_task, deferred);
        store_relaxed(&task->given_up, true);
        if (!task->working)
                verb_task_end(task);
}

void *verb_task_new(size_t size, const struct verb_task_ops *ops, struct session *session, struct request *request,
                    struct error *error)
{
        struct verb_task *task = deferred_new_sized(size, session, request, error);
        if (task == NULL)
                return NULL;
        task->deferred.orphaned = abandon;
        task->ops = ops;
        task->server = session->server;
        list_init(&task->link);
        if (!role_is_own(session->conn->caller.uid))
                task->work.user = work_user(session->conn->caller.uid);
        return task;
}

int verb_task_begin(struct verb_task *task, int r, enum quota_slot kind, struct error *error)
{
        struct server *server = task->server;
        uid_t uid = task->deferred.session->conn->caller.uid;
        if (r == 0 && quota_hold(&server->users, uid, &task->running, kind, 0) < 0)
                r = error_no_memory(error);
        if (r < 0) {
                task_free(task);
                return r;
        }
        list_append(&server->queued, &task->link);
        start_alone(task);
        return 0;
}

int verb_task_begin_source(struct verb_task *task, int r, const char *source, const char *file, struct error *error)
{
        const struct conn *conn = task->deferred.session->conn;
        if (r == 0)
                r = access_check_fetch(task->server, conn, source, file, &task->source, &task->roots, error);
        task->caller = conn->caller;
        bool remote = r == 0 && !source_is_local(task->source);
        return verb_task_begin(task, r, remote ? QUOTA_FETCH_REMOTE : QUOTA_FETCH_LOCAL, error);
}

void verb_task_pause(struct verb_task *task, const char *model, deferred_try_fn *try)
{
        require(task->running.amount == 1 && !task->working);
        list_remove(&task->link);
        task->deferred.why = NULL;
        deferred_await_change(&task->deferred, model, try);
        quota_adjust(&task->running, 0);
        start_queued(task->server);
}

void verb_task_resume(struct verb_task *task)
{
        require(task->running.amount == 0);
        list_remove(&task->deferred.in_server);
        list_append(&task->server->queued, &task->link);
        start_alone(task);
}

/* ---- work ---- */

static void run(struct work *work)
{
        struct verb_task *task = container_of(work, struct verb_task, work);
        if (load_relaxed(&task->given_up))
                return;
        http_reuse_begin(&task->given_up);
        task->ops->run(task);
        http_reuse_end();
}

static void done(struct work *work)
{
        struct verb_task *task = container_of(work, struct verb_task, work);
        require(task->deferred.magic == DEFERRED_MAGIC);
        task->working = false;
        if (task->ops->done != NULL)
                task->ops->done(task);
        else
                verb_task_finish(task);
}

void verb_task_submit(struct verb_task *task, uint64_t lane)
{
        task->working = true;
        work_submit(task->server->loads->pool, lane, &task->work, run, done);
}

void verb_task_submit_source(struct verb_task *task, const char *source)
{
        task->working = true;
        work_submit_routed(task->server->loads->pool, source_lane, source, &task->work, run, done);
}

void verb_task_set_deadline(struct verb_task *task)
{
        const struct http_opts *http = &task->server->loads->sources->http->opts;
        task->deadline_ns = ns_after(now_ns(), http->patience_ns + http->tries * http->stall_ns);
}

/* ---- time ---- */

bool verb_tasks_tick(struct server *server, uint64_t now)
{
        start_queued(server);
        list_each_item_safe (struct verb_task, task, &server->started, link) {
                struct deferred *d = &task->deferred;
                if (task->deadline_ns == 0 || now < task->deadline_ns || d->session == NULL)
                        continue;
                struct error error;
                error_set(&error, STREAMER_ETIMEOUT, "%s: the storage did not answer in time",
                          verb_desc(d->request.verb)->name);
                deferred_time_out(d, &error);
        }
        return !list_empty(&server->queued) || !list_empty(&server->started);
}
