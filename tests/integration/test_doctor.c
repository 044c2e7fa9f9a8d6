/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl doctor: what it finds well, what it finds wrong and says to change, the probe of each
 * device by two processes, and that nothing of a probe is left, however it ended. GPUs are stand-ins.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/fake/state.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static streamer_client *client;
static struct fake_state *gpus;
static char driver[PATH_SIZE];

/* ---- what the doctor said ---- */

static json_t *said;
static int code;

static void ask(void)
{
        struct ctl result;
        json_error_t error;
        ctl(&result, stage.socket, "doctor", "--json", NULL);
        said = json_loads(result.out, 0, &error);
        ck_assert_msg(said != NULL, "%s: %s%s", error.text, result.out, result.err);
        code = result.code;
        ctl_free(&result);
}

static const char *string(const json_t *o, const char *key)
{
        const char *s = json_string_value(json_object_get(o, key));
        return s != NULL ? s : "";
}

/* There is such a line: this check, this result, with `part` in its text, and advice unless it is ok. */
static void found(const char *result, const char *check, const char *part)
{
        size_t i;
        const json_t *row;
        json_array_foreach(json_object_get(said, "checks"), i, row)
        {
                if (strcmp(string(row, "check"), check) != 0 || !strstr(string(row, "text"), part))
                        continue;
                ck_assert_str_eq(string(row, "result"), result);
                ck_assert_int_eq(json_object_get(row, "advice") == NULL, strcmp(result, "ok") == 0);
                return;
        }
        ck_abort_msg("no %s with '%s' in %s", check, part, json_dumps(said, 0));
}

static bool no_probe_listed(void *arg)
{
        json_t *list = client_call(client, "list", NULL);
        size_t i, n = 0;
        const json_t *model;
        (void)arg;
        json_array_foreach(json_object_get(list, "models"), i, model)
        {
                n += strncmp(string(model, "name"), "probe:", 6) == 0;
        }
        json_decref(list);
        return n == 0;
}

/* Nothing has been left of any probe. */
static void nothing_left(uint64_t used)
{
        client_wait_leases(client, 0);
        client_wait_used(client, used);
        ck_assert(eventually(no_probe_listed, NULL, 20000));
}

/* ---- the host ---- */

static uint64_t used_before;

static void begin_host(void)
{
        fake_library("libcuda.so.1", driver, sizeof(driver));
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
        ask();
        ck_assert_int_eq(code, 0);
        found("ok", "daemon", "answers");
        found("ok", "namespace", "one PID namespace");
        found("ok", "kernel", "pidfd");
        found("ok", "memory", "");
        found("ok", "root", "O_DIRECT");
        found("ok", "probe", "host: loaded, attached by memfd");
        found("ok", "cuda", "no GPU is configured");
        ck_assert_int_gt(json_integer_value(json_object_get(json_object_get(json_object_get(said, "daemon"), "machine"),
                                                            "pid_namespace")),
                         0);
        nothing_left(used_before);
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
        char *args = format_text("{\"model\":\"%s\"}", string(probe, "model"));
        json_t *shown = client_call(client, "show", args);
        const json_t *model = json_array_get(json_object_get(shown, "models"), 0);

        ck_assert_int_eq(strncmp(string(model, "name"), "probe:", 6), 0);
        ck_assert_str_eq(string(model, "source"), "probe:");
        ck_assert_uint_gt(client_used(client), used_before);
        streamer_close(mine);
        nothing_left(used_before);
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
        nothing_left(used_before);
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
        nothing_left(used_before);
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
                        client_attach(mine, string(probe, "model"));
                must((int)write(ready[1], "x", 1));
                client_call_code(mine, _i > 0 ? "subscribe" : "probe", NULL);
                pause();
        }
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        nothing_left(used_before);
        stage_still_serves();
}
END_TEST

