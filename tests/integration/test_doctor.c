/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl doctor of a daemon on host memory: what it finds well, what it finds wrong and says to
 * change, its probe by two processes, and that nothing of a probe is left, however it ended.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/doctor.h"
#include "tests/lib/fake/state.h"
#include "tests/lib/refuse.h"
#include "tests/lib/suite.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static streamer_client *client;

/* ---- the host ---- */

static uint64_t used_before;

static void begin_host(void)
{
        stage_begin(NULL);
        client = client_open(&stage);
        used_before = client_used(client); /* of all tests: the probe of one may still be on its way out */
        streamer_close(client);
}

static void open_client(void)
{
        client = client_open(&stage);
}

static void close_client(void)
{
        streamer_close(client);
}

START_TEST(a_daemon_that_works_passes)
{
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("ok", "daemon", "answers");
        doctor_found("ok", "namespace", "one PID namespace");
        doctor_found("ok", "kernel", "pidfd");
        doctor_found("ok", "memory", "");
        doctor_found("ok", "root", "O_DIRECT");
        doctor_found("ok", "probe", "host: loaded, attached by memfd");
        doctor_found("ok", "cuda", "no GPU is configured");
        ck_assert_int_gt(json_integer_value(json_object_get(
                                 json_object_get(json_object_get(doctor_said, "daemon"), "machine"), "pid_namespace")),
                         0);
        doctor_left(client, used_before);
}
END_TEST

START_TEST(a_table_ends_with_the_count)
{
        struct ctl result;
        ctl(&result, stage.socket, "doctor", NULL);
        ck_assert_int_eq(result.code, 0);
        ck_assert_ptr_nonnull(strstr(result.out, "ok    probe      host: loaded"));
        ck_assert_ptr_nonnull(strstr(result.out, " 0 failed\n"));
        ck_assert_str_eq(result.err, "");
        ctl_free(&result);
}
END_TEST

START_TEST(a_probe_is_marked_while_it_is_there)
{
        streamer_client *mine = client_open(&stage);
        json_t *probe = client_call(mine, "probe", NULL);
        char *args = format_text("{\"model\":\"%s\"}", json_text(probe, "model"));
        json_t *shown = client_call(client, "show", args);
        const json_t *model = json_array_get(json_object_get(shown, "models"), 0);

        ck_assert_int_eq(strncmp(json_text(model, "name"), "probe:", 6), 0);
        ck_assert_str_eq(json_text(model, "source"), "probe:");
        ck_assert_uint_gt(client_used(client), used_before);
        streamer_close(mine);
        doctor_left(client, used_before);
        json_decref(shown);
        json_decref(probe);
        free(args);
}
END_TEST

START_TEST(a_connection_has_one_probe)
{
        streamer_client *mine = client_open(&stage);
        json_decref(client_call(mine, "probe", NULL));
        ck_assert_int_eq(client_call_code(mine, "probe", NULL), STREAMER_EBUSY);
        streamer_close(mine);
        doctor_left(client, used_before);
}
END_TEST

START_TEST(names_of_probes_are_the_daemons_own)
{
        char *path = stage_path("witness.safetensors");
        client_load_fails(client, path, "probe:1", STREAMER_EINVAL, "'probe:' begins the names");
        free(path);
}
END_TEST

START_TEST(a_probe_on_no_device_is_refused)
{
        streamer_client *mine = client_open(&stage);
        ck_assert_int_eq(client_call_code(mine, "probe", "{\"device\":\"cuda:7\"}"), STREAMER_EINVAL);
        json_decref(client_call(mine, "probe", NULL)); /* the connection has none for that */
        streamer_close(mine);
        doctor_left(client, used_before);
}
END_TEST

/* Loop: how far it had come. 0: asked for; 1: ready; 2: attached to. */
START_TEST(a_client_that_is_killed_leaves_nothing_of_its_probe)
{
        int ready[2];
        char byte;
        must(pipe(ready));
        pid_t pid = must(fork());
        if (pid == 0) {
                streamer_client *mine = client_open(&stage);
                json_t *probe = _i > 0 ? client_call(mine, "probe", NULL) : NULL;
                if (_i > 1)
                        client_attach(mine, json_text(probe, "model"));
                must((int)write(ready[1], "x", 1));
                client_call_code(mine, _i > 0 ? "subscribe" : "probe", NULL);
                pause();
        }
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        doctor_left(client, used_before);
        stage_still_serves();
}
END_TEST

START_TEST(only_roots_are_looked_at)
{
        ck_assert_int_eq(client_call_code(client, "doctor", "{\"root\":\"/etc\"}"), STREAMER_ENOENT);
        char *args = format_text("{\"root\":\"%s\"}", stage_root());
        json_t *reply = client_call(client, "doctor", args);
        ck_assert_str_eq(json_text(reply, "root"), stage_root());
        ck_assert_str_eq(json_text(reply, "file"), "witness.safetensors");
        json_decref(reply);
        free(args);
}
END_TEST

/* ---- what is wrong ---- */

static void begin_alone(const char *device, const char *root)
{
        client = doctor_begin((const char *const[]){"--device", device, "--root", root, NULL});
}

