/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted shares: how much each may hold, and which is next.
 */
#include "daemon/io/reader/fair_share.h"

#include "daemon/base/util.h"
#include "tests/lib/suite.h"

/* ---- how much ---- */

static unsigned part(unsigned weight, unsigned heaviest, unsigned n)
{
        struct fair_share share;
        fair_share_init(&share, weight, 0, 0);
        return fair_share_of(&share, heaviest, n);
}

static const struct {
        unsigned weight, heaviest, n, part;
} parts[] = {
        {100, 100, 32, 16}, /* the heaviest holds half */
        {1, 1, 32, 16},
        {100, 300, 32, 8},
        {1, FAIR_SHARE_WEIGHT_MAX, 32, 1},
        {1, 100, 0, 1}, /* each has a slot */
        {1, 100, 2, 1},
        {FAIR_SHARE_WEIGHT_MAX, FAIR_SHARE_WEIGHT_MAX, 4000000000u, 2000000000u},
};

TEST(a_load_holds_its_part, EACH(parts))
{
        ck_assert_uint_eq(part(parts[_i].weight, parts[_i].heaviest, parts[_i].n), parts[_i].part);
}

/* ---- order ---- */

#define N 3

/* Of one test, in its process. */
static struct fair_share shares[N];
static uint64_t now;

static void begin(unsigned n, unsigned weight)
{
        for (unsigned i = 0; i < n; i++)
                fair_share_init(&shares[i], weight, now, 0);
}

struct served {
        unsigned count[N];
};

/* Grants `turns` blocks, each to the share of the mask that is due; counts them by share. */
static struct served serve(unsigned turns, unsigned mask)
{
        struct served served = {0};
        for (unsigned t = 0; t < turns; t++) {
                unsigned first = N;
                for (unsigned i = 0; i < N; i++)
                        if ((mask & 1u << i) && (first == N || fair_share_before(&shares[i], &shares[first])))
                                first = i;
                fair_share_take(&shares[first], &now, 8 * MiB);
                served.count[first]++;
        }
        return served;
}

TEST(turns_follow_the_weights)
{
        for (unsigned i = 0; i < N; i++)
                fair_share_init(&shares[i], 100u << i, now, 0);
        struct served served = serve(7000, 7);
        for (unsigned i = 0; i < N; i++) {
                ck_assert_uint_ge(served.count[i], (1000u << i) - 2);
                ck_assert_uint_le(served.count[i], (1000u << i) + 2);
        }
}

TEST(small_blocks_are_granted_more_often_than_large_ones)
{
        struct fair_share small, large;
        unsigned n_small = 0, n_large = 0;
        fair_share_init(&small, 100, now, 0);
        fair_share_init(&large, 100, now, 0);
        for (unsigned i = 0; i < 900; i++) {
                if (fair_share_before(&small, &large))
                        fair_share_take(&small, &now, MiB), n_small++;
                else
                        fair_share_take(&large, &now, 8 * MiB), n_large++;
        }
        ck_assert_uint_ge(n_small, 8 * n_large - 8);
        ck_assert_uint_le(n_small, 8 * n_large + 8);
}

TEST(a_head_start_is_limited_in_bytes)
{
        begin(1, 100);
        serve(1000, 1);
        fair_share_init(&shares[1], 100, now, 16 * 8 * MiB);
        ck_assert_uint_ge(serve(17, 3).count[1], 16);
        struct served both = serve(100, 3);
        ck_assert_uint_ge(both.count[0], 49);
        ck_assert_uint_ge(both.count[1], 49);
}

TEST(a_blocked_load_accumulates_no_share)
{
        begin(2, 100);
        serve(1000, 1); /* the second is held up */
        struct served after = serve(100, 3);
        ck_assert_uint_ge(after.count[0], 48);
        ck_assert_uint_ge(after.count[1], 48);
}

TEST(a_new_weight_applies_at_once)
{
        begin(2, 100);
        serve(100, 3);
        shares[1].weight = 900;
        struct served after = serve(1000, 3);
        ck_assert_uint_ge(after.count[1], 895);
        ck_assert_uint_le(after.count[1], 905);
}

TEST(a_wrapped_clock_keeps_the_shares)
{
        now = UINT64_MAX - 100;
        begin(2, 100);
        struct served served = serve(100, 3);
        ck_assert_uint_eq(served.count[0], 50);
        ck_assert_uint_eq(served.count[1], 50);
}
