/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of eviction victims: candidates, order, and no unnecessary eviction. Random cases are compared with an
 * oracle that tries every subset.
 */
#include "daemon/resident/unload/evict.h"
#include "tests/lib/suite.h"

#define SEED 20240607
#define N_MAX 10

/* Ready, unleased, unpinned, of priority 0. */
static struct evict_candidate idle(const char *name, uint64_t bytes, uint64_t last_used)
{
        return (struct evict_candidate){
                .bytes = bytes, .last_used = last_used, .ready = true, .owner = (void *)(uintptr_t)name};
}

/* The names of the chosen, least worthy first. */
static const char *chosen(const struct evict_candidate *c, size_t n)
{
        static char text[64];
        text[0] = '\0';
        for (size_t i = 0; i < n; i++)
                if (c[i].chosen)
                        strcat(text, c[i].owner);
        return text;
}

#define expect(candidates, needed, names)                                                                              \
        do {                                                                                                           \
                size_t n_ = sizeof(candidates) / sizeof((candidates)[0]);                                              \
                ck_assert(evict_choose(candidates, n_, needed));                                                       \
                ck_assert_str_eq(chosen(candidates, n_), names);                                                       \
        } while (0)

#define expect_none(candidates, needed)                                                                                \
        do {                                                                                                           \
                size_t n_ = sizeof(candidates) / sizeof((candidates)[0]);                                              \
                ck_assert(!evict_choose(candidates, n_, needed));                                                      \
                ck_assert_str_eq(chosen(candidates, n_), "");                                                          \
        } while (0)

/* ---- choice of victims ---- */

TEST(the_least_recently_used_is_evicted_first)
{
        struct evict_candidate c[] = {idle("new", 10, 30), idle("old", 10, 10), idle("mid", 10, 20)};
        expect(c, 10, "old");
}

TEST(as_many_models_are_evicted_as_needed)
{
        struct evict_candidate c[] = {idle("c", 10, 30), idle("a", 10, 10), idle("b", 10, 20)};
        expect(c, 11, "ab");
        expect(c, 20, "ab");
        expect(c, 21, "abc");
}

TEST(an_insufficient_eviction_is_not_started)
{
        struct evict_candidate c[] = {idle("a", 10, 1)};
        expect(c, 0, "");
        ck_assert(evict_choose(NULL, 0, 0));
}

TEST(lower_priority_is_evicted_before_less_recently_used)
{
        struct evict_candidate c[] = {idle("old", 10, 1), idle("low", 10, 99)};
        c[0].priority = 5;
        expect(c, 10, "low");
}

TEST(of_two_equally_recent_ones_the_sooner_to_expire_is_evicted)
{
        struct evict_candidate c[] = {idle("forever", 10, 7), idle("soon", 10, 7), idle("later", 10, 7)};
        c[1].expires = 100;
        c[2].expires = 200;
        expect(c, 10, "soon");
        expect(c, 20, "soonlater");
}

/* ---- unnecessary victims ---- */

TEST(an_unnecessary_victim_is_spared)
{
        struct evict_candidate c[] = {idle("tiny", 1, 1), idle("big", 100, 2), idle("new", 100, 3)};
        expect(c, 100, "big");
        expect(c, 101, "tinybig");
}

TEST(victims_are_taken_in_order_even_if_a_later_one_would_suffice)
{
        struct evict_candidate c[] = {idle("a", 4, 1), idle("b", 4, 2), idle("c", 4, 3), idle("new", 12, 4)};
        expect(c, 12, "abc");
}

/* ---- protected models ---- */

static const struct {
        const char *why;
        struct evict_candidate stays;
} stayers[] = {
        {"leased", {.bytes = 10, .last_used = 1, .ready = true, .held = 1}},
        {"pinned", {.bytes = 10, .last_used = 1, .ready = true, .pinned = true}},
        {"not ready", {.bytes = 10, .last_used = 1}},
        {"holds nothing", {.last_used = 1, .ready = true}},
};

TEST(protected_models_are_not_evicted, EACH(stayers))
{
        struct evict_candidate c[] = {stayers[_i].stays, idle("b", 10, 2)};
        c[0].owner = (void *)(uintptr_t)stayers[_i].why;
        expect(c, 10, "b");
        expect_none(c, 11);
}

TEST(none_is_evicted_if_all_would_not_suffice)
{
        struct evict_candidate c[] = {idle("a", 10, 1), idle("b", 10, 2)};
        expect(c, 20, "ab");
        expect_none(c, 21);
        expect_none(c, UINT64_MAX);
}

/* ---- against every subset ---- */

static bool candidate(const struct evict_candidate *c)
{
        return c->ready && !c->pinned && c->held == 0 && c->bytes > 0;
}

/* Written apart from the code under test. */
static bool worth_more(const struct evict_candidate *a, const struct evict_candidate *b)
{
        uint64_t until_a = a->expires ? a->expires : UINT64_MAX, until_b = b->expires ? b->expires : UINT64_MAX;
        if (a->priority != b->priority)
                return a->priority > b->priority;
        if (a->last_used != b->last_used)
                return a->last_used > b->last_used;
        return until_a > until_b;
}

/* Of all sufficient subsets, the one with the best survivors, compared from the most worthy down; UINT_MAX if none
 * suffices. Bits are indexes of `c`, which is sorted, least worthy first. */
static unsigned oracle(const struct evict_candidate *c, size_t n, uint64_t needed)
{
        unsigned best = 0, best_spared = 0;
        bool found = false;
        for (unsigned set = 0; set < 1u << n; set++) {
                uint64_t sum = 0;
                bool allowed = true;
                for (size_t i = 0; i < n; i++)
                        if (set & 1u << i) {
                                sum += c[i].bytes;
                                allowed = allowed && candidate(&c[i]);
                        }
                unsigned spared = ~set & ((1u << n) - 1);
                if (!allowed || sum < needed || (found && spared <= best_spared))
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
                .expires = (uint64_t)rand_r(seed) % 4,
                .held = rand_r(seed) % 5 == 0,
                .pinned = rand_r(seed) % 5 == 0,
                .ready = rand_r(seed) % 6 != 0,
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