START_TEST(without_a_daemon_this_side_is_looked_at)
{
        setenv("STREAMER_CUDA_LIBRARY", doctor_driver(), 1);
        daemon_init(&stage, suite_path("none"));
        doctor_ask();
        ck_assert_int_eq(doctor_code, 4);
        doctor_found("fail", "daemon", stage.socket);
        doctor_found("ok", "visible", "1 GPU");
        setenv("STREAMER_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
        doctor_ask();
        ck_assert_int_eq(doctor_code, 4);
        doctor_found("warn", "visible", "/nonexistent/libcuda.so.1");
}
END_TEST

START_TEST(a_socket_of_another_group_is_named)
{
        int status;
        if (getuid() != 0)
                SKIP("only root can be somebody else");
        begin_alone("host=16MiB", suite_folder());
        must(chmod(suite_folder(), 0755));
        pid_t pid = must(fork());
        if (pid == 0) {
                must(setgroups(0, NULL));
                must(setresgid(65534, 65534, 65534));
                must(setresuid(65534, 65534, 65534));
                doctor_ask();
                doctor_found("fail", "daemon", "Permission denied");
                _exit(doctor_code);
        }
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(WEXITSTATUS(status), 8);
        doctor_end(client);
}
END_TEST

START_TEST(a_device_without_room_is_a_warning)
{
        begin_alone("host=1MiB", suite_folder());
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("warn", "probe", "does not fit");
        doctor_left(client, 0);
        doctor_end(client);
}
END_TEST

START_TEST(a_root_without_files_is_a_warning)
{
        char *empty = suite_path("empty");
        must(mkdir(empty, 0755));
        begin_alone("host=16MiB", empty);
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("warn", "root", "no file");
        doctor_end(client);
}
END_TEST

START_TEST(a_root_that_went_away_fails)
{
        char *gone = suite_path("gone");
        must(mkdir(gone, 0755));
        begin_alone("host=16MiB", gone);
        must(rmdir(gone));
        doctor_ask();
        doctor_found("warn", "root", gone); /* an empty folder that nobody can fill */
        doctor_end(client);
}
END_TEST

/* A daemon that has no GPU configured, with a runtime that is there. */
static const struct {
        const char *variable, *value; /* of the stand-in */
        const char *says[2];
} runtimes[] = {
        {"FAKECUDA_DEVICES", "3", {"driver for CUDA 13.0, runtime 13.9", "3 visible; none is configured"}},
        {"FAKECUDA_VERSION", "0", {"CUDA is off: no NVIDIA driver", ""}},
};

START_TEST(cuda_that_nobody_uses_is_described)
{
        char library[PATH_SIZE], *config = suite_path("host-%d.yaml", (int)getpid());
        fake_library("libcudart.so.13", library, sizeof(library));
        setenv("STREAMER_CUDA_LIBRARY", doctor_driver(), 1);
        setenv(runtimes[_i].variable, runtimes[_i].value, 1);
        char *text = format_text("cuda: {library: '%s'}\ndevices: ['host=16MiB']\n", realpath(library, NULL));
        file_write(config, text, strlen(text));
        client = doctor_begin((const char *const[]){"--config", config, "--root", suite_folder(), NULL});
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        for (size_t i = 0; i < 2; i++)
                doctor_found("ok", "cuda", runtimes[_i].says[i]);
        doctor_end(client);
        free(text);
}
END_TEST

static void without_openat2(void)
{
        refuse_openat2(EPERM);
}

START_TEST(names_that_the_daemon_resolves_itself_are_a_warning)
{
        daemon_before = without_openat2;
        stage_begin(NULL); /* which loads a model */
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("warn", "kernel", "openat2 is refused");
        doctor_found("ok", "probe", "host: loaded");
        ck_assert(log_will_say(stage.log, "openat2 is refused here"));
        stage_still_serves();
        stage_end();
}
END_TEST

int main(void)
{
        suite_begin("doctor");
        TCase *t = suite_group("the host", begin_host, stage_end, 60);
        tcase_add_checked_fixture(t, open_client, close_client);
        tcase_add_test(t, a_daemon_that_works_passes);
        tcase_add_test(t, a_table_ends_with_the_count);
        tcase_add_test(t, a_probe_is_marked_while_it_is_there);
        tcase_add_test(t, a_connection_has_one_probe);
        tcase_add_test(t, names_of_probes_are_the_daemons_own);
        tcase_add_test(t, a_probe_on_no_device_is_refused);
        tcase_add_loop_test(t, a_client_that_is_killed_leaves_nothing_of_its_probe, 0, 3);
        tcase_add_test(t, only_roots_are_looked_at);
        t = suite_group("what is wrong", NULL, NULL, 60);
        tcase_add_test(t, without_a_daemon_this_side_is_looked_at);
        tcase_add_test(t, a_socket_of_another_group_is_named);
        tcase_add_test(t, a_device_without_room_is_a_warning);
        tcase_add_test(t, a_root_without_files_is_a_warning);
        tcase_add_test(t, a_root_that_went_away_fails);
        LOOP(t, cuda_that_nobody_uses_is_described, runtimes);
        tcase_add_test(t, names_that_the_daemon_resolves_itself_are_a_warning);
        return suite_run();
}
