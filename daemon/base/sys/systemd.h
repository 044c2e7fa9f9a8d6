/* SPDX-License-Identifier: Apache-2.0
 *
 * The service manager: notifications to it, its fd store, and the descriptors that it passes at start. Nothing is sent
 * without one ($NOTIFY_SOCKET unset).
 */
#pragma once

#include "daemon/base/error.h"

#include <stdint.h>

/* ---- notifications; they never block ---- */

bool notify_manager(void);   /* true: a manager exists */
bool notify_ready(void);     /* the socket answers; false where it was not sent, though there is a manager */
void notify_reloading(void); /* the settings are read again; notify_ready() ends it */
bool notify_state(const char *assignments); /* of sd_notify(3); false: not sent */
/* One line for `systemctl status`; false where it was not sent. */
bool notify_status(const char *text);

/* How often the manager wants a sign of life (WatchdogSec=), in ns; 0: it does not. */
uint64_t notify_watchdog_ns(void);

/* ---- the fd store ----
 *
 * Its descriptors outlive this process. A descriptor added under a name is passed to the next run ($LISTEN_FDS), after
 * `systemctl restart` and after a crash.
 *
 * The store is limited (FileDescriptorStoreMax=), and what exceeds it is dropped silently, so callers count. All calls
 * but the first wait for a manager that does not read, up to a limit, and belong on a worker.
 *
 * All names reach the next run in one variable of its environment ($LISTEN_FDNAMES), which the kernel limits to 128 KiB
 * (MAX_ARG_STRLEN); with a longer one no run could be started. So names are short and their number is limited. */

#define FDSTORE_NAME_MAX 16                                /* with what ends it */
#define FDSTORE_NAMES ((131072u - 512) / FDSTORE_NAME_MAX) /* besides the sockets' names */

/* The number of descriptors that the manager stores for this service: from $FDSTORE (systemd 254), else from its bus,
 * which takes a moment; at most FDSTORE_NAMES. 0: none, or unknown. */
uint64_t fdstore_max(void);

/* A service manager has started this process that may have a store for it. */
bool fdstore_possible(void);

/* How long calls may take together. */
struct fdstore_limit {
        uint64_t until_ns;      /* of now_ns() */
        const uint64_t *end_ns; /* the same, atomic: another thread may lower it meanwhile */
};

/* 0 or a negative errno: -ETIMEDOUT where the manager does not read. Descriptors are borrowed. One name, one
 * descriptor: the order within a name is lost. -ENAMETOOLONG: see FDSTORE_NAME_MAX. */
int fdstore_add(const char *name, int fd, const struct fdstore_limit *limit);
int fdstore_remove(const char *name, const struct fdstore_limit *limit); /* all of that name */

/* Waits until the manager has read everything that was sent before. 0 or a negative errno. */
int fdstore_sync(const struct fdstore_limit *limit);

/* ---- what was passed ---- */

/* Descriptors that the service manager passed at start (sd_listen_fds(3)), by name: the socket of a socket unit, and
 * what an earlier run has stored. Each module takes its own; the rest is closed at the end of the start. Empty without
 * a manager. */
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
 * is STREAMER_EINVAL: the daemon has one socket. */
int listen_fds_take_listener(struct listen_fds *listen_fds, int *fd, struct error *error);

/* Takes the next one whose name begins with `prefix`: the caller owns it; *name is valid until listen_fds_deinit().
 * -1: no more. */
int listen_fds_take_named(struct listen_fds *listen_fds, const char *prefix, const char **name);
