/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl on a terminal: top, colour, and tables that fit its width.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/paused_load.h"
#include "tests/lib/terminal.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#define N_MODELS 12
#define LONG_NAME "organisation/a-model-with-a-rather-long-name-that-ends-in-8b"

static void begin(void)
{
        fixture_begin(NULL);
        streamer_client *c = client_open(&test_daemon);
        char *file = fixture_write(model_mixed(5, 1 << 18), "many.safetensors");
        for (int i = 0; i < N_MODELS - 2; i++) {
                char *name = format_text("model-%02d", i);
                client_load(c, file, name);
        }
        client_load(c, file, LONG_NAME);
        file_write(fixture_path("bad.safetensors"), "no model", 8);
        client_load_result(c, fixture_path("bad.safetensors"), "zz-failed", (char[1024]){0});
        streamer_close(c);
}

static void start(struct terminal *s, int rows, int columns, const char *socket, const char *const *environment,
                  const char *const *args)
{
        const char *argv[16] = {build_path("streamerctl"), "--socket", socket};
        size_t n = 3;
        while (*args)
                argv[n++] = *args++;
        terminal_start(s, rows, columns, argv, environment);
}
#define START(s, rows, columns, ...)                                                                                   \
        start((s), (rows), (columns), test_daemon.socket, NULL, (const char *const[]){__VA_ARGS__, NULL})

static void quit(struct terminal *s)
{
        terminal_type(s, "q");
        ck_assert_int_eq(terminal_finish(s), 0);
}

/* ---- top ---- */

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, NULL}, .unavailable = terminal_unavailable);

TEST(top_shows_devices_models_and_leases)
{
        struct terminal s;
        streamer_lease *lease = client_attach(client, "witness");
        START(&s, 24, 80, "top");
        terminal_until(&s, "witness");
        terminal_until_line(&s, 0, "streamerd 0.");
        terminal_until_line(&s, 1, "DEVICE ");
        terminal_until_line(&s, 2, "host         [");
        terminal_until(&s, "256.0 MiB");
        terminal_until(&s, "MODEL (by name)");
        terminal_until(&s, "PID ");
        terminal_until(&s, format_text("%d", (int)getpid()));
        quit(&s);
        streamer_detach(lease);
}

TEST(a_terminal_that_curses_does_not_know_is_named)
{
        struct terminal s;
        start(&s, 24, 120, test_daemon.socket, (const char *const[]){"TERM=teletype-1874", NULL},
              (const char *const[]){"top", NULL});
        terminal_until(&s, "top: the terminal 'teletype-1874' is not known ($TERM)");
        ck_assert_int_eq(terminal_finish(&s), 2);
}

TEST(top_follows_changes)
{
        struct terminal s;
        START(&s, 40, 100, "top", "--interval", "0.1");
        terminal_until(&s, "witness");
        client_load(client, fixture_write(model_mixed(6, 1 << 18), "new.safetensors"), "aa-new");
        terminal_until(&s, "aa-new");
        client_unload(client, "aa-new");
        terminal_until_not(&s, "aa-new");
        quit(&s);
}

TEST(top_scrolls_and_sorts)
{
        struct terminal s;
        START(&s, 10, 80, "top");
        terminal_until(&s, "  1 to 5 of 13");
        terminal_type(&s, "j");
        terminal_until(&s, "  2 to 6 of 13");
        terminal_type(&s, "jk");
        terminal_until(&s, "  2 to 6 of 13");
        terminal_type(&s, "jjjjjjjjjjjjjjjjjjjj"); /* past the end */
        terminal_until(&s, "  9 to 13 of 13");
        terminal_until(&s, "zz-failed");
        terminal_type(&s, "kkkkkkkkkkkkkkkkkkkk");
        terminal_until(&s, "  1 to 5 of 13");
        terminal_type(&s, "s");
        terminal_until(&s, "MODEL (by size)");
        terminal_until_line(&s, 4, "witness"); /* the largest */
        terminal_type(&s, "s");
        terminal_until(&s, "MODEL (by leases)");
        terminal_type(&s, "s");
        terminal_until(&s, "MODEL (by name)");
        quit(&s);
}

