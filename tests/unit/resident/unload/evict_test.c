/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of eviction victims: candidates, order, and no unnecessary eviction. Random cases are compared with an
 * oracle that tries every subset.
 */
#include "daemon/resident/unload/evict.h"

#include "daemon/base/util.h"
#include "tests/lib/suite.h"

#define SEED 20240607
#define N_MAX 10

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

/* ---- choice of victims ---- */

#define IDLE(name, size, used, ...)                                                                                    \
        {                                                                                                              \
                .owner = (name), .bytes = (size), .last_used = (used), .ready = true, __VA_ARGS__                      \
        }

/* By needed bytes: the names of the victims; NULL: all would not suffice. */
static const struct {
        const char *rule;
        struct evict_candidate of[4];
        struct {
                uint64_t needed;
                const char *victims;
        } choices[3];
} rules[] = {
        {"least recently used first, and as many as needed",
         {IDLE("c", 10, 30), IDLE("a", 10, 10), IDLE("b", 10, 20)},
         {{10, "a"}, {11, "ab"}, {21, "abc"}}},
        {"all or none", {IDLE("a", 10, 1), IDLE("b", 10, 2)}, {{20, "ab"}, {21, NULL}, {UINT64_MAX, NULL}}},
        {"a lower priority before a less recent use",
         {IDLE("old", 10, 1, .priority = 5), IDLE("low", 10, 99)},
         {{0, ""}, {10, "low"}, {20, "lowold"}}},
        {"of two equally recent ones the sooner to expire",
         {IDLE("forever", 10, 7), IDLE("soon", 10, 7, .expires = 100), IDLE("later", 10, 7, .expires = 200)},
         {{10, "soon"}, {20, "soonlater"}, {30, "soonlaterforever"}}},
        {"an unnecessary victim is spared",
         {IDLE("tiny", 1, 1), IDLE("big", 100, 2), IDLE("new", 100, 3)},
         {{0, ""}, {100, "big"}, {101, "tinybig"}}},
        {"in order even if a later one would suffice",
         {IDLE("a", 4, 1), IDLE("b", 4, 2), IDLE("c", 4, 3), IDLE("new", 12, 4)},
         {{4, "a"}, {12, "abc"}, {13, "anew"}}},
        {"not a leased one", {IDLE("a", 10, 1, .held = 1), IDLE("b", 10, 2)}, {{0, ""}, {10, "b"}, {11, NULL}}},
        {"not a pinned one", {IDLE("a", 10, 1, .pinned = true), IDLE("b", 10, 2)}, {{0, ""}, {10, "b"}, {11, NULL}}},
        {"only a ready one",
         {{.owner = (void *)(uintptr_t) "a", .bytes = 10}, IDLE("b", 10, 2)},
         {{0, ""}, {10, "b"}, {11, NULL}}},
        {"not one without memory", {IDLE("a", 0, 1), IDLE("b", 10, 2)}, {{0, ""}, {10, "b"}, {11, NULL}}},
};

TEST(victims_are_chosen_by_the_rules, EACH(rules))
{
        size_t n = 0;
        while (n < ARRAY_SIZE(rules[_i].of) && rules[_i].of[n].owner != NULL)
                n++;
        for (size_t i = 0; i < ARRAY_SIZE(rules[_i].choices); i++) {
                struct evict_candidate c[4];
                const char *victims = rules[_i].choices[i].victims;
                memcpy(c, rules[_i].of, sizeof(c));
                ck_assert_int_eq(evict_choose(c, n, rules[_i].choices[i].needed), victims != NULL);
                ck_assert_msg(strcmp(chosen(c, n), victims != NULL ? victims : "") == 0, "%s: %s", rules[_i].rule,
                              chosen(c, n));
        }
        ck_assert(evict_choose(NULL, 0, 0));
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
