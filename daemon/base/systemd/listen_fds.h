/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors that the service manager passed at start (sd_listen_fds(3)), by name: the socket of a socket unit, and
 * what an earlier run has stored.
 *
 * Each module takes its own; the rest is closed at the end of the start. Empty without a manager.
 */
#ifndef DAEMON_BASE_SYSTEMD_LISTEN_FDS_H
#define DAEMON_BASE_SYSTEMD_LISTEN_FDS_H

#include "daemon/base/error.h"

#include <stddef.h>

struct listen_fd {
        int fd; /* close-on-exec; -1: taken */
        char *name;
};

struct listen_fds {
        struct listen_fd *fds;
        size_t n;
};

/* Reads $LISTEN_FDS and the related variables, and removes them from the environment. */
int listen_fds_init(struct listen_fds *listen_fds, struct error *error);
/* Closes what was not taken; accepts a zeroed one. */
void listen_fds_deinit(struct listen_fds *listen_fds);

/* The listening Unix stream socket, the caller's from now on; -1 if none was passed. More than one
 * is STREAMER_EINVAL: the daemon has one door. */
int listen_fds_take_listener(struct listen_fds *listen_fds, int *fd, struct error *error);

/* Takes the next one whose name begins with `prefix`: the caller owns it; *name is valid until listen_fds_deinit().
 * -1: no more. */
int listen_fds_take_named(struct listen_fds *listen_fds, const char *prefix, const char **name);

#endif
