/* SPDX-License-Identifier: Apache-2.0
 *
 * Room: who may take how many bytes of a device, and when. Belongs to the loop thread.
 *
 *   asked > granted     the bytes are charged
 *       \-> waiting > granted
 *               \---> refused
 *
 * Requests stand in one queue: higher priority first, then the older. Whenever anything changes they
 * are looked at in that order, against a ledger of what each device has unused and what is on its way
 * back to it:
 *
 *   it fits what is unused           granted
 *   it fits with what comes back     it waits, and those bytes are spoken for
 *   it fits if others are evicted    they are evicted, and it waits for their bytes
 *   else                             it is blocked: refused, or kept waiting if it asked to be
 *
 * What is spoken for is nobody else's, so no two count on the same bytes; a blocked request speaks for
 * nothing, so it holds up none that fits. A request for several devices gets all or none; as a part of
 * it is never granted alone, no two can wait for each other.
 *
 * Where a device is shared with others (device_ops.ceiling), its own thread is asked first what they
 * leave. Only so many requests may be blocked at once.
 */
#ifndef DAEMON_RESIDENT_ROOM_H
#define DAEMON_RESIDENT_ROOM_H

#include "daemon/resident/resident.h"

struct room_part {
        struct generation *generation;
        uint64_t bytes;
};

struct room_request {
        struct list link; /* in room->queue */
        struct room *room;
        const struct room_part *parts; /* the caller's, until it is answered */
        size_t n_parts;
        uint64_t priority, since_ns;
        bool evict, wait; /* may it evict; may it be blocked */
        bool blocked, told;
        bool settled;       /* by a pass, and on its way to be told */
        bool shares;        /* of a user with limits, who may take half of the places at the most */
        uid_t uid;          /* its number */
        const void *owner;  /* whose requests count as one among those that are blocked; NULL: its own */
        struct error error; /* of the answer */
        /* After a pass that has found it blocked and did not before; may be NULL. */
        void (*waits)(struct room_request *request);
        /* Once, never inside a call of the caller's own. Code 0: every part is charged. */
        void (*answered)(struct room_request *request, const struct error *error);
};

struct room_device;

struct room {
        struct resident *resident;
        struct list queue;    /* of struct room_request, in order */
        struct list answered; /* of those that a pass has answered and that are to be told */
        uint64_t max_blocked;
        struct wake *wake;
        struct errand item;
        struct room_device *devices; /* by number */
        unsigned asking;             /* devices that are being asked for their ceiling */
        bool posted, again;
};

/* STREAMER_ENOMEM. */
int room_init(struct room *room, struct resident *resident, struct wake *wake, uint64_t max_blocked);
void room_deinit(struct room *room); /* accepts a zeroed one; the queue must be empty */

void room_ask(struct room *room, struct room_request *request);
/* In the queue, and not answered yet: its place is among those of this priority from now on, by age. */
void room_set_priority(struct room_request *request, uint64_t priority);
/* Somebody else wants it, too, on these terms: it may do what either of them may. Not for one that is told already. */
void room_widen(struct room_request *request, bool evict, bool wait);
/* It is not wanted any more. True: it will not be answered; false: it was, or was never asked. */
bool room_withdraw(struct room_request *request);

/* Something changed that may let a request go on. Forgives NULL. */
void room_stir(struct room *room);
/* Now and then, for what nobody tells of: memory that others give back. */
void room_tick(struct room *room);

/* ---- a look, without asking ---- */

enum room_outcome { ROOM_FITS, ROOM_COMES, ROOM_EVICTS, ROOM_BLOCKED };

struct room_outlook {
        enum room_outcome outcome;
        struct generation **victims; /* to be evicted */
        size_t n_victims;
};
void room_outlook_deinit(struct room_outlook *outlook); /* accepts a zeroed one */

/* What would become of a request for these bytes of one device, for a model of this name. */
void room_look(struct room *room, struct device *device, const char *name, uint64_t bytes, bool evict,
               struct room_outlook *outlook);

#endif
