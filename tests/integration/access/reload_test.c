/* SPDX-License-Identifier: Apache-2.0
 *
 * Reloading the configuration of a running daemon.
 */
#include "tests/integration/preload_fixture.h"
#include "tests/integration/users_fixture.h"
#include "tests/lib/wire.h"

#include <sched.h>
#include <sys/mount.h>

#define USER 60201

FIXTURE(.each = {begin_default, fixture_stop});

/* ---- reload ---- */

TEST(sighup_applies_added_settings_and_drops_no_model)
{
        char *first = write_model("first.safetensors"), *second = write_model("second.safetensors");
        client_load(client, first, "first");
        streamer_lease *lease = client_attach(client, "first");
        configure("preload: [{source: %s}]", second);
        hangup();
        await_notify("RELOADING=1\nMONOTONIC_USEC=");
        await_notify("READY=1");
        await_row(0, "ready", 1);
        is_served("second");
        lease_equals(lease, model);
        streamer_detach(lease);
        configure("\n");
        hangup();
        await_notify("READY=1");
        is_served("second");
        is_served("first");
}

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

TEST(a_reload_with_a_wrong_setting_changes_nothing, EACH(bad))
{
        char *path = write_model("never.safetensors");
        configure("log: {level: debug}\n%s", bad[_i].text);
        reload(2, bad[_i].what);
        hangup();
        await_notify("READY=1");
        await_log("reload: refused, the settings stay as they are");
        await_log(bad[_i].what);
        client_load(client, path, "never");
        await_log("never: ready"); /* after all that is said of a load */
        ck_assert_msg(!strstr(file_read(test_daemon.log, NULL), " debug: "), "the level was applied");
}

TEST(removed_settings_are_refused)
{
        must(unlink(config));
        reload(2, "No such file");
}

TEST(keys_that_need_a_restart_are_named)
{
        char *text =
                format_text("roots: [%s, /usr]\ndevices: [host=32MiB]\nio: {concurrency: 3, block_size: 1MiB}\n", root);
        file_write(config, text, strlen(text));
        reload(0, "these need a restart: devices, io.concurrency\n");
        await_log("needs a restart: devices, io.concurrency");
}

/* ---- roots ---- */

/* A configuration with these roots in place of the fixture's. */
static void configure_roots(const char *roots)
{
        char *text = format_text("roots: [%s]\ndevices: [host=64MiB]\nio: {concurrency: 2, block_size: 1MiB}\n"
                                 "limits: {preload_retry: 20ms, connections_per_uid: 40}\n",
                                 roots);
        file_write(config, text, strlen(text));
}

TEST(roots_are_added_and_removed)
{
        char *first = write_model("first.safetensors"), *other = suite_path("other-%d", (int)getpid());
        char *second = format_text("%s/second.safetensors", other);
        must(mkdir(other, 0755));
        model_write(model, second);
        client_load_fails(client, second, "second", STREAMER_EFAILED, "outside the roots");
        configure_roots(format_text("%s, %s", root, other));
        reload(0, "applied\n");
        client_load(client, second, "second");
        ctl_says(test_daemon.socket, 0, other, "config", NULL);
        configure_roots(other);
        reload(0, "applied\n");
        client_load_fails(client, first, "first", STREAMER_EFAILED, "outside the roots");
        is_served("second");
        configure_roots(format_text("%s/missing", other));
        reload(1, "No such file or directory");
        client_equals(client, "second", model);
}

/* The daemon's descriptor of a root keeps the file system of it mounted. */
TEST(the_file_system_of_a_root_that_was_removed_can_be_unmounted)
{
        ROOT_ONLY();
        fixture_stop();
        if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
                SKIP("nothing can be mounted here");
        char *disk = suite_path("disk-%d", (int)getpid()), *file = format_text("%s/m.safetensors", disk);
        must(mkdir(disk, 0755));
        must(mount("none", disk, "tmpfs", 0, NULL));
        begin_default();
        configure_roots(format_text("%s, %s", root, disk));
        reload(0, "applied\n");
        model_write(model, file);
        client_load(client, file, "m");
        ck_assert(umount(disk) < 0 && errno == EBUSY);
        configure_roots(root);
        reload(0, "applied\n");
        AWAIT(umount(disk) == 0);
        is_served("m");
}

