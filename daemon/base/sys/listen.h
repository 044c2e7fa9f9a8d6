/* SPDX-License-Identifier: Apache-2.0
 *
 * Listening addresses: "127.0.0.1:9464", "[::]:9464", "localhost:9464" or "unix:/path". Names that need a look-up are
 * refused. Port 0: the system chooses.
 */
#pragma once

#include "daemon/base/error.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#define LISTEN_TEXT 160
#define LISTEN_TOO_LONG "longer than a socket's path may be (107 bytes)"

struct listen_address {
        union {
                struct sockaddr any;
                struct sockaddr_in in;
                struct sockaddr_in6 in6;
                struct sockaddr_un un;
        };
        socklen_t size;
};

/* 0, or STREAMER_EINVAL. */
int listen_parse(const char *text, struct listen_address *address, struct error *error);
/* No other machine can reach it. */
bool listen_is_local(const struct listen_address *address);
/* A Unix socket's, also a relative one. Likewise. */
int listen_set_path(struct listen_address *address, const char *path, struct error *error);

/* A non-blocking listening socket. */
struct listener {
        int fd;     /* -1: it is closed, or another's */
        char *path; /* of a Unix socket; else NULL */
        dev_t dev;
        ino_t ino; /* of its file, which is removed with it; 0: the file is another's, or there is none */
        gid_t gid;
};

/* A stale Unix socket is replaced; mode 0660. STREAMER_EBUSY: another process serves it. */
int listener_open(struct listener *listener, const struct listen_address *address, int backlog, struct error *error);
/* A Unix socket that listens already. Its file is its maker's, and stays. */
int listener_adopt_consume_fd(struct listener *listener, int fd, struct error *error);
void listener_close(struct listener *listener);
void listener_deinit(struct listener *listener); /* accepts one that could not be opened */

/* What is really listened on: "SCHEME://127.0.0.1:9464", or "unix:/path". */
void listen_text(int fd, const char *scheme, char text[LISTEN_TEXT]);
