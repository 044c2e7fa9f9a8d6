/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings whose effect appears only at a value other than the default. Each test has a daemon of its own.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/ports.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

static struct model *model;
static char *source;

static void start_daemon(const char *settings)
{
        char *root = suite_path("root"), *config = suite_file("settings.yaml", settings);
        mkdir(root, 0755); /* each test has a process of its own, and the folder of all */
        model = model_mixed(1, 1 << 20);
        source = format_text("%s/m.safetensors", root);
        model_write(model, source);
        DAEMON_START(&test_daemon, suite_path("daemon"), "--device", "host=64MiB", "--root", root, "--config", config);
}

static void start(const char *settings)
{
        start_daemon(settings);
        client = client_open(&test_daemon);
}

FIXTURE(.each = {NULL, fixture_stop});

/* ---- variables of other programs ---- */

/* A deployment's own environment: the daemon starts, says what it does not take, and loads local files. */
static const struct {
        const char *name, *value, *log;
} variables[] = {
        {"RUNAI_STREAMER_LOG_LEVEL", "SPAM",
         "warn: RUNAI_STREAMER_LOG_LEVEL: 'SPAM' is not error, warn, info or debug"},
        {"RUNAI_STREAMER_CONCURRENCY", "2000", "warn: RUNAI_STREAMER_CONCURRENCY: 2000 is not within 1 to 1024"},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "10000000",
         "warn: RUNAI_STREAMER_CHUNK_BYTESIZE: 10000000 is not a multiple"},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "1000", "warn: RUNAI_STREAMER_MEMORY_LIMIT: 1000 is less than one block"},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "1099511627776",
         "warn: RUNAI_STREAMER_MEMORY_LIMIT: a staging ring of 1.0 TiB is too much for this machine's memory"},
        {"RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS", "0", "warn: RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS: 0ms is not within"},
        {"RUNAI_STREAMER_S3_ENDPOINT", "ftp://x", "warn: loads from S3 fail: RUNAI_STREAMER_S3_ENDPOINT: 'ftp://x'"},
        {"AWS_ENDPOINT_URL", "ftp://x", "warn: loads from S3 fail: AWS_ENDPOINT_URL: 'ftp://x'"},
        {"AWS_CONFIG_FILE", "/dev/null/x", "serves"},
        {"STORAGE_EMULATOR_HOST", "ftp://x", "warn: loads from gs:// fail: STORAGE_EMULATOR_HOST: not http(s)://host"},
        {"GOOGLE_APPLICATION_CREDENTIALS", "/dev/null/x", "serves"},
        {"RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS", "perhaps",
         "warn: RUNAI_STREAMER_GCS_USE_ANONYMOUS_CREDENTIALS: 'perhaps' is not true or false: ignored"},
        {"HF_ENDPOINT", "ftp://x", "warn: loads from the Hub fail: HF_ENDPOINT: not http(s)://host"},
        {"STATE_DIRECTORY", "a:b", "warn: STATE_DIRECTORY: 'a:b' is not an absolute path: ignored"},
};

TEST(a_variable_of_another_program_does_not_prevent_the_start, EACH(variables))
{
        setenv(variables[_i].name, variables[_i].value, 1);
        start("http: {threads: 1}\n");
        client_load(client, source, "m");
        client_equals(client, "m", model);
        ck_assert_msg(log_wait_for(test_daemon.log, variables[_i].log), "%s", variables[_i].log);
}

/* They would be sent to nobody. */
TEST(each_plain_web_server_whose_credentials_name_no_scheme_is_logged)
{
        start("http:\n  allow_plain: [plain.example]\n  hosts:\n    - {host: plain.example, token: t}\n"
              "    - {host: 'http://127.0.0.1:8080', token: t}\n    - {host: https.example, token: t}\n"
              "    - {host: localhost, token: t}\n");
        ck_assert(log_wait_for(test_daemon.log, "for plain http the entry names http://plain.example"));
        ck_assert(log_wait_for(test_daemon.log, "for plain http the entry names http://localhost"));
        cleanup_free char *log = file_read(test_daemon.log, NULL);
        ck_assert_ptr_null(strstr(log, "names http://127.0.0.1"));
        ck_assert_ptr_null(strstr(log, "names http://https.example"));
}

/* ---- residency ---- */

