/* SPDX-License-Identifier: Apache-2.0
 *
 * An operation: a load that this client watches, and of an open also the lease that it leads to. The daemon's
 * events update it, in whichever thread reads the socket.
 *
 *   resolving > queued > loading > ready | failed | cancelled       (the load)
 *   requested > replied > returned                                  (the lease of an open)
 */
#pragma once

#include "client/channel.h"

/* What streamer_op_lease() returns. */
struct opening {
        struct call call;             /* the request; its reply brings the lease */
        struct streamer_lease *lease; /* NULL: returned */
        bool by_name;                 /* not of a load */
        bool ready;                   /* wait until the model is ready */
        char digest[33];              /* that it must have then; "" if any */
        readiness_note note;          /* the lease can be returned */
};

struct streamer_op {
        struct streamer_op *next; /* in the client's list */
        struct streamer_client *client;
        uint64_t id;    /* of a load, by the daemon */
        char *source;   /* as it was sent; NULL: an open of a name */
        char *model;    /* its name */
        bool watched;   /* the daemon sends events */
        uint64_t epoch; /* of the connection that brings its events */

        /* under the client's lock */
        streamer_progress progress;
        bool ended;
        int code; /* 0: ready */
        char *text;
        streamer_device_failure *failures; /* their strings are malloc'd */
        size_t n_failures;
        readiness_note end_note; /* the load has ended */

        struct opening *opening; /* NULL: a load without a lease */
};

struct streamer_op *op_new(struct streamer_client *c);

/* Lock held: its events find it from now on. */
void op_link(struct streamer_op *op);

/* Lock held: an event of an operation. */
void op_event(struct streamer_client *c, const msgpack_object *event);

/* Lock held: nothing of any operation is left to report. */
void ops_drop_notes(struct streamer_client *c);

/* Lock held: it ends with this outcome. */
void op_end(struct streamer_op *op, int code, const char *text, size_t len);

/* Its failure, with what else was looked for where nothing was found. */
int op_failed(const struct streamer_op *op);

/* Ends the request of an open; a lease that was not returned is detached. */
void opening_free(struct streamer_op *op);

/* A copy of the caller's options, checked. */
int load_options(const streamer_client *c, const char *call, const char *name, streamer_load_opts *to,
                 const streamer_load_opts *from);

/* The request of a load, whose strings are borrowed. */
void op_load_request(struct request *request, const streamer_load_opts *opts, const char *source);
