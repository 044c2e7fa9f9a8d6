/* SPDX-License-Identifier: Apache-2.0
 *
 * Local listening addresses: "127.0.0.1:9464", "[::1]:9464", "localhost:9464" or "unix:/path". Addresses that other
 * machines could reach, and names that need a look-up, are refused. Port 0: the system chooses.
 */
#ifndef DAEMON_BASE_SYS_LISTEN_H
#define DAEMON_BASE_SYS_LISTEN_H

#include "daemon/base/error.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#define LISTEN_WHY 160
#define LISTEN_TEXT 160

struct listen_address {
        union {
                struct sockaddr any;
                struct sockaddr_in in;
                struct sockaddr_in6 in6;
                struct sockaddr_un un;
        };
        socklen_t size;
};

/* 0, or -1 with a phrase in why. */
int listen_parse(const char *text, struct listen_address *address, char why[LISTEN_WHY]);

/* A non-blocking listening socket, or STREAMER_E*. A stale Unix socket is replaced; mode 0660. */
int listen_open(const struct listen_address *address, int *fd, struct error *error);

/* What is really listened on: "http://127.0.0.1:9464", or "unix:/path". */
void listen_text(int fd, char text[LISTEN_TEXT]);

#endif
