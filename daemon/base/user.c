/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/user.h"

#include "daemon/base/util.h"

#include <inttypes.h>

static const struct {
        const char *name, *text;
} slots[] = {
#define X(slot, name, text) [USER_##slot] = {name, text},
        USER_SLOTS(X)
#undef X
};

const char *user_slot_name(enum user_slot slot)
{
        return slots[slot].name;
}

void users_init(struct users *users)
{
        list_init(&users->all);
}

static struct user *find(const struct users *users, uid_t uid)
{
        list_each (pos, &users->all) {
                struct user *user = container_of(pos, struct user, link);
                if (user->uid == uid)
                        return user;
        }
        return NULL;
}

const struct user *users_find(const struct users *users, uid_t uid)
{
        return find(users, uid);
}

static struct user *user_new(struct users *users, uid_t uid)
{
        struct user *user = calloc(1, sizeof(*user));
        if (user == NULL)
                return NULL;
        user->uid = uid;
        list_append(&users->all, &user->link);
        return user;
}

static int over_limit(const struct user *user, uid_t uid, enum user_slot slot, uint64_t amount,
                      const struct user_limits *limits, struct error *error)
{
        uint64_t held = user != NULL ? user->held[slot] : 0;
        char rule[sizeof(limits->rule)];
        if (limits->usual[slot])
                snprintf(rule, sizeof(rule), "limits.%s_per_uid", slots[slot].name);
        else
                snprintf(rule, sizeof(rule), "%s", limits->rule);
        if (amount == 1)
                return error_set(error, STREAMER_ELIMIT, "uid %u has %" PRIu64 " of %" PRIu64 " %s (%s)", (unsigned)uid,
                                 held, limits->max[slot], slots[slot].text, rule);
        return error_set(error, STREAMER_ELIMIT,
                         "uid %u has %" PRIu64 " of %" PRIu64 " %s, and %" PRIu64 " more are needed (%s)",
                         (unsigned)uid, held, limits->max[slot], slots[slot].text, amount, rule);
}

int user_charge_again(struct users *users, uid_t uid, struct user_charge *charge, enum user_slot slot, uint64_t amount)
{
        struct user *user = find(users, uid);
        require(charge->user == NULL);
        if (user == NULL && (user = user_new(users, uid)) == NULL)
                return STREAMER_ENOMEM;
        user->held[slot] += amount;
        user->n_charges++;
        *charge = (struct user_charge){.user = user, .slot = slot, .amount = amount};
        return 0;
}

int user_charge(struct users *users, uid_t uid, struct user_charge *charge, enum user_slot slot, uint64_t amount,
                const struct user_limits *limits, struct error *error)
{
        const struct user *user = find(users, uid);
        uint64_t held = user != NULL ? user->held[slot] : 0, max = limits->max[slot];
        if (held > max || amount > max - held)
                return over_limit(user, uid, slot, amount, limits, error);
        if (user_charge_again(users, uid, charge, slot, amount) < 0)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        return 0;
}

int user_reserve(struct users *users, uid_t uid, struct user_charge *charge, enum user_slot slot,
                 const struct user_limits *limits, struct error *error)
{
        const struct user *user = find(users, uid);
        if (user != NULL && user->held[slot] > limits->max[slot])
                return over_limit(user, uid, slot, 1, limits, error);
        if (user_charge_again(users, uid, charge, slot, 0) < 0)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        return 0;
}

void user_count(struct user_charge *charge)
{
        if (charge->user == NULL || charge->amount > 0)
                return;
        charge->amount = 1;
        charge->user->held[charge->slot]++;
}

void user_discharge(struct user_charge *charge)
{
        struct user *user = charge->user;
        if (user == NULL)
                return;
        require(user->held[charge->slot] >= charge->amount && user->n_charges > 0);
        user->held[charge->slot] -= charge->amount;
        *charge = (struct user_charge){.user = NULL};
        if (--user->n_charges > 0)
                return;
        list_remove(&user->link);
        free(user);
}
