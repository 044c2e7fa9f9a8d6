/* SPDX-License-Identifier: Apache-2.0
 *
 * Priorities as a user sees them. What they do to the reader is in the suites of share and reader.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/hang.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <stdio.h>
#include <string.h>

static struct hang hang;
static const char *no_hang;
static struct model *held;

static void begin(void)
{
        no_hang = hang_unavailable();
        if (!no_hang) {
                held = model_mixed(7, 8 << 20);
                char *backing = suite_path("backing.safetensors");
                model_write(held, backing);
                hang_start(&hang, suite_path("hang"), "held.safetensors", backing);
        }
        const char *const flags[] = {"--device", "host=64MiB", no_hang ? NULL : "--root", hang.folder, NULL};
        stage_begin(flags);
}

static void end(void)
{
        stage_end();
        if (!no_hang)
                hang_stop(&hang);
}

static uint64_t priority_of(streamer_client *c, const char *name)
{
        char *args = format_text("{\"model\":\"%s\"}", name);
        json_t *reply = client_call(c, "show", args);
        json_t *m = json_array_get(json_object_get(reply, "models"), 0);
        uint64_t priority = json_number(m, "priority");

        json_decref(reply);
        free(args);
        return priority;
}

static int run(const char *verb, const char *a, const char *b, const char *c)
{
        struct ctl result;

        ctl(&result, stage.socket, verb, a, b, c, NULL);
        int code = result.code;
        ctl_free(&result);
        return code;
}

START_TEST(a_model_has_the_usual_priority_unless_it_was_given_one)
{
        streamer_client *c = client_open(&stage);
        char *path = stage_write(model_mixed(8, 1 << 18), "eager.safetensors");

        ck_assert_uint_eq(priority_of(c, "witness"), 100);
        ck_assert_int_eq(run("load", path, "--priority", "700"), 0);
        ck_assert_uint_eq(priority_of(c, "eager"), 700);
        client_unload(c, "eager");
        streamer_close(c);
}
END_TEST

START_TEST(a_priority_can_be_changed)
{
        streamer_client *c = client_open(&stage);

        ck_assert_int_eq(run("set-priority", "witness", "250", NULL), 0);
        ck_assert_uint_eq(priority_of(c, "witness"), 250);
        ck_assert_int_eq(run("set-priority", "witness", "100", NULL), 0);
        streamer_close(c);
}
END_TEST

START_TEST(a_wrong_priority_is_refused)
{
        static const char *const wrong[] = {"0", "10001", "-1", "1.5", "high", "", "99999999999999999999"};

        ck_assert_int_eq(run("set-priority", "witness", wrong[_i], NULL), 2);
        ck_assert_int_eq(run("load", "/nowhere", "--priority", wrong[_i]), 2);
}
END_TEST

START_TEST(a_wrong_priority_is_refused_by_the_daemon_too)
{
        streamer_client *c = client_open(&stage);

        ck_assert_int_eq(client_call_code(c, "set_priority", "{\"model\":\"witness\",\"priority\":0}"),
                         STREAMER_EINVAL);
        ck_assert_int_eq(client_call_code(c, "set_priority", "{\"model\":\"witness\",\"priority\":10001}"),
                         STREAMER_EINVAL);
        ck_assert_int_eq(client_call_code(c, "set_priority", "{\"model\":\"witness\"}"), STREAMER_EINVAL);
        streamer_close(c);
}
END_TEST

START_TEST(no_such_model)
{
        ck_assert_int_eq(run("set-priority", "nobody", "5", NULL), 3);
}
END_TEST

START_TEST(a_load_that_is_under_way_takes_its_new_priority_and_ends_well)
{
        streamer_client *c = client_open(&stage);

        if (no_hang)
                SKIP(no_hang);
        hang_hold(&hang, 1 << 20);
        streamer_op *op = client_load_begin(c, hang.path, "held");
        hang_wait_held(&hang);
        ck_assert_int_eq(run("set-priority", "held", "9000", NULL), 0);
        ck_assert_uint_eq(priority_of(c, "held"), 9000);
        hang_release(&hang);
        client_ok(c, streamer_op_wait(op, 20000, NULL), "load");
        streamer_op_free(op);
        client_equals(c, "held", held);
        client_unload(c, "held");
        streamer_close(c);
}
END_TEST

/* Whatever the large one weighs. */
START_TEST(a_small_load_beside_a_heavy_one_that_hangs_is_served)
{
        streamer_client *c = client_open(&stage);
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = hang.path, .name = "held", .priority = 10000};
        struct model *small = model_mixed(9, 1 << 18);
        streamer_op *op;

        if (no_hang)
                SKIP(no_hang);
        hang_hold(&hang, 1 << 20);
        client_ok(c, streamer_load(c, &opts, &op), "load");
        hang_wait_held(&hang);
        client_load(c, stage_write(small, "small.safetensors"), "small");
        client_equals(c, "small", small);
        ck_assert_int_eq(run("cancel", "held", NULL, NULL), 0);
        hang_release(&hang);
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_ECANCELED);
        streamer_op_free(op);
        client_unload(c, "small");
        streamer_close(c);
}
END_TEST

int main(void)
{
        suite_begin("fairness");
        TCase *tests = suite_group("priorities", begin, end, 60);
        tcase_add_test(tests, a_model_has_the_usual_priority_unless_it_was_given_one);
        tcase_add_test(tests, a_priority_can_be_changed);
        tcase_add_loop_test(tests, a_wrong_priority_is_refused, 0, 7);
        tcase_add_test(tests, a_wrong_priority_is_refused_by_the_daemon_too);
        tcase_add_test(tests, no_such_model);
        tcase_add_test(tests, a_load_that_is_under_way_takes_its_new_priority_and_ends_well);
        tcase_add_test(tests, a_small_load_beside_a_heavy_one_that_hangs_is_served);
        return suite_run();
}
