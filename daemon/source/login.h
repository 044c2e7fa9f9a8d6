/* SPDX-License-Identifier: Apache-2.0
 *
 * Credentials that are one header, Authorization: a bearer token, or user and password. They are read
 * where a load begins and forgotten with it. Where a server does not take those of a file (401), the
 * file is read again: who wrote it may have replaced them while the load runs.
 */
#ifndef DAEMON_SOURCE_LOGIN_H
#define DAEMON_SOURCE_LOGIN_H

#include "daemon/io/http.h"

#include <pthread.h>

/* Embedded in an http_access, whose functions are called on any thread. */
struct login {
        char *user;    /* NULL: a bearer's */
        char *setting; /* "file:PATH", "credential:NAME"; NULL: a value, which stays the same */
        pthread_mutex_t mutex;
        char *authorization; /* the header's value */
        uint64_t changed_ns; /* when it was replaced; 0: never */
};

/* Either the secret or where it is, as secret_read() has it. */
int login_init(struct login *login, const char *user, const char *secret, const char *setting, struct error *error);
void login_deinit(struct login *login);

int login_authorize(struct login *login, struct http_headers *more, struct error *error);
/* After a 401: there are others to try. */
bool login_again(struct login *login);

#endif
