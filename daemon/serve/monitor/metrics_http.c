/* SPDX-License-Identifier: Apache-2.0
 *
 * libmicrohttpd without threads of its own: its epoll descriptor is polled by the loop, so an answer to /healthz means
 * that the loop turns, and its timeouts are a timer's. Each connection serves one request, and one that lasts longer
 * than some seconds is closed. Off unless the configuration names an address, which must be local.
 */
#include "daemon/base/log/log.h"
#include "daemon/base/sys/listen.h"
#include "daemon/serve/monitor/monitor.h"

#include <microhttpd.h>
#include <string.h>

#define BACKLOG 16
#define CONNECTIONS 16u
#define MEMORY ((size_t)16 * 1024) /* of a connection: its request's line and headers */
#define LIFE_NS (UINT64_C(5) * 1000000000)
#define TICK_MS 1000

/* One connection; its slot is free without one. */
struct client {
        struct MHD_Connection *connection;
        uint64_t since_ns;
};

struct metrics_http {
        struct server *server;
        struct MHD_Daemon *http;
        uv_poll_t poll;
        uv_timer_t timer;
        struct client clients[CONNECTIONS];
        struct listener listener; /* its socket is the HTTP server's */
};

/* ---- responses ---- */

static enum MHD_Result respond_as(const char *type, struct MHD_Connection *connection, unsigned status,
                                  const char *text)
{
        struct MHD_Response *response =
                MHD_create_response_from_buffer(strlen(text), (char *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
        if (response == NULL)
                return MHD_NO;
        /* Without these headers a client would wait for the end of the connection. */
        bool whole = MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type) == MHD_YES &&
                     MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close") == MHD_YES;
        if (whole && status == MHD_HTTP_METHOD_NOT_ALLOWED)
                whole = MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD") == MHD_YES;
        enum MHD_Result r = whole ? MHD_queue_response(connection, status, response) : MHD_NO;
        MHD_destroy_response(response);
        return r;
}

static enum MHD_Result respond(struct MHD_Connection *connection, unsigned status, const char *text)
{
        return respond_as("text/plain; charset=utf-8", connection, status, text);
}

static enum MHD_Result on_ready(const struct server *server, struct MHD_Connection *connection)
{
        const char *model = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "model");
        if (server->closing)
                return respond(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "ending\n");
        if (model == NULL && desired_pending(&server->desired, DESIRED_RESTORED))
                return respond(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "restoring\n");
        if (model == NULL && desired_pending(&server->desired, DESIRED_CONFIGURED))
                return respond(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "preloading\n");
        require(model != NULL || server_is_ready(server));
        if (model == NULL || resident_ready(server->resident, model) != NULL)
                return respond(connection, MHD_HTTP_OK, "ready\n");
        const struct generation *g = resident_any(server->resident, model);
        const struct desired_model *desired = desired_find(&server->desired, model);
        if (g == NULL && desired != NULL)
                return respond(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                               desired_failed(desired) ? "not ready\n" : "queued\n");
        if (g == NULL)
                return respond(connection, MHD_HTTP_NOT_FOUND, "no such model\n");
        return respond(connection, MHD_HTTP_SERVICE_UNAVAILABLE,
                       g->state == GENERATION_LOADING ? "loading\n" : "not ready\n");
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *upload, size_t *upload_size,
                                  void **request)
{
        static char seen;
        const struct server *server = ((const struct metrics_http *)context)->server;
        /* Called first with the headers alone; answered once the request is complete. */
        if (*request == NULL) {
                *request = &seen;
                return MHD_YES;
        }
        if (*upload_size != 0) {
                *upload_size = 0;
                return MHD_YES;
        }
        if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
                return respond(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET and HEAD only\n");
        if (strcmp(path, "/metrics") == 0) {
                cleanup_free char *text = metrics_text(server);
                if (text == NULL)
                        return respond(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n");
                return respond_as("text/plain; version=0.0.4; charset=utf-8", connection, MHD_HTTP_OK, text);
        }
        if (strcmp(path, "/healthz") == 0)
                return respond(connection, MHD_HTTP_OK, "ok\n");
        if (strcmp(path, "/readyz") == 0)
                return on_ready(server, connection);
        return respond(connection, MHD_HTTP_NOT_FOUND, "/metrics, /healthz, /readyz, /readyz?model=NAME\n");
}

/* ---- clients ---- */

static void on_connection(void *context, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
        struct client *clients = ((struct metrics_http *)context)->clients;
        const struct MHD_Connection *before = code == MHD_CONNECTION_NOTIFY_STARTED ? NULL : connection;
        for (size_t i = 0; i < CONNECTIONS; i++)
                if (clients[i].connection == before) {
                        clients[i] = (struct client){before == NULL ? connection : NULL, now_ns()};
                        return;
                }
}

/* ---- the loop ---- */

static void on_timer(uv_timer_t *timer)
{
        struct metrics_http *metrics_http = timer->data;
        MHD_UNSIGNED_LONG_LONG wait = TICK_MS;
        uint64_t now = now_ns();
        /* Limits the whole life of a connection: a client that sends a byte now and then is never idle. At each turn,
         * since each byte postpones the timer. */
        for (size_t i = 0; i < CONNECTIONS; i++) {
                const struct client *client = &metrics_http->clients[i];
                const union MHD_ConnectionInfo *info = NULL;
                if (client->connection != NULL)
                        info = MHD_get_connection_info(client->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
                if (info != NULL && now - client->since_ns > LIFE_NS)
                        shutdown(info->connect_fd, SHUT_RDWR);
        }
        MHD_run(metrics_http->http);
        if (MHD_get_timeout(metrics_http->http, &wait) != MHD_YES || wait > TICK_MS)
                wait = TICK_MS;
        uv_timer_start(timer, on_timer, wait, 0);
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
        on_timer(&((struct metrics_http *)poll->data)->timer);
}

/* ---- life ---- */

int metrics_http_new(struct metrics_http **out, struct server *server, const char *address, struct error *error)
{
        struct listen_address where;
        struct error cause = {0};
        char text[LISTEN_TEXT];
        if (listen_parse(address, &where, &cause) < 0)
                return error_set(error, STREAMER_EINVAL, "metrics: %s", cause.text);
        struct metrics_http *metrics_http = calloc(1, sizeof(*metrics_http));
        if (metrics_http == NULL)
                return error_no_memory(error);
        metrics_http->server = server;
        *out = metrics_http;
        if (listener_open(&metrics_http->listener, &where, BACKLOG, &cause) < 0)
                return error_set(error, cause.code == STREAMER_EBUSY ? STREAMER_EFAILED : cause.code,
                                 "metrics: %s (%s)", cause.text, address);
        listen_text(metrics_http->listener.fd, text);
        metrics_http->http = MHD_start_daemon(
                MHD_USE_EPOLL, 0, NULL, NULL, on_request, metrics_http, MHD_OPTION_LISTEN_SOCKET,
                metrics_http->listener.fd, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                MEMORY, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(LIFE_NS / 1000000000), MHD_OPTION_NOTIFY_CONNECTION,
                on_connection, metrics_http, MHD_OPTION_END);
        if (metrics_http->http == NULL)
                return error_set(error, STREAMER_EOS, "metrics: the HTTP server could not be started");
        metrics_http->listener.fd = -1;
        const union MHD_DaemonInfo *info = MHD_get_daemon_info(metrics_http->http, MHD_DAEMON_INFO_EPOLL_FD);
        if (info == NULL || uv_poll_init(server->loop, &metrics_http->poll, info->epoll_fd) != 0)
                return error_set(error, STREAMER_EOS, "metrics: the HTTP server cannot be polled");
        uv_timer_init(server->loop, &metrics_http->timer);
        metrics_http->poll.data = metrics_http->timer.data = metrics_http;
        uv_poll_start(&metrics_http->poll, UV_READABLE, on_readable);
        on_timer(&metrics_http->timer);
        log_info("metrics: served at %s", text);
        return 0;
}

void metrics_http_unlink(struct metrics_http *metrics_http)
{
        if (metrics_http != NULL)
                listener_close(&metrics_http->listener);
}

void metrics_http_free(struct metrics_http *metrics_http)
{
        if (metrics_http == NULL)
                return;
        if (metrics_http->http != NULL)
                MHD_stop_daemon(metrics_http->http);
        listener_deinit(&metrics_http->listener);
        free(metrics_http);
}
