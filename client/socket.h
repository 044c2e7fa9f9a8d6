/* SPDX-License-Identifier: Apache-2.0
 *
 * Which daemon a client connects to: the one rule of the library, streamerctl and the Python package.
 */
#pragma once

#include "client/channel.h"

#include <limits.h>
#include <sys/types.h>

#define USER_SOCKETS 2

/* What the rule depends on. */
struct socket_places {
        const char *environment; /* $STREAMERD_SOCKET; NULL or empty: not set */
        const char *system;
        const char *runtime_dir; /* $XDG_RUNTIME_DIR; NULL or empty: not set */
        const char *run_user;    /* the parent of the runtime directories that the system makes, by uid */
        const char *tmp;
        uid_t uid;
};

struct socket_places socket_places_here(void);

/* The sockets of the user's own daemon in their order; a new daemon takes the first. Their number, at least 1. */
size_t socket_of_user(const struct socket_places *places, char paths[USER_SOCKETS][PATH_MAX]);

/* Connects by the rule, and says hello; sets the client's path, rule and skipped. `socket` NULL: by the rule. Texts are
 * kept under NULL. */
int socket_connect(const struct socket_places *places, const char *socket, unsigned flags, int timeout_ms,
                   struct streamer_client **client);
