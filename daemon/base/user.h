/* SPDX-License-Identifier: Apache-2.0
 *
 * What each user holds. Whatever a client makes the daemon keep for it is charged to its uid; the
 * charge is part of the object, and dies with it.
 *
 *   user_charge(user, &lease->charge, ...)   takes one, or says which limit stands in the way
 *   user_discharge(&lease->charge)           gives it back; forgives an empty one
 *
 * A user is there as long as anything is charged to it. Belongs to the loop thread.
 */
#ifndef DAEMON_BASE_USER_H
#define DAEMON_BASE_USER_H

#include "daemon/base/error.h"
#include "daemon/base/list.h"

#include <stdbool.h>
#include <sys/types.h>

/*        slot         name           what a message calls several of them */
// clang-format off
#define USER_SLOTS(X) \
        X(CONNECTIONS, "connections", "connections") \
        X(LEASES,      "leases",      "leases") \
        X(LOADS,       "loads",       "loads under way") \
        X(MODELS,      "models",      "models and further names") \
        X(BYTES,       "bytes",       "bytes of models it loaded")
// clang-format on

enum user_slot {
#define X(slot, name, text) USER_##slot,
        USER_SLOTS(X)
#undef X
                USER_SLOT_COUNT
};
const char *user_slot_name(enum user_slot slot);

struct users {
        struct list all;
};

struct user {
        struct list link;
        uid_t uid;
        unsigned n_charges;
        uint64_t held[USER_SLOT_COUNT];
};

/* What one request may make its user hold, and the rule that says so. */
struct user_limits {
        uint64_t max[USER_SLOT_COUNT]; /* UINT64_MAX: any amount */
        bool usual[USER_SLOT_COUNT];   /* it is limits.NAME_per_uid that says so, and not the rule */
        char rule[160];
};

struct user_charge {
        struct user *user; /* NULL: nothing is charged */
        enum user_slot slot;
        uint64_t amount;
};

void users_init(struct users *users);

/* NULL where nothing is charged to it. */
const struct user *users_find(const struct users *users, uid_t uid);

/* STREAMER_ELIMIT names uid, figures and rule; STREAMER_ENOMEM. `charge` must be empty. */
int user_charge(struct users *users, uid_t uid, struct user_charge *charge, enum user_slot slot, uint64_t amount,
                const struct user_limits *limits, struct error *error);
/* What it held before the daemon restarted: no limit is asked again. STREAMER_ENOMEM. */
int user_charge_again(struct users *users, uid_t uid, struct user_charge *charge, enum user_slot slot, uint64_t amount);
/* For what takes the place of something that is charged already: nothing as yet, and user_count() takes one when
 * it has. Refused where the user has more than the limit by then: what was replaced before is held still. */
int user_reserve(struct users *users, uid_t uid, struct user_charge *charge, enum user_slot slot,
                 const struct user_limits *limits, struct error *error);
void user_count(struct user_charge *charge); /* forgives one that is empty or counted */
void user_discharge(struct user_charge *charge);

#endif
