/* SPDX-License-Identifier: Apache-2.0
 *
 * A model is charged to each user who gives it a name, also to one whose load joins another one or finds its model
 * resident.
 */
#include "tests/lib/load_fixture.h"

#define ALICE 1001u
#define BOB 1002u

static struct quotas users;
static struct quota_limits any, few;

static void begin(void)
{
        load_fixture_begin();
        must(chmod(suite_folder(), 0755)); /* the callers may read the files */
        quotas_init(&users);
        any = (struct quota_limits){.tables = 1 << 30, .rule = "access.roles[1]"};
        for (size_t i = 0; i < QUOTA_SLOT_COUNT; i++)
                any.max[i] = UINT64_MAX;
        few = any;
        few.max[QUOTA_BYTES] = SMALL_BYTES / 2;
}

static void end(void)
{
        load_fixture_end();
        ck_assert_uint_eq(users.by_uid.n, 0);
}

static void ask(struct watched *w, uid_t uid, const char *path, const char *name, const struct quota_limits *limits)
{
        const struct caller caller = {.uid = uid};
        ask_for(w,
                (struct load_args){.source = path, .name = name, .caller = &caller, .users = &users, .limits = limits});
}

static void holds(uid_t uid, uint64_t models, uint64_t bytes)
{
        ck_assert_uint_eq(quotas_held(&users, uid, QUOTA_MODELS), models);
        ck_assert_uint_eq(quotas_held(&users, uid, QUOTA_BYTES), bytes);
}

/* ---- loads at the same time ---- */

/* What holds the first load: its source is not open; its bytes are known; they are there. */
enum held { HELD_OPENING, HELD_ALLOCATING, HELD_READING, HELD_NOT };
static const enum held places[] = {HELD_OPENING, HELD_ALLOCATING, HELD_READING, HELD_NOT};

static void start_first(struct watched *w, const char *path, enum held held)
{
        if (held == HELD_OPENING)
                load_hold_lane(path);
        if (held == HELD_ALLOCATING)
                gate_init(&fake.alloc, false);
        if (held == HELD_READING)
                gate_init(&fake.prepare, false);
        ask(w, ALICE, path, "one", &any);
        if (held == HELD_ALLOCATING || held == HELD_READING) {
                core_until(w->load->state == (held == HELD_READING ? LOAD_READING : LOAD_ALLOCATING));
                gate_await(held == HELD_READING ? &fake.prepare : &fake.alloc, 1);
        }
        if (held == HELD_NOT)
                ends(w, LOAD_READY);
}

/* BOB asks for the file that ALICE's load is at, under a name of his own. */
static void load_both(struct watched *first, struct watched *second, enum held held, const struct quota_limits *limits,
                      enum load_state state)
{
        char *path = small_file("small.safetensors", 1);
        start_first(first, path, held);
        ask(second, BOB, path, "two", limits);
        load_release_held();
        ends(second, state);
}

CORE_FIXTURE(begin, end);

TEST(each_user_of_two_names_is_charged_until_the_own_name_ends, EACH(places))
{
        struct watched first, second;
        load_both(&first, &second, places[_i], &any, LOAD_READY);
        core_until(first.ended);
        struct generation *g = resident_ready(&resident, "one");
        ck_assert_ptr_eq(resident_ready(&resident, "two"), g);
        core_until(loads_empty(&loads));
        holds(ALICE, 1, g->charged);
        holds(BOB, 1, g->charged);
        generation_drop_name(g, "one");
        holds(ALICE, 0, 0);
        holds(BOB, 1, g->charged);
        generation_drop_name(g, "two");
        core_until(list_empty(&resident.generations));
        holds(BOB, 0, 0);
}

TEST(a_user_who_may_not_hold_the_model_gives_it_no_name, EACH(places))
{
        struct watched first, second;
        load_both(&first, &second, places[_i], &few, LOAD_FAILED);
        ck_assert_int_eq(second.error.code, STREAMER_ELIMIT);
        core_until(first.ended);
        ck_assert_int_eq((int)first.state, (int)LOAD_READY);
        core_until(loads_empty(&loads));
        struct generation *g = resident_ready(&resident, "one");
        serves_small(g, 1);
        holds(ALICE, 1, g->charged);
        holds(BOB, 0, 0);
        ck_assert(!generation_has_name(g, "two"));
}

/* The charge of the further name is that of what is read in the end. */
TEST(a_load_that_begins_again_charges_each_user_once)
{
        struct watched first, second;
        char *path = small_file("small.safetensors", 1);
        start_first(&first, path, HELD_READING);
        ask(&second, BOB, path, "two", &any);
        core_until(second.request->load == first.load);
        must(rename(small_file("new.safetensors", 2), path));
        load_release_held();
        ends(&first, LOAD_READY);
        ends(&second, LOAD_READY);
        ck_assert_uint_eq(second.progress.restarts, 1);
        core_until(loads_empty(&loads) && list_length(&resident.generations) == 1);
        struct generation *g = resident_ready(&resident, "two");
        serves_small(g, 2);
        holds(ALICE, 1, g->charged);
        holds(BOB, 1, g->charged);
}

/* ---- several names of one user ---- */

TEST(the_bytes_stay_charged_until_the_last_name_of_a_user_ends, .to = 6)
{
        static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        static const char *const names[] = {"one", "two", "three"};
        static const uid_t givers[] = {ALICE, BOB, BOB};
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        uint64_t left[] = {1, 2};
        for (size_t i = 0; i < 3; i++) {
                ask(&w, givers[i], path, names[i], &any);
                ends(&w, LOAD_READY);
        }
        core_until(loads_empty(&loads));
        struct generation *g = resident_ready(&resident, "one");
        uint64_t bytes = g->charged;
        for (size_t i = 0; i < 3; i++) {
                holds(ALICE, left[0], left[0] > 0 ? bytes : 0);
                holds(BOB, left[1], left[1] > 0 ? bytes : 0);
                generation_drop_name(g, names[orders[_i][i]]);
                left[givers[orders[_i][i]] - ALICE]--;
        }
        core_until(list_empty(&resident.generations));
        holds(ALICE, 0, 0);
        holds(BOB, 0, 0);
}

/* Nobody else has a name of it, and its memory is not free. */
TEST(a_model_that_drains_stays_charged_to_the_user_of_its_last_name)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        ask(&w, ALICE, path, "one", &any);
        ends(&w, LOAD_READY);
        ask(&w, BOB, path, "two", &any);
        ends(&w, LOAD_READY);
        core_until(loads_empty(&loads));
        struct generation *g = resident_ready(&resident, "one");
        uint64_t bytes = g->charged;
        generation_get(g);
        generation_drop_name(g, "one");
        generation_drop_name(g, "two");
        holds(ALICE, 0, 0);
        holds(BOB, 1, bytes);
        generation_put(g);
        core_until(list_empty(&resident.generations));
        holds(BOB, 0, 0);
}
