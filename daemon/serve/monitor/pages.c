/* SPDX-License-Identifier: Apache-2.0
 *
 * The pages that a listener serves, made on the loop: metrics, liveness, readiness, startup.
 */
#include "daemon/serve/monitor/monitor.h"

#include "daemon/base/sys/listen.h"
#include "daemon/serve/monitor/page_server.h"

#include <string.h>

static void say(struct page_answer *answer, unsigned status, const char *text)
{
        *answer = (struct page_answer){.status = status, .text = text};
}

static void answer_metrics(const struct server *server, struct page_answer *answer)
{
        char *text = metrics_text(server);
        if (text == NULL)
                say(answer, 503, "no memory\n");
        else
                *answer = (struct page_answer){200, "text/plain; version=0.0.4", text, text};
}

static void answer_ready(const struct server *server, struct page_answer *answer)
{
        if (server->closing)
                say(answer, 503, "ending\n");
        else if (desired_pending(&server->desired, DESIRED_RESTORED))
                say(answer, 503, "restoring\n");
        else if (desired_pending(&server->desired, DESIRED_CONFIGURED))
                say(answer, 503, "preloading\n");
        else
                say(answer, 200, "ready\n");
        require((answer->status == 200) == server_is_ready(server));
}

static void answer_model(const struct server *server, const char *model, struct page_answer *answer)
{
        const struct generation *g = resident_any(server->resident, model);
        const struct desired_model *desired = desired_find(&server->desired, model);
        if (server->closing)
                say(answer, 503, "ending\n");
        else if (resident_ready(server->resident, model) != NULL)
                say(answer, 200, "ready\n");
        else if (g == NULL && desired == NULL)
                say(answer, 404, "no such model\n");
        else if (g == NULL)
                say(answer, 503, desired_failed(desired) ? "not ready\n" : "queued\n");
        else if (g->state == GENERATION_LOADING)
                say(answer, 503, g->queued ? "queued\n" : "loading\n");
        else
                say(answer, 503, "not ready\n");
}

/* The loop makes the answers, and runs once the daemon serves its socket: it is alive and has started. */
static void answer(void *context, const struct page_request *request, struct page_answer *answer)
{
        const struct server *server = context;
        if (strcmp(request->path, "/metrics") == 0)
                answer_metrics(server, answer);
        else if (strcmp(request->path, "/livez") == 0 || strcmp(request->path, "/healthz") == 0)
                say(answer, 200, "ok\n");
        else if (strcmp(request->path, "/startupz") == 0)
                say(answer, 200, "started\n");
        else if (strcmp(request->path, "/readyz") == 0 && request->model == NULL)
                answer_ready(server, answer);
        else if (strcmp(request->path, "/readyz") == 0)
                answer_model(server, request->model, answer);
        else
                say(answer, 404, "/metrics, /livez, /readyz, /readyz?model=NAME, /startupz\n");
}

static int serve_metrics(struct page_server *pages, const struct pages_opts *opts, struct error *error)
{
        const struct page_guard_opts guard = {opts->certificate, opts->key, opts->client_ca, opts->token_file};
        struct page_listener_opts listener = {.setting = "metrics", .address = opts->metrics};
        bool guarded = guard.certificate != NULL || guard.token_file != NULL;
        return (guarded ? page_guard_new(&listener.guard, &guard, error) : 0)
                       ?: page_server_listen(pages, &listener, error);
}

int pages_new(struct page_server **out, struct server *server, const struct pages_opts *opts, struct error *error)
{
        const struct page_server_opts of_server = {.wake = opts->wake, .answer = answer, .context = server};
        const struct page_listener_opts health = {.setting = "health", .address = opts->health, .health_only = true};
        if (opts->metrics == NULL && opts->health == NULL)
                return 0;
        return page_server_new(out, &of_server, error)
                       ?: (opts->metrics != NULL ? serve_metrics(*out, opts, error) : 0)
                       ?: (opts->health != NULL ? page_server_listen(*out, &health, error) : 0)
                       ?: page_server_start(*out, error);
}
