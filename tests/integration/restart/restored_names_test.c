/* SPDX-License-Identifier: Apache-2.0
 *
 * After a restart each name leads to what was loaded under it, with its own settings, and a name that was unloaded to
 * nothing.
 */
#include "tests/lib/managed_daemon.h"
#include "tests/lib/snapshots.h"
#include "tests/lib/suite.h"

static char *path_of(const char *file)
{
        return suite_path("root/%s.safetensors", file);
}

static void load_pinned(const char *source, const char *name)
{
        client_ok(client,
                  client_load_with(client,
                                   (streamer_load_opts){.source = source, .name = name, .flags = STREAMER_LOAD_PIN}),
                  "load");
}

/* ---- unloaded ---- */

FIXTURE(.each = {managed_begin, managed_end});

/* The daemon is killed right after it has replied: however late the pins were persisted, the name is gone. */
TEST(a_pinned_model_that_was_unloaded_is_not_loaded_again, .to = 4)
{
        load_pinned(managed_file(), "m");
        manager_wait(&managed.m, MANAGED_MODELS, 2);
        managed_restart_and_reconnect(1); /* the store has the pin */
        ck_assert(json_is_true(json_object_get(client_show(client, "m"), "pinned")));
        client_unload(client, "m");
        managed_restart_and_reconnect(1);
        ck_assert_str_eq(client_state(client, "m"), "");
        client_wait_used(client, 0);
        managed_restart_and_reconnect(0);
        ck_assert_str_eq(client_state(client, "m"), "");
}

/* The pin was the last change. */
TEST(a_pin_that_a_client_has_seen_survives_a_crash)
{
        managed_load("m");
        client_ok(client, streamer_pin(client, "m", true), "pin");
        manager_kill(&managed.m);
        manager_drop(&managed.m, managed_segment()); /* so that only a load can restore it */
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert(log_wait_for(managed.m.d.log, "m: ready"));
        ck_assert(json_is_true(json_object_get(client_show(client, "m"), "pinned")));
}

/* ---- names of one model ---- */

static bool is_pinned(const char *name)
{
        return json_is_true(json_object_get(client_show(client, name), "pinned"));
}

static uint64_t priority_of(const char *name)
{
        return json_number(client_show(client, name), "priority");
}

/* From the store: the model is one, and each name has what was asked for of it. */
TEST(each_name_of_a_model_keeps_its_own_settings, .to = 2)
{
        managed_load("m");
        load_pinned(managed_file(), "alias");
        client_call(client, "set_priority", "{\"model\":\"m\",\"priority\":77}");
        client_ok(client, streamer_keep_alive(client, "alias", 99000), "keep_alive");
        for (int runs = 0; runs < 2; runs++) {
                managed_restart_and_reconnect(_i);
                ck_assert_uint_eq(json_number(client_show(client, "alias"), "generation"), 1);
                ck_assert(is_pinned("alias") && !is_pinned("m"));
                ck_assert(priority_of("m") == 77 && priority_of("alias") == 100);
                ck_assert_uint_eq(json_number(client_show(client, "alias"), "keep_alive_ns"), UINT64_C(99000000000));
                ck_assert_uint_eq(json_number(client_show(client, "m"), "keep_alive_ns"), 0);
        }
        client_ok(client, streamer_pin(client, "alias", 0), "unpin");
        managed_restart_and_reconnect(_i);
        ck_assert(!is_pinned("alias"));
}

/* Where the memory is lost, nothing has asked for the other name. */
TEST(the_pinned_name_of_a_model_is_loaded_again_alone)
{
        managed_load("m");
        load_pinned(managed_file(), "alias");
        client_call(client, "set_priority", "{\"model\":\"alias\",\"priority\":77}");
        manager_wait(&managed.m, MANAGED_MODELS, 2);
        manager_kill(&managed.m);
        manager_drop(&managed.m, managed_segment());
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert(log_wait_for(managed.m.d.log, "alias: ready"));
        ck_assert(is_pinned("alias") && priority_of("alias") == 77);
        ck_assert_str_eq(client_state(client, "m"), "");
}

