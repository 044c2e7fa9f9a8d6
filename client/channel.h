/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection of a client: sends requests, matches replies with calls by id, and passes events to their
 * operation or lease, or to the queue of streamer_event_next().
 *
 * The library has no thread: of the threads that wait, one reads the socket for all and wakes the others
 * through the condition variable. When a call times out, its late reply is dropped, the descriptors in it are
 * closed and the lease in it is detached.
 *
 * What the lock protects, and who owns it:
 *
 *   object       owner                               reachable from the client, in its list
 *   call         the calling thread, or an opening   from channel_send() to channel_end()
 *   operation    the application's handle            from op_link() to the end of the handle
 *   lease        the handle and each DLPack object   from its reply (lease_link) to the last reference
 *   detaching    the list; before it is sent also    from the end of its lease to the daemon's confirmation
 *                the thread that ends the lease
 *   event        the list                            until streamer_event_next() returns it
 *   note         what it is about (readiness.h)      while it is set
 *
 * Replies and events find what they belong to by its number, in constant time: calls, operations, leases and detaches
 * are in tables, too.
 *
 * The thread that reads the socket, or that reconnects, visits whatever is in a list. So an object ends in two steps:
 * one function takes it out of all lists, with its notes, in one locked step; another one frees it, unlocked, when
 * nothing leads to it. What is added to an object in a list (an arrival log, a segment) is prepared unlocked and set in
 * one locked step.
 *
 * In a forked child the lock may be held for ever, and what it protects may be half changed: there a handle's end
 * releases only what does not change (mappings, descriptors), and leaves the rest to the end of the process.
 *
 * Nothing that may block runs with the lock held: no file system, no waiting but for `changed`, no call of a GPU's
 * driver, no unmapping. An outcome that needs such a look-up to be explained is constant once it is known, and is
 * explained unlocked (op.h). streamer_process() and the destructors of tensors rely on it.
 *
 *   alive > lost (the daemon closed it) > alive: the next call reconnects (reconnect.c)
 *       \> closed, or an invalid message was received: final
 */
#pragma once

#include "client/fault.h"
#include "client/readiness.h"
#include "client/table.h"
#include "proto/codec.h"
#include "proto/codes.h"
#include "proto/frame.h"
#include "streamer/client.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EVENTS_MAX 1024 /* queued for streamer_event_next(); more are counted as lost */

struct event {
        struct event *next;
        struct message message;
};

#define CALL_LOST_FDS "too many files are open (ulimit -n): the descriptors of the daemon's reply were lost"

/* One request under way. */
struct call {
        struct table_node by_id;
        uint64_t id;
        uint64_t epoch; /* the connection that it was sent on */
        /* Called with the lock held as soon as a reply without error is there (NULL: it was taken), before any event
         * that comes after it is looked at. May be NULL. */
        void (*accept)(struct call *call, const msgpack_object *reply);
        void (*finish)(struct call *call); /* with the lock held, when it is done, also with an error; may be NULL */
        /* With the lock held: reads the message of a success, which has no descriptors, and which is not decoded then.
         * False: it cannot. NULL: every message is decoded. */
        bool (*take)(struct call *call, const void *data, size_t len);
        void *arg;
        const char *slow; /* the verb, if the reply may take long: that it has not come says nothing of the daemon */
        bool done, taken;
        bool hopeless; /* it was answered with an error: a later try would fail, too */
        int code;      /* not 0: the reply came, but not all of its descriptors */
        struct message reply;
        int fds[FRAME_FDS_MAX];
        size_t n_fds;
};

struct streamer_client {
        atomic_uint refs; /* the handle, and each operation and lease */
        struct fault *fault;
        pid_t pid;
        int timeout_ms;
        bool timeout_given; /* by the caller: then it holds for long verbs too */
        char *path;         /* of the socket */

        pthread_mutex_t lock; /* of everything below, and of operations and leases */
        pthread_cond_t changed;
        int fd;
        bool introduced; /* the credentials were sent with the first bytes */
        bool pumping;    /* a thread reads the socket */
        bool reviving;   /* a thread reconnects (reconnect.c) */
        bool closed;     /* by the application: final */
        int dead;        /* 0, or why the connection ended */
        uint64_t epoch;  /* counts connections: a request on another one is not answered */
        char *dead_text;
        struct frame_reader in;
        int fds[FRAME_FDS_MAX]; /* arrived, not yet claimed by a reply */
        size_t n_fds;
        bool fds_lost;       /* of the frame that is being received: this process may open no more files */
        msgpack_sbuffer out; /* what the socket has not taken yet */
        uint64_t last_id;
        struct table calls;      /* by id */
        size_t n_takers;         /* of these: calls that take() their replies */
        struct table ops;        /* by the daemon's number, or by the id of an open's request */
        struct table lease_ids;  /* of `leases`: those that the daemon holds, by the number on this connection */
        struct table detach_ids; /* of `detaching`: by the id of the request */
        struct streamer_lease *leases;
        int rule;          /* STREAMER_SOCKET_* */
        char *skipped;     /* why the system's daemon was not used; NULL: it was, or it does not exist */
        struct call hello; /* its reply: the daemon's version and features; not done until the daemon has replied */
        bool subscribed;
        char *subject; /* subscribed: the model it asked for; NULL: all */
        struct event *events, **events_end;
        size_t n_events;
        uint64_t events_lost;
        bool making;         /* it is to take another one's place (reconnect.c), whose leases it has claimed */
        struct event *early; /* of these, until it has */
        struct detaching *detaching;
        struct readiness readiness;
};

/* By which the daemon finds a lease again. */
struct lease_key {
        char token[33], digest[33]; /* digest: "" until the model is ready */
        uint64_t generation;
};

