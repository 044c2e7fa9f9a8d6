/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl on a terminal: top, colour, and tables that fit.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/held.h"
#include "tests/lib/screen.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_MODELS 12
#define LONG_NAME "organisation/a-model-with-a-rather-long-name-that-ends-in-8b"

static void begin(void)
{
        stage_begin(NULL);
        streamer_client *c = client_open(&stage);
        char *file = stage_write(model_mixed(5, 1 << 18), "many.safetensors");
        for (int i = 0; i < N_MODELS - 2; i++) {
                char *name = format_text("model-%02d", i);
                client_load(c, file, name);
                free(name);
        }
        client_load(c, file, LONG_NAME);
        client_load_result(c, stage_path("absent"), "zz-failed", (char[1024]){0});
        streamer_close(c);
}

static void start(struct screen *s, int rows, int columns, const char *socket, const char *const *environment,
                  const char *const *args)
{
        const char *argv[16] = {build_path("streamerctl"), "--socket", socket};
        size_t n = 3;
        while (*args)
                argv[n++] = *args++;
        screen_start(s, rows, columns, argv, environment);
}
#define START(s, rows, columns, ...)                                                                                   \
        start((s), (rows), (columns), stage.socket, NULL, (const char *const[]){__VA_ARGS__, NULL})

/* ---- top ---- */

START_TEST(top_shows_devices_models_and_leases)
{
        struct screen s;
        streamer_client *c = client_open(&stage);
        streamer_lease *lease = client_attach(c, "witness");
        START(&s, 24, 80, "top");
        screen_until(&s, "witness");
        screen_until_line(&s, 0, "streamerd 0.");
        screen_until_line(&s, 1, "DEVICE ");
        screen_until_line(&s, 2, "host         [");
        screen_until(&s, "256.0 MiB");
        screen_until(&s, "MODEL (by name)");
        screen_until(&s, "PID ");
        char *pid = format_text("%d", (int)getpid());
        screen_until(&s, pid);
        free(pid);
        screen_type(&s, "q");
        ck_assert_int_eq(screen_finish(&s), 0);
        streamer_detach(lease);
        streamer_close(c);
}
END_TEST

START_TEST(top_follows_what_changes)
{
        struct screen s;
        streamer_client *c = client_open(&stage);
        START(&s, 40, 100, "top", "--interval", "0.1");
        screen_until(&s, "witness");
        client_load(c, stage_write(model_mixed(6, 1 << 18), "new.safetensors"), "aa-new");
        screen_until(&s, "aa-new");
        client_unload(c, "aa-new");
        screen_until_not(&s, "aa-new");
        screen_type(&s, "q");
        ck_assert_int_eq(screen_finish(&s), 0);
        streamer_close(c);
}
END_TEST

START_TEST(top_scrolls_and_sorts)
{
        struct screen s;
        START(&s, 10, 80, "top");
        screen_until(&s, "  1 to 5 of 13");
        screen_type(&s, "j");
        screen_until(&s, "  2 to 6 of 13");
        screen_type(&s, "jk");
        screen_until(&s, "  2 to 6 of 13");
        screen_type(&s, "jjjjjjjjjjjjjjjjjjjj"); /* further than there is */
        screen_until(&s, "  9 to 13 of 13");
        screen_until(&s, "zz-failed");
        screen_type(&s, "kkkkkkkkkkkkkkkkkkkk");
        screen_until(&s, "  1 to 5 of 13");
        screen_type(&s, "s");
        screen_until(&s, "MODEL (by size)");
        screen_until_line(&s, 4, "witness"); /* the largest */
        screen_type(&s, "s");
        screen_until(&s, "MODEL (by leases)");
        screen_type(&s, "s");
        screen_until(&s, "MODEL (by name)");
        screen_type(&s, "q");
        ck_assert_int_eq(screen_finish(&s), 0);
}
END_TEST

START_TEST(top_lives_with_a_tiny_terminal_and_with_resizing)
{
        static const int sizes[][2] = {{2, 10}, {1, 1}, {5, 30}, {3, 200}};
        struct screen s;
        START(&s, 3, 12, "top", "--interval", "0.1");
        screen_until(&s, "streamerd 0.");
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                screen_resize(&s, sizes[i][0], sizes[i][1]);
                screen_until(&s, "s");
        }
        screen_resize(&s, 24, 80);
        screen_until(&s, "witness");
        screen_type(&s, "q");
        ck_assert_int_eq(screen_finish(&s), 0);
}
END_TEST

START_TEST(top_needs_a_terminal_and_says_so)
{
        struct ctl r;
        struct screen s;
        ctl(&r, stage.socket, "top", NULL);
        ck_assert_int_eq(r.code, 2);
        ck_assert_str_eq(r.out, "");
        ck_assert_ptr_nonnull(strstr(r.err, "top: needs a terminal; --once prints one frame without"));
        ctl_free(&r);
        start(&s, 24, 80, stage.socket, (const char *const[]){"TERM=no-such-terminal", NULL},
              (const char *const[]){"top", NULL});
        screen_until(&s, "the terminal 'no-such-terminal' is not known");
        ck_assert_int_eq(screen_finish(&s), 2);
}
END_TEST

static const char *const intervals[] = {"0", "-1", "nan", "x", "1x", "3601", ""};

