/* SPDX-License-Identifier: Apache-2.0
 *
 * The stand-ins for CUDA behave as CUDA does where the daemon and the library depend on it, and
 * fail where a test says so: what is proved on them is worth as much as this.
 */
#include "daemon/device/cuda_api.h"
#include "tests/lib/exporter.h"
#include "tests/lib/fake/state.h"
#include "tests/lib/suite.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define UUID_0 "GPU-fa4eda00-5eed-4000-8000-000000000000"
#define UUID_2 "GPU-fa4eda00-5eed-4000-8000-000000000002"

static struct cuda_api *api;

/* The stand-in of the runtime of that major version, under the environment of now. */
static void start_version(int major)
{
        char name[32], path[PATH_SIZE], why[1024];
        snprintf(name, sizeof(name), "libcudart.so.%d", major);
        fake_library(name, path, sizeof(path));
        ck_assert_msg(cuda_api_open(path, &api, why, sizeof(why)) == 0, "%s", why);
}

static void start(void)
{
        start_version(13);
}

static struct fake_state *share_state(void)
{
        char *path = suite_path("state.%d", (int)getpid());
        setenv("FAKECUDA_STATE", path, 1);
        return fake_state_map(path);
}

static void assert_uuid(int ordinal, const char *expected)
{
        struct cu_uuid uuid;
        char text[CUDA_UUID_TEXT];
        ck_assert_int_eq(api->cuDeviceGetUuid_v2(&uuid, ordinal), CU_OK);
        cuda_uuid_text(&uuid, text);
        ck_assert_str_eq(text, expected);
}

static void *device_memory(size_t size)
{
        void *p = NULL;
        ck_assert_int_eq(api->cudaMalloc(&p, size), CUDA_OK);
        return p;
}

/* ---- devices ---- */

START_TEST(every_gpu_of_the_machine_is_there)
{
        setenv("FAKECUDA_DEVICES", "3", 1);
        start();
        ck_assert_int_eq(api->n_devices, 3);
        assert_uuid(0, UUID_0);
        assert_uuid(2, UUID_2);
}
END_TEST

START_TEST(visible_devices_pick_and_order_by_number)
{
        setenv("FAKECUDA_DEVICES", "3", 1);
        setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
        start();
        ck_assert_int_eq(api->n_devices, 2);
        assert_uuid(0, UUID_2);
        assert_uuid(1, UUID_0);
}
END_TEST

START_TEST(visible_devices_pick_by_uuid_and_by_its_beginning)
{
        setenv("FAKECUDA_DEVICES", "3", 1);
        setenv("CUDA_VISIBLE_DEVICES", UUID_2 ",GPU-fa4eda00-5eed-4000-8000-000000000000", 1);
        start();
        assert_uuid(0, UUID_2);
        assert_uuid(1, UUID_0);
}
END_TEST

START_TEST(a_name_that_means_nothing_ends_the_list)
{
        setenv("FAKECUDA_DEVICES", "3", 1);
        setenv("CUDA_VISIBLE_DEVICES", "1,7,0", 1);
        start();
        ck_assert_int_eq(api->n_devices, 1);
}
END_TEST

START_TEST(a_gpu_that_holds_nothing_has_no_context)
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
END_TEST

START_TEST(a_child_of_fork_has_no_cuda)
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
END_TEST

/* ---- memory ---- */

START_TEST(memory_ends_where_the_environment_says)
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
END_TEST

START_TEST(a_handle_opens_in_another_process)
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
END_TEST

