/* SPDX-License-Identifier: Apache-2.0
 *
 * Default names: unique by source, stable for the same source, and short.
 */
#include "tests/lib/load_fixture.h"

/* The small model of this seed in a folder of its own. */
static char *file_in(const char *folder, uint64_t seed)
{
        char *flat = small_file("flat.safetensors", seed), *path = suite_path("%s/model.safetensors", folder);
        mkdir(suite_path("%s", folder), 0755);
        must(rename(flat, path));
        return path;
}

/* Loads it without a name; the name that it has. */
static char *named(const char *source, const char *named_after)
{
        struct watched w;
        char *name;
        ck_assert_int_eq(loads_default_name(&loads, source, named_after, &name, &w.error), 0);
        load_start(&w, source, name);
        core_until(w.ended);
        ck_assert_msg(w.state == LOAD_READY, "%s", w.error.text);
        ck_assert_ptr_nonnull(resident_ready(&resident, name));
        return name;
}

CORE_FIXTURE(load_fixture_begin, load_fixture_end);

TEST(sources_of_one_last_component_have_different_names)
{
        char *a = file_in("a", 1), *b = file_in("b", 2);
        ck_assert_str_eq(named(a, NULL), "model");
        ck_assert_str_eq(named(b, NULL), "b/model");
        serves_small(resident_ready(&resident, "model"), 1);
        serves_small(resident_ready(&resident, "b/model"), 2);
}

/* Not the name that has become free since: the model has one. */
TEST(the_same_source_keeps_its_name)
{
        char *a = file_in("a", 1), *b = file_in("b", 2);
        named(a, NULL);
        named(b, NULL);
        generation_drop_name(resident_ready(&resident, "model"), "model");
        ck_assert_str_eq(named(b, NULL), "b/model");
        ck_assert_ptr_null(resident_ready(&resident, "model"));
        ck_assert_str_eq(named(a, NULL), "model");
}

TEST(a_changed_source_keeps_its_name)
{
        char *a = file_in("a", 1);
        named(a, NULL);
        ck_assert_str_eq(named(file_in("a", 2), NULL), "model");
        serves_small(resident_ready(&resident, "model"), 2);
}

TEST(a_load_in_progress_has_its_name)
{
        struct watched w;
        char *a = file_in("a", 1), *b = file_in("b", 2);
        load_hold_lane(a);
        load_start(&w, a, NULL);
        char *name;
        struct error error;
        ck_assert_int_eq(loads_default_name(&loads, b, NULL, &name, &error), 0);
        ck_assert_str_eq(name, "b/model");
        load_release_held();
        core_until(w.ended);
        ck_assert_ptr_nonnull(resident_ready(&resident, "model"));
}

TEST(a_failed_load_does_not_reserve_its_name)
{
        char *a = file_in("a", 1), *b = file_in("b", 2);
        file_write(a, "no model", 8);
        load_fails(a, NULL, STREAMER_EFAILED, "");
        ck_assert_str_eq(named(b, NULL), "model");
}

static const char *reserved_source;

static const char *reserve(const struct loads *the_loads, const char *name)
{
        return strcmp(name, "model") == 0 ? reserved_source : NULL;
}

TEST(a_desired_model_has_its_name)
{
        char *a = file_in("a", 1), *b = file_in("b", 2);
        reserved_source = a;
        loads.desired_source = reserve;
        ck_assert_str_eq(named(b, NULL), "b/model");
        ck_assert_str_eq(named(a, NULL), "model");
}

/* Two paths of the same files: two names of one generation, each of which stays. */
TEST(a_link_has_a_name_of_its_own_once)
{
        char *a = file_in("a", 1);
        file_in("b", 2);
        char *link = suite_path("b/model.safetensors");
        must(unlink(link));
        must(symlink("../a/model.safetensors", link));
        ck_assert_str_eq(named(a, NULL), "model");
        for (int i = 0; i < 3; i++)
                ck_assert_str_eq(named(link, NULL), "b/model");
        ck_assert_ptr_eq(resident_ready(&resident, "model"), resident_ready(&resident, "b/model"));
}

TEST(a_name_may_be_derived_from_another_path)
{
        char *a = file_in("a", 1), *b = file_in("b", 2);
        ck_assert_str_eq(named(a, "/cache/llama.safetensors"), "llama");
        ck_assert_str_eq(named(a, "/cache/llama.safetensors"), "llama");
        ck_assert_str_eq(named(b, "/cache/llama.safetensors"), "cache/llama");
}

/* The last candidate is the whole path; then they are numbered. */
TEST(names_that_are_all_in_use_are_numbered)
{
        char *a = file_in("a", 1), *b = file_in("b", 2), *c = file_in("c", 3);
        const char *after = "/x/y.safetensors";
        load_ready(a, "y");
        load_ready(a, "x/y");
        ck_assert_str_eq(named(b, after), "x/y#2");
        ck_assert_str_eq(named(c, after), "x/y#3");
        ck_assert_str_eq(named(b, after), "x/y#2");
}

TEST(the_path_is_used_to_its_root)
{
        char *a = file_in("a", 1), *b = file_in("b", 2);
        load_ready(a, "model");
        load_ready(a, "b/model");
        ck_assert_str_eq(named(b, NULL), format_text("%s/b/model", strrchr(suite_folder(), '/') + 1));
}

TEST(a_source_that_has_no_name_is_refused)
{
        char *name = NULL;
        struct error error;
        char *a = file_in("a", 1);
        ck_assert_int_eq(loads_default_name(&loads, "relative", NULL, &name, &error), STREAMER_EINVAL);
        ck_assert_int_eq(loads_default_name(&loads, a, "relative", &name, &error), STREAMER_EINVAL);
        ck_assert_ptr_null(name);
}
