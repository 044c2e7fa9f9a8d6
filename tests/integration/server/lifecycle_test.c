/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients killed at any stage, a daemon killed or stopped, a second daemon, and a stale socket.
 */
#include "tests/lib/fuse_file.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include "proto/frame.h"

#include <fcntl.h>

/* ---- clients that are killed ---- */

static char *path_of_model;

static void at_connect(void)
{
        struct wire w;
        wire_open(&w, &test_daemon);
}

static void at_half_a_frame(void)
{
        struct wire w;
        wire_open(&w, &test_daemon);
        wire_send(&w, "\0\0\0\x20\x82", 5);
}

static void at_hello(void)
{
        client_open(&test_daemon);
}

static void send_verb(const char *verb, const char *key, const char *value)
{
        struct wire w;
        wire_connect(&w, &test_daemon);
        wire_verb(&w, verb, 2, key, value);
}

static void at_load_sent(void)
{
        send_verb("load", "source", path_of_model);
}

static void at_load_accepted(void)
{
        client_load_begin(client_open(&test_daemon), path_of_model, "m");
}

static void at_load_ready(void)
{
        client_load(client_open(&test_daemon), path_of_model, "m");
}

static void at_attach_sent(void)
{
        send_verb("attach", "model", "witness");
}

static void at_attach_of_a_loading_model(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        client_load_begin(c, path_of_model, "m");
        client_ok(c, streamer_attach(c, "m", NULL, &lease), "attach");
}

static void at_verify(void)
{
        send_verb("verify", "model", "witness");
}

static void at_subscribe(void)
{
        client_call(client_open(&test_daemon), "subscribe", NULL);
}

static void (*const stages[])(void) = {
        at_connect,     at_half_a_frame,  at_hello,
        at_load_sent,   at_load_accepted, at_load_ready,
        at_attach_sent, at_verify,        at_attach_of_a_loading_model,
        at_subscribe,
};

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {NULL, fixture_still_serves});

TEST(the_leases_of_a_killed_client_end, EACH(stages))
{
        struct model *m = model_mixed((uint64_t)_i, 4 << 20);
        streamer_client *c = client_open(&test_daemon);
        path_of_model = fixture_write(m, "m.safetensors");
        child_kill(child_start(stages[_i]));
        client_wait_leases(c, 0);
        int loaded = streamer_call(c, "wait", "{\"model\":\"m\"}", NULL);
        if (stages[_i] == at_load_accepted) /* a load survives its client */
                client_ok(c, loaded, "wait");
        if (loaded == 0) {
                client_equals(c, "m", m);
                client_unload(c, "m");
        }
        streamer_close(c);
}

/* ---- daemons that exit ---- */

static struct daemon d;
static struct model *model;

static void start_own(void)
{
        mkdir(suite_path("own"), 0755);
        model = model_mixed(60, 4 << 20);
        model_write(model, suite_path("own/m.safetensors"));
        daemon_start_simple(&d, suite_path("d-own"), suite_path("own"), "64MiB");
}

FIXTURE(.each = {start_own, NULL});

TEST(a_daemon_killed_is_noticed_and_maps_stay_valid)
{
        streamer_client *c = client_open(&d);
        client_load(c, suite_path("own/m.safetensors"), "m");
        streamer_lease *lease = client_attach(c, "m");
        daemon_kill(&d);
        struct pollfd fd = {.fd = streamer_fd(c), .events = POLLIN};
        ck_assert_int_eq(must(poll(&fd, 1, PATIENCE_MS)), 1);
        ck_assert_int_eq(streamer_process(c), 1);
        lease_equals(lease, model);
        ck_assert_int_eq(client_call_code(c, "ping", NULL), STREAMER_EUNREACHABLE);
}

TEST(a_stale_socket_is_replaced)
{
        struct stat st;
        daemon_kill(&d);
        ck_assert_int_eq(access(d.socket, F_OK), 0);
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", suite_path("own"), NULL});
        must(stat(d.socket, &st));
        ck_assert_uint_eq(st.st_mode & 0777, 0660);
        streamer_close(client_open(&d));
        ck_assert_int_eq(daemon_stop(&d), 0);
        ck_assert_int_ne(access(d.socket, F_OK), 0);
}

TEST(a_second_daemon_on_the_same_socket_is_refused)
{
        struct daemon second;
        daemon_init(&second, suite_path("d-second"));
        memcpy(second.socket, d.socket, sizeof(d.socket));
        ck_assert_int_eq(
                daemon_run(&second, (const char *const[]){"--device", "host=1MiB", "--root", suite_path("own"), NULL}),
                6);
        streamer_close(client_open(&d));
        ck_assert_int_eq(daemon_stop(&d), 0);
}

