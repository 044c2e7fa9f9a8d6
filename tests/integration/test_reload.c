/* SPDX-License-Identifier: Apache-2.0
 *
 * `preload`, and settings that are read again while the daemon runs.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/person.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define WAIT_MS 20000
/* A small ring: daemons that live for a moment must not be touching it when they end. */
#define COMMON                                                                                                         \
        "devices:\n  - host=64MiB\nio: {concurrency: 2, block_size: 1MiB}\nlimits:\n  preload_retry: 20ms\n  "         \
        "connections_per_uid: 40\n"

static struct daemon d;
static char root[PATH_SIZE], *config;
static struct model *model;

static void configure(const char *rest)
{
        char *text = format_text("roots: [%s]\n" COMMON "%s\n", root, rest);

        file_write(config, text, strlen(text));
        free(text);
}

/* A daemon for each test, in its process. */
static void begin(const char *rest)
{
        static unsigned n;

        snprintf(root, sizeof(root), "%s", suite_path("root-%d", (int)getpid()));
        mkdir(root, 0755);
        must(chmod(suite_folder(), 0755));
        config = suite_path("config-%d-%u.yaml", (int)getpid(), n);
        configure(rest);
        daemon_init(&d, suite_path("d-%d-%u", (int)getpid(), n++));
        daemon_start(&d, (const char *const[]){"--config", config, NULL});
        model = model_mixed(5, 1 << 18);
}

static void end(void)
{
        ck_assert_int_eq(daemon_stop(&d), 0);
}

static char *write_model(const char *name)
{
        char *path = format_text("%s/%s", root, name);

        model_write(model, path);
        return path;
}

/* ---- asking ---- */

static json_t *preload_row(streamer_client *c, size_t i)
{
        json_t *reply = client_call(c, "status", NULL);
        json_t *row = json_incref(json_array_get(json_object_get(reply, "preload"), i));

        json_decref(reply);
        return row;
}

struct question {
        size_t i;
        const char *state;
        int tries;
};

static bool row_is(void *arg)
{
        struct question *q = arg;
        streamer_client *c = client_open(&d);
        json_t *row = preload_row(c, q->i);
        const char *state = json_string_value(json_object_get(row, "state"));
        bool is =
                state && strcmp(state, q->state) == 0 && json_integer_value(json_object_get(row, "tries")) >= q->tries;

        json_decref(row);
        streamer_close(c);
        return is;
}

static void await_row(size_t i, const char *state, int tries)
{
        struct question q = {i, state, tries};

        ck_assert_msg(eventually(row_is, &q, WAIT_MS), "preload[%zu] does not become %s", i, state);
}

static bool log_has(void *text)
{
        char *log = file_read(d.log, NULL);
        bool has = strstr(log, text) != NULL;

        free(log);
        return has;
}

static void await_log(const char *text)
{
        if (!eventually(log_has, (void *)(uintptr_t)text, WAIT_MS))
                die("the log does not say \"%s\":\n%s", text, file_read(d.log, NULL));
}

/* The next message to the service manager that has this word. */
static void await_notify(const char *word)
{
        char text[4096];

        do {
                struct pollfd fd = {.fd = d.notify, .events = POLLIN};
                ck_assert_msg(must(poll(&fd, 1, WAIT_MS)) == 1, "no %s", word);
                ssize_t n = must(recv(d.notify, text, sizeof(text) - 1, 0));
                text[n] = '\0';
        } while (!strstr(text, word));
}

static void hangup(void)
{
        must(kill(d.pid, SIGHUP));
}

static int reload_code(const char *expected)
{
        struct ctl result;

        ctl(&result, d.socket, "reload", NULL);
        if (expected && !strstr(result.code == 0 ? result.out : result.err, expected))
                die("\"%s%s\" does not say \"%s\"", result.out, result.err, expected);
        int code = result.code;
        ctl_free(&result);
        return code;
}

static void is_served(const char *name)
{
        streamer_client *c = client_open(&d);

        client_equals(c, name, model);
        streamer_close(c);
}

/* ---- preload ---- */

START_TEST(what_is_listed_is_loaded_at_start)
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
END_TEST

START_TEST(what_fails_is_tried_again_until_it_is_there)
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
END_TEST

START_TEST(one_that_cannot_be_loaded_does_not_hold_the_others_up)
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
END_TEST

START_TEST(the_manager_is_told_of_those_that_are_not_there)
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
END_TEST

START_TEST(a_secret_of_a_url_is_neither_logged_nor_told)
{
        begin("preload: [{source: \"http://127.0.0.1:1/m.safetensors?sig=hidden\"}]");
        await_row(0, "failed", 1);
        await_log("preload: http://127.0.0.1:1/m.safetensors: ");
        streamer_client *c = client_open(&d);
        char *reply;
        ck_assert_int_eq(streamer_call(c, "status", NULL, &reply), 0);
        ck_assert_ptr_null(strstr(reply, "hidden"));
        ck_assert(!log_has((void *)(uintptr_t) "hidden"));
        free(reply);
        streamer_close(c);
        end();
}
END_TEST

START_TEST(a_name_of_the_hub_is_looked_up_in_the_daemons_own_cache)
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
END_TEST

START_TEST(one_that_was_unloaded_stays_so)
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
END_TEST

/* ---- reload ---- */

START_TEST(a_hangup_applies_what_was_added_and_drops_nothing)
{
        begin("");
        char *first = write_model("first.safetensors"), *second = write_model("second.safetensors");
        streamer_client *c = client_open(&d);
        client_load(c, first, "first");
        streamer_lease *lease = client_attach(c, "first");
        char *text = format_text("preload: [{source: %s}]", second);
        configure(text);
        hangup();
        await_notify("RELOADING=1\nMONOTONIC_USEC=");
        await_notify("READY=1");
        await_row(0, "ready", 1);
        is_served("second");
        lease_equals(lease, model);
        streamer_detach(lease);
        configure("");
        hangup();
        await_notify("READY=1");
        is_served("second");
        is_served("first");
        streamer_close(c);
        end();
}
END_TEST