TEST(a_model_without_a_lease_is_unloaded_after_keep_alive)
{
        start("residency:\n  keep_alive: 1ms\n");
        client_load(client, source, "m");
        AWAIT(client_state(client, "m")[0] == '\0');
}

TEST(a_draining_model_is_revoked_after_drain_timeout)
{
        start("residency:\n  drain_timeout: 1ms\n");
        client_load(client, source, "m");
        streamer_lease *lease = client_attach(client, "m");
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        AWAIT(streamer_lease_check(lease) == STREAMER_EREVOKED);
        lease_equals(lease, model);
}

/* ---- the log ---- */

static int log_pipe[2];

static void log_into_the_pipe(void)
{
        must(dup2(log_pipe[1], STDERR_FILENO));
}

TEST(lost_log_lines_are_counted)
{
        must(pipe2(log_pipe, O_CLOEXEC)); /* no process reads it */
        daemon_before = log_into_the_pipe;
        start("log:\n  level: debug\n");
        for (unsigned i = 0; client_metric(client, "streamerd_log_lost_total") == 0; i++)
                client_call_code(client, "load",
                                 format_text("{\"source\":\"%s/%0900u\",\"device\":\"host\"}", suite_path("root"), i));
        client_load(client, source, "m");
}

/* ---- what a client may hold ---- */

static void attach_fails(streamer_client *c, const char *text)
{
        streamer_lease *lease;
        client_fails(c, streamer_attach(c, "m", NULL, &lease), STREAMER_ELIMIT, text);
}

TEST(a_client_has_at_most_leases_per_client)
{
        start("limits:\n  leases_per_client: 2\n");
        client_load(client, source, "m");
        streamer_lease *first = client_attach(client, "m");
        client_attach(client, "m");
        attach_fails(client, "attach: this connection holds 2 leases (limits.leases_per_client)");
        streamer_client *other = client_open(&test_daemon);
        streamer_detach(client_attach(other, "m"));
        streamer_close(other);
        streamer_detach(first);
        client_attach(client, "m");
        attach_fails(client, "holds 2 leases");
}

/* Whether the reply accepts the request; an error must have this text. */
static bool is_accepted(struct wire *w, const char *text)
{
        bool ok = false;
        ck_assert(object_bool(wire_next(w), "ok", &ok));
        if (!ok)
                wire_told(w, text);
        return ok;
}

#define FDS 128 /* the least that can be set */

static void await_answers(unsigned n)
{
        AWAIT(client_metric(client, "streamerd_attaches_total") +
                      client_metric(client, "streamerd_request_errors_total{code=\"limit\"}") ==
              n);
}

TEST(a_client_leaves_at_most_fds_per_client_untaken)
{
        start(format_text("limits:\n  fds_per_client: %d\n", FDS));
        client_load(client, source, "m");
        unsigned accepted = 0, n = 2 * FDS;
        struct wire w;
        wire_connect(&w, &test_daemon);
        for (unsigned i = 0; i < n; i++)
                ck_assert(wire_verb(&w, "attach", 2 + i, "model", "m"));
        await_answers(n); /* before one is read */
        for (unsigned i = 0; i < n; i++)
                accepted +=
                        is_accepted(&w, "attach: this client does not take its descriptors (limits.fds_per_client)");
        ck_assert_uint_gt(accepted, 0);
        ck_assert_uint_le(accepted, FDS); /* each has one descriptor at least */
        ck_assert(wire_verb(&w, "attach", 1000, "model", "m"));
        ck_assert(is_accepted(&w, "none"));
}

/* The client reads no reply before the last: two descriptors of each, and an attach needs room for three. */
TEST(descriptors_on_their_way_to_clients_are_limited)
{
        start(format_text("limits:\n  fds_in_flight: %d\n", FDS));
        client_load(client, source, "m");
        unsigned n = FDS / 2;
        struct wire w;
        wire_connect(&w, &test_daemon);
        for (unsigned i = 0; i < n; i++)
                ck_assert(wire_verb(&w, "attach", 2 + i, "model", "m"));
        await_answers(n);
        for (unsigned i = 0; i < n; i++)
                ck_assert_int_eq(is_accepted(&w, "attach: too many descriptors are on their way to clients "
                                                 "(limits.fds_in_flight)"),
                                 i < n - 1);
}

