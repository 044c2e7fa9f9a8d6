/* SPDX-License-Identifier: Apache-2.0
 *
 * A request that workers answer (doctor, verify, fetch, diff, publish_find). Belongs to the loop thread.
 *
 *   queued > started (start; run on a worker, done on the loop, repeated) > ended (the verb has replied)
 *     | ^       |  \
 *     | +-------+   \-> abandoned: the client has disconnected, or the time is over; ends when its work does
 *     | paused (it waits for a change)
 *     \-> freed with the connection, as a paused one
 *
 * What may hang separately is a kind of its own, and a share (shares.h): of each kind a user has a few started,
 * abandoned ones included and paused ones not; the others wait for these.
 */
#pragma once

#include "daemon/serve/deferred.h"

struct verb_task;
struct verb_task_ops {
        /* It is its turn: begins the work, or replies and ends. NULL: begins the work on its source. */
        void (*start)(struct verb_task *task);
        void (*run)(struct verb_task *task); /* on a worker, unless it is abandoned */
        /* The work is done: begins more, or finishes. NULL: finishes. */
        void (*done)(struct verb_task *task);
        /* It has finished without an error, and the client waits. */
        void (*reply)(struct verb_task *task, struct session *session);
        void (*deinit)(struct verb_task *task); /* NULL: nothing is owned */
};

/* The beginning of a verb's object. */
struct verb_task {
        struct deferred deferred; /* the request; its session is NULL once abandoned */
        const struct verb_task_ops *ops;
        struct work work;
        struct server *server;
        struct quota_charge running; /* 1 while it is started; 0: it is queued or paused */
        struct list link;            /* in server->queued or ->started */
        bool working;                /* its work was submitted, and is not done */
        bool given_up;               /* atomic: abandoned */
        uint64_t deadline_ns;        /* abandoned then; 0: none */
        struct error error;
        /* verb_task_begin_source() */
        char *source;               /* canonical */
        struct source_roots *roots; /* a reference */
        struct caller caller;
};

/* The object, of this size and zeroed. NULL with *error: STREAMER_ELIMIT, STREAMER_ENOMEM. Takes the request's memory
 * over. */
void *verb_task_new(size_t size, const struct verb_task_ops *ops, struct session *session, struct request *request,
                    struct error *error);
/* Begins it, if r is 0, or frees it. 0, or an error, which answers the request. */
int verb_task_begin(struct verb_task *task, int r, enum quota_slot kind, struct error *error);
/* Likewise, of a fetch kind, and sets its source, if the client may read it: this file beside its weights, or (NULL)
 * their list. */
int verb_task_begin_source(struct verb_task *task, int r, const char *source, const char *file, struct error *error);

/* Calls run() on a worker and then done(). The second finds the lane of the source, which it borrows. */
void verb_task_submit(struct verb_task *task, uint64_t lane);
void verb_task_submit_source(struct verb_task *task, const char *source);
/* Sets its deadline, by the settings of http: it has as long as a server that answers nothing would be tried. */
void verb_task_set_deadline(struct verb_task *task);

/* Of one that is started and has no work in flight: it does not count against its user until a change of the model
 * after which `try` calls verb_task_resume(). `why`: what it waits for. */
void verb_task_pause(struct verb_task *task, const char *model, deferred_try_fn *try);
/* Queues one that is paused: start() is called when it is its turn. May free it. */
void verb_task_resume(struct verb_task *task);

/* Replies with task->error, or else by ops->reply(), if the client waits; and ends it. */
void verb_task_finish(struct verb_task *task);
/* Frees it, and starts the next one. */
void verb_task_end(struct verb_task *task);

/* ---- the server's ---- */

/* About once a second: starts those that waited until their user read its replies; answers and abandons those whose
 * time is over. False: there are none. */
bool verb_tasks_tick(struct server *server, uint64_t now_ns);
