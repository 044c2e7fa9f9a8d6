/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of eviction victims: order, and no unnecessary eviction. Random cases are compared with an
 * oracle that tries every subset.
 */
#include "daemon/resident/unload/evict.h"

#include "tests/lib/suite.h"

#define SEED 20240607
#define N_MAX 10

/* Written apart from the code under test. */
static bool worth_more(const struct evict_candidate *a, const struct evict_candidate *b)
{
        return a->priority != b->priority ? a->priority > b->priority : a->last_used > b->last_used;
}

/* Of all sufficient subsets, the one with the best survivors, compared from the most worthy down; UINT_MAX if none
 * suffices. Bits are indexes of `c`, which is sorted, least worthy first. */
static unsigned oracle(const struct evict_candidate *c, size_t n, uint64_t needed)
{
        unsigned best = 0, best_spared = 0;
        bool found = false;
        for (unsigned set = 0; set < 1u << n; set++) {
                uint64_t sum = 0;
                for (size_t i = 0; i < n; i++)
                        sum += set & 1u << i ? c[i].bytes : 0;
                unsigned spared = ~set & ((1u << n) - 1);
                if (sum < needed || (found && spared <= best_spared))
                        continue;
                found = true;
                best = set;
                best_spared = spared;
        }
        return found ? best : ~0u;
}

static struct evict_candidate random_candidate(unsigned *seed)
{
        return (struct evict_candidate){
                .bytes = (uint64_t)rand_r(seed) % 8,
                .last_used = (uint64_t)rand_r(seed) % 5,
                .priority = (uint64_t)rand_r(seed) % 3,
        };
}

static unsigned set_of(const struct evict_candidate *c, size_t n)
{
        unsigned set = 0;
        for (size_t i = 0; i < n; i++)
                set |= (unsigned)c[i].chosen << i;
        return set;
}

TEST(every_choice_is_the_best_of_all_subsets)
{
        unsigned seed = SEED, refused = 0, rounds = suite_short() ? 2000 : 20000;
        for (unsigned round = 0; round < rounds; round++) {
                struct evict_candidate c[N_MAX];
                size_t n = (size_t)rand_r(&seed) % (N_MAX + 1);
                for (size_t i = 0; i < n; i++)
                        c[i] = random_candidate(&seed);
                uint64_t needed = (uint64_t)rand_r(&seed) % 40;
                bool enough = evict_choose(c, n, needed);
                for (size_t i = 1; i < n; i++)
                        ck_assert_msg(!worth_more(&c[i - 1], &c[i]), "seed %d, round %u: not in order", SEED, round);
                unsigned best = oracle(c, n, needed);
                refused += !enough;
                ck_assert_msg(enough == (best != ~0u), "seed %d, round %u", SEED, round);
                ck_assert_msg(set_of(c, n) == (enough ? best : 0), "seed %d, round %u: %#x, best is %#x", SEED, round,
                              set_of(c, n), best);
        }
        ck_assert_uint_gt(refused, rounds / 20);
        ck_assert_uint_lt(refused, rounds - rounds / 20);
}
