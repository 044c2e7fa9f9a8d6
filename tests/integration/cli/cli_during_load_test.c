/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl during a load: --timeout, Ctrl-C, cancel and events.
 */
#include "tests/integration/cli_fixture.h"
#include "tests/lib/terminal.h"

/* ---- a held load ---- */

static struct fuse_file hang;

static void begin_held(void)
{
        model_write(model_mixed(8, 4 << 20), suite_path("backing"));
        fuse_file_start(&hang, suite_path("hang"), "m.safetensors", suite_path("backing"));
        DAEMON_START(&test_daemon, suite_path("d-held"), "--device", "host=64MiB", "--root", hang.folder);
        fuse_file_hold(&hang, 2 << 20);
}

static void end_held(void)
{
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
        fuse_file_stop(&hang);
}

FIXTURE(.each = {begin_held, end_held}, .unavailable = fuse_file_unavailable);

TEST(load_ends_its_wait_with_exit_5_and_the_load_continues)
{
        SAYS(5, "slow: not ready after 5 s; the load continues", "load", hang.path, "--name", "slow", "--timeout", "5",
             "--no-progress");
        struct ctl r = RUN(5, "load", hang.path, "--name", "slow", "--timeout", "0", "--json", "--no-progress");
        ck_assert_str_eq(json_text(error_object(&r), "code"), "timeout");
        fuse_file_release(&hang);
        RUN(0, "load", hang.path, "--name", "slow", "--timeout", "60");
}

/* The next line of standard error, without its end. */
static const char *read_line(const struct ctl_running *running)
{
        static char line[4096];
        size_t n = 0;
        do
                ck_assert_int_eq(must(read(running->err, &line[n], 1)), 1);
        while (line[n++] != '\n');
        line[n - 1] = '\0';
        return line;
}

static void prints_one_line(const struct ctl *r, const char *begins)
{
        ck_assert_msg(r->code == 0, "%s", r->err);
        ck_assert_msg(strncmp(r->out, begins, strlen(begins)) == 0, "%s", r->out);
        ck_assert_ptr_eq(strchr(r->out, '\n'), r->out + r->out_size - 1);
}

/* The silent commands wait for longer than the others, which have printed a line each. */
TEST(load_prints_progress_on_standard_error_only)
{
        enum { QUIET, NONE, NONE_JSON, LINES, OBJECTS, MODES };
        static const char *const flags[MODES][2] = {
                {"--quiet"}, {"--no-progress"}, {"--no-progress", "--json"}, {NULL}, {"--json"}};
        struct ctl_running running[MODES];
        struct ctl r[MODES];

        for (int i = 0; i < MODES; i++)
                ctl_start(&running[i], test_daemon.socket,
                          (const char *const[]){"load", hang.path, "--name", "slow", flags[i][0], flags[i][1], NULL});
        fuse_file_wait_held(&hang);
        for (int lines = 0; lines < 2; lines++) {
                read_line(&running[LINES]);
                const char *line = read_line(&running[OBJECTS]);
                json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
                ck_assert_msg(o != NULL, "%s", line);
                ck_assert_str_eq(json_text(o, "event"), "progress");
                ck_assert_str_eq(json_text(o, "name"), "slow");
                ck_assert_ptr_nonnull(strstr("resolving queued loading", json_text(o, "state")));
                ck_assert_uint_le(json_number(o, "bytes"), 4 << 20);
        }
        fuse_file_release(&hang);
        for (int i = 0; i < MODES; i++)
                ctl_finish(&running[i], &r[i]);
        for (int i = QUIET; i <= NONE_JSON; i++)
                ck_assert_str_eq(r[i].err, "");
        prints_one_line(&r[QUIET], "slow\n");
        prints_one_line(&r[NONE], "slow");
        prints_one_line(&r[NONE_JSON], "{");
        prints_one_line(&r[LINES], "slow");
        prints_one_line(&r[OBJECTS], "{");
        ck_assert_ptr_null(strstr(r[OBJECTS].out, "\"progress\""));
}

/* A bar, redrawn on a terminal, and removed at the end. */
TEST(load_draws_a_bar_on_a_terminal_and_not_on_standard_output)
{
        struct terminal s;
        char *out = suite_path("bar"),
             *command = format_text("exec '%s' load '%s' --name slow >'%s'", build_path("streamerctl"), hang.path, out);

        terminal_start(&s, 24, 100, (const char *const[]){"/bin/sh", "-c", command, NULL},
                       (const char *const[]){format_text("STREAMERD_SOCKET=%s", test_daemon.socket), NULL});
        terminal_until(&s, "slow [");
        fuse_file_release(&hang);
        ck_assert_int_eq(terminal_finish(&s), 0);
        ck_assert(!terminal_has(&s, "slow"));
        char *text = file_read(out, NULL);
        ck_assert_msg(strncmp(text, "slow", 4) == 0 && strchr(text, '[') == NULL, "%s", text);
        ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
}

TEST(ctrl_c_does_not_cancel_the_load_and_cancel_does)
{
        struct ctl_running running;
        struct ctl r;
        ctl_start(&running, test_daemon.socket, (const char *const[]){"load", hang.path, "--name", "slow", NULL});
        fuse_file_wait_held(&hang);
        kill(running.pid, SIGINT);
        ctl_finish(&running, &r);
        ck_assert_int_eq(r.code, 130);
        json_t *loads = json_object_get(JSON("status", "--json"), "loads");
        ck_assert_uint_eq(json_array_size(loads), 1);
        RUN(0, "cancel", "slow");
        RUN(1, "wait", "slow");
        fuse_file_release(&hang);
}

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(events_are_one_object_per_line)
{
        struct ctl_running running;
        streamer_client *c = client_open(&test_daemon);
        struct model *m = model_mixed(9, 1 << 16);
        const char *path = fixture_write(m, "events.safetensors");
        char text[4096];
        ctl_start(&running, test_daemon.socket, (const char *const[]){"events", NULL});
        /* It prints nothing when it has subscribed, so models are loaded until it receives an event. */
        struct pollfd fd = {.fd = running.out, .events = POLLIN};
        do {
                client_load(c, path, "e");
                client_unload(c, "e");
        } while (must(poll(&fd, 1, 20)) == 0);
        ssize_t n = must(read(running.out, text, sizeof(text) - 1));
        text[n] = '\0';
        ck_assert_ptr_nonnull(strchr(text, '\n'));
        *strchr(text, '\n') = '\0';
        json_t *event = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_str_eq(json_string_value(json_object_get(event, "event")), "model");
        ck_assert_str_eq(json_string_value(json_object_get(event, "model")), "e");
        kill(running.pid, SIGTERM);
        waitpid(running.pid, NULL, 0);
}
