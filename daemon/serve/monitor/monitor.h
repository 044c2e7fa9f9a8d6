/* SPDX-License-Identifier: Apache-2.0
 *
 * Monitoring: the metrics, HTTP for them, and the service manager. Runs on the loop.
 */
#pragma once

#include "daemon/serve/server_state.h"

/* All metrics, in the order of their table (metric.h). malloc'd; NULL: no memory. */
char *metrics_text(const struct server *server);

/* It serves, and nothing that was to be preloaded or restored is missing: /readyz. */
static inline bool server_is_ready(const struct server *server)
{
        return !server->closing && !desired_pending(&server->desired, DESIRED_RESTORED) &&
               !desired_pending(&server->desired, DESIRED_CONFIGURED);
}

/* ---- pages over HTTP ---- */

struct page_server;
struct wake;

/* NULL: none. */
struct pages_opts {
        struct wake *wake;
        const char *metrics;                                    /* where all pages are served */
        const char *certificate, *key, *client_ca, *token_file; /* there: page_guard.h */
        const char *health;                                     /* where the pages are served that name no model */
};

/* *pages stays NULL without an address; frees nothing if it fails. page_server.h has its end. */
int pages_new(struct page_server **pages, struct server *server, const struct pages_opts *opts, struct error *error);

/* ---- the service manager: readiness, watchdog, the status line of `systemctl status` ---- */

/* The daemon serves, or has reloaded its configuration: repeated until the manager has received it. */
void manager_notify_ready(struct server *server);
/* Readiness; WATCHDOG=1, if the manager expects it. Returns when it is to be called again; UINT64_MAX: never. */
uint64_t manager_tick(struct server *server, uint64_t now_ns);
/* About once a second: sends the status line (loads, models, leases, preloads that are not ready) when it has changed.
 */
void manager_send_status(struct server *server);
