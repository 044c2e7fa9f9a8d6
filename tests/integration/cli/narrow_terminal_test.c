/* SPDX-License-Identifier: Apache-2.0
 *
 * Tables and progress on terminals of different widths: what a user types back is printed whole.
 */
#include "tests/integration/cli_fixture.h"
#include "tests/lib/terminal.h"

#define LONG "meta-llama/Llama-3.1-8B-Instruct-FP8-dynamic"

static struct fuse_file hang;
static pid_t holder;

static void begin(void)
{
        model_write(model_mixed(8, 4 << 20), suite_path("backing"));
        fuse_file_start(&hang, suite_path("hang"), "m.safetensors", suite_path("backing"));
        DAEMON_START(&test_daemon, suite_path("d"), "--device", "host=64MiB", "--root", suite_path("."));
        client = client_open(&test_daemon);
        client_load(client, suite_path("backing"), LONG);
        client_attach(client, LONG);
        holder = getpid();
}

static void end(void)
{
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
        fuse_file_stop(&hang);
}

FIXTURE(.all = {begin, end}, .unavailable = fuse_file_unavailable);

/* What streamerctl prints on a terminal of this width, without the terminal's carriage returns. */
static char *printed(int columns, const char *const *argv, int code)
{
        struct terminal s;
        terminal_start(
                &s, 24, columns, argv,
                (const char *const[]){format_text("STREAMERD_SOCKET=%s", test_daemon.socket), "TERM=dumb", NULL});
        ck_assert_int_eq(terminal_finish(&s), code);
        char *text = must_alloc(s.raw_len + 1), *to = text;
        for (size_t i = 0; i < s.raw_len; i++)
                if (s.raw[i] != '\r')
                        *to++ = s.raw[i];
        return text;
}
#define PRINTED(columns, ...) printed((columns), (const char *const[]){build_path("streamerctl"), __VA_ARGS__, NULL}, 0)

static size_t longest_line(const char *text)
{
        size_t most = 0;
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
                most = strcspn(line, "\n") > most ? strcspn(line, "\n") : most;
        return most;
}

static const int widths[] = {120, 80, 60};

TEST(a_table_drops_columns_before_it_cuts_a_name, EACH(widths))
{
        const char *ps = PRINTED(widths[_i], "ps");
        ck_assert_msg(strstr(ps, LONG) && !strstr(ps, "..."), "%s", ps);
        ck_assert_msg(strstr(ps, format_text("%d", (int)holder)) != NULL, "%s", ps);
        ck_assert_msg(longest_line(ps) <= (size_t)widths[_i], "%s", ps);
        const char *list = PRINTED(widths[_i], "list");
        ck_assert_msg(strstr(list, LONG "  ready") && !strstr(list, "..."), "%s", list);
        ck_assert_msg(longest_line(list) <= (size_t)widths[_i], "%s", list);
}

TEST(the_least_important_columns_are_dropped_first)
{
        const char *ps = PRINTED(100, "ps");
        ck_assert_msg(!strstr(ps, "QUARANTINED") && strstr(ps, "COMMAND"), "%s", ps);
        ps = PRINTED(200, "ps");
        ck_assert_msg(strstr(ps, "QUARANTINED") != NULL, "%s", ps);
}

TEST(a_name_is_whole_where_no_width_is_enough)
{
        const char *list = PRINTED(20, "list");
        ck_assert_msg(strstr(list, LONG "  ready\n") != NULL, "%s", list);
        ck_assert_msg(strncmp(list, "NAME", 4) == 0 && strstr(list, "STATE\n"), "%s", list);
}

TEST(prose_is_cut_instead_of_columns)
{
        const char *config = PRINTED(80, "config");
        ck_assert_msg(strstr(config, "...") && strstr(config, "ORIGIN"), "%s", config);
        ck_assert_msg(longest_line(config) <= 80, "%s", config);
}

static const char *const tables[] = {"list", "ps", "status", "config"};

TEST(no_line_of_a_table_ends_with_a_blank, EACH(tables))
{
        struct ctl r = RUN(0, tables[_i]);
        ck_assert_msg(!strstr(r.out, " \n"), "%s", r.out);
}

/* ---- progress ---- */

static const int progress_widths[] = {200, 80, 60, 40, 24};

/* Each drawing begins at the start of the line, and does not reach the last column. */
static int count_drawings(const struct terminal *s, int columns)
{
        int n = 0;
        for (const char *at = s->raw, *found; (found = strstr(at, "\r\033[K")); n++) {
                const char *next = strstr(at = found + 4, "\r\033[K");
                size_t len = next ? (size_t)(next - at) : strlen(at);
                ck_assert_msg(len < (size_t)columns, "%zu columns: %.*s", len, (int)len, at);
        }
        return n;
}

TEST(progress_is_one_line_of_any_width, EACH(progress_widths))
{
        struct terminal s;
        int columns = progress_widths[_i];
        const char *name = format_text(LONG "-%d", columns);
        char *command =
                format_text("exec '%s' load '%s' --name '%s' >/dev/null", build_path("streamerctl"), hang.path, name);
        fuse_file_hold(&hang, 2 << 20);
        terminal_start(&s, 24, columns, (const char *const[]){"/bin/sh", "-c", command, NULL},
                       (const char *const[]){format_text("STREAMERD_SOCKET=%s", test_daemon.socket), NULL});
        terminal_until(&s, " of ");
        fuse_file_release(&hang);
        ck_assert_int_eq(terminal_finish(&s), 0);
        ck_assert_int_ge(count_drawings(&s, columns), 2); /* the last one erases */
        ck_assert_msg(!strchr(s.raw, '\n'), "%s", s.raw);
        ctl_says(test_daemon.socket, 0, "", "unload", name, NULL);
}
