/* SPDX-License-Identifier: Apache-2.0
 *
 * Resident models: states of a generation, names, and device names.
 */
#include "tests/unit/resident_fixture.h"

#include "daemon/resident/model_set.h"
#include "daemon/resident/persist/state_file.h"

static size_t listed(void)
{
        size_t n = 0;
        list_each (pos, &resident.generations)
                n++;
        return n;
}

/* ---- states ---- */

CORE_FIXTURE(begin, end);

TEST(a_discarded_generation_causes_no_change)
{
        struct generation *g = loading("m");
        unsigned before = changes;
        generation_discard(g);
        ck_assert_ptr_null(resident_any(&resident, "m"));
        generation_put(g);
        ck_assert(!resident_empty(&resident)); /* not inside the call */
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(changes, before);
}

TEST(a_serving_model_is_found_before_loading_and_failed_ones)
{
        struct generation *bad = failed(loading("m"), "bad");
        ck_assert_ptr_eq(resident_any(&resident, "m"), bad);
        struct generation *young = loading("m");
        ck_assert_ptr_eq(resident_any(&resident, "m"), young);
        struct generation *old = loading("m");
        ready(old);
        ck_assert_ptr_eq(resident_any(&resident, "m"), old);
        ready(young);
}

/* Clients see both as "draining", and the settings of the first. */
TEST(a_revoked_member_leads_draining_ones)
{
        struct model_set set = {.members = {ready(loading("m")), ready(loading("n"))}, .n = 2};
        for (size_t i = 0; i < 2; i++) {
                generation_get(set.members[i]);
                generation_drop_all(set.members[i]);
        }
        generation_revoke(set.members[0]);
        ck_assert_ptr_eq(model_set_leading(&set), set.members[0]);
        generation_put(set.members[0]);
        generation_put(set.members[1]);
}

/* ---- names ---- */

TEST(a_new_generation_takes_over_all_names)
{
        ready(loading("a"));
        ready(loading("b"));
        struct generation *new = loading("a");
        generation_add_name(new, "b", new->source, 0, NULL);
        generation_add_name(new, "c", new->source, 0, NULL);
        ready(new);
        core_until(listed() == 1);
        ck_assert_ptr_eq(resident_ready(&resident, "a"), new);
        ck_assert_ptr_eq(resident_ready(&resident, "b"), new);
        ck_assert_ptr_eq(resident_ready(&resident, "c"), new);
}

TEST(an_older_load_that_finishes_later_yields)
{
        struct generation *older = loading_with("m", 2 * MiB);
        struct generation *newer = loading("m");
        ready(newer);
        ready(older);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), newer);
        ck_assert_int_eq((int)older->state, (int)GENERATION_DRAINING);
        core_until(listed() == 1);
        ck_assert_uint_eq(fake.device.used, 0);
}

TEST(an_older_load_that_ends_later_keeps_its_free_names)
{
        struct generation *older = loading("m");
        generation_add_name(older, "n", older->source, 0, NULL);
        generation_add_name(older, "o", older->source, 0, NULL);
        struct generation *newer = loading("m");
        generation_add_name(newer, "o", newer->source, 0, NULL);
        ready(newer);
        ready(older);
        ck_assert_ptr_eq(resident_ready(&resident, "m"), newer);
        ck_assert_ptr_eq(resident_ready(&resident, "o"), newer);
        ck_assert_ptr_eq(resident_ready(&resident, "n"), older);
        ck_assert_int_eq((int)older->state, (int)GENERATION_READY);
}

TEST(a_load_without_names_drains_when_ready)
{
        struct generation *g = loading("m");
        generation_drop_name(g, "m");
        ck_assert_int_eq((int)g->state, (int)GENERATION_LOADING);
        ready(g);
        core_until(resident_empty(&resident));
}

TEST(a_failure_replaces_the_one_before_it)
{
        failed(loading("m"), "first");
        failed(loading("m"), "second");
        core_until(listed() == 1);
        ck_assert_str_eq(resident_on(&resident, "m", GENERATION_FAILED, NULL)->error.text, "second");
}

TEST(the_list_of_failed_loads_is_bounded)
{
        failed(loading("a"), "first");
        failed(loading("b"), "second");
        failed(loading("c"), "third");
        core_until(listed() == 2);
        ck_assert_ptr_null(resident_any(&resident, "a"));
        ck_assert_ptr_nonnull(resident_on(&resident, "b", GENERATION_FAILED, NULL));
        ck_assert_ptr_nonnull(resident_on(&resident, "c", GENERATION_FAILED, NULL));
}

TEST(discarded_failures_may_have_many_names)
{
        struct generation *g = loading("a");
        generation_add_name(g, "a2", g->source, 0, NULL);
        generation_add_name(g, "a3", g->source, 0, NULL);
        failed(g, "first");
        failed(loading("b"), "second");
        failed(loading("c"), "third");
        core_until(listed() == 2);
        ck_assert_ptr_null(resident_any(&resident, "a3"));
}

