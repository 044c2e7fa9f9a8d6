/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests to the services that give credentials: metadata of a machine, token endpoints. They are made on the thread
 * of a renewal, without a proxy unless the service is outside (AWS's STS), and redirects are refused: the answer of
 * another host would decide what this daemon sends to a store.
 */
#pragma once

#include "daemon/io/http/http.h"

struct service_clients {
        struct http *metadata; /* answers within seconds, or not at all: most machines have none */
        struct http *others;   /* waited for longer: it may start together with the daemon */
};

/* `timeout_ns` and `tries` are of the metadata. Of `http` the certificates and the hosts that plain http is allowed to
 * are used, for the others; NULL: none. */
int service_clients_init(struct service_clients *clients, const struct http_opts *http, uint64_t timeout_ns,
                         unsigned tries, struct error *error);
void service_clients_stop(struct service_clients *clients); /* calls end soon, with STREAMER_ECANCELED */
void service_clients_deinit(struct service_clients *clients);

/* One request; any status is a success, and the body is not NULL. `request` is completed. */
int service_fetch(struct http *http, struct http_fetch *fetch, struct error *error);

/* The same, with one header more unless its value is NULL, and directly. Plain http is permitted. */
int service_get(struct http *http, const struct http_request *request, const char *name, const char *value,
                struct http_answer *answer, struct error *error);

/* POST of a form or of JSON to a token endpoint: directly; plain http as http.allow_plain has it. `authorization`
 * NULL: none. */
int service_post(struct http *http, const char *url, const char *shown, const char *type, const char *body,
                 const char *authorization, struct http_answer *answer, struct error *error);
#define SERVICE_FORM "application/x-www-form-urlencoded"
#define SERVICE_JSON "application/json"

/* Parameters of a form or a URL. */
struct service_param {
        const char *name, *value; /* NULL: it is left out */
};
/* "a=1&b=2", encoded, in this order. malloc'd; may be a secret. */
char *service_form(const struct service_param *params, size_t n);

/* *error is of an answer of this status: of 5xx it is an outage (error.unreachable). Returns its code. */
int service_failed(struct error *error, int status);

/* Until then, in short steps; STREAMER_ECANCELED if the client is stopped. */
int service_pause(struct http *http, uint64_t ns, struct error *error);
