/* SPDX-License-Identifier: Apache-2.0
 *
 * Charges of users: taken, refused with figures and rule, and released.
 */
#include "daemon/base/quota.h"

#include "daemon/base/util.h"
#include "tests/lib/suite.h"

static struct quotas users;
static struct error error;
static const struct quota_limits limits = {
        .max = {[QUOTA_CONNECTIONS] = 2, [QUOTA_LEASES] = UINT64_MAX, [QUOTA_LOADS] = 0, [QUOTA_BYTES] = 1000},
        .rule = "access.roles[7], f.yaml:9"};

static void begin(void)
{
        quotas_init(&users);
        error = (struct error){0};
}

static int charge(uid_t uid, struct quota_charge *c, enum quota_slot slot, uint64_t amount)
{
        *c = (struct quota_charge){.user = NULL};
        return quota_charge(&users, uid, c, slot, amount, &limits, &error);
}

static uint64_t charged(uid_t uid, enum quota_slot slot)
{
        const struct quota_user *user = quotas_find(&users, uid);
        return user != NULL ? user->held[slot] : 0;
}

FIXTURE(.each = {begin, NULL});

TEST(a_charge_is_released_once)
{
        struct quota_charge a, b;
        ck_assert_int_eq(charge(5, &a, QUOTA_BYTES, 400), 0);
        ck_assert_int_eq(charge(5, &b, QUOTA_BYTES, 300), 0);
        quota_discharge(&a);
        quota_discharge(&a);
        ck_assert_uint_eq(charged(5, QUOTA_BYTES), 300);
}

TEST(an_amount_is_changed)
{
        struct quota_charge c = {.user = NULL}, none = {.user = NULL};
        ck_assert_int_eq(quota_hold(&users, 5, &c, QUOTA_FDS, 0), 0);
        ck_assert_uint_eq(charged(5, QUOTA_FDS), 0);
        quota_adjust(&c, 7);
        quota_adjust(&c, 3);
        ck_assert_uint_eq(charged(5, QUOTA_FDS), 3);
        quota_adjust(&none, 9);
        quota_discharge(&c);
        ck_assert_ptr_null(quotas_find(&users, 5));
}

TEST(the_limit_is_inclusive)
{
        struct quota_charge a, b, c;
        ck_assert_int_eq(charge(5, &a, QUOTA_CONNECTIONS, 1), 0);
        ck_assert_int_eq(charge(5, &b, QUOTA_CONNECTIONS, 1), 0);
        FAILS_SAYING(error, charge(5, &c, QUOTA_CONNECTIONS, 1), STREAMER_ELIMIT,
                     "uid 5 has 2 of 2 connections (access.roles[7], f.yaml:9)");
        ck_assert_ptr_null(c.user);
        quota_discharge(&a);
        ck_assert_int_eq(charge(5, &c, QUOTA_CONNECTIONS, 1), 0);
}

TEST(restored_charges_ignore_the_limits)
{
        struct quota_charge again = {.user = NULL}, more;
        ck_assert_int_eq(quota_hold(&users, 5, &again, QUOTA_BYTES, 5000), 0);
        ck_assert_uint_eq(charged(5, QUOTA_BYTES), 5000);
        ck_assert_int_eq(charge(5, &more, QUOTA_BYTES, 1), STREAMER_ELIMIT);
        quota_discharge(&again);
        ck_assert_int_eq(charge(5, &more, QUOTA_BYTES, 1), 0);
        quota_discharge(&more);
        ck_assert_ptr_null(quotas_find(&users, 5));
}

TEST(a_refused_charge_changes_nothing)
{
        struct quota_charge c;
        ck_assert_int_eq(charge(5, &c, QUOTA_LOADS, 1), STREAMER_ELIMIT);
        ck_assert_ptr_null(quotas_find(&users, 5));
        quota_discharge(&c);
}

TEST(surplus_bytes_are_reported)
{
        struct quota_charge a, b;
        ck_assert_int_eq(charge(5, &a, QUOTA_BYTES, 600), 0);
        FAILS_SAYING(error, charge(5, &b, QUOTA_BYTES, 401), STREAMER_ELIMIT,
                     "uid 5 has 600 B of 1000 B of models it loaded, and 401 B more is needed "
                     "(access.roles[7], f.yaml:9)");
        ck_assert_int_eq(charge(5, &b, QUOTA_BYTES, 400), 0);
}

static const struct {
        uint64_t held, more; /* in KiB */
        const char *text;
} sizes[] = {
        {0, 12288, "has 0 B of 10.0 MiB of models it loaded, and 12.0 MiB more is needed"},
        {0, 10244, "has 0 B of 10485760 B of models it loaded, and 10489856 B more is needed"},
        {6144, 4100, "has 6291456 B of 10485760 B of models it loaded, and 4198400 B more is needed"},
        {12288, 6144, "has 12.0 MiB of 10.0 MiB of models it loaded, and 6.0 MiB more is needed"},
};

