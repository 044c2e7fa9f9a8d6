/* SPDX-License-Identifier: Apache-2.0
 *
 * Deferred replies: requests that are answered later, and are counted against their client until then. At the limit
 * its connection is not read.
 */
#pragma once

#include "daemon/serve/session.h"

struct deferred;
/* Answers (0) or fails, which answers with the error; or the request waits for a change. `deferred` is NULL in
 * deferred_wait(). */
typedef int deferred_try_fn(struct session *session, const struct request *request, const struct deferred *deferred,
                            struct error *error);
#define DEFERRED_WAITS 1

#define DEFERRED_MAGIC 0x64656672u

/* A request that is answered by a change (attach, wait, unload), by the end of a load (a dry run), by either (a load
 * that attaches) or by a task (verb_task.h), which may outlive its session. */
struct deferred {
        unsigned magic;                    /* DEFERRED_MAGIC */
        struct list in_session, in_server; /* in_server: in waiting (by its subject), recheck or reloads */
        struct tree_node in_timed;         /* in server->timed, if it has a deadline */
        struct session *session;           /* NULL: the client has disconnected, or is answered */
        struct request request;
        struct quota_charge charge;
        deferred_try_fn *try; /* when something has changed, if it waits for that */
        const char *subject;  /* what it waits for: a model, as a rule; the request's or constant */
        const char *why;      /* in the error of its deadline; constant. NULL: the model is not ready */
        uint64_t deadline_ns;
        uint64_t generation;     /* an unload waits for its end, or older ones' */
        struct load_watch watch; /* a dry run, a load that attaches */
        /* Of what frees it, also after the client has disconnected: the client is answered or has disconnected.
         * NULL: nothing frees it. */
        void (*orphaned)(struct deferred *deferred);
};

/* Takes the request's memory over. The object, zeroed, begins with the struct deferred and has this size. NULL with
 * *error: STREAMER_ELIMIT, STREAMER_ENOMEM. */
void *deferred_new_sized(size_t size, struct session *session, struct request *request, struct error *error);
#define deferred_new(session, request, error) deferred_new_sized(sizeof(struct deferred), session, request, error)
/* It was answered, or cannot be. */
void deferred_free(struct deferred *deferred);

/* Answers now, or when a change of the model lets `try`, or after timeout_ms (0: none) with an error about it. Takes
 * the request's memory over if it waits. */
int deferred_wait(struct session *session, struct request *request, deferred_try_fn *try, const char *model,
                  uint64_t timeout_ms, struct error *error);
/* From now on a change of the subject, which it borrows, lets `try` answer. */
void deferred_await_change(struct deferred *deferred, const char *subject, deferred_try_fn *try);

/* Answers after timeout_ms, and a tick at most, with an error about the model, its subject; d->why may change until
 * then. `why` NULL: the error says whether the model loads, or which process publishes it. */
void deferred_set_deadline(struct deferred *deferred, const char *model, const char *why, uint64_t timeout_ms);

/* The client has disconnected, or is answered: frees it, unless it is another's. */
void deferred_orphan(struct deferred *deferred);
/* The time is over: answers with this error, and then likewise. */
void deferred_time_out(struct deferred *deferred, const struct error *error);

/* ---- the server's ---- */

/* With the task that examines requests whose deadline has passed, or that wait for a change. */
void deferred_init(struct server *server);
/* Soon examines the requests that wait for a change of the subject, and a few others at the most. */
void deferred_recheck(struct server *server, const char *subject);
/* Soon examines those whose deadline has passed, too. Returns the next deadline; UINT64_MAX: there is none. */
uint64_t deferred_tick(struct server *server, uint64_t now_ns);