/* ---- the same files ---- */

TEST(the_same_files_on_the_same_device_are_the_same)
{
        struct source_identity x = {.digest = "x"}, y = {.digest = "y"};
        struct generation *g = loading("m");
        ck_assert_ptr_null(resident_same(&resident, &x, &fake.device, NULL, 0));
        g->identity = x;
        g->has_identity = true;
        ck_assert_ptr_eq(resident_same(&resident, &x, &fake.device, NULL, 0), g);
        ck_assert_ptr_null(resident_same(&resident, &y, &fake.device, NULL, 0));
        ck_assert_ptr_null(resident_same(&resident, &x, NULL, NULL, 0));
        ck_assert_ptr_null(resident_same(&resident, &x, &fake.device, g, 0));
        ready(g);
        ck_assert_ptr_eq(resident_same(&resident, &x, &fake.device, NULL, 0), g);
        ck_assert_ptr_eq(resident_same(&resident, &x, &fake.device, NULL, g->number), g);
        ck_assert_ptr_null(resident_same(&resident, &x, &fake.device, NULL, g->number + 1));
        generation_get(g);
        generation_drop_name(g, "m");
        ck_assert_ptr_null(resident_same(&resident, &x, &fake.device, NULL, 0));
        generation_put(g);
}

/* ---- devices ---- */

TEST(a_device_is_found_by_name_or_uuid_or_by_being_the_only_one)
{
        struct error error = {0};
        ck_assert_ptr_eq(resident_device(&resident, NULL, &error), &fake.device);
        ck_assert_ptr_eq(resident_device(&resident, "fake", &error), &fake.device);
        ck_assert_ptr_eq(resident_device(&resident, "uuid-of-fake", &error), &fake.device);
        ck_assert_ptr_null(resident_device(&resident, "cuda:7", &error));
        ck_assert_int_eq(error.code, STREAMER_EINVAL);
        ck_assert_ptr_nonnull(strstr(error.text, "cuda:7"));
}

TEST(among_several_devices_one_must_be_named)
{
        struct error error = {0};
        struct fake_device second;
        fake_device_init(&second, "second", BUDGET, false);
        devices[1] = &second.device;
        resident.n_devices = 2;
        ck_assert_ptr_null(resident_device(&resident, NULL, &error));
        ck_assert_int_eq(error.code, STREAMER_EINVAL);
        ck_assert_ptr_eq(resident_device(&resident, "second", &error), &second.device);
        resident.n_devices = 1;
        fake_device_deinit(&second);
}

/* ---- the written record ---- */

TEST(each_name_is_written_once_in_the_order_of_names)
{
        static const char *const names[] = {"a", "b", "c", "d"};
        struct state_file state;
        struct generation *g = ready(loading("c"));
        generation_add_name(g, "a", g->source, 0, NULL);
        ready(loading("d"))->settings.pinned = true;
        ready(loading("b"));
        loading("e");
        ck_assert_int_eq(state_file_of(&state, &resident), 0);
        ck_assert_uint_eq(state.n, ARRAY_SIZE(names));
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                ck_assert_str_eq(state.models[i].name, names[i]);
                ck_assert_ptr_eq(state_file_find(&state, names[i]), &state.models[i]);
                ck_assert_uint_eq(state.models[i].n_devices, 1);
                ck_assert_int_eq(state.models[i].settings.pinned, i == 3);
        }
        ck_assert_ptr_null(state_file_find(&state, "e"));
        state_file_deinit(&state);
        struct error error = {.code = STREAMER_ECANCELED};
        generation_fail(resident_on(&resident, "e", GENERATION_LOADING, NULL), &error);
        generation_put(resident_on(&resident, "e", GENERATION_FAILED, NULL));
}

CORE_FIXTURE(begin, end, .timeout = 10);

/* One by one that would be thousands of millions of comparisons. */
TEST(a_name_is_found_among_very_many)
{
        enum { MANY = 60000 };
        char name[32];
        struct generation *g = ready(loading("m"));
        for (int i = 0; i < MANY; i++) {
                snprintf(name, sizeof(name), "name %d", i);
                ck_assert_int_eq(generation_add_name(g, name, g->source, 0, NULL), 0);
        }
        for (int i = 0; i < MANY; i++) {
                snprintf(name, sizeof(name), "name %d", i);
                ck_assert_ptr_eq(resident_ready(&resident, name), g);
                ck_assert_ptr_eq(resident_named(&resident, name), g);
        }
        ck_assert_ptr_null(resident_ready(&resident, "name"));
        generation_drop_all(g);
        ck_assert_ptr_null(resident_ready(&resident, "name 7"));
}
