/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU segments that cannot be opened: the attempt leaks nothing, and the error names the obstacle and the
 * alternative.
 */
#include "tests/unit/attach_cuda_fixture.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

/* ---- failures ---- */

static const struct {
        bool vmm;
        const char *name;
} calls[] = {
        {false, "cuInit"},
        {false, "cuDeviceGetCount"},
        {false, "cuDeviceGet"},
        {false, "cuDeviceGetUuid_v2"},
        {false, "cuDevicePrimaryCtxRetain"},
        {false, "cuCtxPushCurrent_v2"},
        {false, "cuIpcOpenMemHandle_v2"},
        {true, "cuMemGetAllocationGranularity"},
        {true, "cuMemImportFromShareableHandle"},
        {true, "cuMemAddressReserve"},
        {true, "cuMemMap"},
        {true, "cuMemSetAccess"},
};

/* It fails once: the attempt leaks nothing, and the next one succeeds. */
TEST(a_failed_call_leaks_nothing, EACH(calls))
{
        const struct handle_kind *kind = calls[_i].vmm ? &handle_kind_cuda_vmm_fd : &handle_kind_cuda_ipc;
        export_memory(0, calls[_i].vmm);
        setenv("FAKECUDA_FAIL", format_text("%s:1:999", calls[_i].name), 1);
        setenv("CUDA_VISIBLE_DEVICES", "0", 1);
        ck_assert_int_eq(map(kind, &mapping), STREAMER_EUNSUPPORTED);
        assert_nothing_leaked();
        assert_map(kind, &mapping);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        assert_nothing_leaked();
}

/* The errors of drivers that cannot map imported memory read-only. */
static const char *const read_only[] = {"801", "1"};

TEST(memory_that_cannot_be_mapped_for_reading_alone_is_mapped_for_writing, EACH(read_only))
{
        export_memory(0, true);
        setenv("FAKECUDA_READ_ONLY", read_only[_i], 1);
        application_start();
        assert_map(&handle_kind_cuda_vmm_fd, &mapping);
        ck_assert(mapping.writable);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        assert_nothing_leaked();
}

TEST(only_cuda_vmm_fd_is_mapped_for_reading_alone, .to = 2)
{
        export_memory(0, _i == 1);
        application_start();
        assert_map(_i == 1 ? &handle_kind_cuda_vmm_fd : &handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(mapping.writable, _i == 0);
        unmap(&mapping);
}

static const struct {
        const char *failure;
        int code;
        const char *text;
} causes[] = {
        {"cuDevicePrimaryCtxRetain:1:2", STREAMER_ENOMEM, "OUT_OF_MEMORY"},
        {"cuInit:1:3", STREAMER_EUNSUPPORTED, "CUDA was used before a fork()"},
        {"cuInit:1:34", STREAMER_EUNSUPPORTED, "libcuda.so.1 is the toolkit's stub, see LD_LIBRARY_PATH"},
        {"cuInit:1:100", STREAMER_EUNSUPPORTED, "no GPU is visible, see CUDA_VISIBLE_DEVICES"},
};

TEST(a_failure_of_the_driver_is_explained, EACH(causes))
{
        export_memory(0, false);
        setenv("FAKECUDA_FAIL", causes[_i].failure, 1);
        assert_refused(&handle_kind_cuda_ipc, causes[_i].code, causes[_i].text);
}

/* ---- alternatives ---- */

enum exporter_is { ELSEWHERE_IN_REACH, OUT_OF_REACH, THIS_PROCESS };

/* How the processes and GPUs of daemon and client relate if cuda-ipc fails, and the error message. */
static const struct {
        enum exporter_is daemon;
        const char *variable, *value; /* of the fake; NULL: none */
        const char *told[2];
} refusals[] = {
        {ELSEWHERE_IN_REACH, NULL, NULL, {"cuda-vmm-fd would work", ""}},
        {ELSEWHERE_IN_REACH, "FAKECUDA_VMM", "0", {"only the host device", ""}},
        {OUT_OF_REACH, NULL, NULL, {"PID namespace", "cuda-vmm-fd would work"}},
        {THIS_PROCESS, NULL, NULL, {"the process that exported", ""}},
        {ELSEWHERE_IN_REACH, "FAKECUDA_NAME", "Fake H100 MIG 1g.10gb", {"MIG instance", ""}},
        {ELSEWHERE_IN_REACH, "FAKECUDA_INTEGRATED", "1", {"Tegra", ""}},
};

static void refuse_ipc(pid_t daemon_pid)
{
        setenv("FAKECUDA_FAIL", "cuIpcOpenMemHandle_v2:0:801", 1);
        handle.daemon_pid = daemon_pid;
        ck_assert_int_eq(map(&handle_kind_cuda_ipc, &mapping), STREAMER_EUNSUPPORTED);
}

TEST(unsupported_ipc_is_explained_and_another_handle_kind_suggested, EACH(refusals))
{
        const pid_t pids[] = {[ELSEWHERE_IN_REACH] = ELSEWHERE, [OUT_OF_REACH] = 0, [THIS_PROCESS] = getpid()};
        export_memory(0, false);
        if (refusals[_i].variable != NULL)
                setenv(refusals[_i].variable, refusals[_i].value, 1);
        refuse_ipc(pids[refusals[_i].daemon]);
        for (size_t i = 0; i < 2; i++)
                assert_error_has(refusals[_i].told[i]);
}

/* Windows' kernel shows itself by a device file. */
TEST(wsl_is_named)
{
        if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", "/dev", "tmpfs", 0, NULL) < 0)
                SKIP("another /dev cannot be mounted here");
        export_memory(0, false);
        close(must(open("/dev/dxg", O_CREAT | O_WRONLY | O_CLOEXEC, 0666)));
        refuse_ipc(ELSEWHERE);
        assert_error_has("WSL does not share GPU memory");
        assert_error_has("only the host device would work");
}

/* The driver's possible errors: invalid value, mapping failed, operating system, invalid handle. */
TEST(an_unexplained_ipc_error_suggests_another_handle_kind, .to = 4)
{
        static const int errors[] = {1, 205, 304, 400};
        export_memory(0, false);
        setenv("FAKECUDA_FAIL", format_text("cuIpcOpenMemHandle_v2:0:%d", errors[_i]), 1);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_EUNSUPPORTED, "between users or containers");
        assert_error_has("handles of kind cuda-vmm-fd would work");
}

TEST(unsupported_vmm_suggests_ipc)
{
        export_memory(0, true);
        setenv("FAKECUDA_FAIL", "cuMemImportFromShareableHandle:1:801", 1);
        assert_refused(&handle_kind_cuda_vmm_fd, STREAMER_EUNSUPPORTED, "cuda-ipc may work");
}
