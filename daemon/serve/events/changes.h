/* SPDX-License-Identifier: Apache-2.0
 *
 * The changes of models, in their order, of which each model has the latest. A subscriber is a position in this order:
 * it receives the state of each model that has changed after its position, so the set of models of which it has to be
 * notified takes no memory of its own, and a subscriber that is slow misses intermediate states but never the latest.
 *
 *   a change of a generation        the generation becomes the newest; its state is read when a subscriber is notified
 *   a generation ends, or loses     adds a removal, which no change replaces. The last CHANGES_REMOVALS are stored, and
 *   one of several names            subscribers are notified of the number of those that they have lost
 *
 * Nothing is stored without subscribers. Sending states is the caller's task.
 */
#pragma once

#include "daemon/resident/model.h"

#define CHANGES_REMOVALS 1024

/* A generation's present state, or a removal. Borrows its texts. */
struct change {
        uint64_t number; /* ascending */
        uint64_t generation, bytes, tensors;
        const char *name, *device, *state;
        int code; /* 0, or the failure's, with `text` */
        const char *text;
};

struct changes {
        struct list all; /* of struct change_link: generations and removals, oldest first */
        uint64_t last;   /* number of the newest change */
        struct list subscribers;
        struct removal *removals[CHANGES_REMOVALS]; /* a ring buffer of the removals in the list */
        size_t next;                                /* to be replaced */
};

struct subscriber {
        struct list link;
        char *subject;   /* the only model that it subscribes to; NULL: all */
        uint64_t number; /* its position */
        uint64_t lost;   /* removals that it was not notified of */
};

void changes_init(struct changes *changes);
void changes_deinit(struct changes *changes); /* it is empty afterwards */

/* The state of the generation has changed, or it ends; `removed`: one of its names was removed, and others are left.
 * Without memory subscribers lose a removal. */
void changes_add(struct changes *changes, struct generation *generation, const char *removed);

void subscriber_init(struct subscriber *subscriber); /* not subscribed */
/* It receives later changes only. Takes over `subject`. */
void changes_subscribe(struct changes *changes, struct subscriber *subscriber, char *subject);
/* Accepts one that is not subscribed. */
void changes_unsubscribe(struct changes *changes, struct subscriber *subscriber);
/* The subscriber's next change, which is valid until anything changes; false: there is none. Skips what does not
 * concern it. Once it was notified of the change, its number is the subscriber's position. */
bool changes_peek(const struct changes *changes, struct subscriber *subscriber, struct change *next);
