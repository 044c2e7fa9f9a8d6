/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation: a load that this client watches, and of an open also the lease that it leads to. The daemon's
 * events update it, in whichever thread reads the socket.
 *
 *   the operation   new > linked > ended > out      linked: in its client's table, and events update it; ended: its
 *                     \       \_______________/      outcome is constant; out: only the thread that frees it has it
 *   the load        resolving > queued > loading > ready | failed | cancelled       (progress.state)
 *   the opening     new > requested > replied > returned                            (the lease of an open)
 */
#pragma once

#include "client/channel.h"

enum opening_state {
        OPENING_NEW,
        OPENING_REQUESTED, /* its call is linked */
        OPENING_REPLIED,   /* its call is done */
        OPENING_RETURNED   /* its lease is the caller's */
};

/* What streamer_op_lease() returns. */
struct opening {
        struct call call; /* the request; its reply brings the lease */
        bool by_name;     /* not of a load */
        bool ready;       /* wait until the model is ready */
        char digest[33];  /* that it must have then; "" if any */

        /* under the client's lock */
        enum opening_state state;
        struct streamer_lease *lease; /* NULL: returned */
        readiness_note note;          /* the lease can be returned */
};

enum op_state { OP_NEW, OP_LINKED, OP_ENDED, OP_OUT };

struct streamer_op {
        struct table_node by_id; /* in the client's table, by `id` or the id of its opening's call */
        struct streamer_client *client;
        char *source;            /* as it was sent; NULL: an open of a name */
        struct opening *opening; /* NULL: a load without a lease */
        bool watched;            /* the daemon sends events */

        /* under the client's lock */
        enum op_state state;
        uint64_t id;    /* of a load, by the daemon */
        uint64_t epoch; /* of the connection that brings its events */
        char *model;    /* its name; set once */
        streamer_progress progress;
        readiness_note end_note; /* the load has ended */

        /* set when it ends, under the client's lock, then constant */
        int code; /* 0: ready */
        char *text;
        streamer_device_failure *failures; /* their strings are malloc'd */
        size_t n_failures;
        streamer_eviction *evictions; /* likewise */
        size_t n_evictions;
};

struct streamer_op *op_new(struct streamer_client *c);

/* Lock held: its events find it from now on. */
void op_link(struct streamer_op *op);

/* Lock held: an event of an operation. */
void op_event(struct streamer_client *c, const msgpack_object *event);

/* Lock held: it ends with this outcome. */
void op_end(struct streamer_op *op, int code, const char *text, size_t len);

/* Lock held: it has ended, and not with a model that is ready. */
static inline bool op_has_failed(const struct streamer_op *op)
{
        return op->state == OP_ENDED && op->code != 0;
}

/* Lock not held, after op_has_failed(): its failure, with what else was looked for where nothing was found. May block
 * on a file system, and asks the daemon. */
int op_failure(const struct streamer_op *op);

/* A copy of the caller's options, checked. */
int load_options(const streamer_client *c, const char *call, const char *name, streamer_load_opts *to,
                 const streamer_load_opts *from);

/* The request of a load, whose strings are borrowed. */
void op_load_request(struct request *request, const streamer_load_opts *opts, const char *source);
