/* SPDX-License-Identifier: Apache-2.0
 *
 * nginx on loopback: plain, with TLS (a private CA), and without ranges, all with one directory; or with the caller's
 * configuration.
 */
#pragma once

#include "tests/lib/base.h"

struct nginx {
        pid_t pid;
        char folder[PATH_SIZE];          /* configuration, logs, certificates */
        char ca[PATH_SIZE];              /* of the private CA */
        unsigned http, https, rangeless; /* ports */
};

/* NULL if nginx is installed, else the reason for a skip. */
const char *nginx_unavailable(void);

void nginx_start(struct nginx *n, const char *folder, const char *root);
/* `servers` is the contents of http {}; it is ready when this port answers. */
void nginx_start_with(struct nginx *n, const char *folder, const char *servers, unsigned port);
void nginx_stop(struct nginx *n);
/* For nginx_start_with(): TLS at this port, with the certificate of `n`, in front of the server at port `upstream`;
 * `more` directives. Never freed. */
char *nginx_tls_server(const struct nginx *n, unsigned port, unsigned upstream, const char *more);

/* Bytes of all bodies sent, from the access log. */
uint64_t nginx_sent(const struct nginx *n);
