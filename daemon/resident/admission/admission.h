/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission: which load may take how many bytes of a device, and when. Owned by the loop thread.
 *
 * Requests are queued: higher priority first, then the older. After every change they are examined in this
 * order against a ledger of the bytes of each device that are unused or being freed:
 *
 *   fits the unused bytes             granted
 *   fits with the bytes being freed   waits, and reserves those bytes
 *   fits if others are evicted        they are evicted, and it waits for their bytes
 *   else                              it is blocked: refused, or queued if it asked to wait
 *
 * Reserved bytes are not offered to another request, so no two count on the same bytes. A blocked request
 * reserves nothing, so it delays none that fits. A request for several devices gets all or none; no part of it is
 * granted alone, so no two requests can wait for each other.
 *
 * Where a device is shared with other software (device_ops.ceiling), its thread is asked first what that leaves, unless
 * the request is for little: then its last answer counts.
 * Requests for other devices do not wait for that answer; a request for several waits for all of them, and reserves its
 * bytes meanwhile. The number of blocked requests is limited.
 */
#pragma once

#include "daemon/resident/model.h"

#define ADMISSION_DEVICES RESIDENT_DEVICES

/* Bytes of one device; a request has at most one part for each. */
struct admission_part {
        struct device *device;
        uint64_t bytes;
        struct generation *generation; /* that is charged; NULL for an estimate */
};

struct admission_request {
        struct list link;                   /* in admission->queue */
        struct admission *admission;        /* NULL: not submitted */
        const struct admission_part *parts; /* borrowed until the answer */
        size_t n_parts;
        const char *name; /* of an estimate's model; NULL: the parts' generations have names */
        uint64_t priority, since_ns;
        uint64_t due;     /* the recheck after which its devices have to answer; 0: it was examined since */
        bool evict, wait; /* it may evict; it may be queued while blocked */
        bool asks_none;   /* it is too small to ask the devices first: a refusal of the allocation costs less */
        bool query;       /* asks the devices for what they can hold, and is granted nothing: an estimate is due */
        bool blocked;
        bool decided;                 /* by a pass; answered() is due */
        bool shares;                  /* of a user with limits, who may have half of the blocked requests at most */
        uid_t uid;                    /* that user */
        struct error error;           /* why it was refused */
        const struct device *refused; /* the device that cannot grant it; NULL: the limit of the queue */
        /* Before a model is evicted for it; NULL: the owner does not ask. */
        void (*evicts)(struct admission_request *request, const struct generation *victim);
        /* Once, never from within a call by the owner. Code 0: every part is charged, or the query is answered. */
        void (*answered)(struct admission_request *request, const struct error *error);
};

/* A device that other software uses, too. */
struct admission_device {
        struct work ask;
        struct device *device;
        struct admission *admission;
        uint64_t ceiling;         /* the answer */
        uint64_t asked, answered; /* after which recheck, the last time; they differ while it is being asked */
};

struct admission {
        struct resident *resident;
        struct list queue; /* of struct admission_request, in order */
        uint64_t max_blocked;
        struct admission_device devices[ADMISSION_DEVICES]; /* by number */
        uint64_t n_rechecks;
};

void admission_init(struct admission *admission, struct resident *resident, uint64_t max_blocked);

void admission_submit(struct admission *admission, struct admission_request *request);
/* Moves a request that is queued to its place among those of this priority, by age. */
void admission_set_priority(struct admission_request *request, uint64_t priority);
/* Another load joins the request: it may evict, and wait, if either of them may. Without effect once answered. */
void admission_relax(struct admission_request *request, bool evict, bool wait);
/* Withdraws a request. True: it will not be answered; false: it was, or was never asked. */
bool admission_withdraw(struct admission_request *request);

/* About once a second while it returns true: a request waits for what only time shows, such as memory that other
 * software frees. */
bool admission_tick(struct admission *admission);

/* ---- estimates ---- */

enum admission_outcome { ADMISSION_FITS, ADMISSION_PENDING, ADMISSION_EVICTS, ADMISSION_BLOCKED };

struct admission_outlook {
        enum admission_outcome outcome;
        struct generation **victims; /* to be evicted */
        size_t n_victims;
        /* Blocked: by a device that is out of service, where no eviction helps, or else by what cannot be freed. */
        const struct admission_part *missing; /* of the request */
};
void admission_outlook_deinit(struct admission_outlook *outlook); /* accepts a zeroed one */

/* The outcome that a request would have for these bytes of one device and a model of this name. */
void admission_estimate(struct admission *admission, struct device *device, const char *name, uint64_t bytes,
                        bool evict, struct admission_outlook *outlook);
