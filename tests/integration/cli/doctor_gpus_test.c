/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl doctor with fake GPUs: findings on each GPU and on both sides, and the probe of each by two processes.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/doctor_checks.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/run_as.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sched.h>

/* Two GPUs, one for each kind of handle. */
static void begin(void)
{
        static const struct gpu_daemon two = {
                .n = 2, .devices = {"'cuda:0', budget: 64MiB", "'cuda:1', budget: 64MiB, handles: cuda-vmm-fd"}};
        gpu_begin(&two);
}

static void end(void)
{
        doctor_check_no_leak(client, 0);
        fixture_stop();
}

FIXTURE(.each = {begin, end});

TEST(each_gpu_is_described_and_tried)
{
        doctor_ask();
        ck_assert_msg(doctor_code == 0, "%s", json_dumps(doctor_said, 0));
        doctor_found("ok", "device",
                     "cuda:0: Fake GPU (GPU-fa4eda00-5eed-4000-8000-000000000000, 0000:01:00.0), cuda-ipc");
        doctor_found("ok", "device",
                     "cuda:1: Fake GPU (GPU-fa4eda00-5eed-4000-8000-000000000001, 0000:02:00.0), cuda-vmm-fd");
        doctor_found("ok", "visible", "2 GPUs");
        doctor_found("ok", "probe", "cuda:0: loaded, attached by cuda-ipc");
        doctor_found("ok", "probe", "cuda:1: loaded, attached by cuda-vmm-fd");
        doctor_found("ok", "memlock", "");
        ck_assert_uint_gt(gpus->copied[0], 0);
        ck_assert_uint_gt(gpus->copied[1], 0);
}

TEST(describing_gpus_creates_no_context)
{
        json_decref(client_call(client, "doctor", NULL));
        ck_assert_uint_eq(gpus->contexts[0] + gpus->contexts[1], 0);
}

TEST(a_lost_device_fails_and_the_other_passes)
{
        struct model *m = model_mixed(1, 1 << 20);
        /* Creates a context, to be lost. */
        client_ok(client, load_to(write_model(m, "held.safetensors"), "held", "cuda:0"), "load");
        gpus->broken[0] = 700;
        doctor_ask();
        ck_assert_int_eq(doctor_code, 1);
        doctor_found("fail", "probe", "cuda:0: loading");
        doctor_found("ok", "probe", "cuda:1: loaded");
        gpus->broken[0] = 0;
        doctor_ask();
        doctor_found("fail", "device", "out of service");
        client_ok(client, streamer_unload(client, "held", 0), "unload");
}

static int doctor_reports_other_user(void)
{
        struct ctl result;
        ctl(&result, test_daemon.socket, "doctor", "--json", NULL);
        bool told = strstr(result.out, "may not work between the daemon's uid 0 and uid 60111") != NULL;
        return told ? 0 : STREAMER_EFAILED;
}

TEST(another_user_than_the_daemons_is_reported)
{
        ROOT_ONLY();
        must(chmod(suite_folder(), 0755));
        ck_assert_int_eq(run_as(60111, 0, doctor_reports_other_user), 0);
}

TEST(another_network_namespace_is_reported)
{
        if (unshare(CLONE_NEWNET) < 0)
                SKIP("network namespaces cannot be made here");
        doctor_ask();
        ck_assert_int_eq(doctor_code, 0);
        doctor_found("ok", "namespace", "one PID namespace");
        doctor_found("warn", "namespace", "cuda:0 uses cuda-ipc, which may not cross network namespaces");
        doctor_found("ok", "probe", "cuda:0: loaded");
}

/* ---- misconfigurations ---- */

FIXTURE();

struct variable {
        const char *name, *value;
};

