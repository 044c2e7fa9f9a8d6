/* SPDX-License-Identifier: Apache-2.0
 *
 * HTTP for monitoring: /metrics, /healthz, /readyz. Off unless the configuration names an address, which must be local.
 * Driven by the loop, so an answer to /healthz means that the loop turns.
 *
 *   accepted > one request read > answered > closed
 *
 * Connections are few and small, each serves one request, and one that lasts longer than some seconds is closed.
 */
#ifndef DAEMON_SERVE_MONITOR_METRICS_HTTP_H
#define DAEMON_SERVE_MONITOR_METRICS_HTTP_H

#include "daemon/serve/server_state.h"

struct metrics_http;

/* Listens at `address` (listen_parse). The handles close with the loop's others (uv_walk); leave when the loop
 * has ended, and free after it has run down. */
int metrics_http_new(struct metrics_http **metrics_http, struct server *server, const char *address,
                     struct error *error);
void metrics_http_unlink(struct metrics_http *metrics_http);               /* removes its socket file; accepts NULL */
struct metrics_http *metrics_http_free(struct metrics_http *metrics_http); /* accepts NULL */

#endif
