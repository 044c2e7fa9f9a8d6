/* SPDX-License-Identifier: Apache-2.0
 *
 * Charges of users: taken, refused with figures and rule, given back.
 */
#include "daemon/base/user.h"

#include "daemon/base/util.h"
#include "tests/lib/suite.h"

#include <string.h>

static struct users users;
static struct error error;
static const struct user_limits limits = {
        .max = {[USER_CONNECTIONS] = 2, [USER_LEASES] = UINT64_MAX, [USER_LOADS] = 0, [USER_BYTES] = 1000},
        .rule = "access.roles[7], f.yaml:9"};

static void begin(void)
{
        users_init(&users);
        error = (struct error){0};
}

static int charge(uid_t uid, struct user_charge *c, enum user_slot slot, uint64_t amount)
{
        *c = (struct user_charge){.user = NULL};
        return user_charge(&users, uid, c, slot, amount, &limits, &error);
}

static uint64_t held(uid_t uid, enum user_slot slot)
{
        const struct user *user = users_find(&users, uid);
        return user != NULL ? user->held[slot] : 0;
}

START_TEST(a_charge_is_taken_and_given_back)
{
        struct user_charge c;
        ck_assert_int_eq(charge(5, &c, USER_BYTES, 400), 0);
        ck_assert_uint_eq(held(5, USER_BYTES), 400);
        ck_assert_uint_eq(held(5, USER_CONNECTIONS), 0);
        user_discharge(&c);
        ck_assert_ptr_null(users_find(&users, 5));
}
END_TEST

START_TEST(what_was_given_back_is_given_back_once)
{
        struct user_charge a, b;
        ck_assert_int_eq(charge(5, &a, USER_BYTES, 400), 0);
        ck_assert_int_eq(charge(5, &b, USER_BYTES, 300), 0);
        user_discharge(&a);
        user_discharge(&a);
        ck_assert_uint_eq(held(5, USER_BYTES), 300);
        user_discharge(&b);
}
END_TEST

START_TEST(the_limit_itself_is_allowed_and_one_more_is_not)
{
        struct user_charge a, b, c;
        ck_assert_int_eq(charge(5, &a, USER_CONNECTIONS, 1), 0);
        ck_assert_int_eq(charge(5, &b, USER_CONNECTIONS, 1), 0);
        ck_assert_int_eq(charge(5, &c, USER_CONNECTIONS, 1), STREAMER_ELIMIT);
        ck_assert_str_eq(error.text, "uid 5 has 2 of 2 connections (access.roles[7], f.yaml:9)");
        ck_assert_ptr_null(c.user);
        user_discharge(&a);
        ck_assert_int_eq(charge(5, &c, USER_CONNECTIONS, 1), 0);
        user_discharge(&b);
        user_discharge(&c);
}
END_TEST

START_TEST(what_was_held_before_is_charged_whatever_the_limits_are)
{
        struct user_charge again = {.user = NULL}, more;
        ck_assert_int_eq(user_charge_again(&users, 5, &again, USER_BYTES, 5000), 0);
        ck_assert_uint_eq(held(5, USER_BYTES), 5000);
        ck_assert_int_eq(charge(5, &more, USER_BYTES, 1), STREAMER_ELIMIT);
        user_discharge(&again);
        ck_assert_int_eq(charge(5, &more, USER_BYTES, 1), 0);
        user_discharge(&more);
        ck_assert_ptr_null(users_find(&users, 5));
}
END_TEST

START_TEST(a_refused_charge_leaves_nothing_behind)
{
        struct user_charge c;
        ck_assert_int_eq(charge(5, &c, USER_LOADS, 1), STREAMER_ELIMIT);
        ck_assert_ptr_null(users_find(&users, 5));
        user_discharge(&c);
}
END_TEST

START_TEST(bytes_that_are_too_many_are_told)
{
        struct user_charge a, b;
        ck_assert_int_eq(charge(5, &a, USER_BYTES, 600), 0);
        ck_assert_int_eq(charge(5, &b, USER_BYTES, 401), STREAMER_ELIMIT);
        ck_assert_str_eq(error.text, "uid 5 has 600 of 1000 bytes of models it loaded, and 401 more are needed "
                                     "(access.roles[7], f.yaml:9)");
        ck_assert_int_eq(charge(5, &b, USER_BYTES, 400), 0);
        user_discharge(&a);
        user_discharge(&b);
}
END_TEST

