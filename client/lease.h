/* SPDX-License-Identifier: Apache-2.0
 *
 * A lease: what an attach brought, mapped. It has two lives. To its client it is a record that
 * events keep up to date (under the client's lock); to the application it is a table of tensors and
 * base addresses that do not change. It is counted: each DLPack capsule holds it too, and the
 * daemon is notified of the end after everything is unmapped.
 *
 *   the model      loading > ready       all tensors are there and the model has its digest
 *                          > failed      what has arrived stays mapped until the lease is detached
 *
 *   the hold       none > held > revoked > lost       as the daemon sees it: events and reconnections visit the
 *                     \      \        \       \        lease while it is in its client's list
 *                      \------\--------\-------\-> ended
 *
 * The last reference ends it in three steps: it is taken out of the list (locked), unmapped and freed (unlocked), and
 * the detach is sent (locked). In between a struct detaching replaces it in the client's lists, so that a reconnection
 * claims what the daemon still holds.
 */
#pragma once

#include "client/attach.h"
#include "client/channel.h"
#include "proto/manifest.h"

enum lease_state { LEASE_LOADING, LEASE_READY, LEASE_FAILED };

enum lease_hold {
        HOLD_NONE,    /* no reply yet */
        HOLD_HELD,    /* in the client's list, as the next two */
        HOLD_REVOKED, /* the model was unloaded by force */
        HOLD_LOST,    /* the daemon does not hold it any more */
        HOLD_ENDED    /* taken out: only the releasing thread has it */
};

/* Which tensors of a loading model have arrived. */
struct arrival {
        const struct arrival_header *header; /* mapped; NULL: everything was there */
        size_t size;
        const uint32_t *log; /* indexes of records */
        unsigned char *seen; /* bitmap over records, as far as the log has been read */
        uint64_t n_seen;
};

struct streamer_lease {
        struct streamer_lease *prev, *next; /* in the client's list */
        struct table_node by_id;            /* held or revoked: in the client's table */
        struct streamer_client *client;
        atomic_uint refs; /* the handle and each DLPack capsule */

        struct detaching *detaching; /* takes its place in the client's lists; NULL: it did */

        /* set by attach, then constant; each is set before the call that made the lease returns it */
        bool accepted;    /* the reply has a lease */
        pid_t daemon_pid; /* of the connection that brought it */
        char *model;      /* its name */
        const char *device_kind;
        int device_index;
        struct mapping *segments; /* malloc'd: lease_reserve() */
        size_t max_segments;
        size_t n_segments; /* changes under the client's lock, by lease_add_segment() and lease_take_out() */
        bool writable;
        void *manifest_map;
        size_t manifest_size;
        struct manifest_view manifest;

        /* under the client's lock */
        enum lease_hold hold;
        enum lease_state state;
        struct lease_key key; /* constant but for its digest, which is set once */
        int code;             /* why it failed, or was taken */
        char *text;
        struct arrival arrival;      /* set as a whole by lease_set_arrival() */
        uint64_t cursor;             /* of streamer_tensor_next() */
        readiness_note arrival_note; /* tensors arrived, or the load ended */
        readiness_note change_note;  /* lost or revoked */

        struct published
                *published;   /* atomic: the table of a published model, once it was read (publish/published.c) */
        atomic_bool complete; /* every tensor may be read: no need to ask the log */
        atomic_bool gone;     /* lost, and its memory with it */
};

/* Lock held: an event of a lease. */
void lease_event(struct streamer_client *c, const msgpack_object *event);

/* Lock held: links the lease into its client's list, so that events find it. */
void lease_link(struct streamer_lease *lease, uint64_t id);
/* Lock held: its number on another connection, which holds it now. */
void lease_set_id(struct streamer_lease *lease, uint64_t id);

/* Lock held: the reply arrived that makes the lease, and the lease was not taken out. */
static inline bool lease_is_linked(const struct streamer_lease *lease)
{
        return lease->hold != HOLD_NONE && lease->hold != HOLD_ENDED;
}

/* Makes space for so many segments, once, before the first is mapped. 0, or STREAMER_ENOMEM. */
int lease_reserve(struct streamer_lease *lease, size_t n_segments);
/* The next segment is mapped; the daemon may be known to be lost by then. */
void lease_add_segment(struct streamer_lease *lease);

/* From now on events look at the log. Takes over what it refers to. */
void lease_set_arrival_consume(struct streamer_lease *lease, const struct arrival *arrival);
void arrival_deinit(struct arrival *arrival);

/* Lock held: state, digest and failure, from an event or the attach's own reply. */
void lease_update(struct streamer_lease *lease, const msgpack_object *o);

/* Lock held: the daemon does not hold it any more. */
void lease_mark_lost(struct streamer_lease *lease);

/* Lock held: the lease was revoked while the connection was lost. */
void lease_revoke(struct streamer_lease *lease);

/* The tensor of a record, once it has arrived; and the record of a name. */
int tensor_get(const struct streamer_lease *lease, uint64_t i, streamer_tensor *tensor);
int tensor_number(const struct streamer_lease *lease, const char *name, uint64_t *i);

/* A tensor of the caller's version, which lies in a segment of this lease. */
int tensor_copy(const struct streamer_lease *lease, const char *call, streamer_tensor *to, const streamer_tensor *from);

/* Lock held: a tensor arrived that streamer_tensor_next() has not returned. */
bool lease_has_arrivals(const struct streamer_lease *lease);

/* How many tensors have arrived, and the record of the one at a position below that, in order of arrival. */
uint64_t lease_n_arrived(const struct streamer_lease *lease);
int lease_arrival_get(const struct streamer_lease *lease, uint64_t position, uint64_t *i);

/* 0: more than `seen` have arrived; or as streamer_tensor_next(), which does not return these `seen` any more. */
int lease_await(struct streamer_lease *lease, uint64_t seen, int timeout_ms);

/* 0, STREAMER_EFORK, or STREAMER_ELOST if its memory was freed. */
int lease_check(const struct streamer_lease *lease);

/* An attach, in three steps: the lease, which is linked in the moment its reply is read (lock held), and then
 * mapped. */
struct streamer_lease *lease_new(struct streamer_client *c, unsigned attach_flags);
void lease_accept(struct call *call, const msgpack_object *reply);
int lease_map(struct streamer_lease *lease, const struct call *call);
int lease_map_manifest(struct streamer_lease *lease, const struct call *call);

/* Maps the next segment, of at least this size, as `o` of the reply describes it. `lent`: of a publication. */
int lease_map_segment(struct streamer_lease *lease, const struct call *call, const msgpack_object *o, bool lent,
                      uint64_t least);
/* The call's descriptor that the field "fd" of `holder` names; -1: none. False: it names one that did not come. */
bool call_fd(const struct call *call, const msgpack_object *holder, int *fd);

/* A copy of the caller's options, checked. */
int attach_options(const streamer_client *c, const char *call, const char *name, streamer_attach_opts *to,
                   const streamer_attach_opts *from);

struct streamer_lease *lease_ref(struct streamer_lease *lease);

/* The last one unmaps the memory and sends the detach, without waiting for the daemon. */
void lease_unref(struct streamer_lease *lease);