START_TEST(a_handle_does_not_open_in_its_own_process)
{
        struct cuda_ipc_handle handle;
        void *p;
        start();
        ck_assert_int_eq(api->cudaIpcGetMemHandle(&handle, device_memory(MIB)), CUDA_OK);
        ck_assert_int_eq(api->cudaIpcOpenMemHandle(&p, handle, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_INVALID_CONTEXT);
}
END_TEST

START_TEST(a_handle_to_freed_memory_does_not_open)
{
        struct exporter e;
        void *p;
        exporter_start(&e, 0, MIB, false);
        exporter_free(&e);
        start();
        ck_assert_int_eq(api->cudaIpcOpenMemHandle(&p, e.handle, CUDA_IPC_LAZY_PEER_ACCESS), (enum cuda_error)400);
        exporter_stop(&e);
}
END_TEST

START_TEST(a_handle_does_not_open_on_another_gpu)
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
END_TEST

/* ---- copies ---- */

struct pipe {
        unsigned char *device, host[4096];
        struct CUstream_st *stream;
        struct CUevent_st *event;
};

static void pipe_begin(struct pipe *p)
{
        p->device = device_memory(sizeof(p->host));
        memset(p->host, 'x', sizeof(p->host));
        ck_assert_int_eq(api->cudaHostRegister(p->host, sizeof(p->host), CUDA_HOST_REGISTER_PORTABLE), CUDA_OK);
        ck_assert_int_eq(api->cudaStreamCreateWithFlags(&p->stream, CUDA_STREAM_NON_BLOCKING), CUDA_OK);
        ck_assert_int_eq(api->cudaEventCreateWithFlags(&p->event, CUDA_EVENT_DISABLE_TIMING), CUDA_OK);
}

static void pipe_copy(struct pipe *p)
{
        ck_assert_int_eq(api->cudaMemcpyAsync(p->device, p->host, sizeof(p->host), CUDA_COPY_HOST_TO_DEVICE, p->stream),
                         CUDA_OK);
}

static void pipe_end(struct pipe *p)
{
        ck_assert_int_eq(api->cudaEventDestroy(p->event), CUDA_OK);
        ck_assert_int_eq(api->cudaStreamDestroy(p->stream), CUDA_OK);
        ck_assert_int_eq(api->cudaHostUnregister(p->host), CUDA_OK);
        ck_assert_int_eq(api->cudaFree(p->device), CUDA_OK);
}

START_TEST(a_copy_lands_when_its_event_fires)
{
        struct fake_state *state = share_state();
        struct pipe p;
        start();
        pipe_begin(&p);
        state->hold = 1;
        pipe_copy(&p);
        ck_assert_int_eq(api->cudaEventRecord(p.event, p.stream), CUDA_OK);
        ck_assert_int_eq(api->cudaEventQuery(p.event), CUDA_NOT_READY);
        ck_assert_int_eq(api->cudaGetLastError(), CUDA_OK);
        ck_assert_uint_eq(p.device[0], 0);
        state->hold = 0;
        ck_assert_uint_eq(p.device[0], 0);
        ck_assert_int_eq(api->cudaEventQuery(p.event), CUDA_OK);
        ck_assert_uint_eq(p.device[0], 'x');
        ck_assert_uint_eq(p.device[sizeof(p.host) - 1], 'x');
        ck_assert_uint_eq(state->copied[0], sizeof(p.host));
        pipe_end(&p);
}
END_TEST

START_TEST(an_event_takes_the_time_that_was_set)
{
        struct pipe p;
        setenv("FAKECUDA_EVENT_MS", "20", 1);
        start();
        pipe_begin(&p);
        pipe_copy(&p);
        uint64_t before = clock_ns();
        ck_assert_int_eq(api->cudaEventRecord(p.event, p.stream), CUDA_OK);
        ck_assert_int_eq(api->cudaEventSynchronize(p.event), CUDA_OK);
        ck_assert_uint_ge(clock_ns() - before, 20000000);
        ck_assert_uint_eq(p.device[0], 'x');
        pipe_end(&p);
}
END_TEST

START_TEST(a_buffer_that_changes_before_its_event_is_copied_changed)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        pipe_copy(&p);
        ck_assert_int_eq(api->cudaEventRecord(p.event, p.stream), CUDA_OK);
        p.host[0] = 'y';
        ck_assert_int_eq(api->cudaEventQuery(p.event), CUDA_OK);
        ck_assert_uint_eq(p.device[0], 'y');
        pipe_end(&p);
}
END_TEST

START_TEST(an_event_waits_only_for_what_was_before_it)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaEventRecord(p.event, p.stream), CUDA_OK);
        pipe_copy(&p);
        ck_assert_int_eq(api->cudaEventQuery(p.event), CUDA_OK);
        ck_assert_uint_eq(p.device[0], 0);
        ck_assert_int_eq(api->cudaStreamSynchronize(p.stream), CUDA_OK);
        ck_assert_uint_eq(p.device[0], 'x');
        pipe_end(&p);
}
END_TEST

START_TEST(an_event_that_was_never_recorded_has_fired)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaEventQuery(p.event), CUDA_OK);
        pipe_end(&p);
}
END_TEST

START_TEST(an_event_belongs_to_one_gpu)
{
        struct pipe p;
        struct CUevent_st *other;
        setenv("FAKECUDA_DEVICES", "2", 1);
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaSetDevice(1), CUDA_OK);
        ck_assert_int_eq(api->cudaEventCreateWithFlags(&other, CUDA_EVENT_DISABLE_TIMING), CUDA_OK);
        ck_assert_int_eq(api->cudaEventRecord(other, p.stream), (enum cuda_error)400);
        pipe_end(&p);
}
END_TEST

