/* SPDX-License-Identifier: Apache-2.0
 *
 * nginx on loopback: plain, with TLS (a private CA, made here), and without
 * ranges, all over one folder; or with a configuration of the caller's.
 */
#ifndef TESTS_LIB_NGINX_H
#define TESTS_LIB_NGINX_H

#include "tests/lib/base.h"

#include <sys/types.h>

struct nginx {
        pid_t pid;
        char folder[PATH_SIZE];         /* configuration, logs, certificates */
        char ca[PATH_SIZE];             /* of the private CA */
        unsigned http, https, streamed; /* ports */
};

/* NULL where it can be done here, else the reason for a skip. */
const char *nginx_unavailable(void);

void nginx_start(struct nginx *n, const char *folder, const char *root);
/* `servers` is what stands in http {}; ready when this port answers. */
void nginx_start_with(struct nginx *n, const char *folder, const char *servers, unsigned port);
void nginx_stop(struct nginx *n);

/* Bytes of bodies that it has sent, by its own log. */
uint64_t nginx_sent(const struct nginx *n);

#endif
