/* SPDX-License-Identifier: Apache-2.0
 *
 * Without access rules root may do everything; members of the socket's group may attach, load, list, and unload their
 * own models; other users may do nothing. A member's files are opened with the member's rights. Needs root.
 */
#include "tests/lib/run_as.h"
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/wire.h"

#define USER 65534
#define MEMBER_GROUP 0 /* the socket's: the daemon's own */
#define OTHER_GROUP 65534

static char *secret, *readable;

static void begin(void)
{
        struct model *m = model_mixed(1, 1 << 18);

        fixture_begin(NULL);
        must(chmod(suite_folder(), 0755));
        secret = fixture_write(m, "secret.safetensors");
        readable = fixture_write(model_mixed(2, 1 << 18), "readable.safetensors");
        must(chmod(secret, 0600));
}

static int as(gid_t group, int (*fn)(void))
{
        return run_as(USER, group, fn);
}

static int do_connect(void)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = test_daemon.socket};
        streamer_client *c;

        return streamer_connect(&opts, &c);
}

static int do_list(void)
{
        streamer_model_list *list;

        return streamer_list(client_open(&test_daemon), &list);
}

static int do_attach(void)
{
        client_equals(client_open(&test_daemon), "witness", fixture_witness);
        return 0;
}

static int do_load_readable(void)
{
        char text[1024];

        return client_load_result(client_open(&test_daemon), readable, "readable", text);
}

static int do_unload_readable(void)
{
        return streamer_unload(client_open(&test_daemon), "readable", 0);
}

static int do_load_secret(void)
{
        char text[1024];

        return client_load_result(client_open(&test_daemon), secret, "secret", text);
}

static int do_unload(void)
{
        return streamer_unload(client_open(&test_daemon), "witness", 0);
}

static int do_cancel(void)
{
        return client_call_code(client_open(&test_daemon), "cancel", "{\"model\":\"witness\"}");
}

FIXTURE(.all = {begin, fixture_end}, .unavailable = root_unavailable);

TEST(users_outside_the_group_cannot_connect)
{
        ck_assert_int_eq(as(OTHER_GROUP, do_connect), STREAMER_EPERM);
}

TEST(members_may_attach_list_load_and_unload_their_own)
{
        ck_assert_int_eq(as(MEMBER_GROUP, do_list), 0);
        ck_assert_int_eq(as(MEMBER_GROUP, do_attach), 0);
        ck_assert_int_eq(as(MEMBER_GROUP, do_load_readable), 0);
        ck_assert_int_eq(as(MEMBER_GROUP, do_unload_readable), 0);
}

TEST(members_may_not_unload_or_cancel_other_users_models)
{
        ck_assert_int_eq(as(MEMBER_GROUP, do_unload), STREAMER_EPERM);
        ck_assert_int_eq(as(MEMBER_GROUP, do_cancel), STREAMER_EPERM);
        fixture_still_serves();
}

static int do_load_over_witness(void)
{
        char text[1024];

        return client_load_result(client_open(&test_daemon), readable, "witness", text);
}

TEST(members_may_not_replace_another_users_model)
{
        ck_assert_int_eq(as(MEMBER_GROUP, do_load_over_witness), STREAMER_EPERM);
        fixture_still_serves();
}

TEST(a_file_unreadable_for_the_caller_is_not_loaded)
{
        streamer_client *c;

        ck_assert_int_eq(as(MEMBER_GROUP, do_load_secret), STREAMER_EPERM);
        c = client_open(&test_daemon);
        ck_assert_str_ne(client_state(c, "secret"), "ready");
        client_load(c, secret, "secret");
        client_unload(c, "secret");
        streamer_close(c);
}

/* ---- limits ---- */

static void begin_small(void)
{
        static const char settings[] = "devices:\n  - host=64MiB\nlimits: {connections: 2}\n";

        char *config = suite_file("small.yaml", settings);
        must(chmod(suite_folder(), 0755));
        fixture_begin((const char *const[]){"--config", config, NULL});
}

FIXTURE(.all = {begin_small, fixture_end}, .unavailable = root_unavailable);

TEST(a_connection_over_the_limit_gets_an_error_and_root_connects)
{
        struct wire wires[2];

        for (int i = 0; i < 2; i++) {
                wire_open(&wires[i], &test_daemon);
                wire_hello(&wires[i]);
        }
        ck_assert_int_eq(as(MEMBER_GROUP, do_connect), STREAMER_ELIMIT);
        ck_assert_int_eq(do_attach(), 0);
        for (int i = 0; i < 2; i++)
                wire_close(&wires[i]);
}