/* By what they are, not by how they are written. */
TEST(roots_of_rules_may_be_named_by_links)
{
        ROOT_ONLY();
        must(chmod(suite_folder(), 0755));
        char *team = format_text("%s/team", root), *link = suite_path("link-%d", (int)getpid());
        char *in = format_text("%s/in.safetensors", team), *by_link = format_text("%s/in.safetensors", link);
        char *out = write_model("out.safetensors");
        must(mkdir(team, 0755));
        must(symlink(team, link));
        model_write(model, in);
        configure("access: {roles: [{role: load, users: %d, roots: [%s]}]}", USER, link);
        reload(0, "applied");
        ck_assert_int_eq(load_as(USER, in, "in", NULL), 0);
        ck_assert_int_eq(load_as(USER, by_link, "by-link", NULL), 0);
        ck_assert_int_eq(load_as(USER, out, "out", "outside the roots of access.roles[0], "), STREAMER_EPERM);
        configure("access: {roles: [{role: load, users: %d, roots: [%s]}]}", USER, team);
        reload(0, "applied");
        ck_assert_int_eq(load_as(USER, by_link, "by-link", NULL), 0);
        must(unlink(link));
        must(symlink("/usr", link));
        configure("access: {roles: [{role: load, users: %d, roots: [%s]}]}", USER, link);
        reload(2, "is below none of the daemon's own roots");
}

/* "" is what an absent key means. */
TEST(a_key_that_is_written_otherwise_needs_no_restart)
{
        configure("http: {ca: \"\"}\ns3: {endpoint: \"\"}\nstate: \"\"\n");
        reload(0, "applied\n");
}

/* Each wants more than half of the memory. */
TEST(the_limit_of_waiting_loads_is_reloaded)
{
        struct model *large = model_mixed(6, 40 << 20);
        char *first = format_text("%s/first.safetensors", root), *second = format_text("%s/second.safetensors", root);
        model_write(large, first);
        model_write(large, second);
        client_load(client, first, "first");
        streamer_lease *lease = client_attach(client, "first");
        char *text = format_text("roots: [%s]\ndevices: [host=64MiB]\nio: {concurrency: 2, block_size: 1MiB}\n"
                                 "limits: {queued: 0, preload_retry: 20ms, connections_per_uid: 40}\n",
                                 root);
        file_write(config, text, strlen(text));
        reload(0, "applied");
        ctl_says(test_daemon.socket, 1, "the limit (limits.queued)", "load", "--wait", second, NULL);
        streamer_detach(lease);
}

TEST(the_logs_level_is_applied)
{
        char *path = write_model("a.safetensors");
        configure("log: {level: debug}");
        reload(0, "applied");
        client_load(client, path, "a");
        await_log(" debug: ");
}

TEST(reloaded_access_rules_apply_to_new_and_open_connections)
{
        ROOT_ONLY();
        ck_assert_int_eq(call_as(USER, "ping", NULL, NULL), 0);
        ck_assert_int_eq(call_as(USER, "reload", NULL, NULL), STREAMER_EPERM);
        configure("access: {roles: []}");
        reload(0, "applied");
        ck_assert_int_eq(do_as(USER, do_connect, NULL), STREAMER_EPERM);
        configure("access: {roles: [{role: admin, users: 60201}]}");
        reload(0, "applied");
        ck_assert_int_eq(call_as(USER, "reload", NULL, NULL), 0);
}

TEST(concurrent_reload_requests_are_all_answered)
{
        struct ctl_running running[8];
        for (size_t i = 0; i < 8; i++) {
                ctl_start(&running[i], test_daemon.socket, (const char *const[]){"reload", NULL});
                hangup();
        }
        for (size_t i = 0; i < 8; i++) {
                struct ctl result;
                ctl_finish(&running[i], &result);
                ck_assert_int_eq(result.code, 0);
        }
}

/* One reload after the other, as reported to the service manager. */
static void readings_take_turns(unsigned n)
{
        bool reading = false;
        while (n > 0) {
                char text[4096];
                struct pollfd fd = {.fd = test_daemon.notify, .events = POLLIN};
                ck_assert_int_eq(must(poll(&fd, 1, PATIENCE_MS)), 1);
                text[must((int)recv(test_daemon.notify, text, sizeof(text) - 1, 0))] = '\0';
                if (strstr(text, "RELOADING=1") != NULL) {
                        ck_assert(!reading);
                        reading = true;
                } else if (strstr(text, "READY=1") != NULL) {
                        ck_assert(reading);
                        reading = false;
                        n--;
                }
        }
}

FIXTURE(.each = {NULL, fixture_stop});

TEST(the_logs_format_stays)
{
        begin("log: {format: json}");
        configure("log: {format: json, level: debug}");
        reload(0, "applied");
        await_log("\"message\":\"reload: applied\"");
}

/* Each request is handled when the previous one is answered. */
TEST(a_request_during_a_reply_gets_a_new_reading)
{
        struct wire w;
        begin("  requests_per_client: 1"); /* of the section that the settings end with */
        wire_connect(&w, &test_daemon);
        for (uint64_t i = 2; i < 7; i++)
                wire_verb(&w, "reload", i, NULL, NULL);
        readings_take_turns(5);
        for (uint64_t i = 2; i < 7; i++) {
                ck_assert(object_str_eq(wire_next(&w), "restart", ""));
                ck_assert_uint_eq(wire_number(&w, "id"), i);
        }
}
