/* SPDX-License-Identifier: Apache-2.0
 *
 * The pin, the priority and the keep-alive are facts of a name: names of one model have their own, and what one of them
 * has protects the model.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

/* Two models fit. */
#define SIZE ((UINT64_C(10) << 20) - (32 << 10))

static void begin(void)
{
        fixture_begin((const char *const[]){"--device", "host=30MiB", NULL});
        fixture_pin_witness();
}

static char *path_of(const char *name)
{
        return fixture_path("%s.safetensors", name);
}

static void write_as(const char *name, uint64_t seed)
{
        struct model *m = model_mixed(seed, SIZE);
        char *aside = path_of("aside");
        model_write(m, aside);
        must(rename(aside, path_of(name)));
        model_free(m);
}

static void each_begin(void)
{
        fixture_connect();
        for (uint64_t i = 0; i < 3; i++)
                write_as((const char[]){(char)('a' + (int)i), '\0'}, i);
        client_load(client, path_of("a"), "m");
}

static void each_end(void)
{
        static const char *const names[] = {"m", "alias", "b", "c"};
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                streamer_unload(client, names[i], STREAMER_UNLOAD_DRAIN);
        fixture_disconnect();
}

static void load_with(streamer_load_opts opts)
{
        client_ok(client, client_load_with(client, opts), "load");
}

/* The model of "m" under another name. */
static void add_alias(streamer_load_opts opts)
{
        opts.source = path_of("a");
        opts.name = "alias";
        load_with(opts);
        ck_assert_uint_eq(json_number(client_show(client, "alias"), "generation"),
                          json_number(client_show(client, "m"), "generation"));
}

static void pin(const char *name, int pinned)
{
        client_ok(client, streamer_pin(client, name, pinned), "pin");
}

static bool is_pinned(const char *name)
{
        const json_t *shown = client_show(client, name);
        bool pinned = json_is_true(json_object_get(shown, "pinned"));
        ck_assert(pinned == json_is_true(json_at(shown, "devices.0.pinned")));
        return pinned;
}

/* Two more models fill the memory. */
static void need_memory(void)
{
        client_load(client, path_of("b"), "b");
        client_load(client, path_of("c"), "c");
}

static bool is_gone(const char *name)
{
        return client_call_code(client, "show", format_text("{\"model\":\"%s\"}", name)) == STREAMER_ENOENT;
}

FIXTURE(.all = {begin, fixture_end}, .each = {each_begin, each_end});

TEST(a_pin_is_of_one_name_and_protects_the_model)
{
        add_alias((streamer_load_opts){.flags = STREAMER_LOAD_PIN});
        ck_assert(is_pinned("alias") && !is_pinned("m"));
        pin("m", 0); /* of the name that is not pinned */
        ck_assert(is_pinned("alias"));
        need_memory();
        ck_assert_str_eq(client_state(client, "m"), "ready");
        ck_assert(is_gone("b"));
}

TEST(the_pin_of_a_name_ends_with_the_name)
{
        add_alias((streamer_load_opts){.flags = STREAMER_LOAD_PIN});
        client_unload(client, "alias");
        ck_assert(!is_pinned("m"));
        need_memory();
        ck_assert(is_gone("m"));
}

TEST(an_unpinned_name_leaves_the_pin_of_the_other)
{
        add_alias((streamer_load_opts){.flags = 0});
        pin("m", 1);
        pin("alias", 1);
        pin("m", 0);
        ck_assert(is_pinned("alias") && !is_pinned("m"));
        client_unload(client, "m");
        ck_assert(is_pinned("alias"));
        need_memory();
        ck_assert_str_eq(client_state(client, "alias"), "ready");
}

TEST(each_name_has_its_priority_and_keep_alive)
{
        add_alias((streamer_load_opts){.priority = 300, .keep_alive_ms = 60000});
        client_call(client, "set_priority", "{\"model\":\"m\",\"priority\":7}");
        client_ok(client, streamer_keep_alive(client, "m", 99000), "keep_alive");
        ck_assert_uint_eq(json_number(client_show(client, "alias"), "priority"), 300);
        ck_assert_uint_eq(json_number(client_show(client, "m"), "priority"), 7);
        ck_assert_uint_eq(json_number(client_show(client, "alias"), "keep_alive_ns"), UINT64_C(60000000000));
        ck_assert_uint_eq(json_number(client_show(client, "m"), "keep_alive_ns"), UINT64_C(99000000000));
        /* The model goes with the highest, after the longest. */
        uint64_t left = json_number(client_show(client, "alias"), "expires_in_ns");
        ck_assert(left > UINT64_C(60000000000) && left <= UINT64_C(99000000000));
        client_load(client, path_of("b"), "b");
        client_load(client, path_of("c"), "c");
        ck_assert_str_eq(client_state(client, "m"), "ready");
        ck_assert(is_gone("b"));
}

/* Without a keep-alive it stays. */
TEST(a_model_expires_after_the_longest_keep_alive_of_its_names)
{
        add_alias((streamer_load_opts){.flags = 0});
        client_ok(client, streamer_keep_alive(client, "m", 1), "keep_alive");
        ck_assert_uint_eq(json_number(client_show(client, "m"), "expires_in_ns"), 0);
        client_unload(client, "alias");
        AWAIT(is_gone("m"));
}

/* ---- another generation under the name ---- */

static void set_all(const char *name)
{
        pin(name, 1);
        client_call(client, "set_priority", format_text("{\"model\":\"%s\",\"priority\":77}", name));
        client_ok(client, streamer_keep_alive(client, name, 99000), "keep_alive");
}

static void assert_has_all(const char *name)
{
        ck_assert(is_pinned(name));
        ck_assert_uint_eq(json_number(client_show(client, name), "priority"), 77);
        ck_assert_uint_eq(json_number(client_show(client, name), "keep_alive_ns"), UINT64_C(99000000000));
}

static void assert_has_none(const char *name)
{
        ck_assert(!is_pinned(name));
        ck_assert_uint_eq(json_number(client_show(client, name), "priority"), 100);
        ck_assert_uint_eq(json_number(client_show(client, name), "keep_alive_ns"), 0);
}

TEST(a_replacement_takes_the_settings_of_its_name_alone)
{
        add_alias((streamer_load_opts){.flags = 0});
        set_all("m");
        client_load(client, path_of("b"), "m");
        assert_has_all("m");
        assert_has_none("alias");               /* which the older model has now */
        client_load(client, path_of("c"), "c"); /* evicts that */
        ck_assert(is_gone("alias"));
}

TEST(a_replacement_that_fails_changes_no_setting)
{
        set_all("m");
        file_write(path_of("b"), "no model", 8);
        load_with((streamer_load_opts){.source = path_of("a"), .name = "m"});
        client_load_fails(client, path_of("b"), "m", STREAMER_EFAILED, "not a safetensors file");
        assert_has_all("m");
        client_ok(client, streamer_unload(client, "m", 0), "unload");
        client_load(client, path_of("a"), "m");
        assert_has_none("m");
}

/* The name moves to a model that is resident under another one. */
TEST(a_name_that_moves_to_another_model_takes_its_settings_along)
{
        client_load(client, path_of("b"), "b");
        set_all("m");
        client_load(client, path_of("b"), "m");
        assert_has_all("m");
        assert_has_none("b");
        client_unload(client, "m");
        client_load(client, path_of("a"), "m");
        assert_has_none("m");
        client_load(client, path_of("c"), "c"); /* "b" was used before "m" */
        ck_assert(is_gone("b"));
}