/* unmapping > sent > confirmed: freed by who reads the reply
 *     \> lost: freed by who has unmapped it */
enum detach_state {
        DETACH_UNMAPPING, /* its memory may still be mapped; the thread that unmaps it has this record */
        DETACH_LOST,      /* the same, but the daemon does not hold the lease */
        DETACH_SENT
};

/* A lease that has ended here, until the daemon has confirmed its detach. */
struct detaching {
        struct detaching *prev, *next;
        struct table_node by_request; /* sent: by the id of the last one */
        enum detach_state state;
        uint64_t lease; /* its id on this connection */
        struct lease_key key;
};

#define fail(client, code, ...) fault_set((client)->fault, (code), __VA_ARGS__)

/* The word of this list that the field "state" has, so that it may outlive the message; NULL: none. */
static inline const char *object_state(const msgpack_object *o, const char *const *words)
{
        while (*words && !object_str_eq(o, "state", *words))
                words++;
        return *words;
}

/* 0, or STREAMER_EFORK in a child of the process that connected. */
int channel_check(const struct streamer_client *c);
bool channel_forked(const struct streamer_client *c);

/* Without a socket: who connects it sets `fd`. `fault` NULL: one of its own. NULL on ENOMEM. */
struct streamer_client *channel_new(struct fault *fault);
struct streamer_client *channel_ref(struct streamer_client *c);
void channel_unref(struct streamer_client *c);
void channel_close(struct streamer_client *c);

/* Connects and says hello, in at least a millisecond; texts are kept under NULL. The client's timeout is not set. */
int channel_dial(const char *path, int64_t deadline, struct fault *fault, struct streamer_client **out);
/* The same, and waits for a daemon that restarts where it ends the connection before it has answered. `lazy`: hello is
 * sent with the first request, and one that is refused ends the connection then. */
int channel_connect(const char *path, bool lazy, int64_t deadline, struct streamer_client **out);

/* Lock held: sends hello, which was queued, and waits for its reply. */
int channel_greet(struct streamer_client *c, int64_t deadline);

/* Lock held, and given up meanwhile: asks whether the connection lives; a dead one is made again, with
 * its leases. 0, or why not. Where it is `patient` it waits for a daemon that restarts. */
int channel_ensure(struct streamer_client *c, bool patient, int64_t deadline);

/* Sends and waits for the reply; a connection that was lost is made again first. On success the caller calls
 * call_deinit(); every failure, the daemon's too, is a code whose text is kept. */
int channel_call(struct streamer_client *c, struct request *request, struct call *call, int64_t deadline);

/* The same where the reply is no more than success. */
int channel_request(struct streamer_client *c, struct request *request, int64_t deadline);

/* Lock held: sends, and links the call, so that its reply finds it; then _end(), done or not. */
int channel_begin(struct streamer_client *c, struct request *request, struct call *call, int64_t deadline);
void channel_end(struct streamer_client *c, struct call *call);

/* Lock held, in two steps, for a request that is packed already: sends it, under its id, and links the call; waits for
 * the reply, as channel_call(). Whatever comes between them, the call must be awaited, or ended by channel_end(). */
int channel_send(struct streamer_client *c, const void *body, size_t len, struct call *call);
/* The same, but what is queued is sent with the next request. */
int channel_queue(struct streamer_client *c, const void *body, size_t len, struct call *call);
int channel_await(struct streamer_client *c, struct call *call, int64_t deadline);
/* Of a call that is done: 0, or the error that it was answered with, whose text is kept. */
int call_outcome(const struct streamer_client *c, const struct call *call);
void call_deinit(struct call *call); /* closes the descriptors that were not taken (-1) */

/* Lock held: sends without waiting; its reply will be dropped. Sets the request's id. */
void channel_post(struct streamer_client *c, struct request *request);

/* Lock held: sends the detach of a lease that has ended; its reply frees the record. */
void channel_post_detach(struct streamer_client *c, struct detaching *d);
/* Lock held: takes it out of the client's lists first. */
void detaching_free(struct streamer_client *c, struct detaching *d);

/* Lock held: waits until done(arg), reading the socket when no other thread does. 0, STREAMER_ETIMEOUT,
 * or why the connection is dead. A deadline in the past takes one look at the socket. */
int channel_wait(struct streamer_client *c, bool (*done)(const void *arg), const void *arg, int64_t deadline);

/* Lock held: sends what is unsent and reads what has arrived, up to a limit, unless another thread reads. */
void channel_poll(struct streamer_client *c);

/* Lock held: nothing that arrives later can be trusted. */
void channel_fail(struct streamer_client *c, int code, const char *text);

/* Lock held: keeps the text of why the connection ended and returns its code. */
int channel_error(const struct streamer_client *c);

int64_t channel_deadline(const struct streamer_client *c); /* of one reply, from now */

/* Of a request that the daemon ends after this time with the reason, which has a second more to arrive. -1: NEVER. */
int64_t channel_deadline_after(int timeout_ms);

/* The process that listens on the socket; 0: unknown, or in another PID namespace. */
pid_t channel_daemon(const struct streamer_client *c);

/* No reply has arrived in time. */
int channel_timed_out(const struct streamer_client *c);

/* Lock held: returns the lease or the claim in a reply that is of no use. */
void channel_give_back(struct streamer_client *c, const msgpack_object *reply);

/* Lock held: hands a message to the call that takes it undecoded. False: no call does. */
bool channel_take(struct streamer_client *c, const void *data, size_t len);

/* Lock held: hands one decoded message (consumed) to whom it belongs (dispatch.c). */
void channel_dispatch(struct streamer_client *c, struct message *message);