START_TEST(only_roots_are_looked_at)
{
        ck_assert_int_eq(client_call_code(client, "doctor", "{\"root\":\"/etc\"}"), STREAMER_ENOENT);
        char *args = format_text("{\"root\":\"%s\"}", stage_root());
        json_t *reply = client_call(client, "doctor", args);
        ck_assert_str_eq(string(reply, "root"), stage_root());
        ck_assert_str_eq(string(reply, "file"), "witness.safetensors");
        json_decref(reply);
        free(args);
}
END_TEST

/* ---- what is wrong ---- */

static void begin_alone(const char *const *flags)
{
        char *folder = suite_path("d-%d", (int)getpid());
        daemon_init(&stage, folder);
        daemon_start(&stage, flags);
        open_client();
}

static void end_alone(void)
{
        close_client();
        ck_assert_int_eq(daemon_stop(&stage), 0);
}

START_TEST(without_a_daemon_this_side_is_looked_at)
{
        setenv("STREAMER_CUDA_LIBRARY", driver, 1);
        daemon_init(&stage, suite_path("none"));
        ask();
        ck_assert_int_eq(code, 4);
        found("fail", "daemon", stage.socket);
        found("ok", "visible", "1 GPU");
        setenv("STREAMER_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
        ask();
        ck_assert_int_eq(code, 4);
        found("warn", "visible", "/nonexistent/libcuda.so.1");
}
END_TEST

START_TEST(a_socket_of_another_group_is_named)
{
        int status;
        if (getuid() != 0)
                SKIP("only root can be somebody else");
        begin_alone((const char *const[]){"--device", "host=16MiB", "--root", suite_folder(), NULL});
        must(chmod(suite_folder(), 0755));
        pid_t pid = must(fork());
        if (pid == 0) {
                must(setgroups(0, NULL));
                must(setresgid(65534, 65534, 65534));
                must(setresuid(65534, 65534, 65534));
                ask();
                found("fail", "daemon", "Permission denied");
                _exit(code);
        }
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(WEXITSTATUS(status), 8);
        end_alone();
}
END_TEST

START_TEST(a_device_without_room_is_a_warning)
{
        begin_alone((const char *const[]){"--device", "host=1MiB", "--root", suite_folder(), NULL});
        ask();
        ck_assert_int_eq(code, 0);
        found("warn", "probe", "does not fit");
        nothing_left(0);
        end_alone();
}
END_TEST

START_TEST(a_root_without_files_is_a_warning)
{
        char *empty = suite_path("empty");
        must(mkdir(empty, 0755));
        begin_alone((const char *const[]){"--device", "host=16MiB", "--root", empty, NULL});
        ask();
        ck_assert_int_eq(code, 0);
        found("warn", "root", "no file");
        end_alone();
}
END_TEST

START_TEST(a_root_that_went_away_fails)
{
        char *gone = suite_path("gone");
        must(mkdir(gone, 0755));
        begin_alone((const char *const[]){"--device", "host=16MiB", "--root", gone, NULL});
        must(rmdir(gone));
        ask();
        found("warn", "root", gone); /* an empty folder that nobody can fill */
        end_alone();
}
END_TEST

/* A daemon that has no GPU configured, with a runtime that is there. */
static void host_with_runtime(void)
{
        char library[PATH_SIZE], *config = suite_path("host-%d.yaml", (int)getpid());
        fake_library("libcudart.so.13", library, sizeof(library));
        setenv("STREAMER_CUDA_LIBRARY", driver, 1);
        char *text = format_text("cuda: {library: '%s'}\ndevices: ['host=16MiB']\n", realpath(library, NULL));
        file_write(config, text, strlen(text));
        begin_alone((const char *const[]){"--config", config, "--root", suite_folder(), NULL});
}

START_TEST(cuda_that_nobody_uses_is_described)
{
        setenv("FAKECUDA_DEVICES", "3", 1);
        host_with_runtime();
        ask();
        ck_assert_int_eq(code, 0);
        found("ok", "cuda", "driver for CUDA 13.0, runtime 13.9");
        found("ok", "cuda", "3 visible; none is configured");
        end_alone();
}
END_TEST

START_TEST(cuda_that_is_off_says_why)
{
        setenv("FAKECUDA_VERSION", "0", 1);
        host_with_runtime();
        ask();
        ck_assert_int_eq(code, 0);
        found("ok", "cuda", "CUDA is off: no NVIDIA driver");
        end_alone();
}
END_TEST

/* ---- GPUs ---- */

/* Two GPUs, one for each kind of handle. */
static void begin_gpus(void)
{
        int n = (int)getpid();
        char library[PATH_SIZE], *config = suite_path("gpus-%d.yaml", n), *state = suite_path("state-%d", n);
        fake_library("libcudart.so.13", library, sizeof(library));
        setenv("FAKECUDA_DEVICES", "2", 1);
        setenv("FAKECUDA_STATE", state, 1);
        setenv("STREAMER_CUDA_LIBRARY", driver, 1);
        char *text = format_text("cuda: {library: '%s'}\n"
                                 "devices:\n"
                                 "  - {device: 'cuda:0', budget: 64MiB}\n"
                                 "  - {device: 'cuda:1', budget: 64MiB, handles: cuda-vmm-fd}\n",
                                 realpath(library, NULL));
        file_write(config, text, strlen(text));
        gpus = fake_state_map(state);
        begin_alone((const char *const[]){"--config", config, "--root", suite_folder(), NULL});
}

START_TEST(each_gpu_is_described_and_tried)
{
        begin_gpus();
        ask();
        ck_assert_msg(code == 0, "%s", json_dumps(said, 0));
        found("ok", "device",
              "cuda:0: Stand-in GPU (GPU-fa4eda00-5eed-4000-8000-000000000000, 0000:01:00.0), cuda-ipc");
        found("ok", "device",
              "cuda:1: Stand-in GPU (GPU-fa4eda00-5eed-4000-8000-000000000001, 0000:02:00.0), cuda-vmm-fd");
        found("ok", "visible", "2 GPUs");
        found("ok", "probe", "cuda:0: loaded, attached by cuda-ipc");
        found("ok", "probe", "cuda:1: loaded, attached by cuda-vmm-fd");
        found("ok", "memlock", "");
        ck_assert_uint_gt(gpus->copied[0], 0);
        ck_assert_uint_gt(gpus->copied[1], 0);
        nothing_left(0);
        end_alone();
}
END_TEST

START_TEST(to_describe_gpus_makes_no_context)
{
        begin_gpus();
        json_decref(client_call(client, "doctor", NULL));
        ck_assert_uint_eq(gpus->contexts[0] + gpus->contexts[1], 0);
        end_alone();
}
END_TEST

START_TEST(a_mig_instance_is_described)
{
        setenv("FAKECUDA_NAME", "Stand-in GPU MIG 1g.5gb", 1);
        begin_gpus();
        ask();
        ck_assert_int_eq(code, 0);
        found("ok", "device", "cuda:0: Stand-in GPU, MIG instance 1g.5gb (");
        found("ok", "device", "shared within this instance only");
        end_alone();
}
END_TEST

START_TEST(an_integrated_gpu_is_told_which_kind_would_work)
{
        setenv("FAKECUDA_INTEGRATED", "1", 1);
        begin_gpus();
        ask();
        ck_assert_int_eq(code, 1);
        found("warn", "device", "integrated GPUs (Tegra) have no cuda-ipc");
        found("fail", "probe", "integrated GPUs (Tegra) have no cuda-ipc, handles: cuda-vmm-fd would work");
        found("ok", "probe", "cuda:1: loaded");
        end_alone();
}
END_TEST

START_TEST(a_gpu_without_virtual_memory_is_told_which_kind_may_work)
{
        setenv("FAKECUDA_VMM", "0", 1);
        begin_gpus();
        ask();
        ck_assert_int_eq(code, 1);
        found("ok", "probe", "cuda:0: loaded");
        found("fail", "probe", "handles: cuda-ipc may work");
        end_alone();
}
END_TEST

START_TEST(bytes_that_read_back_wrong_fail)
{
        begin_gpus();
        setenv("FAKECUDA_DAMAGE", "1", 1); /* of the processes from here on */
        ask();
        ck_assert_int_eq(code, 1);
        found("fail", "probe", "cuda:0: byte 1310719 of probe.0 is not what was loaded");
        found("fail", "probe", "cuda:1: byte");
        nothing_left(0);
        end_alone();
}
END_TEST

START_TEST(a_lost_device_fails_and_the_other_passes)
{
        begin_gpus();
        gpus->broken[0] = 700;
        ask();
        ck_assert_int_eq(code, 1);
        found("fail", "probe", "cuda:0: loading");
        found("ok", "probe", "cuda:1: loaded");
        gpus->broken[0] = 0;
        ask();
        found("fail", "device", "out of service");
        nothing_left(0);
        end_alone();
}
END_TEST

START_TEST(a_gpu_that_this_process_does_not_see_is_named)
{
        begin_gpus();
        setenv("CUDA_VISIBLE_DEVICES", "1", 1);
        ask();
        ck_assert_int_eq(code, 1);
        found("warn", "visible", "cuda:0 (GPU-fa4eda00-5eed-4000-8000-000000000000) is not seen");
        found("fail", "probe", "CUDA_VISIBLE_DEVICES=1");
        found("ok", "probe", "cuda:1: loaded");
        end_alone();
}
END_TEST

/* Loop: how the order is given. */
START_TEST(gpus_that_have_other_numbers_here_are_found)
{
        static const char *const orders[] = {"1,0", "GPU-fa4eda00-5eed-4000-8000-000000000001,0"};
        begin_gpus();
        setenv("CUDA_VISIBLE_DEVICES", orders[_i], 1);
        ask();
        ck_assert_msg(code == 0, "%s", json_dumps(said, 0));
        found("ok", "probe", "cuda:0: loaded");
        found("ok", "probe", "cuda:1: loaded");
        end_alone();
}
END_TEST

START_TEST(a_process_without_the_driver_is_told_so)
{
        begin_gpus();
        setenv("STREAMER_CUDA_LIBRARY", "/nonexistent/libcuda.so.1", 1);
        ask();
        ck_assert_int_eq(code, 1);
        found("fail", "visible", "no driver: /nonexistent/libcuda.so.1");
        found("fail", "probe", "cuda:0: attaching");
        nothing_left(0);
        end_alone();
}
END_TEST

/* The daemon in a PID namespace of its own, below this one: it cannot name this side's processes. */
START_TEST(a_pid_namespace_that_the_daemon_does_not_see_is_told_apart)
{
        int ours = must(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
        if (unshare(CLONE_NEWPID) < 0)
                SKIP("PID namespaces cannot be made here");
        begin_gpus();
        must(setns(ours, CLONE_NEWPID));
        ask();
        ck_assert_int_eq(code, 1);
        found("warn", "namespace", "cuda:0 hands out cuda-ipc");
        found("fail", "probe", "cuda:0: attaching: attach: cuda-ipc does not reach another PID namespace");
        found("ok", "probe", "cuda:1: loaded");
        nothing_left(0);
        end_alone();
        close(ours);
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
        tcase_add_test(t, cuda_that_nobody_uses_is_described);
        tcase_add_test(t, cuda_that_is_off_says_why);
        t = suite_group("GPUs", NULL, NULL, 60);
        tcase_add_test(t, each_gpu_is_described_and_tried);
        tcase_add_test(t, to_describe_gpus_makes_no_context);
        tcase_add_test(t, a_mig_instance_is_described);
        tcase_add_test(t, an_integrated_gpu_is_told_which_kind_would_work);
        tcase_add_test(t, a_gpu_without_virtual_memory_is_told_which_kind_may_work);
        tcase_add_test(t, bytes_that_read_back_wrong_fail);
        tcase_add_test(t, a_lost_device_fails_and_the_other_passes);
        tcase_add_test(t, a_gpu_that_this_process_does_not_see_is_named);
        tcase_add_loop_test(t, gpus_that_have_other_numbers_here_are_found, 0, 2);
        tcase_add_test(t, a_process_without_the_driver_is_told_so);
        tcase_add_test(t, a_pid_namespace_that_the_daemon_does_not_see_is_told_apart);
        return suite_run();
}
