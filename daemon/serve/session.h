/* SPDX-License-Identifier: Apache-2.0
 *
 * A session: one client's connection and what belongs to it. It decodes requests, checks the caller's role, passes
 * them to the handlers of its verbs, and sends replies. Higher layers pass it the table of handlers and hooks
 * (session_ops); it knows none by name.
 *
 *   new > hello received > ... > closed
 *
 * Replies that must wait are deferred (deferred.h), and counted against the client; at the limit its connection is not
 * read. Events do not queue (events/events.h), but a client is notified of all that happened before a reply before it
 * is sent the reply.
 */
#pragma once

#include "daemon/serve/server_state.h"

struct session;

/* Answers a request, or defers the reply: deferred_new() takes the request's memory over. Or fails: the session replies
 * with the error. */
typedef int session_verb(struct session *session, struct request *request, struct error *error);

struct session_ops {
        session_verb *const *verbs; /* by enum verb */
        /* Notifies the client of what has happened so far, before a reply is sent. */
        void (*notify)(struct session *session);
        /* All that was unsent has been sent. */
        void (*drained)(struct session *session);
        /* Frees what belongs to the session. */
        void (*closed)(struct session *session);
        /* About once a second. */
        void (*tick)(struct server *server);
};

#define SESSION_MAGIC 0x73657373u

struct session {
        unsigned magic; /* SESSION_MAGIC */
        struct server *server;
        struct conn *conn;
        bool greeted;
        bool refused;                 /* one beyond limits.connections, not counted */
        char *client;                 /* what it calls itself; NULL: nothing */
        struct list in_events;        /* in server->due or ->up_to_date */
        uint64_t marks;               /* server->marks: it is up to date; another number: it is due */
        bool closed;                  /* nothing marks it any more */
        struct subscriber subscriber; /* of states of models */
        uint64_t ends_notified;       /* loads->n_ended when none of its ops was left that had ended */
        struct list ops;              /* of struct op; not notified of the progress yet: first */
        uint64_t n_ops;
        struct list leases;       /* of struct lease, by in_owner; to be notified: first */
        struct list publications; /* of struct publication, by in_session */
        struct list deferred;     /* of struct deferred, by in_session */
        struct list transfers;    /* of struct transfer */
        uint64_t n_deferred;
        uint64_t probe;             /* the seed of its test model, which ends with the session; 0: none */
        struct quota_charge charge; /* the connection */
        struct quota_charge fds;    /* descriptors that it may not have received yet */
};

#define MS UINT64_C(1000000) /* in nanoseconds */

/* ---- answers ---- */

/* Descriptors of a reply, borrowed. */
struct fds {
        int v[FRAME_FDS_MAX];
        size_t n;
};

/* session_reply(session, id, pair...) sends a reply and returns 0, for its verb to return; session_reply_fds() with
 * descriptors (NULL: none), which the pairs may add to, and which are counted. */
#define session_reply(session, id, ...) session_reply_fds(session, id, NULL, __VA_ARGS__)
#define session_reply_fds(session, id, fds, ...) session_send(session, fds, REPLY_PAIRS(id, __VA_ARGS__))
int session_send(struct session *session, const struct fds *fds, const struct pair *pairs, size_t n);
/* May a reply to this verb bring n descriptors more (limits.fds_per_client, limits.fds_in_flight, the user's share of
 * these)? 0, or STREAMER_ELIMIT. */
int session_check_fds(struct session *session, unsigned n, const char *verb, struct error *error);

void session_error(struct session *session, uint64_t id, const struct error *error);
void session_fail(struct session *session, uint64_t id, int code, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
/* A reply without fields. */
int session_ok(struct session *session, uint64_t id);
int session_reply_state(struct session *session, uint64_t id, const char *model, const char *state,
                        uint64_t generation);
/* STREAMER_EFAILED: "is not ready", "is not loading"; STREAMER_ENOENT where there is no such model at all. */
int session_state_error(const struct session *session, const char *model, const char *what, struct error *error);

/* Takes the connection in. Beyond a limit the client receives an error and the end; on ENOMEM the end alone. */
void session_new_consume_fd(struct server *server, int fd);
