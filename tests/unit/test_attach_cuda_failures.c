/* SPDX-License-Identifier: Apache-2.0
 *
 * Segments on GPUs that cannot be opened: nothing is left of the attempt, and the text says what is in the
 * way and what would work.
 */
#include "tests/unit/attach_cuda_stage.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

/* ---- failures ---- */

static const char *const ipc_calls[] = {
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetUuid_v2",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuIpcOpenMemHandle_v2",
};

static const char *const vmm_calls[] = {
        "cuMemGetAllocationGranularity",
        "cuMemImportFromShareableHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
};

/* The call fails once: nothing is left of the attempt, and the next one succeeds. */
static void fail_once(const struct handle_kind *kind, const char *call)
{
        struct application app;
        char rule[80];
        snprintf(rule, sizeof(rule), "%s:1:999", call);
        setenv("FAKECUDA_FAIL", rule, 1);
        setenv("CUDA_VISIBLE_DEVICES", "0", 1);
        ck_assert_int_eq(map(kind, &mapping), STREAMER_EUNSUPPORTED);
        application_start(&app);
        assert_nothing_held(&app);
        assert_map(kind, &mapping);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}

START_TEST(a_call_that_fails_leaves_nothing_of_an_ipc_segment)
{
        export_memory(0, false);
        fail_once(&handle_kind_cuda_ipc, ipc_calls[_i]);
}
END_TEST

START_TEST(a_call_that_fails_leaves_nothing_of_a_vmm_segment)
{
        export_memory(0, true);
        fail_once(&handle_kind_cuda_vmm_fd, vmm_calls[_i]);
}
END_TEST

START_TEST(memory_that_is_short_is_called_so)
{
        export_memory(0, false);
        setenv("FAKECUDA_FAIL", "cuDevicePrimaryCtxRetain:1:2", 1);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_ENOMEM, "OUT_OF_MEMORY");
        exporter_stop(&exporter);
}
END_TEST

/* ---- what to do instead ---- */

enum exporter_is { ELSEWHERE_IN_REACH, OUT_OF_REACH, THIS_PROCESS };

/* Where cuda-ipc is refused: how the daemon's process and its GPU stand to this one, and what is said. */
static const struct {
        enum exporter_is daemon;
        const char *variable, *value; /* of the stand-in; NULL: none */
        const char *told[2];
} refusals[] = {
        {ELSEWHERE_IN_REACH, NULL, NULL, {"cuda-vmm-fd would work", ""}},
        {ELSEWHERE_IN_REACH, "FAKECUDA_VMM", "0", {"only the host device", ""}},
        {OUT_OF_REACH, NULL, NULL, {"PID namespace", "cuda-vmm-fd would work"}},
        {THIS_PROCESS, NULL, NULL, {"the process that exported", ""}},
        {ELSEWHERE_IN_REACH, "FAKECUDA_NAME", "Stand-in H100 MIG 1g.10gb", {"MIG instance", ""}},
        {ELSEWHERE_IN_REACH, "FAKECUDA_INTEGRATED", "1", {"Tegra", ""}},
};

static void refuse_ipc(pid_t daemon_pid)
{
        setenv("FAKECUDA_FAIL", "cuIpcOpenMemHandle_v2:0:801", 1);
        struct handle handle = handle_of(&exporter);
        handle.daemon_pid = daemon_pid;
        ck_assert_int_eq(handle_kind_cuda_ipc.map(&mapping, &handle, false, SERIAL), STREAMER_EUNSUPPORTED);
        exporter_stop(&exporter);
}

START_TEST(where_ipc_is_not_supported_the_cause_and_another_way_are_named)
{
        const pid_t pids[] = {[ELSEWHERE_IN_REACH] = ELSEWHERE, [OUT_OF_REACH] = 0, [THIS_PROCESS] = getpid()};
        export_memory(0, false);
        if (refusals[_i].variable != NULL)
                setenv(refusals[_i].variable, refusals[_i].value, 1);
        refuse_ipc(pids[refusals[_i].daemon]);
        for (size_t i = 0; i < 2; i++)
                assert_told(refusals[_i].told[i]);
}
END_TEST

/* Windows' kernel shows itself by a device file. */
START_TEST(wsl_is_named)
{
        if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", "/dev", "tmpfs", 0, NULL) < 0)
                SKIP("another /dev cannot be mounted here");
        export_memory(0, false);
        close(must(open("/dev/dxg", O_CREAT | O_WRONLY | O_CLOEXEC, 0666)));
        refuse_ipc(ELSEWHERE);
        assert_told("WSL does not share GPU memory");
        assert_told("only the host device would work");
}
END_TEST

/* Whatever the driver's number for it is: invalid value, mapping failed, operating system, invalid handle. */
START_TEST(where_ipc_fails_without_a_reason_another_way_is_named)
{
        static const int errors[] = {1, 205, 304, 400};
        char rule[64];
        export_memory(0, false);
        snprintf(rule, sizeof(rule), "cuIpcOpenMemHandle_v2:0:%d", errors[_i]);
        setenv("FAKECUDA_FAIL", rule, 1);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_EUNSUPPORTED, "between users or containers");
        assert_told("handles of kind cuda-vmm-fd would work");
        exporter_stop(&exporter);
}
END_TEST

START_TEST(where_vmm_is_not_supported_ipc_is_named)
{
        export_memory(0, true);
        setenv("FAKECUDA_FAIL", "cuMemImportFromShareableHandle:1:801", 1);
        assert_refused(&handle_kind_cuda_vmm_fd, STREAMER_EUNSUPPORTED, "cuda-ipc may work");
        exporter_stop(&exporter);
}
END_TEST

int main(void)
{
        suite_begin("attach on GPUs: failures");
        TCase *t = suite_group("failures", NULL, NULL, 30);
        LOOP(t, a_call_that_fails_leaves_nothing_of_an_ipc_segment, ipc_calls);
        LOOP(t, a_call_that_fails_leaves_nothing_of_a_vmm_segment, vmm_calls);
        tcase_add_test(t, memory_that_is_short_is_called_so);
        LOOP(t, where_ipc_is_not_supported_the_cause_and_another_way_are_named, refusals);
        tcase_add_test(t, wsl_is_named);
        tcase_add_loop_test(t, where_ipc_fails_without_a_reason_another_way_is_named, 0, 4);
        tcase_add_test(t, where_vmm_is_not_supported_ipc_is_named);
        return suite_run();
}
