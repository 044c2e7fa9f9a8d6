/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that is loaded without a name never replaces a model of another source: in streamerctl, the C library and
 * the protocol. tests/unit/source/default_name_test.c has the rule itself.
 */
#include "tests/integration/cli_fixture.h"

/* FOLDER/BASE.safetensors below the root. */
static char *file_in(const char *folder, const char *base, uint64_t seed)
{
        mkdir(fixture_path("%s", folder), 0755);
        return fixture_write(model_mixed(seed, 1 << 18), format_text("%s/%s.safetensors", folder, base));
}

static const char *loaded_as(const char *source)
{
        const char *name;
        json_t *o = JSON("load", source, "--json");
        UNPACK(o, "{s:s}", "name", &name);
        return name;
}

static uint64_t generation_of(const char *name)
{
        json_int_t generation;
        json_t *o = JSON("show", name, "--json");
        UNPACK(o, "{s:[{s:I}]}", "models", "generation", &generation);
        return (uint64_t)generation;
}

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(load_prints_the_name_that_it_has_chosen)
{
        char *a = file_in("a", "printed", 1), *b = file_in("b", "printed", 2);
        PRINTS("printed\n", "load", "-q", a);
        PRINTS("b/printed\n", "load", "-q", b);
        PRINTS("b/printed\n", "load", "--detach", b);
        PRINTS("b/printed\n", "load", "--dry-run", "-q", b);
}

TEST(an_explicit_name_replaces)
{
        char *a = file_in("a", "explicit", 1), *b = file_in("b", "explicit", 2);
        loaded_as(a);
        uint64_t generation = generation_of("explicit");
        RUN(0, "load", b, "--name", "explicit");
        ck_assert_uint_gt(generation_of("explicit"), generation);
        ck_assert_str_eq(loaded_as(b), "explicit");
        ck_assert_str_eq(loaded_as(a), "a/explicit");
}

TEST(a_load_that_attaches_reports_the_name)
{
        char *a = file_in("a", "opened", 1), *b = file_in("b", "opened", 2);
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *first = NULL, *second = NULL;
        streamer_load_opts load = STREAMER_LOAD_OPTS_INIT;
        streamer_attach_opts attach = {.struct_size = sizeof(attach), .flags = STREAMER_ATTACH_READY};
        streamer_open_opts opts = {.struct_size = sizeof(opts), .load = &load, .attach = &attach};
        ck_assert_int_eq(streamer_open(c, a, NULL, &first), 0);
        ck_assert_int_eq(streamer_open(c, b, &opts, &second), 0);
        ck_assert_str_eq(streamer_lease_model(first), "opened");
        ck_assert_str_eq(streamer_lease_model(second), "b/opened");
        streamer_detach(second);
        load.named_after = "/elsewhere/opened";
        ck_assert_int_eq(streamer_open(c, b, &opts, &second), 0);
        ck_assert_str_eq(streamer_lease_model(second), "elsewhere/opened");
}

TEST(a_name_and_what_it_is_derived_from_exclude_each_other)
{
        char *a = file_in("a", "both", 1);
        streamer_client *c = client_open(&test_daemon);
        streamer_op *op = NULL;
        streamer_load_opts load = {.struct_size = sizeof(load), .source = a, .name = "x", .named_after = "/y"};
        client_fails(c, streamer_load(c, &load, &op), STREAMER_EINVAL, "named_after");
}