/* The source is gone: the name waits, and what a client loads under it then has what was asked for of the name. */
TEST(a_name_that_waits_has_its_settings)
{
        load_pinned(managed_file(), "m");
        client_call(client, "set_priority", "{\"model\":\"m\",\"priority\":77}");
        manager_wait(&managed.m, MANAGED_MODELS, 2);
        manager_kill(&managed.m);
        manager_drop(&managed.m, managed_segment());
        const char *other = path_of("other");
        must(rename(managed_file(), other));
        manager_start(&managed.m);
        managed_reconnect();
        AWAIT(strcmp(client_state(client, "m"), "failed") == 0);
        client_ok(client, streamer_keep_alive(client, "m", 99000), "keep_alive");
        ck_assert_uint_eq(json_number(client_show(client, "m"), "keep_alive_ns"), UINT64_C(99000000000));
        client_load(client, other, "m");
        ck_assert(is_pinned("m") && priority_of("m") == 77);
        ck_assert_uint_eq(json_number(client_show(client, "m"), "keep_alive_ns"), UINT64_C(99000000000));
        must(rename(other, managed_file()));
}

TEST(a_pin_does_not_outlive_the_name_that_had_it)
{
        load_pinned(managed_file(), "m");
        client_load(client, managed_file(), "alias");
        client_unload(client, "m");
        manager_wait(&managed.m, MANAGED_MODELS, 2);
        manager_kill(&managed.m);
        manager_drop(&managed.m, managed_segment());
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert_str_eq(client_state(client, "alias"), "");
}

/* ---- several paths of one file ---- */

/* From the store: the same request finds the name that it had before. */
TEST(a_name_keeps_the_source_that_was_loaded_under_it, .to = 2)
{
        unlink(path_of("second"));
        must(link(managed_file(), path_of("second")));
        managed_load("first");
        client_load(client, path_of("second"), "second");
        for (int runs = 0; runs < 2; runs++) {
                managed_restart_and_reconnect(_i);
                ck_assert_str_eq(json_text(client_show(client, "first"), "source"), managed_file());
                ck_assert_str_eq(json_text(client_show(client, "second"), "source"), path_of("second"));
                client_equals(client, "second", managed.model);
        }
}

/* The same files under the same name, by another path: that is what was asked for last. */
TEST(a_name_that_is_loaded_from_another_path_keeps_that_path, .to = 2)
{
        unlink(path_of("third"));
        must(link(managed_file(), path_of("third")));
        managed_load("m");
        client_load(client, path_of("third"), "m");
        ck_assert_uint_eq(json_number(client_show(client, "m"), "generation"), 1);
        managed_restart_and_reconnect(_i);
        ck_assert_str_eq(json_text(client_show(client, "m"), "source"), path_of("third"));
}

FIXTURE();

/* From the state file: the first path has another model by now. */
TEST(a_name_is_loaded_again_from_its_own_source)
{
        struct daemon d;
        struct model *model = model_mixed(61, 1 << 20), *other = model_mixed(62, 1 << 20);
        mkdir(suite_path("root"), 0755);
        must(mkdir(suite_path("state"), 0700));
        model_write(model, path_of("a"));
        must(link(path_of("a"), path_of("b")));
        const char *const flags[] = {"--device", "host=64MiB",        "--root", suite_path("root"),
                                     "--state",  suite_path("state"), NULL};
        daemon_init(&d, suite_path("own"));
        daemon_start(&d, flags);
        client = client_open(&d);
        load_pinned(path_of("a"), "a");
        load_pinned(path_of("b"), "b");
        ck_assert_uint_eq(json_number(client_show(client, "b"), "generation"), 1); /* they share it */
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&d), 0);
        unlink(path_of("a"));
        model_write(other, path_of("a"));
        daemon_start(&d, flags);
        client = client_open(&d);
        client_ok(client, streamer_call(client, "wait", "{\"model\":\"a\"}", NULL), "a");
        client_ok(client, streamer_call(client, "wait", "{\"model\":\"b\"}", NULL), "b");
        client_equals(client, "a", other);
        client_equals(client, "b", model);
        ck_assert_str_eq(json_text(client_show(client, "b"), "source"), path_of("b"));
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&d), 0);
}