START_TEST(no_amount_wraps_round)
{
        struct user_charge a, b;
        ck_assert_int_eq(charge(5, &a, USER_BYTES, 1), 0);
        ck_assert_int_eq(charge(5, &b, USER_BYTES, UINT64_MAX), STREAMER_ELIMIT);
        user_discharge(&a);
        ck_assert_int_eq(charge(5, &a, USER_LEASES, UINT64_MAX), 0);
        ck_assert_int_eq(charge(5, &b, USER_LEASES, 1), STREAMER_ELIMIT);
        user_discharge(&a);
}
END_TEST

START_TEST(users_do_not_share)
{
        struct user_charge a[2], b[2];
        for (size_t i = 0; i < 2; i++) {
                ck_assert_int_eq(charge(5, &a[i], USER_CONNECTIONS, 1), 0);
                ck_assert_int_eq(charge(6, &b[i], USER_CONNECTIONS, 1), 0);
        }
        for (size_t i = 0; i < 2; i++)
                user_discharge(&a[i]);
        ck_assert_ptr_null(users_find(&users, 5));
        ck_assert_uint_eq(held(6, USER_CONNECTIONS), 2);
        for (size_t i = 0; i < 2; i++)
                user_discharge(&b[i]);
        ck_assert(list_empty(&users.all));
}
END_TEST

START_TEST(a_limit_of_everybody_is_named_by_its_setting)
{
        struct user_charge c = {.user = NULL};
        const struct user_limits usual = {.usual = {[USER_LOADS] = true}, .rule = "access.roles[7], f.yaml:9"};
        ck_assert_int_eq(user_charge(&users, 1000, &c, USER_LOADS, 1, &usual, &error), STREAMER_ELIMIT);
        ck_assert_ptr_nonnull(strstr(error.text, "(limits.loads_per_uid)"));
}
END_TEST

/* Reserved at the limit, for what takes another's place; counted when it has. */
START_TEST(what_takes_anothers_place_counts_when_it_has)
{
        struct user_charge first, second, next[2] = {{.user = NULL}}, more = {.user = NULL};
        ck_assert_int_eq(charge(5, &first, USER_CONNECTIONS, 1), 0);
        ck_assert_int_eq(charge(5, &second, USER_CONNECTIONS, 1), 0);
        for (size_t i = 0; i < 2; i++)
                ck_assert_int_eq(user_reserve(&users, 5, &next[i], USER_CONNECTIONS, &limits, &error), 0);
        ck_assert_uint_eq(held(5, USER_CONNECTIONS), 2);
        user_count(&next[0]);
        user_count(&next[0]);
        ck_assert_uint_eq(held(5, USER_CONNECTIONS), 3);
        ck_assert_int_eq(user_reserve(&users, 5, &more, USER_CONNECTIONS, &limits, &error), STREAMER_ELIMIT);
        ck_assert_ptr_nonnull(strstr(error.text, "has 3 of 2 connections"));
        user_discharge(&first);
        ck_assert_int_eq(user_reserve(&users, 5, &more, USER_CONNECTIONS, &limits, &error), 0);
        user_discharge(&second);
        user_discharge(&next[0]);
        user_discharge(&next[1]);
        user_discharge(&more);
        user_count(&more);
        ck_assert_ptr_null(users_find(&users, 5));
}
END_TEST

int main(void)
{
        suite_begin("user");
        TCase *tests = suite_group("charges", NULL, NULL, 10);
        tcase_add_checked_fixture(tests, begin, NULL);
        tcase_add_test(tests, a_charge_is_taken_and_given_back);
        tcase_add_test(tests, what_was_given_back_is_given_back_once);
        tcase_add_test(tests, the_limit_itself_is_allowed_and_one_more_is_not);
        tcase_add_test(tests, what_was_held_before_is_charged_whatever_the_limits_are);
        tcase_add_test(tests, a_refused_charge_leaves_nothing_behind);
        tcase_add_test(tests, bytes_that_are_too_many_are_told);
        tcase_add_test(tests, no_amount_wraps_round);
        tcase_add_test(tests, users_do_not_share);
        tcase_add_test(tests, a_limit_of_everybody_is_named_by_its_setting);
        tcase_add_test(tests, what_takes_anothers_place_counts_when_it_has);
        return suite_run();
}
