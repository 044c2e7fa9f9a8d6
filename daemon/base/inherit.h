/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors that the service manager passed at start (sd_listen_fds(3)), by name: the socket of a
 * socket unit, and whatever an earlier run of this daemon has left in the manager's keeping.
 *
 * Each part of the daemon takes what is its own; what nobody has taken is closed at the end of the
 * start. Without a manager there is nothing here.
 */
#ifndef DAEMON_BASE_INHERIT_H
#define DAEMON_BASE_INHERIT_H

#include "daemon/base/error.h"

#include <stddef.h>

struct inherited {
        int fd; /* close-on-exec; -1: taken */
        char *name;
};

struct inherit {
        struct inherited *fds;
        size_t n;
};

/* Reads $LISTEN_FDS and its fellows, which are gone from the environment afterwards. */
int inherit_init(struct inherit *inherit, struct error *error);
/* Closes what was not taken; accepts a zeroed one. */
void inherit_deinit(struct inherit *inherit);

/* The listening Unix stream socket, the caller's from now on; -1 if none was passed. More than one
 * is STREAMER_EINVAL: the daemon has one door. */
int inherit_take_listener(struct inherit *inherit, int *fd, struct error *error);

/* The next one whose name begins with `prefix`: *name is valid until inherit_deinit(). The caller's
 * from now on; -1: no more. */
int inherit_take_named(struct inherit *inherit, const char *prefix, const char **name);

#endif
