/* SPDX-License-Identifier: Apache-2.0
 *
 * Quotas: what each user holds. Every object that a client makes the daemon hold is charged to its uid; the charge is
 * part of the object and ends with it. A user's entry exists while anything is charged to it. Owned by the loop thread;
 * workers raise charges of shares (quota_raise_share).
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/base/tree.h"

#include <sys/types.h>

/*        slot         name           what a message calls several of them */
// clang-format off
#define QUOTA_SLOTS(X) \
        X(CONNECTIONS, "connections", "connections") \
        X(LEASES,      "leases",      "leases") \
        X(LOADS,       "loads",       "loads under way") \
        X(MODELS,      "models",      "models and further names") \
        X(BYTES,       "bytes",       "of models it loaded")
// clang-format on

/* Shares of what all users use, which follow from other settings (serve/access/shares.h). */
/*        slot          name */
// clang-format off
#define QUOTA_SHARES(X) \
        X(FDS,          "descriptors")  /* on their way to clients */ \
        X(REQUESTS,     "requests")     /* that are unanswered, or have work in flight */ \
        X(OUTPUT,       "unread")       /* bytes of replies and events that are not sent */ \
        X(INPUT,        "incomplete")   /* bytes of long requests that are incomplete */ \
        X(FETCHED,      "fetched")      /* bytes of files that are fetched */ \
        X(TABLES,       "headers")      /* bytes of headers, and tables of tensors, of loads and diffs under way */ \
        X(OPS,          "watched")      /* loads, each as often as it is watched */ \
        X(CLAIMS,       "claims")       /* names that are claimed for publishing, until they are published */ \
        X(DOCTOR,       "doctor")       /* requests that workers answer, of each kind (verb_task.h) */ \
        X(VERIFY,       "verify") \
        X(FETCH_LOCAL,  "fetch_files") \
        X(FETCH_REMOTE, "fetch_urls") \
        X(FIND_LOCAL,   "find_files") \
        X(FIND_REMOTE,  "find_urls")
// clang-format on

enum quota_slot {
#define X(slot, name, text) QUOTA_##slot,
        QUOTA_SLOTS(X)
#undef X
                QUOTA_SLOT_COUNT,
        QUOTA_BEFORE_SHARES = QUOTA_SLOT_COUNT - 1,
#define X(slot, name) QUOTA_##slot,
        QUOTA_SHARES(X)
#undef X
                QUOTA_HELD_COUNT
};
const char *quota_slot_name(enum quota_slot slot); /* of a share, too */

struct quotas {
        struct tree by_uid;
};

struct quota_user {
        struct tree_node by_uid; /* in users->by_uid */
        struct quotas *users;
        uid_t uid;
        unsigned n_charges;
        uint64_t held[QUOTA_HELD_COUNT]; /* atomic */
};

/* The limits of a request's user, and the rule they come from. */
struct quota_limits {
        bool unlimited;                 /* root or the daemon's own user, which use no shares either */
        uint64_t max[QUOTA_SLOT_COUNT]; /* UINT64_MAX: any amount */
        bool usual[QUOTA_SLOT_COUNT];   /* from limits.NAME_per_uid instead of the rule */
        uint64_t tables;                /* the user's share QUOTA_TABLES */
        char rule[160];
};

struct quota_charge {
        struct quota_user *user; /* NULL: nothing is charged */
        enum quota_slot slot;
        uint64_t amount;
};

void quotas_init(struct quotas *users);

/* NULL: nothing is charged to it. */
struct quota_user *quotas_find(const struct quotas *users, uid_t uid);
uint64_t quotas_held(const struct quotas *users, uid_t uid, enum quota_slot slot);

/* STREAMER_ELIMIT names uid, figures and rule; STREAMER_ENOMEM. `charge` must be empty. Amount 0: for an object that
 * will replace a charged one, until quota_commit(). Refused where the user is over the limit: earlier replaced objects
 * still exist. */
int quota_charge(struct quotas *users, uid_t uid, struct quota_charge *charge, enum quota_slot slot, uint64_t amount,
                 const struct quota_limits *limits, struct error *error);
/* Beyond any limit: what the user held before the daemon restarted, and shares, which the caller checks.
 * STREAMER_ENOMEM. */
int quota_hold(struct quotas *users, uid_t uid, struct quota_charge *charge, enum quota_slot slot, uint64_t amount);
/* The same, for the user of another charge, which is not empty: no memory is needed. */
void quota_hold_same(const struct quota_charge *other, struct quota_charge *charge, enum quota_slot slot,
                     uint64_t amount);
/* Adds to a charge that is not empty. STREAMER_ELIMIT, as above. */
int quota_raise(struct quota_charge *charge, uint64_t more, const struct quota_limits *limits, struct error *error);
/* On any thread, of a share, by the one thread that uses the charge just now: adds to it, unless the user would hold
 * more than `max` then. */
bool quota_raise_share(struct quota_charge *charge, uint64_t more, uint64_t max);
/* Empties it: what it had is the caller's. */
struct quota_charge quota_take(struct quota_charge *charge);
/* Changes the amount, also of an empty charge. */
void quota_adjust(struct quota_charge *charge, uint64_t amount);
void quota_commit(struct quota_charge *charge);    /* forgives one that is empty or counted */
void quota_discharge(struct quota_charge *charge); /* likewise */
