/* SPDX-License-Identifier: Apache-2.0
 *
 * `preload`: the order of loads, retries after failures, and their owner.
 */
#include "tests/integration/preload_fixture.h"

#include "tests/lib/gpu_daemon.h"

/* ---- preload ---- */

TEST(listed_models_are_loaded_at_start)
{
        begin("");
        char *path = write_model("a.safetensors");
        char *text = format_text("preload:\n  - {source: %s, name: \"first\", pin: true, priority: 700}\n", path);
        configure(text);
        ck_assert_int_eq(daemon_stop(&d), 0);
        daemon_start(&d, (const char *const[]){"--config", config, NULL});
        await_row(0, "ready", 1);
        is_served("first");
        streamer_client *c = client_open(&d);
        json_t *reply = client_call(c, "show", "{\"model\":\"first\"}");
        json_t *m = json_array_get(json_object_get(reply, "models"), 0);
        ck_assert_int_eq(json_integer_value(json_object_get(m, "priority")), 700);
        json_decref(reply);
        streamer_close(c);
        end();
}

TEST(a_failed_preload_is_retried_until_it_is_resident)
{
        begin("");
        char *text = format_text("preload:\n  - {source: %s/late.safetensors}\n", root);
        configure(text);
        ck_assert_int_eq(reload_code("applied"), 0);
        await_row(0, "failed", 3);
        await_log("preload: ");
        write_model("late.safetensors");
        await_row(0, "ready", 4);
        is_served("late");
        end();
}

TEST(a_failed_preload_does_not_delay_the_others)
{
        begin("");
        char *path = write_model("good.safetensors");
        char *text = format_text("preload:\n  - {source: %s/none.safetensors, priority: 9000}\n"
                                 "  - {source: %s, devices: [cuda:7], priority: 8000}\n"
                                 "  - {source: s3-like/name@nowhere, priority: 7000}\n  - {source: %s}\n",
                                 root, path, path);
        configure(text);
        ck_assert_int_eq(reload_code("applied"), 0);
        await_row(3, "ready", 1);
        await_row(0, "failed", 2);
        is_served("good");
        end();
}

TEST(models_without_a_name_have_different_ones)
{
        begin("");
        for (int i = 0; i < 2; i++) {
                mkdir(format_text("%s/%c", root, "ab"[i]), 0755);
                write_model(i == 0 ? "a/model.safetensors" : "b/model.safetensors");
        }
        char *text = format_text("preload: [{source: %s/a/model.safetensors}, {source: %s/b/model.safetensors}]", root,
                                 root);
        configure(text);
        hangup();
        await_row(0, "ready", 1);
        await_row(1, "ready", 1);
        streamer_client *c = client_open(&d);
        client_equals(c, "model", model);
        client_equals(c, "b/model", model);
        streamer_close(c);
        end();
}

TEST(the_manager_is_notified_of_missing_models)
{
        begin("");
        char *path = write_model("good.safetensors");
        char *text = format_text("preload:\n  - {source: %s/none.safetensors, name: absent}\n  - {source: %s}\n", root,
                                 path);
        configure(text);
        hangup();
        await_notify("; preload: 1 of 2 ready, 1 failed (absent)");
        write_model("none.safetensors");
        await_notify("STATUS=2 models resident, 0 leases");
        end();
}

TEST(a_secret_in_a_url_is_neither_logged_nor_returned)
{
        begin("preload: [{source: \"http://127.0.0.1:1/m.safetensors?sig=hidden\"}]");
        await_row(0, "failed", 1);
        await_log("preload: http://127.0.0.1:1/m.safetensors: ");
        streamer_client *c = client_open(&d);
        char *reply;
        ck_assert_int_eq(streamer_call(c, "status", NULL, &reply), 0);
        ck_assert_ptr_null(strstr(reply, "hidden"));
        ck_assert_ptr_null(strstr(file_read(d.log, NULL), "hidden"));
        free(reply);
        streamer_close(c);
        end();
}

TEST(a_name_of_the_hub_is_looked_up_in_the_daemons_own_cache)
{
        static const char commit[] = "0123456789012345678901234567890123456789";

        snprintf(root, sizeof(root), "%s", suite_path("root-%d", (int)getpid()));
        mkdir(root, 0755);
        must(setenv("HF_HUB_CACHE", root, 1));
        begin("preload: [{source: org/tiny}]");
        await_row(0, "failed", 1);
        char *repo = format_text("%s/models--org--tiny", root);
        char *snapshot = format_text("%s/snapshots/%s", repo, commit);
        must(mkdir(repo, 0755));
        must(mkdir(format_text("%s/refs", repo), 0755));
        must(mkdir(format_text("%s/snapshots", repo), 0755));
        must(mkdir(snapshot, 0755));
        model_write(model, format_text("%s/model.safetensors", snapshot));
        file_write(format_text("%s/refs/main", repo), commit, strlen(commit));
        await_row(0, "ready", 1);
        is_served("org/tiny");
        end();
}

