/* SPDX-License-Identifier: Apache-2.0
 *
 * An http_access that adds one header, Authorization: a bearer token, or user and password, read when a load begins.
 * If a server refuses credentials from a file (401), the file is read again: it may have been replaced meanwhile.
 */
#pragma once

#include "daemon/io/http/http.h"

#include <pthread.h>

struct http_auth {
        struct http_access access;
        const char *user; /* borrowed; NULL: a bearer token */
        char *setting;    /* "file:PATH", "credential:NAME"; NULL: a value, which stays the same */
        pthread_mutex_t mutex;
        bool empty;          /* no credentials: adds no header */
        char *elsewhere;     /* the origin that the host's credentials are for, which this is not; NULL */
        char *authorization; /* the header's value */
        uint64_t number;     /* of the authorization: counts replacements */
};

/* Either the secret, or its location in the form of secret_read(), or neither. A token loses blanks and line breaks
 * around it, which are often copied with it. STREAMER_EFAILED: no header may hold it. `user` outlives this. */
int http_auth_new(struct http_access **access, const struct http_access_ops *ops, const char *user, const char *secret,
                  const char *setting, struct error *error);

/* For `ops`. */
int http_auth_authorize(struct http_access *access, const struct http_request *request, struct http_headers *more,
                        struct error *error);
void http_auth_free(struct http_access *access);

/* After a 401: true if there are other credentials to try than those of the request. */
bool http_auth_reread(struct http_auth *auth, const struct http_answer *answer);

/* ---- the credentials that the settings have for hosts ---- */

/* A bearer token, or user and password; values, or files that hold them. A file's name without a slash
 * is one of the service manager's credentials ($CREDENTIALS_DIRECTORY). NULL: not given. */
struct web_host {
        char *host; /* an origin, as http_origin_parse() has it */
        char *token, *token_file;
        char *user, *password, *password_file;
};

/* Warns of entries that do not say that they are for plain http, and whose hosts it is used with. */
void web_hosts_warn(const struct web_host *hosts, size_t n, const struct http_opts *opts);

/* The credentials for the origin of this URL, with a reference; *access NULL: there are none. Files are read again in
 * each call. A refusal names the origin that they are for, if it is another one of this host. */
int web_auth(const struct web_host *hosts, size_t n, const char *url, struct http_access **access, struct error *error);
