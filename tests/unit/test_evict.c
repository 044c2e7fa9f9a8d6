/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of what to evict: who is no candidate, who goes first, and that nobody goes needlessly.
 * Random cases are held against an oracle that tries every subset.
 */
#include "daemon/resident/evict.h"
#include "tests/lib/suite.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- who goes ---- */

START_TEST(the_least_recently_used_goes_first)
{
        struct evict_candidate c[] = {idle("new", 10, 30), idle("old", 10, 10), idle("mid", 10, 20)};
        expect(c, 10, "old");
}
END_TEST

START_TEST(as_many_go_as_are_needed)
{
        struct evict_candidate c[] = {idle("c", 10, 30), idle("a", 10, 10), idle("b", 10, 20)};
        expect(c, 11, "ab");
        expect(c, 20, "ab");
        expect(c, 21, "abc");
}
END_TEST

START_TEST(nobody_goes_for_nothing)
{
        struct evict_candidate c[] = {idle("a", 10, 1)};
        expect(c, 0, "");
        ck_assert(evict_choose(NULL, 0, 0));
}
END_TEST

START_TEST(lower_priority_goes_before_the_longer_unused)
{
        struct evict_candidate c[] = {idle("old", 10, 1), idle("low", 10, 99)};
        c[0].priority = 5;
        expect(c, 10, "low");
}
END_TEST

START_TEST(of_two_used_at_once_the_one_that_expires_sooner_goes)
{
        struct evict_candidate c[] = {idle("forever", 10, 7), idle("soon", 10, 7), idle("later", 10, 7)};
        c[1].expires = 100;
        c[2].expires = 200;
        expect(c, 10, "soon");
        expect(c, 20, "soonlater");
}
END_TEST

/* ---- nobody goes needlessly ---- */

START_TEST(a_victim_that_another_makes_needless_is_spared)
{
        struct evict_candidate c[] = {idle("tiny", 1, 1), idle("big", 100, 2), idle("new", 100, 3)};
        expect(c, 100, "big");
        expect(c, 101, "tinybig");
}
END_TEST

START_TEST(a_later_one_is_not_taken_to_spare_several_earlier_ones)
{
        struct evict_candidate c[] = {idle("a", 4, 1), idle("b", 4, 2), idle("c", 4, 3), idle("new", 12, 4)};
        expect(c, 12, "abc");
}
END_TEST

/* ---- who does not ---- */

static const struct {
        const char *why;
        struct evict_candidate stays;
} stayers[] = {
        {"leased", {.bytes = 10, .last_used = 1, .ready = true, .held = 1}},
        {"pinned", {.bytes = 10, .last_used = 1, .ready = true, .pinned = true}},
        {"not ready", {.bytes = 10, .last_used = 1}},
        {"holds nothing", {.last_used = 1, .ready = true}},
};

START_TEST(what_may_not_go_stays)
{
        struct evict_candidate c[] = {stayers[_i].stays, idle("b", 10, 2)};
        c[0].owner = (void *)(uintptr_t)stayers[_i].why;
        expect(c, 10, "b");
        expect_none(c, 11);
}
END_TEST

START_TEST(where_all_together_do_not_suffice_nobody_goes)
{
        struct evict_candidate c[] = {idle("a", 10, 1), idle("b", 10, 2)};
        ck_assert_uint_eq(evict_possible(c, 2), 20);
        expect_none(c, 21);
        expect_none(c, UINT64_MAX);
}
END_TEST

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

/* Of all subsets that bring enough, the one whose survivors are best, compared from the most worthy
 * down; UINT_MAX if none brings enough. Bits are places in `c`, which is sorted, least worthy first. */
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

START_TEST(every_choice_is_the_best_of_all_subsets)
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
END_TEST

int main(void)
{
        suite_begin("evict");
        TCase *first = suite_group("who goes", NULL, NULL, 10);
        tcase_add_test(first, the_least_recently_used_goes_first);
        tcase_add_test(first, as_many_go_as_are_needed);
        tcase_add_test(first, nobody_goes_for_nothing);
        tcase_add_test(first, lower_priority_goes_before_the_longer_unused);
        tcase_add_test(first, of_two_used_at_once_the_one_that_expires_sooner_goes);
        TCase *waste = suite_group("nobody goes needlessly", NULL, NULL, 10);
        tcase_add_test(waste, a_victim_that_another_makes_needless_is_spared);
        tcase_add_test(waste, a_later_one_is_not_taken_to_spare_several_earlier_ones);
        TCase *stay = suite_group("who stays", NULL, NULL, 10);
        LOOP(stay, what_may_not_go_stays, stayers);
        tcase_add_test(stay, where_all_together_do_not_suffice_nobody_goes);
        TCase *subsets = suite_group("against every subset", NULL, NULL, 60);
        tcase_add_test(subsets, every_choice_is_the_best_of_all_subsets);
        return suite_run();
}
