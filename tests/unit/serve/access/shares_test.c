/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/access/shares.h"

#include "daemon/base/util.h"
#include "tests/lib/core.h"

#define USER 60501

static const struct limits limits = {
        .connections = 80, .requests_per_client = 64, .fds_in_flight = 4096, .conn = {.output = 4 * MiB}};
static struct quotas users;

static void begin(void)
{
        quotas_init(&users);
}

FIXTURE(.each = {begin, NULL});

static void hold(uid_t uid, enum quota_slot slot, uint64_t amount)
{
        static struct quota_charge charges[16];
        static size_t n;
        must(quota_hold(&users, uid, &charges[n++], slot, amount));
}

TEST(every_share_of_a_user_is_bounded)
{
        for (enum quota_slot slot = QUOTA_SLOT_COUNT; slot < QUOTA_HELD_COUNT; slot++) {
                ck_assert_uint_lt(share_max(&limits, USER, slot), GiB + 1);
                ck_assert_uint_gt(share_max(&limits, USER, slot), 0);
                ck_assert_uint_ge(share_max(&limits, 0, slot), share_max(&limits, USER, slot));
        }
}

TEST(the_last_connections_are_for_users_who_have_few)
{
        hold(USER, QUOTA_CONNECTIONS, 16);
        hold(USER + 1, QUOTA_CONNECTIONS, 15);
        ck_assert(share_allows_connection(&users, &limits, USER, 69));
        ck_assert(!share_allows_connection(&users, &limits, USER, 70));
        ck_assert(share_allows_connection(&users, &limits, USER + 1, 79));
        ck_assert(share_allows_connection(&users, &limits, USER + 2, 79));
        ck_assert(!share_allows_connection(&users, &limits, USER + 2, 80));
        ck_assert(share_allows_connection(&users, &limits, 0, 95));
        ck_assert(!share_allows_connection(&users, &limits, 0, 96));
}

/* However many users fetch the largest files that they may. */
TEST(what_is_left_for_fetched_files_is_enough_for_a_small_one)
{
        uint64_t held = 0;
        unsigned n = 0;
        for (; n < 100 && share_allows_fetch(&users, &limits, USER + n, held, 64 * MiB); n++)
                held += 64 * MiB;
        ck_assert_uint_eq(n, 3);
        for (; n < 4; n++)
                held += 32 * MiB;
        ck_assert(share_allows_fetch(&users, &limits, USER + n, held, MiB));
        ck_assert(!share_allows_fetch(&users, &limits, USER, SHARE_FETCHED_OF_ALL, MiB));
        ck_assert(!share_allows_fetch(&users, &limits, USER, UINT64_MAX, 1));
}

TEST(a_user_has_so_many_bytes_of_fetched_files)
{
        hold(USER, QUOTA_FETCHED, 60 * MiB);
        ck_assert(share_allows_fetch(&users, &limits, USER, 60 * MiB, 4 * MiB));
        ck_assert(!share_allows_fetch(&users, &limits, USER, 60 * MiB, 4 * MiB + 1));
        ck_assert(share_allows_fetch(&users, &limits, USER + 1, 60 * MiB, 64 * MiB));
}
