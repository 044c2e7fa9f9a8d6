/* SPDX-License-Identifier: Apache-2.0
 *
 * A lease: what an attach brought, mapped. It has two lives. To its client it is a record that
 * events keep up to date (under the client's lock); to the application it is a table of tensors and
 * base addresses that do not change. It is counted: each DLPack capsule holds it too, and the
 * daemon is told of the end only when nothing is mapped any more.
 *
 *   loading > ready       all tensors are there and the model has its digest
 *           > failed      what has arrived stays mapped until the lease is detached
 */
#ifndef CLIENT_LEASE_H
#define CLIENT_LEASE_H

#include "client/attach.h"
#include "client/channel.h"
#include "proto/manifest.h"

enum lease_state { LEASE_LOADING, LEASE_READY, LEASE_FAILED };

struct streamer_lease {
        struct streamer_lease *next; /* in the client's list */
        struct streamer_client *client;
        atomic_uint refs; /* the handle and each DLPack capsule */

        /* set by attach, then constant */
        uint64_t id;
        char token[33]; /* by which the daemon finds it again */
        uint64_t generation;
        const char *device_kind;
        int device_index;
        struct mapping segments[MANIFEST_MAX_SEGMENTS];
        size_t n_segments; /* changes under the client's lock */
        bool writable;
        void *manifest_map;
        size_t manifest_size;
        struct manifest_view manifest;
        const struct arrival_header *arrival; /* NULL: everything was there */
        size_t arrival_size;

        /* under the client's lock */
        bool linked;
        enum lease_state state;
        bool revoked;
        int code; /* why it failed, or was taken */
        char *text;
        char digest[33];
        unsigned char *arrived; /* bitmap over records, as far as the log has been read */
        uint64_t n_arrived;
        uint64_t cursor; /* of streamer_tensor_next() */
        bool lost;       /* the daemon does not hold it any more */

        atomic_bool complete; /* every tensor may be read: no need to ask the log */
        atomic_bool gone;     /* lost, and its memory with it */
};

/* Lock held: an event of a lease. */
void lease_event(struct streamer_client *c, const msgpack_object *event);

/* Lock held: links the lease into its client's list, so that events find it. */
void lease_link(struct streamer_lease *lease, uint64_t id);

/* The next segment is mapped; the daemon may be known to be gone by then. */
void lease_add_segment(struct streamer_lease *lease);

/* Lock held: state, digest and failure, from an event or the attach's own reply. */
void lease_update(struct streamer_lease *lease, const msgpack_object *o);

/* Lock held: the daemon does not hold it any more. */
void lease_lose(struct streamer_lease *lease);

/* Lock held: the model was taken from it while nobody could be told. */
void lease_revoke(struct streamer_lease *lease);

/* 0, STREAMER_EFORK, or STREAMER_ELOST where its memory is gone. */
int lease_check(const struct streamer_lease *lease);

struct streamer_lease *lease_ref(struct streamer_lease *lease);

/* The last one unmaps and tells the daemon; `wait`: until the daemon has answered. */
void lease_unref(struct streamer_lease *lease, bool wait);

#endif
