/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials in one header, Authorization: a bearer token, or user and password. They are read when a load begins and
 * freed with it. Where a server refuses those of a file (401), the file is read again: it may have been replaced while
 * the load runs.
 */
#ifndef DAEMON_SOURCE_WEB_HTTP_AUTH_H
#define DAEMON_SOURCE_WEB_HTTP_AUTH_H

#include "daemon/io/http/http.h"

#include <pthread.h>

/* Embedded in an http_access, whose functions are called on any thread. */
struct http_auth {
        const char *user; /* borrowed; NULL: a bearer token */
        char *setting;    /* "file:PATH", "credential:NAME"; NULL: a value, which stays the same */
        pthread_mutex_t mutex;
        char *authorization; /* the header's value */
        uint64_t changed_ns; /* when it was replaced; 0: never */
};

/* Either the secret, or its location in the form of secret_read(). `user` is of the settings: it outlives this. */
int http_auth_init(struct http_auth *http_auth, const char *user, const char *secret, const char *setting,
                   struct error *error);
void http_auth_deinit(struct http_auth *http_auth);

int http_auth_authorize(struct http_auth *http_auth, struct http_headers *more, struct error *error);
/* After a 401: there are others to try. */
bool http_auth_reread(struct http_auth *http_auth);

#endif
