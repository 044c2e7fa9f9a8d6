/* SPDX-License-Identifier: Apache-2.0
 *
 * A row has the facts of its name, not those of the generation that it shares with other names.
 */
#include "daemon/resident/persist/name_row.h"
#include "tests/unit/resident_fixture.h"

static struct name_row row_of(const struct generation *g, const char *name)
{
        struct name_row row;
        ck_assert_int_eq(name_row_of(&row, generation_find_name(g, name)), 0);
        return row;
}

CORE_FIXTURE(begin, end);

TEST(names_of_one_generation_have_their_own_source_caller_owner_and_settings)
{
        const struct caller other = {.uid = 7, .gid = 8, .groups = {9}, .n_groups = 1};
        struct generation *g = loading("m");
        set_pin(g, true);
        ck_assert_int_eq(generation_add_name(g, "alias", "/other/path", &other, 7, NULL), 0);
        const struct name_row first = row_of(g, "m"), alias = row_of(g, "alias");
        ck_assert_str_eq(first.source, g->source);
        ck_assert_str_eq(alias.source, "/other/path");
        ck_assert(first.caller.uid == g->caller->uid && first.owner == 0);
        ck_assert(alias.caller.uid == 7 && alias.caller.groups[0] == 9 && alias.owner == 7);
        ck_assert(first.loadable && alias.loadable && first.settings.pinned && !alias.settings.pinned);
        ck_assert_str_eq(alias.device, devices[0]->uuid);
}

/* Of the name that stands for the model's charges only where these are not its caller's. */
TEST(a_row_says_who_is_charged)
{
        struct quotas users;
        struct name_charges charges = {.name = {.user = NULL}};
        const struct caller other = {.uid = 7}, third = {.uid = 9};
        quotas_init(&users);
        struct generation *g = loading("m");
        ck_assert_int_eq(quota_hold(&users, 0, &g->model_charge, QUOTA_MODELS, 1), 0);
        ck_assert_int_eq(quota_hold(&users, 7, &charges.name, QUOTA_MODELS, 1), 0);
        ck_assert_int_eq(generation_add_name(g, "alias", g->source, &other, 7, &charges), 0);
        ready(g);
        ck_assert_uint_eq(row_of(g, "m").charged, 0);
        ck_assert_uint_eq(row_of(g, "alias").charged, 8);
        generation_drop_name(g, "m");
        ck_assert_uint_eq(row_of(g, "alias").charged, 0);
        ck_assert_uint_eq(row_of(g, "alias").caller.uid, 7);
        ck_assert_int_eq(model_name_set_source(generation_find_name(g, "alias"), "/other/path", &third), 0);
        ck_assert_uint_eq(row_of(g, "alias").charged, 8);
        generation_drop_all(g);
        core_until(list_empty(&resident.generations));
        ck_assert_uint_eq(users.by_uid.n, 0);
}

TEST(a_name_has_the_source_that_was_loaded_under_it_last)
{
        const struct caller other = {.uid = 7};
        struct generation *g = loading("m");
        struct model_name *name = generation_find_name(g, "m");
        ck_assert_int_eq(model_name_set_source(name, "/other/path", &other), 0);
        ck_assert_str_eq(row_of(g, "m").source, "/other/path");
        ck_assert_uint_eq(row_of(g, "m").caller.uid, 7);
        ck_assert_int_eq(model_name_set_source(name, "/other/path", g->caller), 0); /* the same: nothing changes */
        ck_assert_uint_eq(row_of(g, "m").caller.uid, 7);
}

TEST(what_no_load_can_restore_is_not_loadable)
{
        struct generation *g = loading("m"), *published = loading("p");
        struct error error;
        ck_assert_int_eq(generation_add_name(g, "signed", "https://host/m?signature=s", NULL, 0, NULL), 0);
        ck_assert_str_eq(row_of(g, "signed").source, "https://host/m");
        ck_assert(row_of(g, "m").loadable && !row_of(g, "signed").loadable);
        ck_assert_int_eq(published_new(&published->published, (const char *const[]){"a=b"}, 1, &error), 0);
        ck_assert(!row_of(published, "p").loadable);
}
