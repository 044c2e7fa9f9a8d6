/* SPDX-License-Identifier: Apache-2.0
 *
 * A fake service manager: starts a daemon, keeps the descriptors that it stores, and passes them to the next run. It
 * implements sd_notify(3) and sd_listen_fds(3) as systemd does for one service:
 *
 *   READY=1, STOPPING=1, BARRIER=1, FDSTORE=1 and FDSTOREREMOVE=1 with FDNAME=; a store of `max`
 *   descriptors, beyond which they are dropped silently; the store is passed on at a restart
 *
 * A thread of the test reads the messages. Between two runs a test may inspect and damage the store.
 */
#pragma once

#include "tests/lib/daemon.h"

#define MANAGER_FDS 512

struct stored {
        char name[128];
        int fd;
};

struct manager {
        struct daemon d; /* the running daemon */
        const char *flags[32];
        char notify[108]; /* the socket's name */
        int socket, stop;
        pthread_t thread;
        pthread_mutex_t mutex;

        /* under the mutex */
        bool ready;
        size_t max, n, dropped; /* descriptors: limit, stored, dropped because the store was full */
        struct stored store[MANAGER_FDS];
};

/* Starts no daemon yet. The daemon gets these flags (NULL-terminated) at each start. */
void manager_init(struct manager *m, const char *folder, size_t max, const char *const *flags);
void manager_deinit(struct manager *m); /* kills a running daemon */

/* Starts a daemon with the stored descriptors, and waits until it is ready. */
void manager_start(struct manager *m);
/* Starts it and returns at once. */
void manager_spawn(struct manager *m);
void manager_kill(struct manager *m); /* as a crash */
void manager_stop(struct manager *m); /* SIGTERM; fails unless it exits with 0 */

/* The number of descriptors whose names begin with the prefix, including all messages sent by now. */
size_t manager_count(struct manager *m, const char *prefix);
/* Waits until the store has this many. */
void manager_wait(struct manager *m, const char *prefix, size_t n);
/* The n-th of them (in order of name), or NULL; valid until the next message. */
struct stored *manager_find(struct manager *m, const char *prefix, size_t n);
void manager_drop(struct manager *m, struct stored *stored);
void manager_add_consume_fd(struct manager *m, const char *name, int fd);
