/* SPDX-License-Identifier: Apache-2.0
 *
 * What one client says and is told: requests by verb, deferred answers, watched loads, leases,
 * events.
 *
 *   new > hello said > ... > closed
 *
 * Answers that must wait (attach or wait on a model that is not there yet, verify, a dry run) are
 * kept as struct deferred, counted against the client; at the limit its connection is not read.
 * Events never queue at a connection: what a client has not been told yet is a flag or a counter, and is
 * sampled when its connection can take it. Changes of models and ends of loads wait for their turn, since
 * a crowd is told in pieces (news.h); but whatever a client is sent, it has been told before of all that
 * happened before.
 */
#ifndef DAEMON_SERVE_SESSION_H
#define DAEMON_SERVE_SESSION_H

#include "daemon/serve/server.h"

struct session {
        struct server *server;
        struct conn *conn;
        bool greeted;
        struct listener listener; /* to changes of models */
        char *subject;            /* the only model that it wants to hear of; NULL: all */
        char *client;             /* what it calls itself; NULL: nothing */
        uint64_t events_lost;
        uint64_t ends_told;   /* loads->n_ended when none of its ops was left that had ended */
        struct list ops;      /* of struct op */
        struct list leases;   /* of struct lease, by in_owner */
        struct list deferred; /* of struct deferred, by in_session */
        uint64_t n_leases, n_deferred;
        struct probe *probe;       /* at most one; goes with the session */
        struct user_charge charge; /* the connection */
};

#define MS UINT64_C(1000000) /* in nanoseconds */

/* A load that this client watches. */
struct op {
        struct list link;
        struct beat_member beat; /* it is told how far the load is */
        struct session *session;
        struct load_watch watch;
        uint64_t id;
        uint64_t told_bytes;
        char *model;
};

/* A request that is answered later: by a change (attach, wait, unload), a load's end (a dry run) or a
 * worker (verify, ps). The last two outlive their session. */
struct deferred {
        struct list in_session, in_server; /* in_server: where a change answers it */
        struct session *session;           /* NULL: the client is gone */
        struct request request;
        struct deadline deadline; /* in server->deadlines; or none */
        uint64_t looked;          /* server->changes when it was looked at last */
        uint64_t generation;      /* the one that is verified; an unload waits for its end, or older ones' */
        struct load_watch watch;  /* a dry run */
        struct verify verify;
        uint64_t n_verified, verified_tensors, verified_bytes; /* devices so far, and what they have */
};

/* Takes the request over. NULL on ENOMEM: the request was answered with that, and is gone. */
struct deferred *deferred_new(struct session *session, struct request *request);
/* Answered, or not to be answered any more. */
void deferred_free(struct deferred *deferred);

/* The client is gone: what a worker still holds is freed when it comes home. */
void deferred_orphan(struct deferred *deferred);
/* Looks at one of those that wait for a change. */
bool deferred_answer(struct chore *chore);
/* Answers one of those whose time is over. */
bool deferred_answer_late(struct chore *chore);

/* ---- answers ---- */

/* A reply: begun, and sent once its fields are written. */
void session_reply(struct writer *writer, uint64_t id, size_t n_fields);
void session_send(struct session *session, struct writer *writer);
void session_send_fds(struct session *session, struct writer *writer, const int *fds, size_t n_fds);
/* Tells it of the changes and the ends of its loads that it has not heard of, in the order in which they were. */
void session_tell_news(struct session *session);

void session_error(struct session *session, uint64_t id, const struct error *error);
void session_ok(struct session *session, uint64_t id);
void session_no_model(struct session *session, uint64_t id, const char *model);
/* "is not ready", "is not loading"; or there is no such model at all. */
void session_not(struct session *session, uint64_t id, const char *model, const char *what);
void session_reply_state(struct session *session, uint64_t id, const char *model, const char *state,
                         uint64_t generation);

/* Takes the connection in; closes it on ENOMEM. */
void session_new(struct server *server, int fd);
/* One too many: is told so, and closed. */
void session_refuse_consume_fd(const struct server *server, int fd);

/* ---- verbs: those that may be answered later take their request over ---- */

void session_load(struct session *session, struct request *request);
void session_cancel(struct session *session, const struct request *request);
void session_pin(struct session *session, const struct request *request);
void session_reload(struct session *session, struct request *request);
void session_set_priority(struct session *session, const struct request *request);
void op_tell(struct op *op);
/* Its load has ended. Sent as it is: what was before has been told. Frees the op. */
void op_tell_end(struct op *op);
void op_free(struct op *op);

void session_list(struct session *session, const struct request *request);
void session_show(struct session *session, const struct request *request);
void session_status(struct session *session, const struct request *request);
void session_version(struct session *session, const struct request *request);
void session_verify(struct session *session, struct request *request);
void session_unload(struct session *session, struct request *request);
/* The memory of what was unloaded is free; what leases hold does not count. */
bool session_unloaded(const struct resident *resident, const struct req_unload *req, uint64_t number);
/* attach, wait: now, or when a change lets it. */
void session_defer(struct session *session, struct request *request);

/* Answers attach now, or false: it must wait for a change. */
bool session_attach(struct session *session, const struct request *request);
/* The client's process, watched; it goes with its last lease (process_settle where it gets none). NULL
 * with *error. */
struct process *session_process(struct session *session, struct error *error);
/* A lease of a connection or of a daemon that is gone, by its token. */
void session_reclaim(struct session *session, const struct request *request);
void session_detach(struct session *session, const struct request *request);
void session_metrics(struct session *session, const struct request *request);
void session_ps(struct session *session, struct request *request);
void session_doctor(struct session *session, struct request *request);
void session_probe(struct session *session, struct request *request);
/* Whatever became of the load: the model goes when its leases have ended. */
void session_end_probe(struct session *session);
/* Tells a lease that follows how far its model is; keeps it for later where the client is slow. */
void session_tell_lease(struct session *session, struct lease *lease);
/* The connection is gone. */
void session_abandon_leases(struct session *session);

/* ---- the server's side ---- */

/* A change of this generation: answers deferred requests, tells leases and subscribers; soon. */
void sessions_changed(struct server *server, struct generation *generation);
/* Tells one lease, one subscriber, one watcher of a load and one of a load that has ended. */
bool sessions_tell(struct chore *chore);
/* Something that no generation tells of has changed: looks again at deferred requests. */
void sessions_answer_soon(struct server *server);
/* A load that somebody watches has ended: tells them, soon. */
void sessions_load_ended(struct server *server);
/* Its tensors have arrived: tells leases that follow, soon. */
void sessions_arrived(struct server *server, struct generation *generation);
/* Ten times a second: models expire; and progress of watched loads is told, soon. */
void sessions_progress(struct server *server);
void sessions_tick(struct server *server, uint64_t now);
/* The settings were read again (error NULL: and applied, but for these keys): answers who asked. */
void sessions_reloaded(struct server *server, const struct error *error, const char *restart);
/* The daemon ends: tells everybody and closes, soon. */
void sessions_shutdown(struct server *server);
/* Tells one of them. */
bool sessions_part(struct chore *chore);

#endif
