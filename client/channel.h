/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection of a client: requests go out, replies find the call that waits for them by id,
 * events find their operation or lease, or the queue of streamer_event_next().
 *
 * There is no thread of the library's own: whoever waits reads the socket for all (one at a time)
 * and wakes the others through the condition variable. A call that times out leaves; its late reply
 * is dropped, the descriptors in it are closed and the lease in it is given back.
 *
 *   alive > lost (the daemon is gone) > alive: the next call makes the connection again (revive.c)
 *       \> closed, or nonsense was received: for good
 */
#ifndef CLIENT_CHANNEL_H
#define CLIENT_CHANNEL_H

#include "client/fault.h"
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

struct streamer_client {
        atomic_uint refs; /* the handle, and each operation and lease */
        uint64_t serial;  /* of fault texts */
        pid_t pid;
        int timeout_ms;
        bool timeout_given; /* by the caller: then it holds for long verbs too */
        char *path;         /* of the socket */

        pthread_mutex_t lock; /* of everything below, and of operations and leases */
        pthread_cond_t changed;
        int fd;
        bool introduced; /* who this is went out with the first bytes */
        bool pumping;    /* a thread reads the socket */
        bool reviving;   /* a thread makes the connection again (revive.c) */
        bool closed;     /* by the application: for good */
        int dead;        /* 0, or why nothing comes any more */
        uint64_t epoch;  /* counts connections: what was asked on another one is not answered */
        char *dead_text;
        struct frame_reader in;
        int fds[FRAME_FDS_MAX]; /* arrived, not yet claimed by a reply */
        size_t n_fds;
        msgpack_sbuffer out; /* what the socket has not taken yet */
        uint64_t last_id;
        struct call *calls;
        struct streamer_op *ops;
        struct streamer_lease *leases;
        bool subscribed;
        char *subject; /* subscribed: the model it asked for; NULL: all */
        struct event *events, **events_end;
        size_t n_events;
        uint64_t events_lost;
        bool making;         /* it is to take another one's place (revive.c), whose leases it has claimed */
        struct event *early; /* of these, until it has */
};

/* One request under way. */
struct call {
        struct call *next;
        uint64_t id;
        /* Called with the lock held as soon as a reply without error is there, before any event that
         * comes after it is looked at. May be NULL. */
        void (*accept)(struct call *call, const msgpack_object *reply);
        void *arg;
        bool hasty; /* where the daemon is gone, try once and do not wait for it */
        bool done;
        struct message reply;
        int fds[FRAME_FDS_MAX];
        size_t n_fds;
};

#define fail(client, code, ...) fault_set((client)->serial, (code), __VA_ARGS__)

/* 0, or STREAMER_EFORK in a child of the process that connected. */
int channel_check(const struct streamer_client *c);
bool channel_forked(const struct streamer_client *c);

/* Takes over a connected socket. NULL on ENOMEM (then the socket is closed). */
struct streamer_client *channel_new_consume_fd(int fd, uint64_t serial);
struct streamer_client *channel_ref(struct streamer_client *c);
void channel_unref(struct streamer_client *c);
void channel_close(struct streamer_client *c);

/* Connects and says hello. The client has no path yet; texts are kept under 0. */
int channel_dial(const char *path, int timeout_ms, uint64_t serial, struct streamer_client **out);

/* Lock held, and given up meanwhile: asks whether the connection lives; a dead one is made again, with
 * its leases. 0, or why not. Where it is `patient` it waits for a daemon that restarts. */
int channel_ensure(struct streamer_client *c, bool patient, int64_t deadline);

/* Sends and waits for the reply; a connection that was lost is made again first. On success the caller calls
 * call_deinit(); every failure, the daemon's too, is a code whose text is kept. */
int channel_call(struct streamer_client *c, struct request *request, struct call *call, int64_t deadline);

/* As channel_call, for a request that is packed already under an id of channel_next_id(). */
int channel_exchange(struct streamer_client *c, const void *body, size_t len, struct call *call, int64_t deadline);
uint64_t channel_next_id(struct streamer_client *c);
void call_deinit(struct call *call); /* closes the descriptors that were not taken (-1) */

/* Lock held: sends and forgets; its reply will be dropped. */
void channel_post(struct streamer_client *c, struct request *request);

/* Lock held: waits until done(arg), reading the socket when nobody else does. 0, STREAMER_ETIMEOUT,
 * or why the connection is dead. A deadline in the past takes one look at the socket. */
int channel_wait(struct streamer_client *c, bool (*done)(const void *arg), const void *arg, int64_t deadline);

/* Lock held, and nobody reads the socket: takes what is there, within reason. */
void channel_look(struct streamer_client *c);

/* Lock held: nothing that arrives later can be trusted. */
void channel_die(struct streamer_client *c, int code, const char *text);

int64_t channel_deadline(const struct streamer_client *c); /* of one reply, from now */

/* Lock held: hands one decoded message (consumed) to whom it belongs (dispatch.c). */
void channel_dispatch(struct streamer_client *c, struct message *message);

#endif
