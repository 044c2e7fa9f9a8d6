/* SPDX-License-Identifier: Apache-2.0
 *
 * A session: one client's connection and what belongs to it. It decodes requests, checks the caller's role, passes
 * them to the handlers of its verbs (session_ops), and sends replies.
 *
 *   new > hello received > ... > closed
 *
 * Replies that must wait are deferred (deferred.h).
 */
#pragma once

#include "daemon/serve/server_state.h"

/* Answers a request, or defers the reply: deferred_new() takes the request's memory over. Or fails: the session replies
 * with the error. */
typedef int session_verb(struct session *session, struct request *request, struct error *error);

struct session_ops {
        session_verb *const *verbs; /* by enum verb */
        /* Frees what belongs to the session. */
        void (*closed)(struct session *session);
        /* About once a second. False: nothing has a time. */
        bool (*tick)(struct server *server);
};

/* ---- answers ---- */

/* session_reply(session, id, pair...) sends a reply, after the events that preceded it, and returns 0, for its verb to
 * return; session_reply_fds() with descriptors (conn_send), which are counted. */
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

/* Takes the connection in, and answers what its client has sent already. Beyond a limit the client receives an error
 * and the end; on ENOMEM the end alone. */
void session_new_consume_fd(struct server *server, int fd);
