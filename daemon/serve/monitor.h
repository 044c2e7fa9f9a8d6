/* SPDX-License-Identifier: Apache-2.0
 *
 * For those who watch the daemon over HTTP: /metrics, /healthz, /readyz. Off unless the settings name
 * an address, and that is this machine's own. Driven by the loop, so an answer of /healthz means that
 * the loop turns, and loads that run hold nothing up.
 *
 *   accepted > one request read > answered > closed
 *
 * Each connection is one request; there are few at a time, small, and whoever takes longer than some
 * seconds is cut off.
 */
#ifndef DAEMON_SERVE_MONITOR_H
#define DAEMON_SERVE_MONITOR_H

#include "daemon/serve/server.h"

struct monitor;

/* Listens at `address` (listen_parse). The handles close with the loop's others (uv_walk); leave when the loop
 * has ended, and free after it has run down. */
int monitor_new(struct monitor **monitor, struct server *server, const char *address, struct error *error);
void monitor_leave(struct monitor *monitor);           /* nothing of it is left in the file system; accepts NULL */
struct monitor *monitor_free(struct monitor *monitor); /* accepts NULL */

#endif
