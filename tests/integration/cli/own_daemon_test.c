/* SPDX-License-Identifier: Apache-2.0
 *
 * The user's own daemon: streamerctl finds it, names it, and ends it (`shutdown`).
 * tests/client/client_socket_test.c has the rule by which it is found.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#define END_MS 15000

static struct daemon d;
static char *file;

static char *runtime;

/* As the package starts it, in a runtime directory of this test. */
static void start(void)
{
        char *root = suite_path("root");
        runtime = suite_path("run-%d", (int)getpid());
        char *folder = format_text("%s/streamerd", runtime);
        mkdir(root, 0755);
        must(mkdir(runtime, 0700));
        must(mkdir(folder, 0700));
        file = suite_path("root/m.safetensors");
        model_write(model_mixed(1, 1 << 20), file);
        daemon_init(&d, folder);
        snprintf(d.socket, sizeof(d.socket), "%s/streamerd.sock", folder);
        must(setenv("XDG_RUNTIME_DIR", runtime, 1));
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", root, NULL});
}

static streamer_client *c;
static streamer_lease *lease;

/* A lease on the model "m". */
static void start_leased(void)
{
        start();
        c = client_open(&d);
        client_load(c, file, "m");
        lease = client_attach(c, "m");
}

static struct ctl run(int code, const char *const *args)
{
        struct ctl r;
        ctl_v(&r, NULL, args);
        ck_assert_msg(r.code == code, "%d: %s", r.code, r.err);
        return r;
}
#define RUN(code, ...) run((code), (const char *const[]){__VA_ARGS__, NULL})
#define PRINTS(text, ...) ck_assert_str_eq(RUN(0, __VA_ARGS__).out, (text))

static void has_ended(void)
{
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
}

FIXTURE(.each = {start, NULL});

TEST(it_is_found_and_named)
{
        RUN(0, "load", file);
        struct ctl r = RUN(0, "list", "-q");
        ck_assert_str_eq(r.out, "m\n");
        ck_assert_str_eq(r.err, "");
        ck_assert_str_eq(RUN(0, "list", "--json").err, "");
        ck_assert_str_eq(RUN(0, "list").err, format_text("streamerctl: your own daemon serves (%s)\n", d.socket));
        ck_assert_ptr_nonnull(strstr(RUN(0, "doctor").out, d.socket));
        ctl(&r, d.socket, "list", NULL); /* the user names it */
        ck_assert_int_eq(r.code, 0);
        ck_assert_str_eq(r.err, "");
        ck_assert_int_eq(daemon_stop(&d), 0);
}

TEST(shutdown_returns_when_the_daemon_has_ended)
{
        uint64_t began = clock_ns();
        PRINTS("ended\n", "shutdown", "-q");
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(12000000000)); /* it gives up after 15 s */
        ck_assert_int_ne(access(d.socket, F_OK), 0);
        has_ended();
        ck_assert(log_wait_for(d.log, "shutdown requested by uid "));
        ck_assert_ptr_nonnull(strstr(RUN(4, "shutdown").err, d.socket));
}

TEST(an_unused_daemon_drains_at_once)
{
        PRINTS("draining\n", "shutdown", "--drain");
        has_ended();
}

/* Other than the library's, the folder has another owner or other permissions. */
TEST(a_folder_that_others_can_write_to_is_refused)
{
        must(chmod(format_text("%s/streamerd", runtime), 0777));
        ck_assert_ptr_nonnull(strstr(RUN(4, "list").err, "not a folder of this user alone"));
        ck_assert_int_eq(daemon_stop(&d), 0);
}

FIXTURE(.each = {start_leased, NULL});

/* A lease keeps no daemon alive without --drain; what it maps stays. */
TEST(shutdown_leaves_mapped_memory_valid)
{
        PRINTS("{\"schema\":1,\"state\":\"ended\",\"leases\":1}\n", "shutdown", "--json");
        has_ended();
        lease_equals(lease, model_mixed(1, 1 << 20));
}

TEST(shutdown_drains)
{
        streamer_lease *another;
        PRINTS("draining: 1 lease left\n", "shutdown", "--drain");
        client_fails(c, streamer_attach(c, "m", NULL, &another), STREAMER_ECANCELED, "the daemon is ending (shutdown)");
        client_load_fails(c, file, "n", STREAMER_ECANCELED, "the daemon is ending");
        ck_assert(!daemon_ends_within(&d, 1500)); /* it looks once a second */
        lease_equals(lease, model_mixed(1, 1 << 20));
        streamer_detach(lease);
        has_ended();
}

TEST(a_second_shutdown_ends_a_daemon_that_drains)
{
        RUN(0, "shutdown", "--drain");
        RUN(0, "shutdown");
        has_ended();
}

FIXTURE();

TEST(the_library_names_the_socket_of_a_new_daemon)
{
        char *path;
        runtime = suite_path("run-%d", (int)getpid());
        must(mkdir(runtime, 0700));
        must(setenv("XDG_RUNTIME_DIR", runtime, 1));
        ck_assert_int_eq(streamer_user_socket(&path), 0);
        ck_assert_str_eq(path, format_text("%s/streamerd/streamerd.sock", runtime));
        streamer_free(path);
        ck_assert_int_eq(streamer_user_socket(NULL), STREAMER_EINVAL);
}
