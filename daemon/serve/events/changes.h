/* SPDX-License-Identifier: Apache-2.0
 *
 * The latest state of each model that has changed, in the order of the changes. A subscriber is a position in this
 * order: it receives each state after its position, so the set of models of which it has to be notified takes no memory
 * of its own, and a subscriber that is slow misses intermediate states but never the latest.
 *
 *   a change of a generation        replaces the generation's state, which becomes the newest
 *   a generation ends, or loses     adds a removal, which no change replaces: the last CHANGES_REMOVALS are stored, and
 *   one of several names            a subscriber that they have overtaken is notified of the number that it has lost
 *
 * Nothing is stored without subscribers. Sending states is the caller's task.
 */
#ifndef DAEMON_SERVE_EVENTS_CHANGES_H
#define DAEMON_SERVE_EVENTS_CHANGES_H

#include "daemon/resident/model.h"

#define CHANGES_REMOVALS 1024

/* A generation's state, or a removal. */
struct change {
        struct list link;   /* in changes->all */
        struct list by_key; /* in changes->by_sequence; a removal: in no list */
        uint64_t sequence;  /* the generation's */
        uint64_t number;    /* ascending by change */
        uint64_t removal;   /* ascending by removal; 0: none */
        uint64_t generation, bytes, tensors;
        const char *device, *state;
        int code; /* 0, or the failure's, with `text` */
        const char *text;
        char *names; /* that it concerns, the reported one first; an empty one ends them */
};

struct changes {
        struct list all; /* oldest first */
        struct buckets by_sequence;
        uint64_t last;                 /* number of the newest */
        uint64_t n_removals, n_stored; /* ever; and in `all` */
        size_t n_subscribers;
};

struct subscriber {
        bool active;
        char *subject;               /* the only model that it subscribes to; NULL: all */
        uint64_t number, n_removals; /* its position */
        uint64_t lost;               /* removals that it was not notified of */
};

void changes_init(struct changes *changes);
void changes_deinit(struct changes *changes);

/* The state of the generation has changed, or it ends. Without memory subscribers lose a removal. */
void changes_add(struct changes *changes, const struct generation *generation);
/* One of its names was removed, and others are left. */
void changes_add_name_removal(struct changes *changes, const struct generation *generation, const char *name);

/* It receives later changes only. Takes over `subject`. */
void changes_subscribe(struct changes *changes, struct subscriber *subscriber, char *subject);
/* Accepts one that is not subscribed. */
void changes_unsubscribe(struct changes *changes, struct subscriber *subscriber);
/* The subscriber's next change, which is valid until the next call of this module; NULL: there is none. Skips what does
 * not concern it, and adds up what it has lost. */
const struct change *changes_peek(const struct changes *changes, struct subscriber *subscriber);
/* It was notified of this one. */
void changes_advance(struct subscriber *subscriber, const struct change *change);

#endif
