/* SPDX-License-Identifier: Apache-2.0
 *
 * `preload`: the order of loads, retries after failures, and their owner.
 */
#include "tests/integration/preload_fixture.h"

FIXTURE(.each = {begin_default, fixture_stop});

TEST(listed_models_are_loaded_at_start)
{
        char *path = write_model("a.safetensors");
        configure("preload:\n  - {source: %s, name: \"first\", pin: true, priority: 700}\n", path);
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
        daemon_start(&test_daemon, (const char *const[]){"--config", config, NULL});
        await_row(0, "ready", 1);
        is_served("first");
        ck_assert_uint_eq(json_number(client_show(client, "first"), "priority"), 700);
        ctl_says(test_daemon.socket, 0, "PRIORITY", "list", NULL);
}

/* Of a name that has settings already: what the entry does not name stays. */
TEST(an_entry_changes_only_the_settings_that_it_names)
{
        char *path = write_model("a.safetensors");
        configure("preload:\n  - {source: %s, name: m, priority: 700, keep_alive: 1h}\n", path);
        reload(0, "applied");
        await_row(0, "ready", 1);
        client_call(client, "set_priority", "{\"model\":\"m\",\"priority\":77}");
        configure("preload:\n  - {source: %s, name: m, pin: true}\n", path);
        reload(0, "applied");
        AWAIT(json_is_true(json_object_get(client_show(client, "m"), "pinned")));
        await_row(0, "ready", 1);
        ck_assert_uint_eq(json_number(client_show(client, "m"), "priority"), 77);
        ck_assert_uint_eq(json_number(client_show(client, "m"), "keep_alive_ns"), UINT64_C(3600000000000));
}

TEST(a_failed_preload_is_retried_until_it_is_resident)
{
        configure("preload:\n  - {source: %s/late.safetensors}\n", root);
        reload(0, "applied");
        await_row(0, "failed", 3);
        await_log("preload: ");
        ctl_says(test_daemon.socket, 0, "PRELOAD", "status", NULL);
        ctl_says(test_daemon.socket, 0, "longest event loop iteration", "status", NULL);
        write_model("late.safetensors");
        await_row(0, "ready", 4);
        is_served("late");
}

TEST(models_without_a_name_have_different_ones)
{
        for (int i = 0; i < 2; i++) {
                mkdir(format_text("%s/%c", root, "ab"[i]), 0755);
                write_model(i == 0 ? "a/model.safetensors" : "b/model.safetensors");
        }
        configure("preload: [{source: %s/a/model.safetensors}, {source: %s/b/model.safetensors}]", root, root);
        hangup();
        await_row(0, "ready", 1);
        await_row(1, "ready", 1);
        client_equals(client, "model", model);
        client_equals(client, "b/model", model);
}

TEST(the_manager_is_notified_of_missing_models)
{
        char *path = write_model("good.safetensors");
        configure("preload:\n  - {source: %s/none.safetensors, name: absent}\n  - {source: %s}\n", root, path);
        hangup();
        await_notify("; preload: 1 of 2 ready, 1 failed (absent)");
        write_model("none.safetensors");
        await_notify("STATUS=2 models resident, 0 leases");
}

/* Of the models to preload; the others were unloaded. */
static void await_desired(unsigned ready, unsigned failed)
{
        AWAIT(client_metric(client, "streamerd_desired_models{state=\"ready\"}") == ready &&
              client_metric(client, "streamerd_desired_models{state=\"failed\"}") == failed &&
              client_metric(client, "streamerd_desired_models{state=\"waiting\"}") == 0 &&
              client_metric(client, "streamerd_desired_models{state=\"loading\"}") == 0);
        ck_assert(client_metric(client, "streamerd_ready") == (failed == 0));
}

TEST(an_unloaded_preload_is_neither_reloaded_nor_missing)
{
        char *path = write_model("a.safetensors");
        configure("preload: [{source: %s}]", path);
        reload(0, "applied");
        await_row(0, "ready", 1);
        await_desired(1, 0);
        client_unload(client, "a");
        await_row(0, "unloaded", 1);
        await_desired(0, 0);
        reload(0, "applied");
        await_row(0, "unloaded", 1);
        ck_assert_str_eq(client_state(client, "a"), "");
}

TEST(a_preload_that_fails_and_is_unloaded_is_missing_after_the_next_reload)
{
        configure("preload: [{source: %s/none.safetensors, name: absent}]", root);
        reload(0, "applied");
        await_row(0, "failed", 1);
        AWAIT(client_metric(client, "streamerd_ready") == 0);
        client_unload(client, "absent");
        await_row(0, "unloaded", 0);
        await_desired(0, 0);
        reload(0, "applied");
        await_row(0, "failed", 1);
        AWAIT(client_metric(client, "streamerd_ready") == 0);
}

static char *write_large(uint64_t seed, const char *name)
{
        char *path = format_text("%s/%s", root, name);
        model_write(model_mixed(seed, 40 << 20), path);
        return path;
}

TEST(an_evicted_preload_is_missing_until_there_is_memory_for_it)
{
        char *path = write_large(1, "a.safetensors"), *other = write_large(2, "b.safetensors");
        configure("preload: [{source: %s, name: a}]", path);
        reload(0, "applied");
        await_row(0, "ready", 1);
        client_load(client, other, "b");
        await_log("preload: a: missing until there is memory for it: evicted: its memory was needed for b");
        await_row(0, "failed", 0);
        AWAIT(client_metric(client, "streamerd_desired_models{state=\"ready\"}") == 0);
        ck_assert(client_metric(client, "streamerd_ready") == 0);
        ck_assert_str_eq(client_state(client, "b"), "ready");
        client_unload(client, "b");
        await_row(0, "ready", 1);
        await_desired(1, 0);
        ck_assert_str_eq(client_state(client, "a"), "ready");
}

FIXTURE(.each = {NULL, fixture_stop});

TEST(a_secret_in_a_url_is_neither_logged_nor_returned)
{
        begin("preload: [{source: \"http://127.0.0.1:1/m.safetensors?sig=hidden\"}]");
        await_row(0, "failed", 1);
        await_log("preload: http://127.0.0.1:1/m.safetensors: ");
        char *reply;
        ck_assert_int_eq(streamer_call(client, "status", NULL, &reply), 0);
        ck_assert_ptr_null(strstr(reply, "hidden"));
        ck_assert_ptr_null(strstr(file_read(test_daemon.log, NULL), "hidden"));
}

TEST(a_name_of_the_hub_is_looked_up_in_the_daemons_own_cache)
{
        static const char commit[] = "0123456789012345678901234567890123456789";
        snprintf(root, sizeof(root), "%s", suite_path("root-%d", (int)getpid()));
        mkdir(root, 0755);
        must(setenv("HF_HUB_CACHE", root, 1));
        begin("preload: [{source: org/tiny}]");
        await_row(0, "failed", 1);
        file_put(root, "models--org--tiny/refs/main", commit);
        char *snapshot = format_text("models--org--tiny/snapshots/%s/model.safetensors", commit);
        file_put(root, snapshot, "");
        write_model(snapshot);
        await_row(0, "ready", 1);
        is_served("org/tiny");
}