START_TEST(a_copy_past_the_end_of_its_memory_is_refused)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaMemcpyAsync(p.device + 1, p.host, sizeof(p.host), CUDA_COPY_HOST_TO_DEVICE, p.stream),
                         CUDA_INVALID_VALUE);
        pipe_end(&p);
}
END_TEST

START_TEST(copies_from_memory_that_is_not_pinned_are_counted)
{
        struct fake_state *state = share_state();
        struct pipe p;
        start();
        pipe_begin(&p);
        pipe_copy(&p);
        ck_assert_uint_eq(state->pageable, 0);
        ck_assert_int_eq(api->cudaMemcpyAsync(p.device, &p.device, 8, CUDA_COPY_HOST_TO_DEVICE, p.stream), CUDA_OK);
        ck_assert_uint_eq(state->pageable, 1);
        pipe_end(&p);
}
END_TEST

START_TEST(memory_is_registered_once)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaHostRegister(p.host + 8, 8, CUDA_HOST_REGISTER_PORTABLE), CUDA_ALREADY_REGISTERED);
        ck_assert_int_eq(api->cudaHostUnregister(p.host + 8), (enum cuda_error)713);
        pipe_end(&p);
}
END_TEST

START_TEST(free_waits_for_the_copies_to_its_gpu)
{
        struct fake_state *state = share_state();
        struct pipe p;
        setenv("FAKECUDA_EVENT_MS", "5", 1);
        start();
        pipe_begin(&p);
        pipe_copy(&p);
        ck_assert_int_eq(api->cudaFree(device_memory(MIB)), CUDA_OK);
        ck_assert_uint_eq(state->copied[0], sizeof(p.host));
        pipe_end(&p);
}
END_TEST

/* Loop: the runtime's major version. */
START_TEST(a_batch_goes_through_either_version)
{
        struct pipe p;
        start_version(_i);
        pipe_begin(&p);
        void *to[] = {p.device, p.device + 100};
        const void *from[] = {p.host, p.host};
        const size_t sizes[] = {10, 20};
        ck_assert(cuda_has_batch(api));
        ck_assert_int_eq(cuda_copy_batch(api, to, from, sizes, 2, p.stream), CUDA_OK);
        ck_assert_int_eq(api->cudaEventRecord(p.event, p.stream), CUDA_OK);
        ck_assert_uint_eq(p.device[100], 0);
        ck_assert_int_eq(api->cudaEventQuery(p.event), CUDA_OK);
        ck_assert_uint_eq(p.device[9], 'x');
        ck_assert_uint_eq(p.device[10], 0);
        ck_assert_uint_eq(p.device[119], 'x');
        ck_assert_uint_eq(p.device[120], 0);
        pipe_end(&p);
}
END_TEST

/* ---- failures on demand ---- */

START_TEST(the_nth_call_fails_and_no_other)
{
        void *p;
        setenv("FAKECUDA_FAIL", "cudaMalloc:2:2,cudaFree:1:1", 1);
        start();
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OK);
        ck_assert_int_eq(api->cudaFree(p), CUDA_INVALID_VALUE);
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OUT_OF_MEMORY);
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OK);
}
END_TEST

START_TEST(each_call_fails_where_the_number_is_0)
{
        void *p;
        setenv("FAKECUDA_FAIL", "cudaMalloc:0:2", 1);
        start();
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OUT_OF_MEMORY);
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OUT_OF_MEMORY);
}
END_TEST

START_TEST(a_failure_may_be_that_of_one_gpu)
{
        void *p;
        setenv("FAKECUDA_DEVICES", "2", 1);
        setenv("FAKECUDA_FAIL", "cudaMalloc:1:2:1", 1);
        start();
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OK);
        ck_assert_int_eq(api->cudaSetDevice(1), CUDA_OK);
        ck_assert_int_eq(api->cudaMalloc(&p, MIB), CUDA_OUT_OF_MEMORY);
}
END_TEST

START_TEST(a_sticky_error_takes_its_gpu_and_no_other)
{
        struct pipe p;
        size_t available, total;
        setenv("FAKECUDA_DEVICES", "2", 1);
        setenv("FAKECUDA_STICKY", "cudaMemcpyAsync:2:700", 1);
        start();
        pipe_begin(&p);
        pipe_copy(&p);
        ck_assert_int_eq(api->cudaMemcpyAsync(p.device, p.host, 1, CUDA_COPY_HOST_TO_DEVICE, p.stream),
                         CUDA_ILLEGAL_ADDRESS);
        ck_assert_int_eq(api->cudaEventQuery(p.event), CUDA_ILLEGAL_ADDRESS);
        ck_assert_int_eq(api->cudaFree(p.device), CUDA_ILLEGAL_ADDRESS);
        ck_assert_int_eq(api->cudaSetDevice(1), CUDA_OK);
        ck_assert_int_eq(api->cudaMemGetInfo(&available, &total), CUDA_OK);
}
END_TEST

