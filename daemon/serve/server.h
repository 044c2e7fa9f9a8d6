/* SPDX-License-Identifier: Apache-2.0
 *
 * The server: the listening socket, its connections, the timers, and the daemon's parts that the
 * sessions act on. Everything here runs on the loop thread.
 *
 * Ending: no new connections, clients are told, loads are cancelled, queued output goes out, then
 * connections and the socket are closed; what residents hold is freed. server_closed() says when
 * nothing of it is left on the loop.
 */
#ifndef DAEMON_SERVE_SERVER_H
#define DAEMON_SERVE_SERVER_H

#include "daemon/load/load.h"
#include "daemon/load/verify.h"
#include "daemon/resident/keep.h"
#include "daemon/resident/remember.h"
#include "daemon/serve/again.h"
#include "daemon/serve/beat.h"
#include "daemon/serve/chore.h"
#include "daemon/serve/conn.h"
#include "daemon/serve/deadlines.h"
#include "daemon/serve/news.h"
#include "daemon/serve/preload.h"
#include "daemon/serve/recheck.h"
#include "daemon/serve/role.h"
#include "daemon/serve/stall.h"
#include "daemon/serve/wanted.h"

struct server_limits {
        uint64_t connections, leases_per_client, requests_per_client;
        uint64_t fds_in_flight, fds_per_client;
        uint64_t per_uid[USER_SLOT_COUNT]; /* 0: any amount */
        struct conn_limits conn;
};

struct cuda;

struct server {
        uv_loop_t *loop;
        struct server_limits limits;
        const struct roles *roles;
        const struct stall *stall;
        struct preload preload;
        void (*reload)(struct server *server); /* asks for it; sessions_reloaded() answers */
        void *reload_context;
        struct list reloads;    /* of struct deferred: who asked */
        bool share_across_uids; /* writable handles may go to processes of several users */
        bool trust_detach;      /* a detach ends a lease of writable handles; else the process's exit does */
        struct resident *resident;
        struct loads *loads;
        struct leases leases;
        struct keep keep;         /* what survives this process */
        struct remember remember; /* and what is written of it */
        struct again again;       /* what is to be loaded again */
        struct recheck recheck;
        struct reader *reader;
        struct work_pool *pool;
        uint64_t started_ns;
        uint64_t last_op, last_probe;
        uint64_t fds_out,
                fds_counted_ns;   /* descriptors on their way to clients at the most, and when they were counted */
        const struct cuda *cuda;  /* NULL: no GPU is configured; then doctor opens the runtime for a look */
        const char *cuda_library; /* NULL: the usual names */

        int listener;
        bool activated; /* the listener came from the service manager, and its path stays the manager's */
        char *path;
        dev_t socket_dev;
        ino_t socket_ino;
        gid_t socket_gid;
        uv_poll_t accept_poll;
        struct conn_turn turn;
        uv_timer_t second, progress, deadline; /* housekeeping; progress of watched loads; the first of deadlines */
        bool listening, timers, closing, full; /* full: accepting is paused */
        bool refusing;                         /* that connections are refused was logged */

        struct list conns;          /* of struct conn */
        struct list waiting;        /* of struct deferred: requests that a change may answer */
        uint64_t changes;           /* that may answer somebody */
        struct chore answer;        /* looks through `waiting` */
        struct deadlines deadlines; /* of those that wait */
        struct chore late;          /* answers who has waited for so long */
        struct news news;
        struct list telling; /* of struct generation: whose leases have not all been looked at since it changed */
        struct chore tell;
        struct chore part;         /* tells all of the daemon's end */
        struct beat progress_beat; /* of struct op, through `tell` */
        struct users users;
        uint64_t n_conns;
        char told_manager[256]; /* the last STATUS= */
};

/* Serves `listener`, a socket that listens already (server->path says where), or where that is -1 binds
 * to path: a socket that another daemon serves is STREAMER_EBUSY, a stale one is replaced. */
int server_init_consume_fd(struct server *server, uv_loop_t *loop, const char *path, int listener, struct error *error);
/* What was pinned, and has not been taken back, is to be loaded again: `folder` has the state file, NULL:
 * none. Before the loop runs. */
void server_load_again(struct server *server, const char *folder);
/* The first of the deadlines may be another now. */
void server_await_deadline(struct server *server);
/* Begins the end. */
void server_close(struct server *server);
/* No connection is left. */
bool server_closed(const struct server *server);
/* Then, until the resident is empty: ends leases and drops models, as far as they can be by now. */
void server_release(struct server *server);
void server_deinit(struct server *server);

#endif
