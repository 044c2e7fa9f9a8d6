/* SPDX-License-Identifier: Apache-2.0
 *
 * Models on web servers: one file, or an index beside whose URL the shards lie; and the credentials
 * that the settings have for hosts.
 */
#ifndef DAEMON_SOURCE_WEB_H
#define DAEMON_SOURCE_WEB_H

#include "daemon/io/http.h"

/* A bearer token, or user and password; values, or files that hold them. A file's name without a slash
 * is one of the service manager's credentials ($CREDENTIALS_DIRECTORY). NULL: not given. */
struct web_host {
        const char *host; /* "host" or "host:port" */
        const char *token, *token_file;
        const char *user, *password, *password_file;
};

struct web;

/* Copied. Files are read anew with each load. */
int web_new(struct web **web, const struct web_host *hosts, size_t n, struct error *error);
struct web *web_free(struct web *web);

/* Who asks at the host of this URL: referenced; *access NULL where the settings name nobody. */
int web_access(const struct web *web, const char *url, struct http_access **access, struct error *error);

#endif
