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
        char *authorization; /* the header's value */
        uint64_t number;     /* of the authorization: counts replacements */
};

/* Either the secret, or its location in the form of secret_read(), or neither. `user` outlives this. */
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
        char *host; /* "host" or "host:port" */
        char *token, *token_file;
        char *user, *password, *password_file;
};

/* The credentials for the host of this URL, with a reference; *access NULL: these hosts have none. Files are read again
 * in each call. */
int web_auth(const struct web_host *hosts, size_t n, const char *url, struct http_access **access, struct error *error);