static const struct {
        const char *text, *what;
} bad[] = {
        {"preload: [{sauce: /x}]", "preload[0].sauce: unknown key"},
        {"preload: [{source: /x}, {source: /x}]", "preload[1]: listed twice"},
        {"access: {roles: [{role: king, users: 1}]}", "access.roles[0].role: 'king' is not"},
        {"access: {roles: [{role: load, users: 1, roots: [/]}]}", "is below none of the daemon's own roots"},
        {"colour: red", "colour: unknown key"},
        {"cuda: {", "not YAML"},
};

START_TEST(wrong_settings_are_refused_as_a_whole)
{
        begin("");
        char *path = write_model("never.safetensors");
        char *text = format_text("log: {level: debug}\n%s", bad[_i].text);
        configure(text);
        ck_assert_int_eq(reload_code(bad[_i].what), 2);
        hangup();
        await_notify("READY=1");
        await_log("reload: refused, the settings stay as they are");
        ck_assert(log_has((void *)(uintptr_t)bad[_i].what));
        streamer_client *c = client_open(&d);
        client_load(c, path, "never");
        ck_assert_msg(!strstr(file_read(d.log, NULL), " debug: "), "the level was applied");
        streamer_close(c);
        end();
}
END_TEST

START_TEST(settings_that_are_gone_are_refused)
{
        begin("");
        must(unlink(config));
        ck_assert_int_eq(reload_code("No such file"), 2);
        end();
}
END_TEST

START_TEST(keys_that_need_a_restart_are_named)
{
        begin("");
        char *text =
                format_text("roots: [%s, /usr]\ndevices: [host=32MiB]\nio: {concurrency: 3, block_size: 1MiB}\n", root);
        file_write(config, text, strlen(text));
        ck_assert_int_eq(reload_code("these need a restart: roots, devices, io.concurrency\n"), 0);
        await_log("needs a restart: roots, devices, io.concurrency");
        end();
}
END_TEST

START_TEST(the_logs_level_is_applied)
{
        begin("");
        char *path = write_model("a.safetensors");
        configure("log: {level: debug}");
        ck_assert_int_eq(reload_code("applied"), 0);
        streamer_client *c = client_open(&d);
        client_load(c, path, "a");
        await_log(" debug: ");
        streamer_close(c);
        end();
}
END_TEST

START_TEST(the_logs_format_stays)
{
        begin("log: {format: json}");
        configure("log: {format: json, level: debug}");
        ck_assert_int_eq(reload_code("applied"), 0);
        await_log("\"message\":\"reload: applied\"");
        end();
}
END_TEST

#define USER 60201

static int do_ping(void)
{
        return client_call_code(client_open(&d), "ping", NULL);
}

static int do_reload(void)
{
        return client_call_code(client_open(&d), "reload", NULL);
}

START_TEST(access_is_applied_to_connections_from_then_on_and_before)
{
        ROOT_ONLY();
        begin("");
        ck_assert_int_eq(person_does(USER, 0, do_ping), 0);
        ck_assert_int_eq(person_does(USER, 0, do_reload), STREAMER_EPERM);
        configure("access: {roles: []}");
        ck_assert_int_eq(reload_code("applied"), 0);
        ck_assert_int_ne(person_does(USER, 0, do_ping), 0);
        configure("access: {roles: [{role: admin, users: 60201}]}");
        ck_assert_int_eq(reload_code("applied"), 0);
        ck_assert_int_eq(person_does(USER, 0, do_reload), 0);
        end();
}
END_TEST

START_TEST(many_who_ask_at_once_are_all_answered)
{
        begin("");
        struct ctl_running running[8];
        for (size_t i = 0; i < 8; i++) {
                ctl_start(&running[i], d.socket, (const char *const[]){"reload", NULL});
                hangup();
        }
        for (size_t i = 0; i < 8; i++) {
                struct ctl result;
                ctl_finish(&running[i], &result);
                ck_assert_int_eq(result.code, 0);
                ctl_free(&result);
        }
        end();
}
END_TEST

int main(void)
{
        suite_begin("reload");
        TCase *preload = suite_group("preload", NULL, NULL, 60);
        tcase_add_test(preload, what_is_listed_is_loaded_at_start);
        tcase_add_test(preload, what_fails_is_tried_again_until_it_is_there);
        tcase_add_test(preload, one_that_cannot_be_loaded_does_not_hold_the_others_up);
        tcase_add_test(preload, the_manager_is_told_of_those_that_are_not_there);
        tcase_add_test(preload, a_secret_of_a_url_is_neither_logged_nor_told);
        tcase_add_test(preload, a_name_of_the_hub_is_looked_up_in_the_daemons_own_cache);
        tcase_add_test(preload, one_that_was_unloaded_stays_so);
        TCase *reload = suite_group("reload", NULL, NULL, 60);
        tcase_add_test(reload, a_hangup_applies_what_was_added_and_drops_nothing);
        LOOP(reload, wrong_settings_are_refused_as_a_whole, bad);
        tcase_add_test(reload, settings_that_are_gone_are_refused);
        tcase_add_test(reload, keys_that_need_a_restart_are_named);
        tcase_add_test(reload, the_logs_level_is_applied);
        tcase_add_test(reload, the_logs_format_stays);
        tcase_add_test(reload, access_is_applied_to_connections_from_then_on_and_before);
        tcase_add_test(reload, many_who_ask_at_once_are_all_answered);
        return suite_run();
}
