/* SPDX-License-Identifier: Apache-2.0
 *
 * A stand-in for the service manager: starts a daemon, keeps what it stores, and hands that to the
 * next run. What systemd does of sd_notify(3) and sd_listen_fds(3) for one service, and no more:
 *
 *   READY=1, STOPPING=1, BARRIER=1, FDSTORE=1 and FDSTOREREMOVE=1 with FDNAME=; a store of `max`
 *   descriptors, beyond which they are dropped without a word; over a restart the store is passed on
 *
 * A thread of the test reads the messages. Between two runs a test may look at the store and damage it.
 */
#ifndef TESTS_LIB_MANAGER_H
#define TESTS_LIB_MANAGER_H

#include "tests/lib/daemon.h"

#include <pthread.h>

#define MANAGER_FDS 512

struct stored {
        char name[128];
        int fd;
};

struct manager {
        struct daemon d; /* the one that runs */
        const char *flags[32];
        char notify[108]; /* the socket's name */
        int socket, stop;
        pthread_t thread;
        pthread_mutex_t mutex;

        /* under the mutex */
        bool ready, stopping;
        size_t max, n, dropped; /* descriptors: allowed, there, lost for want of room */
        struct stored store[MANAGER_FDS];
        uint64_t messages;
};

/* Nothing runs yet. The daemon gets these flags (NULL-terminated) at each start. */
void manager_init(struct manager *m, const char *folder, size_t max, const char *const *flags);
void manager_deinit(struct manager *m); /* kills what runs */

/* Starts a daemon with what is stored, and waits until it is ready. */
void manager_start(struct manager *m);
/* Starts it and returns at once; manager_ready() waits. */
void manager_spawn(struct manager *m);
void manager_ready(struct manager *m);
void manager_kill(struct manager *m); /* as a crash */
void manager_stop(struct manager *m); /* SIGTERM; fails where it does not end with 0 */

/* Descriptors whose names begin so. Everything that the daemon has sent by now is counted. */
size_t manager_count(struct manager *m, const char *prefix);
/* Waits until there are this many. */
void manager_wait(struct manager *m, const char *prefix, size_t n);
/* The n-th of them (in order of name), or NULL; valid until the next message. */
struct stored *manager_find(struct manager *m, const char *prefix, size_t n);
void manager_drop(struct manager *m, struct stored *stored);
void manager_add_consume_fd(struct manager *m, const char *name, int fd);

#endif