TEST(sigterm_notifies_clients_and_removes_the_socket)
{
        char *event = NULL;
        streamer_client *c = client_open(&d);
        client_call(c, "subscribe", NULL);
        daemon_terminate(&d);
        client_ok(c, streamer_event_next(c, PATIENCE_MS, &event), "event");
        ck_assert_msg(strstr(event, "shutdown") != NULL, "%s", event);
        ck_assert_int_eq(daemon_wait(&d, 10000), 0);
        ck_assert_int_ne(access(d.socket, F_OK), 0);
}

/* Each name is removed at once, not one in each turn of the loop. */
TEST(sigterm_with_many_names_of_one_model_ends_in_time)
{
        enum { NAMES = 1000 };
        streamer_client *c = client_open(&d);
        for (unsigned i = 0; i < NAMES; i++)
                client_load(c, suite_path("own/m.safetensors"), format_text("name-%u", i));
        streamer_close(c);
        ck_assert_int_eq(daemon_stop(&d), 0);
        const char *log = file_read(d.log, NULL);
        ck_assert_msg(strstr(log, "ending without") == NULL, "%s", log);
}

FIXTURE();

TEST(of_several_daemons_started_at_once_one_serves)
{
        enum { DAEMONS = 8 };
        struct daemon all[DAEMONS];
        const char *const flags[] = {"--device", "host=1MiB", "--root", suite_path("own"), NULL};
        size_t served = 0;
        mkdir(suite_path("own"), 0755);
        for (size_t i = 0; i < DAEMONS; i++) {
                daemon_init(&all[i], suite_path("d-at-once-%zu", i));
                memcpy(all[i].socket, all[0].socket, sizeof(all[0].socket));
                daemon_spawn(&all[i], flags);
        }
        for (size_t i = 0; i < DAEMONS; i++) {
                if (!daemon_wait_ready(&all[i])) {
                        ck_assert_int_eq(daemon_wait(&all[i], 15000), 6);
                        continue;
                }
                streamer_close(client_open(&all[i]));
                d = all[i];
                served++;
        }
        ck_assert_uint_eq(served, 1);
        ck_assert_int_eq(daemon_stop(&d), 0);
}

static void close_standard_fds(void)
{
        for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
                close(fd);
}

TEST(a_daemon_without_standard_descriptors)
{
        daemon_before = close_standard_fds;
        start_own();
        daemon_before = NULL;
        streamer_client *c = client_open(&d);
        client_load(c, suite_path("own/m.safetensors"), "m");
        ck_assert_int_eq(daemon_stop(&d), 0);
}

TEST(a_file_at_the_socket_path_is_not_touched)
{
        daemon_init(&d, suite_path("d-file"));
        mkdir(suite_path("own"), 0755);
        file_write(d.socket, "precious", 8);
        ck_assert_int_eq(
                daemon_run(&d, (const char *const[]){"--device", "host=1MiB", "--root", suite_path("own"), NULL}), 1);
        ck_assert_str_eq(file_read(d.socket, NULL), "precious");
}

TEST(without_flags_and_a_file_the_daemon_exits)
{
        if (access("/etc/streamerd/streamerd.yaml", F_OK) == 0)
                SKIP("this machine has its own configuration");
        daemon_init(&d, suite_path("d-usage"));
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){NULL}), 2);
}

/* Whether its read returns or not. */
TEST(sigterm_during_a_load_that_hangs_ends_in_time)
{
        const char *why = fuse_file_unavailable();
        struct fuse_file hang = {.odd.no_readahead = true};
        if (why)
                SKIP(why);
        model = model_mixed(61, 4 << 20);
        model_write(model, suite_path("backing"));
        fuse_file_start(&hang, suite_path("hang"), "m.safetensors", suite_path("backing"));
        char *metrics = suite_path("metrics");
        DAEMON_START(&d, suite_path("d-hang"), "--device", "host=64MiB", "--root", hang.folder, "--metrics-listen",
                     format_text("unix:%s", metrics));
        fuse_file_hold(&hang, 1 << 20);
        streamer_client *c = client_open(&d);
        streamer_op *op = client_load_begin(c, hang.path, "m");
        fuse_file_wait_held(&hang);
        uint64_t begin_ns = clock_ns();
        daemon_terminate(&d);
        int r = streamer_op_wait(op, PATIENCE_MS, NULL);
        ck_assert_msg(r == STREAMER_ECANCELED || r == STREAMER_ELOST, "%s", streamer_strerror(r));
        ck_assert_int_eq(daemon_wait(&d, 12000), 0);
        ck_assert_uint_lt((clock_ns() - begin_ns) / 1000000, 11000);
        ck_assert(log_wait_for(d.log, "ending without them"));
        ck_assert_int_ne(access(metrics, F_OK), 0); /* removed all the same */
        fuse_file_stop(&hang);
}
