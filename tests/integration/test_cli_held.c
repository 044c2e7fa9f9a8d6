/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl beside a load that is held: its time-out, Ctrl-C, cancelling, and events.
 */
#include "tests/integration/cli_stage.h"

/* ---- a load that is held ---- */

static struct hang hang;

static const char *begin_held(void)
{
        const char *why = hang_unavailable();
        struct model *m = model_mixed(8, 4 << 20);

        if (why)
                return why;
        model_write(m, suite_path("backing"));
        hang_start(&hang, suite_path("hang"), "m.safetensors", suite_path("backing"));
        daemon_init(&stage, suite_path("d-held"));
        daemon_start(&stage, (const char *const[]){"--device", "host=64MiB", "--root", hang.folder, NULL});
        hang_hold(&hang, 2 << 20);
        return NULL;
}

START_TEST(exit_5_for_a_load_that_takes_longer_and_it_goes_on)
{
        const char *why = begin_held();

        if (why)
                SKIP(why);
        RUN(0, "load", hang.path, "--name", "slow", "--detach");
        hang_wait_held(&hang);
        RUN(5, "wait", "slow", "--timeout", "0.1");
        hang_release(&hang);
        RUN(0, "wait", "slow");
        ck_assert_int_eq(daemon_stop(&stage), 0);
        hang_stop(&hang);
}
END_TEST

START_TEST(ctrl_c_leaves_the_load_alone_and_cancel_ends_it)
{
        struct ctl_running running;
        const char *why = begin_held();
        struct ctl r;

        if (why)
                SKIP(why);
        ctl_start(&running, stage.socket, (const char *const[]){"load", hang.path, "--name", "slow", NULL});
        hang_wait_held(&hang);
        kill(running.pid, SIGINT);
        ctl_finish(&running, &r);
        ck_assert_int_eq(r.code, 130);
        json_t *loads = json_object_get(JSON("status", "--json"), "loads");
        ck_assert_uint_eq(json_array_size(loads), 1);
        RUN(0, "cancel", "slow");
        RUN(1, "wait", "slow");
        hang_release(&hang);
        ck_assert_int_eq(daemon_stop(&stage), 0);
        hang_stop(&hang);
}
END_TEST

START_TEST(events_are_one_object_a_line)
{
        struct ctl_running running;
        streamer_client *c = client_open(&stage);
        struct model *m = model_mixed(9, 1 << 16);
        const char *path = stage_write(m, "events.safetensors");
        char text[4096];

        ctl_start(&running, stage.socket, (const char *const[]){"events", NULL});
        /* It says nothing when it has subscribed: load until it hears of one. */
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
END_TEST

int main(void)
{
        suite_begin("cli: held");
        TCase *shapes = suite_group("shapes", begin, stage_end, 60);
        tcase_add_test(shapes, events_are_one_object_a_line);
        TCase *held = suite_group("a load that is held", NULL, NULL, 60);
        tcase_add_test(held, exit_5_for_a_load_that_takes_longer_and_it_goes_on);
        tcase_add_test(held, ctrl_c_leaves_the_load_alone_and_cancel_ends_it);
        return suite_run();
}
