/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/quota.h"

#include "daemon/base/util.h"

#include <inttypes.h>

static const struct {
        const char *name, *text;
} slots[] = {
#define X(slot, name, text) [QUOTA_##slot] = {name, text},
        QUOTA_SLOTS(X)
#undef X
#define X(slot, name) [QUOTA_##slot] = {name, name},
                QUOTA_SHARES(X)
#undef X
};

const char *quota_slot_name(enum quota_slot slot)
{
        return slots[slot].name;
}

static const struct quota_user *user_of(const struct tree_node *node)
{
        return container_of(node, struct quota_user, by_uid);
}

static int compare_uid(const void *uid, const struct tree_node *node)
{
        return ORDER(*(const uid_t *)uid, user_of(node)->uid);
}

static int compare_users(const struct tree_node *a, const struct tree_node *b)
{
        return compare_uid(&user_of(a)->uid, b);
}

void quotas_init(struct quotas *users)
{
        tree_init(&users->by_uid, compare_users);
}

struct quota_user *quotas_find(const struct quotas *users, uid_t uid)
{
        return tree_item(tree_find(&users->by_uid, &uid, compare_uid), struct quota_user, by_uid);
}

uint64_t quotas_held(const struct quotas *users, uid_t uid, enum quota_slot slot)
{
        const struct quota_user *user = quotas_find(users, uid);
        return user != NULL ? load_relaxed(&user->held[slot]) : 0;
}

static void hold(struct quota_user *user, struct quota_charge *charge, enum quota_slot slot, uint64_t amount)
{
        require(charge->user == NULL);
        __atomic_fetch_add(&user->held[slot], amount, __ATOMIC_RELAXED);
        user->n_charges++;
        *charge = (struct quota_charge){.user = user, .slot = slot, .amount = amount};
}

int quota_hold(struct quotas *users, uid_t uid, struct quota_charge *charge, enum quota_slot slot, uint64_t amount)
{
        struct quota_user *user = quotas_find(users, uid);
        if (user == NULL) {
                user = calloc(1, sizeof(*user));
                if (user == NULL)
                        return STREAMER_ENOMEM;
                user->users = users;
                user->uid = uid;
                tree_node_init(&user->by_uid);
                tree_insert(&users->by_uid, &user->by_uid);
        }
        hold(user, charge, slot, amount);
        return 0;
}

void quota_hold_same(const struct quota_charge *other, struct quota_charge *charge, enum quota_slot slot,
                     uint64_t amount)
{
        require(other->user != NULL && other->user->n_charges > 0);
        hold(other->user, charge, slot, amount);
}

#define AMOUNT_TEXT 24

/* "12", or of bytes "1.5 GiB", or exactly "1610612736 B". */
static void amount_text(char out[AMOUNT_TEXT], enum quota_slot slot, uint64_t amount, bool exact)
{
        if (slot == QUOTA_BYTES && !exact)
                size_text(out, amount);
        else
                snprintf(out, AMOUNT_TEXT, "%" PRIu64 "%s", amount, slot == QUOTA_BYTES ? " B" : "");
}

/* What is held and what is needed exceed the most by so little that, each rounded by up to a twentieth, they would seem
 * to fit. */
static bool is_close(uint64_t held, uint64_t amount, uint64_t max)
{
        uint64_t sum = held + amount;
        return sum >= held && sum - max < max / 8;
}

static int check_limit(uid_t uid, enum quota_slot slot, uint64_t held, uint64_t amount,
                       const struct quota_limits *limits, struct error *error)
{
        uint64_t max = limits->max[slot];
        char rule[sizeof(limits->rule)], more[64] = "", has[AMOUNT_TEXT], most[AMOUNT_TEXT], needed[AMOUNT_TEXT];
        if (held <= max && amount <= max - held)
                return 0;
        snprintf(rule, sizeof(rule), "%s", limits->rule);
        if (limits->usual[slot])
                snprintf(rule, sizeof(rule), "limits.%s_per_uid", slots[slot].name);
        bool exact = is_close(held, amount, max);
        amount_text(has, slot, held, exact);
        amount_text(most, slot, max, exact);
        amount_text(needed, slot, amount, exact);
        if (amount > 1)
                snprintf(more, sizeof(more), ", and %s more %s needed", needed, slot == QUOTA_BYTES ? "is" : "are");
        return error_set(error, STREAMER_ELIMIT, "uid %u has %s of %s %s%s (%s)", (unsigned)uid, has, most,
                         slots[slot].text, more, rule);
}

int quota_charge(struct quotas *users, uid_t uid, struct quota_charge *charge, enum quota_slot slot, uint64_t amount,
                 const struct quota_limits *limits, struct error *error)
{
        int r = check_limit(uid, slot, quotas_held(users, uid, slot), amount, limits, error);
        if (r == 0 && quota_hold(users, uid, charge, slot, amount) < 0)
                r = error_no_memory(error);
        return r;
}

int quota_raise(struct quota_charge *charge, uint64_t more, const struct quota_limits *limits, struct error *error)
{
        const struct quota_user *user = charge->user;
        require(user != NULL);
        int r = check_limit(user->uid, charge->slot, load_relaxed(&user->held[charge->slot]), more, limits, error);
        if (r == 0)
                quota_adjust(charge, charge->amount + more);
        return r;
}

bool quota_raise_share(struct quota_charge *charge, uint64_t more, uint64_t max)
{
        uint64_t *held = &charge->user->held[charge->slot];
        uint64_t before = __atomic_fetch_add(held, more, __ATOMIC_RELAXED);
        if (before > max || more > max - before) {
                __atomic_fetch_sub(held, more, __ATOMIC_RELAXED);
                return false;
        }
        charge->amount += more;
        return true;
}

struct quota_charge quota_take(struct quota_charge *charge)
{
        struct quota_charge taken = *charge;
        *charge = (struct quota_charge){.user = NULL};
        return taken;
}

void quota_adjust(struct quota_charge *charge, uint64_t amount)
{
        if (charge->user != NULL)
                __atomic_fetch_add(&charge->user->held[charge->slot], amount - charge->amount, __ATOMIC_RELAXED);
        charge->amount = amount;
}

void quota_commit(struct quota_charge *charge)
{
        if (charge->user == NULL || charge->amount > 0)
                return;
        charge->amount = 1;
        __atomic_fetch_add(&charge->user->held[charge->slot], 1, __ATOMIC_RELAXED);
}

void quota_discharge(struct quota_charge *charge)
{
        struct quota_user *user = charge->user;
        if (user == NULL)
                return;
        uint64_t before = __atomic_fetch_sub(&user->held[charge->slot], charge->amount, __ATOMIC_RELAXED);
        require(before >= charge->amount && user->n_charges > 0);
        *charge = (struct quota_charge){.user = NULL};
        if (--user->n_charges > 0)
                return;
        tree_remove(&user->users->by_uid, &user->by_uid);
        free(user);
}
