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

/* As the package starts it, in a runtime directory of this test. */
static void start_in(const char *runtime)
{
        char *folder = format_text("%s/streamerd", runtime), *root = suite_path("root");
        mkdir(root, 0755);
        mkdir(runtime, 0700);
        must(mkdir(folder, 0700));
        file = suite_path("root/m.safetensors");
        model_write(model_mixed(1, 1 << 20), file);
        daemon_init(&d, folder);
        snprintf(d.socket, sizeof(d.socket), "%s/streamerd.sock", folder);
        must(setenv("XDG_RUNTIME_DIR", runtime, 1));
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", root, NULL});
}

static char *start(void)
{
        char *runtime = suite_path("run-%d", (int)getpid());
        start_in(runtime);
        return runtime;
}

static bool ends_within(int ms)
{
        struct pollfd fd = {.fd = d.pidfd, .events = POLLIN};
        return must(poll(&fd, 1, ms)) > 0;
}

#define RUN(result, code_, ...)                                                                                        \
        do {                                                                                                           \
                ctl((result), NULL, __VA_ARGS__, NULL);                                                                \
                ck_assert_msg((result)->code == (code_), "%d: %s", (result)->code, (result)->err);                     \
        } while (0)

TEST(it_is_found_and_named)
{
        struct ctl r;
        start();
        char *note = format_text("streamerctl: your own daemon serves (%s)\n", d.socket);
        RUN(&r, 0, "load", file);
        RUN(&r, 0, "list", "-q");
        ck_assert_str_eq(r.out, "m\n");
        ck_assert_str_eq(r.err, "");
        RUN(&r, 0, "list", "--json");
        ck_assert_str_eq(r.err, "");
        RUN(&r, 0, "list");
        ck_assert_str_eq(r.err, note);
        RUN(&r, 0, "doctor");
        ck_assert_ptr_nonnull(strstr(r.out, d.socket));
        ck_assert_int_eq(daemon_stop(&d), 0);
}

TEST(a_daemon_that_is_named_is_not_the_users_own)
{
        struct ctl r;
        start();
        ctl(&r, d.socket, "list", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_str_eq(r.err, "");
        ck_assert_int_eq(daemon_stop(&d), 0);
}

TEST(shutdown_returns_when_the_daemon_has_ended)
{
        struct ctl r;
        start();
        uint64_t began = clock_ns();
        RUN(&r, 0, "shutdown", "-q");
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(12000000000)); /* it gives up after 15 s */
        ck_assert_str_eq(r.out, "ended\n");
        ck_assert_int_ne(access(d.socket, F_OK), 0);
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
        ck_assert(log_wait_for(d.log, "shutdown requested by uid "));
        RUN(&r, 4, "shutdown");
        ck_assert_ptr_nonnull(strstr(r.err, d.socket));
}

/* A lease keeps no daemon alive without --drain; what it maps stays. */
TEST(shutdown_leaves_mapped_memory_valid)
{
        struct ctl r;
        start();
        streamer_client *c = client_open(&d);
        client_load(c, file, "m");
        streamer_lease *lease = client_attach(c, "m");
        RUN(&r, 0, "shutdown", "--json");
        ck_assert_str_eq(r.out, "{\"schema\":1,\"state\":\"ended\",\"leases\":1}\n");
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
        lease_equals(lease, model_mixed(1, 1 << 20));
        streamer_detach(lease);
        streamer_close(c);
}

TEST(shutdown_drains)
{
        struct ctl r;
        start();
        streamer_client *c = client_open(&d);
        client_load(c, file, "m");
        streamer_lease *lease = client_attach(c, "m"), *another;
        RUN(&r, 0, "shutdown", "--drain");
        ck_assert_str_eq(r.out, "draining: 1 lease left\n");
        ck_assert_int_eq(streamer_attach(c, "m", NULL, &another), STREAMER_ECANCELED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(c), "the daemon is ending (shutdown)"));
        client_load_fails(c, file, "n", STREAMER_ECANCELED, "the daemon is ending");
        ck_assert(!ends_within(1500)); /* it looks once a second */
        lease_equals(lease, model_mixed(1, 1 << 20));
        streamer_detach(lease);
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
        streamer_close(c);
}

TEST(a_second_shutdown_ends_a_daemon_that_drains)
{
        struct ctl r;
        start();
        streamer_client *c = client_open(&d);
        client_load(c, file, "m");
        streamer_lease *lease = client_attach(c, "m");
        RUN(&r, 0, "shutdown", "--drain");
        RUN(&r, 0, "shutdown");
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
        streamer_detach(lease);
        streamer_close(c);
}

TEST(an_unused_daemon_drains_at_once)
{
        struct ctl r;
        start();
        RUN(&r, 0, "shutdown", "--drain");
        ck_assert_str_eq(r.out, "draining\n");
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
}

/* Other than the library's, the folder has another owner or other permissions. */
TEST(a_folder_that_others_can_write_to_is_refused)
{
        struct ctl r;
        char *runtime = start();
        must(chmod(format_text("%s/streamerd", runtime), 0777));
        RUN(&r, 4, "list");
        ck_assert_ptr_nonnull(strstr(r.err, "not a folder of this user alone"));
        ck_assert_int_eq(daemon_stop(&d), 0);
}

TEST(the_library_names_the_socket_of_a_new_daemon)
{
        char *path, *runtime = suite_path("run-%d", (int)getpid());
        must(mkdir(runtime, 0700));
        must(setenv("XDG_RUNTIME_DIR", runtime, 1));
        ck_assert_int_eq(streamer_user_socket(&path), 0);
        ck_assert_str_eq(path, format_text("%s/streamerd/streamerd.sock", runtime));
        streamer_free(path);
        ck_assert_int_eq(streamer_user_socket(NULL), STREAMER_EINVAL);
}
