/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake CUDA libraries behave as CUDA does where the daemon and the library depend on it, and fail on request.
 */
#include "tests/unit/fake_cuda_fixture.h"

static void assert_uuid(int ordinal, const char *expected)
{
        struct cu_uuid uuid;
        char text[CUDA_UUID_TEXT];
        ck_assert_int_eq(api->cuDeviceGetUuid_v2(&uuid, ordinal), CU_OK);
        cuda_uuid_text(&uuid, text);
        ck_assert_str_eq(text, expected);
}

/* ---- devices ---- */

/* Of a machine of three GPUs. */
static const struct {
        const char *visible; /* CUDA_VISIBLE_DEVICES; NULL: not set */
        int n;
        const char *first, *last; /* UUIDs */
} choices[] = {
        {NULL, 3, UUID_0, UUID_2},
        {"2,0", 2, UUID_2, UUID_0},
        {UUID_2 "," UUID_0, 2, UUID_2, UUID_0},
        {"GPU-fa4eda00-5eed-4000-8000-000000000002,0", 2, UUID_2, UUID_0},
        {"0,7,2", 1, UUID_0, UUID_0}, /* a name that means nothing ends the list */
};

TEST(the_visible_gpus_are_listed_in_order, EACH(choices))
{
        setenv("FAKECUDA_DEVICES", "3", 1);
        if (choices[_i].visible != NULL)
                setenv("CUDA_VISIBLE_DEVICES", choices[_i].visible, 1);
        start();
        ck_assert_int_eq(api->n_devices, choices[_i].n);
        assert_uuid(0, choices[_i].first);
        assert_uuid(choices[_i].n - 1, choices[_i].last);
}

TEST(a_gpu_without_models_has_no_context)
{
        struct fake_state *state = share_state();
        int value;
        char id[32];
        setenv("FAKECUDA_DEVICES", "2", 1);
        start();
        ck_assert_int_eq(api->cudaDeviceGetAttribute(&value, CUDA_ATTR_CAPABILITY_MAJOR, 1), CUDA_OK);
        ck_assert_int_eq(api->cudaDeviceGetPCIBusId(id, sizeof(id), 1), CUDA_OK);
        assert_uuid(0, UUID_0);
        ck_assert_uint_eq(state->contexts[0] + state->contexts[1], 0);

        device_memory(MIB);
        ck_assert_uint_eq(state->contexts[0], 1);
        ck_assert_uint_eq(state->contexts[1], 0);
        ck_assert_int_eq(api->cudaSetDevice(1), CUDA_OK);
        ck_assert_uint_eq(state->contexts[1], 1);
        device_memory(MIB);
        ck_assert_uint_eq(state->contexts[1], 1);
}

TEST(a_child_of_fork_has_no_cuda)
{
        int status;
        start();
        device_memory(MIB);
        pid_t pid = must(fork());
        if (pid == 0) {
                void *p;
                _exit((int)api->cudaMalloc(&p, MIB));
        }
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(WEXITSTATUS(status), CUDA_NOT_INITIALIZED);
}

/* ---- memory ---- */

TEST(the_environment_limits_the_memory_of_a_gpu)
{
        size_t available, total;
        void *p;
        setenv("FAKECUDA_MEM_MIB", "8", 1);
        setenv("FAKECUDA_OTHERS_MIB", "2", 1);
        start();
        void *first = device_memory(4 * MIB);
        ck_assert_int_eq(api->cudaMemGetInfo(&available, &total), CUDA_OK);
        ck_assert_uint_eq(total, 8 * MIB);
        ck_assert_uint_eq(available, 2 * MIB);
        ck_assert_int_eq(api->cudaMalloc(&p, 2 * MIB + 1), CUDA_OUT_OF_MEMORY);
        ck_assert_int_eq(api->cudaGetLastError(), CUDA_OUT_OF_MEMORY);
        ck_assert_int_eq(api->cudaGetLastError(), CUDA_OK);
        ck_assert_int_eq(api->cudaFree(first), CUDA_OK);
        device_memory(6 * MIB);
}