START_TEST(a_gpu_breaks_when_the_test_says_so)
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
END_TEST

/* ---- virtual memory management ---- */

struct vmm {
        cu_allocation allocation;
        cu_pointer pointer;
        size_t size;
};

static void vmm_map(struct vmm *v, enum cu_access flags)
{
        struct cu_access_desc access = {.location = {CU_LOCATION_DEVICE, 0}, .flags = flags};
        ck_assert_int_eq(api->cuMemAddressReserve(&v->pointer, v->size, 0, 0, 0), CU_OK);
        ck_assert_int_eq(api->cuMemMap(v->pointer, v->size, 0, v->allocation, 0), CU_OK);
        ck_assert_int_eq(api->cuMemSetAccess(v->pointer, v->size, &access, 1), CU_OK);
}

static void vmm_import(struct vmm *v, const struct exporter *e)
{
        v->size = e->size;
        ck_assert_int_eq(
                api->cuMemImportFromShareableHandle(&v->allocation, (void *)(intptr_t)e->fd, CU_HANDLE_POSIX_FD),
                CU_OK);
}

START_TEST(a_descriptor_is_mapped_in_another_process)
{
        struct exporter e;
        struct vmm v;
        exporter_start(&e, 0, 2 * MIB, true);
        start();
        vmm_import(&v, &e);
        vmm_map(&v, CU_ACCESS_READ);
        const unsigned char *p = (const void *)(uintptr_t)v.pointer;
        ck_assert_uint_eq(p[2 * MIB - 1], exporter_byte(0, 2 * MIB - 1));
        exporter_stop(&e);
        ck_assert_uint_eq(p[5], exporter_byte(0, 5)); /* it outlives the exporter */
}
END_TEST