TEST(a_connection_that_sends_no_whole_frame_ends_after_frame_timeout)
{
        start_daemon("limits:\n  frame_timeout: 100ms\n");
        struct wire w;
        wire_open(&w, &test_daemon);
        wire_read_to_end(&w);
}

/* Sends requests until the daemon has read none for three turns of its loop. */
static void send_until_paused(struct wire *w)
{
        size_t size;
        const char *frame = wire_frames(&(struct request){.verb = VERB_list, .id = 2}, 1, &size);
        must(fcntl(w->fd, F_SETFL, O_NONBLOCK));
        for (unsigned turns = 0; turns < 3; turns++) {
                while (send(w->fd, frame, size, MSG_NOSIGNAL) == (ssize_t)size)
                        turns = 0;
                ck_assert_int_eq(errno, EAGAIN);
                ck_assert_int_eq(client_call_code(client, "ping", NULL), 0);
        }
}

TEST(at_most_output_per_client_waits_for_a_client_that_does_not_read)
{
        start("limits:\n  output_per_client: 1MiB\n"); /* 4MiB by default */
        for (unsigned i = 0; i < 64; i++)              /* a reply of 20 KiB */
                client_load(client, source, format_text("a-name-of-the-same-model-%u", i));
        struct wire w;
        wire_connect(&w, &test_daemon);
        uint64_t before = fixture_memory();
        send_until_paused(&w);
        ck_assert_uint_lt(fixture_memory(), before + (2 << 20));
}

/* ---- the network ---- */

/* Its queue of connections is full, so that the kernel answers no further one. */
static void listen_and_answer_nobody(unsigned *port)
{
        struct sockaddr_in address;
        socklen_t size = sizeof(address);
        must(getsockname(listen_on_loopback(0, port), (struct sockaddr *)&address, &size));
        for (unsigned i = 0; i < 4; i++) {
                int client_fd = must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
                if (connect(client_fd, (const struct sockaddr *)&address, size) < 0)
                        ck_assert_int_eq(errno, EINPROGRESS);
        }
}

TEST(a_server_that_does_not_answer_a_connect_is_given_up_after_connect_timeout)
{
        start("http:\n  connect_timeout: 100ms\n  tries: 2\n  backoff: 1ms\n  patience: 0s\n");
        unsigned port;
        listen_and_answer_nobody(&port);
        client_load_fails(client, format_text("http://127.0.0.1:%u/m.safetensors", port), "m", STREAMER_EFAILED,
                          "given up after 2 tries: Timeout was reached");
        client_load(client, source, "m");
        client_equals(client, "m", model);
}

/* ---- times of stages ---- */

/* With one block in flight two threads read, one of them ahead. */
TEST(the_stages_of_a_load_take_no_longer_than_its_threads)
{
        static const char *const threads[] = {"storage_ns", "read_ns", "memory_ns", "hash_ns", "copy_ns"};
        uint64_t sum = 0;
        start("io:\n  concurrency: 1\n  block_size: 1MiB\n");
        model_write(model_mixed(2, 32 << 20), source); /* 32 blocks */
        client_load(client, source, "m");
        const json_t *shown = client_show(client, "m"), *stages = json_at(shown, "stages");
        uint64_t took = json_number(shown, "load_ns");
        for (size_t i = 0; i < sizeof(threads) / sizeof(threads[0]); i++)
                sum += json_number(stages, threads[i]);
        ck_assert_uint_gt(json_number(stages, "hash_ns"), 0);
        ck_assert_uint_gt(sum, 0);
        ck_assert_uint_le(sum, 2 * took);
        ck_assert_uint_le(json_number(stages, "begin_ns") + json_number(stages, "end_ns"), took);
}

/* ---- devices ---- */

static void start_with(const char *budget)
{
        DAEMON_START(&test_daemon, suite_path("daemon"), "--device", format_text("host=%s", budget), "--root",
                     suite_folder());
        client = client_open(&test_daemon);
}

TEST(a_percentage_is_of_this_machines_memory)
{
        uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        start_with("50%");
        ck_assert_uint_eq(client_device_number(client, "budget"), memory / 100 * 50);
}

TEST(a_budget_beyond_this_machines_memory_is_logged)
{
        start_with("4096TiB");
        ck_assert(log_wait_for(test_daemon.log, "is more than the memory of this machine or the control group"));
}