TEST(an_unloaded_preload_is_not_reloaded)
{
        begin("");
        char *path = write_model("a.safetensors");
        char *text = format_text("preload: [{source: %s}]", path);
        configure(text);
        ck_assert_int_eq(reload_code("applied"), 0);
        await_row(0, "ready", 1);
        streamer_client *c = client_open(&d);
        client_unload(c, "a");
        ck_assert_int_eq(reload_code("applied"), 0);
        await_row(0, "ready", 1);
        ck_assert_str_eq(client_state(c, "a"), "");
        streamer_close(c);
        end();
}

/* ---- several devices ---- */

/* The first device has it, and it does not fit on the second. */
static void start_half_full(void)
{
        struct model *m = model_mixed(8, 20 << 20);
        char *first = suite_path("filler.safetensors"), *path = suite_path("m.safetensors");
        model_write(m, first);
        model_write(m, path);
        model_free(m);
        char *more = format_text("limits: {preload_loads: 1, preload_retry: 20ms}\npreload:\n"
                                 "  - {source: %s, devices: ['cuda:1'], priority: 9000}\n"
                                 "  - {source: %s, devices: ['cuda:0', 'cuda:1']}\n",
                                 first, path);
        gpu_daemon_start(&(struct gpu_daemon){
                .n = 2, .mib = 64, .more = more, .devices = {"'cuda:0', budget: 32MiB", "'cuda:1', budget: 32MiB"}});
        d = test_daemon;
        await_row(0, "ready", 1);
        await_row(1, "failed", 2);
}

/* During an attempt its row has no error. */
static bool status_has_the_error(void *unused)
{
        struct ctl result;
        (void)unused;
        ctl(&result, d.socket, "status", NULL);
        ck_assert_msg(strstr(result.out, "PRELOAD") != NULL, "%s%s", result.out, result.err);
        ck_assert_msg(strstr(result.out, "longest event loop iteration") != NULL, "%s", result.out);
        bool has = strstr(result.out, "does not fit") != NULL;
        ctl_free(&result);
        return has;
}

/* The second GPU is full until a model is unloaded. */
TEST(a_preload_is_retried_on_each_failed_device)
{
        start_half_full();
        struct ctl result;
        ck_assert(eventually(status_has_the_error, NULL, WAIT_MS));
        ctl(&result, d.socket, "list", NULL);
        ck_assert_msg(!strstr(result.out, "TIER") && strstr(result.out, "PRIORITY"), "%s", result.out);
        ctl_free(&result);
        streamer_client *c = client_open(&d);
        client_unload(c, "filler");
        await_row(1, "ready", 3);
        json_t *reply = client_call(c, "show", "{\"model\":\"m\"}");
        const json_t *devices = json_object_get(json_array_get(json_object_get(reply, "models"), 0), "devices");
        ck_assert_uint_eq(json_array_size(devices), 2);
        for (size_t i = 0; i < 2; i++)
                ck_assert_str_eq(json_text(json_array_get(devices, i), "state"), "ready");
        json_decref(reply);
        streamer_close(c);
        end();
}

static bool unload_from_second(void *device)
{
        struct ctl result;
        ctl(&result, d.socket, "unload", "m", "--device", device, NULL);
        int code = result.code;
        ctl_free(&result);
        return code == 0; /* not during an attempt */
}

TEST(a_preload_unloaded_from_one_device_is_not_retried_there)
{
        start_half_full();
        ck_assert(eventually(unload_from_second, "cuda:1", WAIT_MS));
        await_row(1, "ready", 2); /* no work is left */
        streamer_client *c = client_open(&d);
        json_t *reply = client_call(c, "show", "{\"model\":\"m\"}");
        const json_t *devices = json_object_get(json_array_get(json_object_get(reply, "models"), 0), "devices");
        ck_assert_uint_eq(json_array_size(devices), 1);
        ck_assert_str_eq(json_text(json_array_get(devices, 0), "device"), "cuda:0");
        json_decref(reply);
        streamer_close(c);
        end();
}
