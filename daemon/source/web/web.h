/* SPDX-License-Identifier: Apache-2.0
 *
 * The credentials that the settings have for hosts.
 */
#ifndef DAEMON_SOURCE_WEB_WEB_H
#define DAEMON_SOURCE_WEB_WEB_H

#include "daemon/io/http/http.h"

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

#endif
