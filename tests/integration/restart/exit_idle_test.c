/* SPDX-License-Identifier: Apache-2.0
 *
 * --exit-idle: the daemon exits with 0 after it has been unused for the configured time; a client that connects
 * during the exit is served, or is refused before the daemon's hello.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>

#define END_MS 15000
#define NO_END_MS 2500 /* the daemon looks once a second */

static struct daemon d;
static struct model *model;
static char *file;

static void start(const char *limit)
{
        char *root = suite_path("root");
        mkdir(root, 0755);
        model = model_mixed(1, 1 << 20);
        file = suite_path("root/m.safetensors");
        model_write(model, file);
        DAEMON_START(&d, suite_path("d"), "--device", "host=64MiB", "--root", root, "--exit-idle", limit);
}

/* The daemon looks once a second, so it may exit before this process connects: then another one is started. */
static streamer_client *start_and_connect(const char *limit)
{
        streamer_client *c;
        for (;;) {
                start(limit);
                const streamer_connect_opts opts = {
                        .struct_size = sizeof(opts), .socket = d.socket, .timeout_ms = END_MS};
                int r = streamer_connect(&opts, &c);
                if (r == 0)
                        return c;
                ck_assert_int_eq(r, STREAMER_EUNREACHABLE);
                ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
        }
}

TEST(the_daemon_exits_with_unused_models)
{
        streamer_client *c = start_and_connect("900ms");
        client_load(c, file, "m");
        client_equals(c, "m", model);
        uint64_t closed = clock_ns();
        streamer_close(c);
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
        ck_assert_uint_ge(clock_ns() - closed, UINT64_C(900000000)); /* since the end of the connection */
        ck_assert_int_ne(access(d.socket, F_OK), 0);
        ck_assert(log_wait_for(d.log, "idle (exit_idle): shutting down"));
}

TEST(a_connection_prevents_the_exit)
{
        streamer_client *c = start_and_connect("1ms");
        ck_assert(!daemon_ends_within(&d, NO_END_MS));
        ck_assert_int_eq(client_call_code(c, "ping", NULL), 0);
        streamer_close(c);
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
}

TEST(an_orphaned_lease_prevents_the_exit)
{
        streamer_client *c = start_and_connect("1ms");
        client_load(c, file, "m");
        streamer_lease *lease = client_attach(c, "m");
        streamer_close(c);
        ck_assert(!daemon_ends_within(&d, NO_END_MS));
        lease_equals(lease, model);
        streamer_detach(lease);
        ck_assert_int_eq(daemon_stop(&d), 0);
}

/* A client that got a hello is served. Short connections delay the exit, but do not prevent it: the daemon exits at a
 * check between two of them. */
TEST(a_client_is_served_or_gets_no_hello)
{
        streamer_client *c = start_and_connect("1ms");
        const streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = d.socket};
        int r;
        do {
                ck_assert_int_eq(client_call_code(c, "ping", NULL), 0);
                streamer_close(c);
                daemon_ends_within(&d, 2);
        } while ((r = streamer_connect(&opts, &c)) == 0);
        ck_assert_int_eq(r, STREAMER_EUNREACHABLE);
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
}

/* ---- with a socket of the service manager ---- */

static int listener;

static void pass_listener(void)
{
        static char pid[16];
        snprintf(pid, sizeof(pid), "%d", (int)getpid());
        must(dup2(listener, 3));
        setenv("LISTEN_FDS", "1", 1);
        setenv("LISTEN_PID", pid, 1);
}

TEST(a_client_of_an_activated_daemon_waits_for_the_next_one)
{
        const char *const flags[] = {"--device", "host=64MiB", "--root", suite_folder(), "--exit-idle", "1ms", NULL};
        struct ctl_running running;
        struct ctl result;
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        daemon_init(&d, suite_path("d"));
        strcpy(address.sun_path, d.socket);
        listener = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        must(bind(listener, (struct sockaddr *)&address, sizeof(address)));
        must(listen(listener, 16));
        daemon_before = pass_listener;
        daemon_start(&d, flags);
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
        ck_assert_int_eq(access(d.socket, F_OK), 0);
        ctl_start(&running, d.socket, (const char *const[]){"ping", NULL});
        struct pollfd connection = {.fd = listener, .events = POLLIN};
        ck_assert_int_eq(poll(&connection, 1, END_MS), 1);
        daemon_start(&d, flags);
        ctl_finish(&running, &result);
        ck_assert_msg(result.code == 0, "%s", result.err);
        ck_assert_int_eq(daemon_wait(&d, END_MS), 0);
}
