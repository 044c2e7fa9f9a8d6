/* SPDX-License-Identifier: Apache-2.0
 *
 * Priorities of loads as a user sees them. test_fair_share and test_reader_* test their effect on the reader.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/fuse_file.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static struct fuse_file hang;
static const char *no_hang;
static struct model *held;

static void begin(void)
{
        no_hang = fuse_file_unavailable();
        if (!no_hang) {
                held = model_mixed(7, 8 << 20);
                char *backing = suite_path("backing.safetensors");
                model_write(held, backing);
                fuse_file_start(&hang, suite_path("hang"), "held.safetensors", backing);
        }
        const char *const flags[] = {"--device", "host=64MiB", no_hang ? NULL : "--root", hang.folder, NULL};
        fixture_begin(flags);
}

static void end(void)
{
        fixture_end();
        if (!no_hang)
                fuse_file_stop(&hang);
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

        ctl(&result, test_daemon.socket, verb, a, b, c, NULL);
        int code = result.code;
        ctl_free(&result);
        return code;
}

FIXTURE(.all = {begin, end});

TEST(a_model_has_the_default_priority_unless_set)
{
        streamer_client *c = client_open(&test_daemon);
        char *path = fixture_write(model_mixed(8, 1 << 18), "eager.safetensors");

        ck_assert_uint_eq(priority_of(c, "witness"), 100);
        ck_assert_int_eq(run("load", path, "--priority", "700"), 0);
        ck_assert_uint_eq(priority_of(c, "eager"), 700);
        client_unload(c, "eager");
        streamer_close(c);
}

TEST(a_priority_can_be_changed)
{
        streamer_client *c = client_open(&test_daemon);

        ck_assert_int_eq(run("set-priority", "witness", "250", NULL), 0);
        ck_assert_uint_eq(priority_of(c, "witness"), 250);
        ck_assert_int_eq(run("set-priority", "witness", "100", NULL), 0);
        streamer_close(c);
}

TEST(a_wrong_priority_is_refused, .to = 7)
{
        static const char *const wrong[] = {"0", "10001", "-1", "1.5", "high", "", "99999999999999999999"};

        ck_assert_int_eq(run("set-priority", "witness", wrong[_i], NULL), 2);
        ck_assert_int_eq(run("load", "/nowhere", "--priority", wrong[_i]), 2);
}

TEST(the_daemon_rejects_a_wrong_priority)
{
        streamer_client *c = client_open(&test_daemon);

        ck_assert_int_eq(client_call_code(c, "set_priority", "{\"model\":\"witness\",\"priority\":0}"),
                         STREAMER_EINVAL);
        ck_assert_int_eq(client_call_code(c, "set_priority", "{\"model\":\"witness\",\"priority\":10001}"),
                         STREAMER_EINVAL);
        ck_assert_int_eq(client_call_code(c, "set_priority", "{\"model\":\"witness\"}"), STREAMER_EINVAL);
        streamer_close(c);
}

TEST(a_priority_of_a_missing_model_fails)
{
        ck_assert_int_eq(run("set-priority", "nobody", "5", NULL), 3);
}

TEST(a_loading_model_accepts_a_new_priority)
{
        streamer_client *c = client_open(&test_daemon);

        if (no_hang)
                SKIP(no_hang);
        fuse_file_hold(&hang, 1 << 20);
        streamer_op *op = client_load_begin(c, hang.path, "held");
        fuse_file_wait_held(&hang);
        ck_assert_int_eq(run("set-priority", "held", "9000", NULL), 0);
        ck_assert_uint_eq(priority_of(c, "held"), 9000);
        fuse_file_release(&hang);
        client_ok(c, streamer_op_wait(op, 20000, NULL), "load");
        streamer_op_free(op);
        client_equals(c, "held", held);
        client_unload(c, "held");
        streamer_close(c);
}

/* Whatever the large one weighs. */
TEST(a_small_load_beside_a_heavy_one_that_hangs_is_served)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = hang.path, .name = "held", .priority = 10000};
        struct model *small = model_mixed(9, 1 << 18);
        streamer_op *op;

        if (no_hang)
                SKIP(no_hang);
        fuse_file_hold(&hang, 1 << 20);
        client_ok(c, streamer_load(c, &opts, &op), "load");
        fuse_file_wait_held(&hang);
        client_load(c, fixture_write(small, "small.safetensors"), "small");
        client_equals(c, "small", small);
        ck_assert_int_eq(run("cancel", "held", NULL, NULL), 0);
        fuse_file_release(&hang);
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_ECANCELED);
        streamer_op_free(op);
        client_unload(c, "small");
        streamer_close(c);
}