START_TEST(what_is_mapped_to_be_read_is_not_written)
{
        struct exporter e;
        struct vmm v;
        int status;
        exporter_start(&e, 0, 2 * MIB, true);
        start();
        vmm_import(&v, &e);
        vmm_map(&v, CU_ACCESS_READ);
        pid_t pid = must(fork());
        if (pid == 0) {
                signal(SIGSEGV, SIG_DFL);
                *(volatile char *)(uintptr_t)v.pointer = 1;
                _exit(0);
        }
        must(waitpid(pid, &status, 0));
        ck_assert(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
        exporter_stop(&e);
}
END_TEST

START_TEST(addresses_are_freed_after_what_is_mapped_there)
{
        struct exporter e;
        struct vmm v;
        exporter_start(&e, 0, 2 * MIB, true);
        start();
        vmm_import(&v, &e);
        vmm_map(&v, CU_ACCESS_READ);
        ck_assert_int_eq(api->cuMemAddressFree(v.pointer, v.size), CU_INVALID_VALUE);
        ck_assert_int_eq(api->cuMemUnmap(v.pointer, v.size), CU_OK);
        ck_assert_int_eq(api->cuMemAddressFree(v.pointer, v.size), CU_OK);
        ck_assert_int_eq(api->cuMemRelease(v.allocation), CU_OK);
        ck_assert_int_eq(api->cuMemRelease(v.allocation), CU_INVALID_VALUE);
        exporter_stop(&e);
}
END_TEST

START_TEST(vmm_memory_counts_until_its_last_mapping)
{
        struct cu_allocation_prop prop = {
                .type = CU_ALLOCATION_PINNED, .handle_types = CU_HANDLE_POSIX_FD, .location = {CU_LOCATION_DEVICE, 0}};
        struct vmm v = {.size = 6 * MIB};
        cu_allocation second;
        setenv("FAKECUDA_MEM_MIB", "8", 1);
        start();
        ck_assert_int_eq(api->cuMemCreate(&v.allocation, v.size, &prop, 0), CU_OK);
        vmm_map(&v, CU_ACCESS_READ_WRITE);
        ck_assert_int_eq(api->cuMemRelease(v.allocation), CU_OK);
        ck_assert_int_eq(api->cuMemCreate(&second, 4 * MIB, &prop, 0), CU_OUT_OF_MEMORY);
        ck_assert_int_eq(api->cuMemUnmap(v.pointer, v.size), CU_OK);
        ck_assert_int_eq(api->cuMemCreate(&second, 4 * MIB, &prop, 0), CU_OK);
        ck_assert_int_eq(api->cuMemCreate(&second, MIB, &prop, 0), CU_INVALID_VALUE); /* not whole granules */
}
END_TEST

/* ---- the report ---- */

static char *report_of(void (*work)(void))
{
        char *path = suite_path("report.%d", (int)getpid());
        setenv("FAKECUDA_REPORT", path, 1);
        start();
        work();
        cuda_api_close(api); /* the last one unloads the stand-ins, which then report */
        return file_read(path, NULL);
}

static void leave_everything(void)
{
        static struct pipe p;
        pipe_begin(&p);
}

static void leave_nothing(void)
{
        struct pipe p;
        pipe_begin(&p);
        pipe_copy(&p);
        pipe_end(&p);
}

START_TEST(the_report_names_what_is_left)
{
        char *text = report_of(leave_everything);
        ck_assert_ptr_nonnull(strstr(text, " allocations=1 opened=0 handles=0 reserved=0 mapped=0 "
                                           "streams=1 events=1 registered=1 retained=0\n"));
}
END_TEST

START_TEST(the_report_of_who_left_nothing_is_all_zero)
{
        char *text = report_of(leave_nothing);
        ck_assert_ptr_nonnull(strstr(text, " allocations=0 opened=0 handles=0 reserved=0 mapped=0 "
                                           "streams=0 events=0 registered=0 retained=0\n"));
}
END_TEST

int main(void)
{
        suite_begin("stand-ins for CUDA");
        TCase *t = suite_group("devices", NULL, NULL, 30);
        tcase_add_test(t, every_gpu_of_the_machine_is_there);
        tcase_add_test(t, visible_devices_pick_and_order_by_number);
        tcase_add_test(t, visible_devices_pick_by_uuid_and_by_its_beginning);
        tcase_add_test(t, a_name_that_means_nothing_ends_the_list);
        tcase_add_test(t, a_gpu_that_holds_nothing_has_no_context);
        tcase_add_test(t, a_child_of_fork_has_no_cuda);
        t = suite_group("memory", NULL, NULL, 30);
        tcase_add_test(t, memory_ends_where_the_environment_says);
        tcase_add_test(t, a_handle_opens_in_another_process);
        tcase_add_test(t, a_handle_does_not_open_in_its_own_process);
        tcase_add_test(t, a_handle_to_freed_memory_does_not_open);
        tcase_add_test(t, a_handle_does_not_open_on_another_gpu);
        t = suite_group("copies", NULL, NULL, 30);
        tcase_add_test(t, a_copy_lands_when_its_event_fires);
        tcase_add_test(t, an_event_takes_the_time_that_was_set);
        tcase_add_test(t, a_buffer_that_changes_before_its_event_is_copied_changed);
        tcase_add_test(t, an_event_waits_only_for_what_was_before_it);
        tcase_add_test(t, an_event_that_was_never_recorded_has_fired);
        tcase_add_test(t, an_event_belongs_to_one_gpu);
        tcase_add_test(t, a_copy_past_the_end_of_its_memory_is_refused);
        tcase_add_test(t, copies_from_memory_that_is_not_pinned_are_counted);
        tcase_add_test(t, memory_is_registered_once);
        tcase_add_test(t, free_waits_for_the_copies_to_its_gpu);
        tcase_add_loop_test(t, a_batch_goes_through_either_version, 12, 14);
        t = suite_group("failures on demand", NULL, NULL, 30);
        tcase_add_test(t, the_nth_call_fails_and_no_other);
        tcase_add_test(t, each_call_fails_where_the_number_is_0);
        tcase_add_test(t, a_failure_may_be_that_of_one_gpu);
        tcase_add_test(t, a_sticky_error_takes_its_gpu_and_no_other);
        tcase_add_test(t, a_gpu_breaks_when_the_test_says_so);
        t = suite_group("virtual memory management", NULL, NULL, 30);
        tcase_add_test(t, a_descriptor_is_mapped_in_another_process);
        tcase_add_test(t, what_is_mapped_to_be_read_is_not_written);
        tcase_add_test(t, addresses_are_freed_after_what_is_mapped_there);
        tcase_add_test(t, vmm_memory_counts_until_its_last_mapping);
        t = suite_group("report", NULL, NULL, 30);
        tcase_add_test(t, the_report_names_what_is_left);
        tcase_add_test(t, the_report_of_who_left_nothing_is_all_zero);
        return suite_run();
}