TEST(top_handles_a_tiny_terminal_and_resizing)
{
        static const int sizes[][2] = {{2, 10}, {1, 1}, {5, 30}, {3, 200}};
        struct terminal s;
        START(&s, 3, 12, "top", "--interval", "0.1");
        terminal_until(&s, "streamerd 0.");
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                terminal_resize(&s, sizes[i][0], sizes[i][1]);
                terminal_until(&s, "s");
        }
        terminal_resize(&s, 24, 80);
        terminal_until(&s, "witness");
        quit(&s);
}

TEST(top_once_prints_without_a_terminal)
{
        const char *out = ctl_says(test_daemon.socket, 0, "\nwitness ", "top", "--once", NULL);
        ck_assert_ptr_nonnull(strstr(out, "\nzz-failed "));
        ck_assert_ptr_null(strchr(out, '\033'));
}

/* ---- tables ---- */

TEST(list_watch_draws_over_the_last_list)
{
        struct terminal s;
        START(&s, 40, 100, "list", "--watch");
        terminal_until(&s, "witness");
        client_load(client, fixture_write(model_mixed(6, 1 << 18), "watched.safetensors"), "aa-watched");
        terminal_until_line(&s, 1, "aa-watched");
        client_unload(client, "aa-watched");
        terminal_until_not(&s, "aa-watched");
        terminal_type(&s, "\003");
        terminal_finish(&s);
}

TEST(a_table_fits_the_terminal_without_cutting_figures_and_names)
{
        struct terminal s;
        START(&s, 40, 76, "list");
        ck_assert_int_eq(terminal_finish(&s), 0);
        ck_assert(terminal_has(&s, LONG_NAME));
        ck_assert_ptr_nonnull(strstr(s.cells[0], "STATE")); /* no line has wrapped */
        ck_assert_ptr_nonnull(strstr(s.cells[1], "ready"));
        ck_assert_ptr_nonnull(strstr(s.cells[2], "ready"));
        START(&s, 40, 76, "list", "-o", "wide");
        ck_assert_int_eq(terminal_finish(&s), 0);
        ck_assert_ptr_nonnull(strstr(s.raw, LONG_NAME));
}

TEST(a_pipe_gets_the_whole_table)
{
        ck_assert_ptr_null(strchr(ctl_says(test_daemon.socket, 0, LONG_NAME, "list", NULL), '\033'));
}

static char *raw_list(const char *environment)
{
        struct terminal s;
        start(&s, 40, 120, test_daemon.socket, (const char *const[]){environment, NULL},
              (const char *const[]){"list", NULL});
        ck_assert_int_eq(terminal_finish(&s), 0);
        return s.raw;
}

TEST(states_have_colours_on_a_terminal)
{
        const char *raw = raw_list("TERM=xterm");
        ck_assert_ptr_nonnull(strstr(raw, "\033[32mready\033[0m"));
        ck_assert_ptr_nonnull(strstr(raw, "\033[31mfailed\033[0m"));
}

TEST(colours_can_be_disabled)
{
        ck_assert_ptr_null(strchr(raw_list("NO_COLOR=1"), '\033'));
        ck_assert_ptr_null(strchr(raw_list("TERM=dumb"), '\033'));
        ck_assert_ptr_nonnull(strchr(raw_list("NO_COLOR="), '\033')); /* empty is as good as unset */
}

/* ---- a load and its end ---- */

static const char *held_load_unavailable(void)
{
        const char *why = fuse_file_unavailable();
        return why ? why : terminal_unavailable();
}

FIXTURE(.each = {paused_load_begin, paused_load_end}, .unavailable = held_load_unavailable);

TEST(top_shows_a_held_load)
{
        struct terminal s;
        paused_load_start("half");
        start(&s, 24, 100, test_daemon.socket, NULL, (const char *const[]){"top", "--interval", "0.1", NULL});
        terminal_until(&s, "LOADING");
        terminal_until(&s, "half ");
        terminal_until(&s, "50 %");
        quit(&s);
}

FIXTURE(.unavailable = terminal_unavailable);

TEST(top_reports_a_lost_daemon)
{
        struct daemon d;
        struct terminal s;
        daemon_start_simple(&d, suite_path("going"), suite_folder(), "64MiB");
        start(&s, 24, 80, d.socket, NULL, (const char *const[]){"top", "--interval", "0.1", NULL});
        terminal_until(&s, "DEVICE");
        daemon_kill(&d);
        terminal_until(&s, "streamerctl: ");
        ck_assert_int_eq(terminal_finish(&s), 4);
}
