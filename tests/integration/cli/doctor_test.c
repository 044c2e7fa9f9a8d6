/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl doctor with host memory: findings, advice, the probe by two processes, and that no probe leaks anything,
 * however it ends.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/deny_syscalls.h"
#include "tests/lib/doctor_checks.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/run_as.h"
#include "tests/lib/wire.h"

/* ---- the host ---- */

static uint64_t used_before;

static void begin_host(void)
{
        fixture_begin(NULL);
        client = client_open(&test_daemon);
        used_before = client_used(client); /* of all tests: the probe of one may still be on its way out */
        streamer_close(client);
}

FIXTURE(.all = {begin_host, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(a_daemon_that_works_passes)
{
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("ok", "daemon", "answers");
        doctor_found("ok", "namespace", "one PID namespace");
        doctor_found("ok", "namespace", "one network namespace");
        doctor_found("ok", "kernel", "pidfd");
        doctor_found("ok", "memory", "");
        doctor_found("ok", "root", "O_DIRECT");
        doctor_found("ok", "probe", "host: loaded, attached by memfd");
        doctor_found("ok", "cuda", "no GPU is configured");
        ck_assert_uint_gt(json_number(doctor_said, "daemon.machine.pid_namespace"), 0);
        doctor_check_no_leak(client, used_before);
}

/* An operator's log and counters are of models that users load. */
TEST(a_probe_is_no_load_in_log_and_metrics)
{
        double ready = client_metric(client, "streamerd_loads_total{result=\"ready\"}");
        doctor_ask();
        doctor_found("ok", "probe", "host: loaded");
        doctor_check_no_leak(client, used_before);
        ck_assert(client_metric(client, "streamerd_loads_total{result=\"ready\"}") == ready);
        client_load(client, fixture_write(model_mixed(3, 1 << 16), "later.safetensors"), "later");
        ck_assert(log_wait_for(test_daemon.log, "later: ready"));
        ck_assert_ptr_null(strstr(file_read(test_daemon.log, NULL), "probe:"));
        client_unload(client, "later");
}

TEST(a_table_ends_with_the_count)
{
        struct ctl result;
        ctl(&result, test_daemon.socket, "doctor", NULL);
        ck_assert_int_eq(result.code, 0);
        ck_assert_ptr_nonnull(strstr(result.out, "ok    probe      host: loaded"));
        ck_assert_ptr_nonnull(strstr(result.out, " 0 failed\n"));
        ck_assert_str_eq(result.err, "");
}

TEST(a_probe_is_marked_in_the_list)
{
        streamer_client *mine = client_open(&test_daemon);
        json_t *probe = client_call(mine, "probe", NULL);
        const json_t *model = client_show(client, json_text(probe, "name"));
        ck_assert_int_eq(strncmp(json_text(model, "name"), "probe:", 6), 0);
        ck_assert_int_eq(strncmp(json_text(model, "source"), "probe:", 6), 0);
        ck_assert_uint_gt(client_used(client), used_before);
        streamer_close(mine);
        doctor_check_no_leak(client, used_before);
}

TEST(a_probe_without_a_device_is_refused)
{
        streamer_client *mine = client_open(&test_daemon);
        ck_assert_int_eq(client_call_code(mine, "probe", "{\"device\":\"cuda:7\"}"), STREAMER_EINVAL);
        json_decref(client_call(mine, "probe", NULL)); /* the connection has none for that */
        streamer_close(mine);
        doctor_check_no_leak(client, used_before);
}

static void probe_requested(void)
{
        struct wire w;
        wire_connect(&w, &test_daemon);
        wire_verb(&w, "probe", 2, NULL, NULL);
}

static void probe_ready(void)
{
        client_call(client_open(&test_daemon), "probe", NULL);
}

static void probe_attached(void)
{
        streamer_client *mine = client_open(&test_daemon);
        client_attach(mine, json_text(client_call(mine, "probe", NULL), "name"));
}

static void (*const states[])(void) = {probe_requested, probe_ready, probe_attached};

TEST(the_probe_of_a_killed_client_is_removed, EACH(states))
{
        child_kill(child_start(states[_i]));
        doctor_check_no_leak(client, used_before);
        fixture_serves();
}

TEST(doctor_examines_roots_only)
{
        ck_assert_int_eq(client_call_code(client, "doctor", "{\"root\":\"/etc\"}"), STREAMER_ENOENT);
        char *args = format_text("{\"root\":\"%s\"}", fixture_root());
        json_t *reply = client_call(client, "doctor", args);
        ck_assert_str_eq(json_text(reply, "root"), fixture_root());
        ck_assert_str_eq(json_text(reply, "file"), "witness.safetensors");
}

/* ---- misconfigurations ---- */

static void begin_alone(const char *device, const char *root)
{
        DAEMON_START(&test_daemon, suite_path("d-%d", (int)getpid()), "--device", device, "--root", root);
        fixture_connect();
}

FIXTURE(.each = {NULL, fixture_stop});

static int doctor_is_denied(void)
{
        doctor_ask();
        doctor_found("fail", "daemon", "Permission denied");
        return doctor_code == 8 ? 0 : STREAMER_EFAILED;
}

TEST(a_socket_of_another_group_is_named)
{
        begin_alone("host=16MiB", suite_folder());
        ROOT_ONLY();
        must(chmod(suite_folder(), 0755));
        ck_assert_int_eq(run_as(65534, 65534, doctor_is_denied), 0);
}

TEST(a_state_that_cannot_be_written_fails)
{
        file_write(suite_path("state"), "", 0);
        DAEMON_START(&test_daemon, suite_path("d-%d", (int)getpid()), "--device", "host=16MiB", "--root",
                     suite_folder(), "--state", suite_path("state"));
        fixture_connect();
        ck_assert(log_wait_for(test_daemon.log, "is not persisted"));
        doctor_ask();
        ck_assert_int_eq(doctor_code, 1);
        doctor_found("fail", "state", suite_path("state"));
        must(unlink(suite_path("state")));
        must(mkdir(suite_path("state"), 0700));
        uint64_t end = clock_ns() + UINT64_C(60000000000);
        do
                doctor_ask();
        while (doctor_code != 0 && clock_ns() < end);
        doctor_found("ok", "state", "written");
}

TEST(a_budget_of_more_than_the_machine_has_fails)
{
        begin_alone("host=1024TiB", suite_folder());
        doctor_ask();
        ck_assert_int_eq(doctor_code, 1);
        doctor_found("fail", "memory", "is less than staging ring and host budget, 1.0 PiB");
}

TEST(a_preload_that_fails_is_found)
{
        char *text =
                format_text("devices: ['host=16MiB']\nroots: ['%s']\npreload: [{source: '%s/none', name: absent}]\n",
                            suite_folder(), suite_folder());
        DAEMON_START(&test_daemon, suite_path("d-%d", (int)getpid()), "--config", suite_file("preload.yaml", text));
        fixture_connect();
        ck_assert(log_wait_for(test_daemon.log, "preload: absent: "));
        doctor_ask();
        ck_assert_int_eq(doctor_code, 1);
        doctor_found("fail", "preload", "absent: No such file or directory");
}

TEST(a_full_device_is_a_warning)
{
        begin_alone("host=1MiB", suite_folder());
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("warn", "probe", "does not fit");
        doctor_check_no_leak(client, 0);
}

TEST(a_root_without_files_is_a_warning)
{
        char *empty = suite_path("empty");
        must(mkdir(empty, 0755));
        begin_alone("host=16MiB", empty);
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("warn", "root", "no file");
}

TEST(a_removed_root_fails)
{
        char *gone = suite_path("gone");
        must(mkdir(gone, 0755));
        begin_alone("host=16MiB", gone);
        must(rmdir(gone));
        doctor_ask();
        doctor_found("warn", "root", gone); /* an empty read-only folder */
}

TEST(a_root_that_is_another_folder_now_is_reported)
{
        char *root = suite_path("exchanged");
        must(mkdir(root, 0755));
        begin_alone("host=16MiB", root);
        must(rename(root, suite_path("before")));
        must(mkdir(root, 0755));
        doctor_ask();
        doctor_found("warn", "root", "is mounted there than when the daemon started");
}

/* A daemon without a configured GPU, on a machine with the runtime. */
static const struct {
        const char *variable, *value; /* of the fake */
        const char *says[2];
} runtimes[] = {
        {"FAKECUDA_DEVICES", "3", {"driver for CUDA 13.0, runtime 13.9", "3 visible; none is configured"}},
        {"FAKECUDA_VERSION", "0", {"CUDA is unavailable: no NVIDIA driver", ""}},
};

TEST(unused_cuda_is_described, EACH(runtimes))
{
        char library[PATH_SIZE];
        fake_library("libcudart.so.13", library, sizeof(library));
        setenv("STREAMER_CUDA_LIBRARY", doctor_driver(), 1);
        setenv(runtimes[_i].variable, runtimes[_i].value, 1);
        char *text = format_text("cuda: {library: '%s'}\ndevices: ['host=16MiB']\n", realpath(library, NULL));
        DAEMON_START(&test_daemon, suite_path("d-%d", (int)getpid()), "--config", suite_file("host.yaml", text),
                     "--root", suite_folder());
        fixture_connect();
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        for (size_t i = 0; i < 2; i++)
                doctor_found("ok", "cuda", runtimes[_i].says[i]);
}

FIXTURE();

TEST(without_a_daemon_doctor_examines_the_client_side)
{
        setenv("STREAMER_CUDA_LIBRARY", doctor_driver(), 1);
        daemon_init(&test_daemon, suite_path("none"));
        doctor_ask();
        ck_assert_int_eq(doctor_code, 4);
        doctor_found("fail", "daemon", test_daemon.socket);
        doctor_found("ok", "visible", "1 GPU");
        setenv("STREAMER_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
        doctor_ask();
        ck_assert_int_eq(doctor_code, 4);
        doctor_found("ok", "visible", "/nonexistent/libcuda.so.1");
}

static void without_openat2(void)
{
        deny_openat2(EPERM);
}

TEST(doctor_warns_of_names_that_the_daemon_resolves)
{
        daemon_before = without_openat2;
        fixture_begin(NULL); /* which loads a model */
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("warn", "kernel", "no openat2");
        doctor_found("ok", "probe", "host: loaded");
        ck_assert(log_wait_for(test_daemon.log, "openat2 is refused here"));
        fixture_still_serves();
        fixture_end();
}