START_TEST(a_wrong_interval_is_refused)
{
        struct ctl r;
        ctl(&r, stage.socket, "top", "--once", "--interval", intervals[_i], NULL);
        ck_assert_int_eq(r.code, 2);
        ck_assert_ptr_nonnull(strstr(r.err, "is not within 0.1 to 3600 seconds"));
        ctl_free(&r);
}
END_TEST

START_TEST(one_frame_can_go_anywhere)
{
        struct ctl r;
        ctl(&r, stage.socket, "top", "--once", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_ptr_nonnull(strstr(r.out, "\nwitness "));
        ck_assert_ptr_nonnull(strstr(r.out, "\nzz-failed "));
        ck_assert_ptr_null(strchr(r.out, '\033'));
        ctl_free(&r);
}
END_TEST

/* ---- tables ---- */

START_TEST(a_table_fits_the_terminal_and_keeps_its_figures)
{
        struct screen s;
        START(&s, 40, 76, "list");
        ck_assert_int_eq(screen_finish(&s), 0);
        ck_assert(screen_has(&s, "orga"));
        ck_assert(screen_has(&s, "8b  "));
        ck_assert(!screen_has(&s, LONG_NAME));
        ck_assert_ptr_nonnull(strstr(s.cells[0], "LEASES")); /* no line has wrapped */
        ck_assert_ptr_nonnull(strstr(s.cells[1], "ready"));
        ck_assert_ptr_nonnull(strstr(s.cells[2], "ready"));
        START(&s, 40, 76, "list", "-o", "wide");
        ck_assert_int_eq(screen_finish(&s), 0);
        ck_assert_ptr_nonnull(strstr(s.raw, LONG_NAME));
}
END_TEST

START_TEST(a_pipe_gets_the_whole_table)
{
        struct ctl r;
        ctl(&r, stage.socket, "list", NULL);
        ck_assert_ptr_nonnull(strstr(r.out, LONG_NAME));
        ck_assert_ptr_null(strchr(r.out, '\033'));
        ctl_free(&r);
}
END_TEST

static char *raw_list(const char *environment)
{
        struct screen s;
        start(&s, 40, 120, stage.socket, (const char *const[]){environment, NULL}, (const char *const[]){"list", NULL});
        ck_assert_int_eq(screen_finish(&s), 0);
        return s.raw;
}

START_TEST(states_have_colours_on_a_terminal)
{
        const char *raw = raw_list("TERM=xterm");
        ck_assert_ptr_nonnull(strstr(raw, "\033[32mready\033[0m"));
        ck_assert_ptr_nonnull(strstr(raw, "\033[31mfailed\033[0m"));
}
END_TEST

START_TEST(nobody_gets_colours_against_their_will)
{
        ck_assert_ptr_null(strchr(raw_list("NO_COLOR=1"), '\033'));
        ck_assert_ptr_null(strchr(raw_list("TERM=dumb"), '\033'));
        ck_assert_ptr_nonnull(strchr(raw_list("NO_COLOR="), '\033')); /* empty is as good as unset */
}
END_TEST

/* ---- a load, and an end ---- */

START_TEST(top_shows_a_load_that_is_held)
{
        struct screen s;
        streamer_op *op = held_load("half");
        start(&s, 24, 100, held.d.socket, NULL, (const char *const[]){"top", "--interval", "0.1", NULL});
        screen_until(&s, "LOADING");
        screen_until(&s, "half ");
        screen_until(&s, "50 %");
        screen_type(&s, "q");
        ck_assert_int_eq(screen_finish(&s), 0);
        streamer_op_free(op);
}
END_TEST

START_TEST(top_says_when_the_daemon_goes)
{
        struct daemon d;
        struct screen s;
        daemon_start_simple(&d, suite_path("going"), suite_folder(), "64MiB");
        start(&s, 24, 80, d.socket, NULL, (const char *const[]){"top", "--interval", "0.1", NULL});
        screen_until(&s, "DEVICE");
        daemon_kill(&d);
        screen_until(&s, "streamerctl: ");
        ck_assert_int_eq(screen_finish(&s), 4);
}
END_TEST

int main(void)
{
        suite_begin("top");
        TCase *top = suite_group("top", begin, stage_end, 60);
        tcase_add_test(top, top_shows_devices_models_and_leases);
        tcase_add_test(top, top_follows_what_changes);
        tcase_add_test(top, top_scrolls_and_sorts);
        tcase_add_test(top, top_lives_with_a_tiny_terminal_and_with_resizing);
        tcase_add_test(top, top_needs_a_terminal_and_says_so);
        LOOP(top, a_wrong_interval_is_refused, intervals);
        tcase_add_test(top, one_frame_can_go_anywhere);
        tcase_add_test(top, a_table_fits_the_terminal_and_keeps_its_figures);
        tcase_add_test(top, a_pipe_gets_the_whole_table);
        tcase_add_test(top, states_have_colours_on_a_terminal);
        tcase_add_test(top, nobody_gets_colours_against_their_will);
        TCase *loading = suite_group("loading", NULL, NULL, 60);
        tcase_add_checked_fixture(loading, held_begin, held_end);
        tcase_add_test(loading, top_shows_a_load_that_is_held);
        TCase *alone = suite_group("a daemon that goes", NULL, NULL, 60);
        tcase_add_test(alone, top_says_when_the_daemon_goes);
        return suite_run();
}