TEST(sizes_are_exact_where_they_would_seem_to_fit, EACH(sizes))
{
        const struct quota_limits ten = {.max[QUOTA_BYTES] = UINT64_C(10) << 20, .rule = "access.roles[7]"};
        struct quota_charge held = {.user = NULL}, more = {.user = NULL};
        ck_assert_int_eq(quota_hold(&users, 5, &held, QUOTA_BYTES, sizes[_i].held << 10), 0);
        FAILS_SAYING(error, quota_charge(&users, 5, &more, QUOTA_BYTES, sizes[_i].more << 10, &ten, &error),
                     STREAMER_ELIMIT, format_text("uid 5 %s (access.roles[7])", sizes[_i].text));
        quota_discharge(&held);
}

TEST(no_amount_overflows)
{
        struct quota_charge a, b;
        ck_assert_int_eq(charge(5, &a, QUOTA_BYTES, 1), 0);
        ck_assert_int_eq(charge(5, &b, QUOTA_BYTES, UINT64_MAX), STREAMER_ELIMIT);
        quota_discharge(&a);
        ck_assert_int_eq(charge(5, &a, QUOTA_LEASES, UINT64_MAX), 0);
        ck_assert_int_eq(charge(5, &b, QUOTA_LEASES, 1), STREAMER_ELIMIT);
}

TEST(users_do_not_share)
{
        struct quota_charge a[2], b[2];
        for (size_t i = 0; i < 2; i++) {
                ck_assert_int_eq(charge(5, &a[i], QUOTA_CONNECTIONS, 1), 0);
                ck_assert_int_eq(charge(6, &b[i], QUOTA_CONNECTIONS, 1), 0);
        }
        for (size_t i = 0; i < 2; i++)
                quota_discharge(&a[i]);
        ck_assert_ptr_null(quotas_find(&users, 5));
        ck_assert_uint_eq(charged(6, QUOTA_CONNECTIONS), 2);
        for (size_t i = 0; i < 2; i++)
                quota_discharge(&b[i]);
        ck_assert_uint_eq(users.by_uid.n, 0);
}

TEST(a_global_limit_is_named_by_its_setting)
{
        struct quota_charge c = {.user = NULL};
        const struct quota_limits usual = {.usual = {[QUOTA_LOADS] = true}, .rule = "access.roles[7], f.yaml:9"};
        FAILS_WITH(error, quota_charge(&users, 1000, &c, QUOTA_LOADS, 1, &usual, &error), STREAMER_ELIMIT,
                   "(limits.loads_per_uid)");
}

/* Reserved at the limit for a replacement; counted when the replacement takes effect. */
TEST(a_replacement_is_charged_when_it_takes_effect)
{
        struct quota_charge first, second, next[2] = {{.user = NULL}}, more = {.user = NULL};
        ck_assert_int_eq(charge(5, &first, QUOTA_CONNECTIONS, 1), 0);
        ck_assert_int_eq(charge(5, &second, QUOTA_CONNECTIONS, 1), 0);
        for (size_t i = 0; i < 2; i++)
                ck_assert_int_eq(quota_charge(&users, 5, &next[i], QUOTA_CONNECTIONS, 0, &limits, &error), 0);
        ck_assert_uint_eq(charged(5, QUOTA_CONNECTIONS), 2);
        quota_commit(&next[0]);
        quota_commit(&next[0]);
        ck_assert_uint_eq(charged(5, QUOTA_CONNECTIONS), 3);
        FAILS_WITH(error, quota_charge(&users, 5, &more, QUOTA_CONNECTIONS, 0, &limits, &error), STREAMER_ELIMIT,
                   "has 3 of 2 connections");
        quota_discharge(&first);
        ck_assert_int_eq(quota_charge(&users, 5, &more, QUOTA_CONNECTIONS, 0, &limits, &error), 0);
        quota_discharge(&second);
        quota_discharge(&next[0]);
        quota_discharge(&next[1]);
        quota_discharge(&more);
        quota_commit(&more);
        ck_assert_ptr_null(quotas_find(&users, 5));
}

FIXTURE(.each = {begin, NULL}, .timeout = 10);

/* One by one that would be ten thousand million comparisons. */
TEST(a_user_is_found_among_very_many)
{
        enum { MANY = 100000 };
        struct quota_charge *charges = must_alloc(MANY * sizeof(*charges));
        for (uid_t i = 0; i < MANY; i++)
                ck_assert_int_eq(charge(i, &charges[i], QUOTA_LEASES, i), 0);
        for (uid_t i = 0; i < MANY; i++)
                ck_assert_uint_eq(quotas_held(&users, i, QUOTA_LEASES), i);
        for (uid_t i = 0; i < MANY; i++)
                quota_discharge(&charges[i]);
        ck_assert_uint_eq(users.by_uid.n, 0);
}
