/* SPDX-License-Identifier: Apache-2.0
 *
 * Without access rules root may do everything; members of the socket's group may attach, load, list, and unload their
 * own models; other users may do nothing. A member's files are opened with the member's rights. Needs root.
 */
#include "tests/integration/users_fixture.h"
#include "tests/lib/wire.h"

#include <fcntl.h>
#include <sys/prctl.h>

#define USER 65534
#define OTHER_GROUP 65534

static char *secret, *readable;

static void begin(void)
{
        fixture_begin(NULL);
        must(chmod(suite_folder(), 0755));
        secret = fixture_write(model_mixed(1, 1 << 18), "secret.safetensors");
        readable = fixture_write(model_mixed(2, 1 << 18), "readable.safetensors");
        must(chmod(secret, 0600));
}

FIXTURE(.all = {begin, fixture_end}, .each = {NULL, fixture_still_serves}, .unavailable = root_unavailable);

TEST(users_outside_the_group_cannot_connect)
{
        ck_assert_int_eq(run_as(USER, OTHER_GROUP, do_connect), STREAMER_EPERM);
}

TEST(members_may_attach_list_load_and_unload_their_own)
{
        ck_assert_int_eq(call_as(USER, "list", NULL, NULL), 0);
        ck_assert_int_eq(do_as(USER, do_attach, NULL), 0);
        ck_assert_int_eq(load_as(USER, readable, "readable", NULL), 0);
        ck_assert_int_eq(model_call_as(USER, "unload", "readable", NULL), 0);
}

TEST(members_may_not_unload_cancel_or_replace_other_users_models)
{
        ck_assert_int_eq(model_call_as(USER, "unload", "witness", NULL), STREAMER_EPERM);
        ck_assert_int_eq(model_call_as(USER, "cancel", "witness", NULL), STREAMER_EPERM);
        ck_assert_int_eq(load_as(USER, readable, "witness", NULL), STREAMER_EPERM);
}

TEST(a_file_unreadable_for_the_caller_is_not_loaded)
{
        ck_assert_int_eq(load_as(USER, secret, "secret", NULL), STREAMER_EPERM);
        streamer_client *c = client_open(&test_daemon);
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

static int be_refused(void)
{
        struct wire w;
        wire_open(&w, &test_daemon);
        const msgpack_object *reply = wire_next(&w);
        ck_assert(object_str_eq(reply, "text", "2 connections are open: the limit (limits.connections)"));
        ck_assert(!wire_read(&w));
        return 0;
}

TEST(a_connection_over_the_limit_gets_an_error_and_root_connects)
{
        struct wire wires[2];
        for (int i = 0; i < 2; i++)
                wire_connect(&wires[i], &test_daemon);
        ck_assert_int_eq(do_as(USER, do_connect, NULL), STREAMER_ELIMIT);
        ck_assert_int_eq(do_as(USER, be_refused, NULL), 0);
        ck_assert_int_eq(do_attach(), 0);
}

/* ---- who may do nothing, and who has much ---- */

/* Users that no system gives out, in the socket's group. */
enum { MANY = 60501, FEW = 60502, NOBODY = 60503 };

static void begin_closed(void)
{
        char *text = format_text("devices:\n  - host=64MiB\nlimits: {connections: 40, connections_per_uid: 100}\n"
                                 "access:\n  roles:\n    - {role: load, users: [\"%d\", \"%d\"]}\n",
                                 MANY, FEW);
        char *config = suite_file("closed.yaml", text);
        must(chmod(suite_folder(), 0755));
        fixture_begin((const char *const[]){"--config", config, NULL});
}

FIXTURE(.all = {begin_closed, fixture_end}, .unavailable = root_unavailable);

/* More than there may be of all users. */
static int connect_without_a_role(void)
{
        static struct wire wires[100];
        const struct request hello = {.verb = VERB_hello, .id = 1, .u.hello = {.min = 1, .max = 9}};
        for (int i = 0; i < 100; i++) {
                wire_open(&wires[i], &test_daemon);
                wire_request(&wires[i], &hello);
                wire_read_error(&wires[i], "denied", "has no role");
                wire_read_to_end(&wires[i]);
        }
        return 0;
}

TEST(a_client_without_a_role_is_disconnected)
{
        ck_assert_int_eq(run_as(NOBODY, SOCKET_GROUP, connect_without_a_role), 0);
        ck_assert_int_eq(run_as(FEW, SOCKET_GROUP, do_attach), 0);
}

static int connected[2];

/* Of forty, the last five are for users who have fewer than sixteen. */
static int connect_as_often_as_possible(void)
{
        static struct wire wires[36];
        const struct request hello = {.verb = VERB_hello, .id = 1, .u.hello = {.min = 1, .max = 9}};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < 35; i++) {
                wire_open(&wires[i], &test_daemon);
                wire_request(&wires[i], &hello);
                wire_read_ok(&wires[i]);
        }
        wire_open(&wires[35], &test_daemon);
        wire_read_error(&wires[35], "limit", "limits.connections, of which the last are for users who have few");
        must(write(connected[1], "c", 1));
        for (;;)
                pause();
}

TEST(the_last_connections_are_for_users_who_have_few)
{
        char c;
        must(pipe2(connected, O_CLOEXEC));
        pid_t pid = must(fork());
        if (pid == 0)
                _exit(run_as(MANY, SOCKET_GROUP, connect_as_often_as_possible));
        must(close(connected[1]));
        ck_assert_int_eq(must(read(connected[0], &c, 1)), 1);
        ck_assert_int_eq(run_as(FEW, SOCKET_GROUP, do_attach), 0);
        child_kill(pid);
}