TEST(a_handle_opens_in_another_process)
{
        struct exporter e;
        unsigned char *p, *again;
        exporter_start(&e, 0, MIB, false);
        start();
        ck_assert_int_eq(api->cudaIpcOpenMemHandle((void **)&p, e.handle, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_OK);
        ck_assert_uint_eq(p[0], exporter_byte(0, 0));
        ck_assert_uint_eq(p[MIB - 1], exporter_byte(0, MIB - 1));

        /* A second open counts and gives the same address. */
        ck_assert_int_eq(api->cudaIpcOpenMemHandle((void **)&again, e.handle, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_OK);
        ck_assert_ptr_eq(again, p);
        ck_assert_int_eq(api->cudaIpcCloseMemHandle(p), CUDA_OK);
        ck_assert_uint_eq(p[1], exporter_byte(0, 1));
        ck_assert_int_eq(api->cudaIpcCloseMemHandle(p), CUDA_OK);
        ck_assert_int_eq(api->cudaIpcCloseMemHandle(p), CUDA_INVALID_VALUE);
        exporter_stop(&e);
}

TEST(a_handle_does_not_open_in_its_own_process)
{
        struct cuda_ipc_handle handle;
        void *p;
        start();
        ck_assert_int_eq(api->cudaIpcGetMemHandle(&handle, device_memory(MIB)), CUDA_OK);
        ck_assert_int_eq(api->cudaIpcOpenMemHandle(&p, handle, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_INVALID_CONTEXT);
}

TEST(a_handle_to_freed_memory_does_not_open)
{
        struct exporter e;
        void *p;
        exporter_start(&e, 0, MIB, false);
        exporter_free(&e);
        start();
        ck_assert_int_eq(api->cudaIpcOpenMemHandle(&p, e.handle, CUDA_IPC_LAZY_PEER_ACCESS), (enum cuda_error)400);
        exporter_stop(&e);
}

TEST(a_handle_does_not_open_on_another_gpu)
{
        struct exporter e;
        void *p;
        setenv("FAKECUDA_DEVICES", "2", 1);
        exporter_start(&e, 1, MIB, false);
        start();
        ck_assert_int_eq(api->cudaSetDevice(0), CUDA_OK);
        ck_assert_int_eq(api->cudaIpcOpenMemHandle(&p, e.handle, CUDA_IPC_LAZY_PEER_ACCESS), (enum cuda_error)217);
        exporter_stop(&e);
}

/* ---- failures on demand ---- */

TEST(the_nth_call_fails_and_no_other)
{
        void *p;
        setenv("FAKECUDA_FAIL", "cudaMalloc:2:2,cudaFree:1:1", 1);
        start();
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OK);
        ck_assert_int_eq(api->cudaFree(p), CUDA_INVALID_VALUE);
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OUT_OF_MEMORY);
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OK);
}

TEST(every_call_fails_with_number_0)
{
        void *p;
        setenv("FAKECUDA_FAIL", "cudaMalloc:0:2", 1);
        start();
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OUT_OF_MEMORY);
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OUT_OF_MEMORY);
}

TEST(a_gpu_breaks_on_request)
{
        struct fake_state *state = share_state();
        void *p;
        start();
        device_memory(MIB);
        state->broken[0] = 999;
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_UNKNOWN);
        state->broken[0] = 0;
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OK);
}

/* ---- the report ---- */

static char *report_of(void (*work)(void))
{
        char *path = suite_path("report.%d", (int)getpid());
        setenv("FAKECUDA_REPORT", path, 1);
        pid_t pid = must(fork()); /* it writes the report when it exits */
        if (pid == 0) {
                start();
                work();
                exit(0);
        }
        must(waitpid(pid, NULL, 0));
        return file_read(path, NULL);
}

static void leak_everything(void)
{
        static struct pipe p;
        pipe_begin(&p);
}

static void free_everything(void)
{
        struct pipe p;
        pipe_begin(&p);
        pipe_copy(&p);
        pipe_end(&p);
}

TEST(the_report_lists_leaks)
{
        char *text = report_of(leak_everything);
        ck_assert_ptr_nonnull(strstr(text, " allocations=1 opened=0 handles=0 reserved=0 mapped=0 "
                                           "streams=1 events=1 registered=1 retained=0\n"));
}

TEST(the_report_without_leaks_is_all_zero)
{
        char *text = report_of(free_everything);
        ck_assert_ptr_nonnull(strstr(text, " allocations=0 opened=0 handles=0 reserved=0 mapped=0 "
                                           "streams=0 events=0 registered=0 retained=0\n"));
}