static const struct {
        const char *what;
        struct variable both; /* in the environment of the daemon and of doctor; NULL: none */
        struct variable ours; /* of doctor only */
        int code;
        struct {
                const char *result, *check, *part;
        } found[3];
} cases[] = {
        {"a MIG instance", .both = {"FAKECUDA_NAME", "Fake GPU MIG 1g.5gb"},
         .found = {{"ok", "device", "cuda:0: Fake GPU, MIG instance 1g.5gb ("},
                   {"ok", "device", "shared within this instance only"}}},
        {"an integrated GPU: which kind of handle would work", .both = {"FAKECUDA_INTEGRATED", "1"}, .code = 1,
         .found = {{"warn", "device", "integrated GPUs (Tegra) have no cuda-ipc"},
                   {"fail", "probe", "integrated GPUs (Tegra) have no cuda-ipc, handles: cuda-vmm-fd would work"},
                   {"ok", "probe", "cuda:1: loaded"}}},
        {"a GPU without virtual memory: which kind may work", .both = {"FAKECUDA_VMM", "0"}, .code = 1,
         .found = {{"ok", "probe", "cuda:0: loaded"}, {"fail", "probe", "handles: cuda-ipc may work"}}},
        {"bytes that read back wrong", .ours = {"FAKECUDA_DAMAGE", "1"}, .code = 1,
         .found = {{"fail", "probe", "cuda:0: byte 1310719 of probe.0 differs"}, {"fail", "probe", "cuda:1: byte"}}},
        {"a GPU that this process does not see", .ours = {"CUDA_VISIBLE_DEVICES", "1"}, .code = 1,
         .found = {{"warn", "visible", "cuda:0 (GPU-fa4eda00-5eed-4000-8000-000000000000) is not visible"},
                   {"fail", "probe", "CUDA_VISIBLE_DEVICES=1"},
                   {"ok", "probe", "cuda:1: loaded"}}},
        {"GPUs with other numbers here", .ours = {"CUDA_VISIBLE_DEVICES", "1,0"},
         .found = {{"ok", "probe", "cuda:0: loaded"}, {"ok", "probe", "cuda:1: loaded"}}},
        {"GPUs with other numbers here, by UUID",
         .ours = {"CUDA_VISIBLE_DEVICES", "GPU-fa4eda00-5eed-4000-8000-000000000001,0"},
         .found = {{"ok", "probe", "cuda:0: loaded"}, {"ok", "probe", "cuda:1: loaded"}}},
        {"a driver that maps nothing for reading alone", .ours = {"FAKECUDA_READ_ONLY", "801"},
         .found = {{"ok", "probe", "cuda:0: loaded"},
                   {"warn", "probe", "cuda:1: loaded and read back, but mapped writable"}}},
        {"a process without the driver", .ours = {"STREAMER_CUDA_LIBRARY", "/nonexistent/libcuda.so.1"}, .code = 1,
         .found = {{"fail", "visible", "no driver: /nonexistent/libcuda.so.1"},
                   {"fail", "probe", "cuda:0: attaching"}}},
};

static void set(const struct variable *variable)
{
        if (variable->name != NULL)
                setenv(variable->name, variable->value, 1);
}

TEST(each_misconfiguration_is_found, EACH(cases))
{
        set(&cases[_i].both);
        begin();
        set(&cases[_i].ours);
        doctor_ask();
        ck_assert_msg(doctor_code == cases[_i].code, "%s: %d: %s", cases[_i].what, doctor_code,
                      json_dumps(doctor_said, 0));
        for (size_t i = 0; i < 3 && cases[_i].found[i].result != NULL; i++)
                doctor_found(cases[_i].found[i].result, cases[_i].found[i].check, cases[_i].found[i].part);
        end();
}

/* The daemon in its own PID namespace, below this one: it cannot name processes of this one. */
TEST(an_invisible_pid_namespace_is_distinguished)
{
        int ours = must(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC));
        if (unshare(CLONE_NEWPID) < 0)
                SKIP("PID namespaces cannot be made here");
        begin();
        must(setns(ours, CLONE_NEWPID));
        doctor_ask();
        ck_assert_int_eq(doctor_code, 1);
        doctor_found("warn", "namespace", "cuda:0 uses cuda-ipc");
        doctor_found("fail", "probe", "cuda:0: attaching: attach: cuda-ipc does not reach another PID namespace");
        doctor_found("ok", "probe", "cuda:1: loaded");
        end();
        close(ours);
}
