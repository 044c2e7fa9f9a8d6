/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies and mapped memory of the fake CUDA libraries: when data arrives, dependencies of streams and events, and
 * write access.
 */
#include "tests/unit/fake_cuda_fixture.h"

#include <sys/mman.h>
#include <unistd.h>

/* ---- copies ---- */

TEST(a_copy_completes_when_its_event_fires)
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

TEST(a_fake_event_takes_the_configured_time)
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

TEST(a_buffer_changed_before_its_event_is_copied_changed)
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

TEST(an_event_waits_only_for_earlier_work)
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

TEST(an_event_never_recorded_has_fired)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaEventQuery(p.event), CUDA_OK);
        pipe_end(&p);
}

TEST(an_event_belongs_to_one_gpu)
{
        struct pipe p;
        struct CUevent_st *other;
        setenv("FAKECUDA_DEVICES", "2", 1);
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaSetDevice(1), CUDA_OK);
        ck_assert_int_eq(api->cudaEventCreateWithFlags(&other, CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_BLOCKING_SYNC),
                         CUDA_OK);
        ck_assert_int_eq(api->cudaEventRecord(other, p.stream), (enum cuda_error)400);
        pipe_end(&p);
}

TEST(a_copy_past_the_end_of_its_memory_is_refused)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaMemcpyAsync(p.device + 1, p.host, sizeof(p.host), CUDA_COPY_HOST_TO_DEVICE, p.stream),
                         CUDA_INVALID_VALUE);
        pipe_end(&p);
}

TEST(copies_from_memory_that_is_not_pinned_are_counted)
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

TEST(memory_that_is_not_portable_is_pinned_for_its_own_gpu)
{
        static unsigned char host[64];
        struct fake_state *state = share_state();
        setenv("FAKECUDA_DEVICES", "2", 1);
        start();
        ck_assert_int_eq(api->cudaHostRegister(host, sizeof(host), 0), CUDA_OK);
        for (int gpu = 0; gpu < 2; gpu++) {
                ck_assert_int_eq(api->cudaSetDevice(gpu), CUDA_OK);
                void *device = device_memory(sizeof(host));
                ck_assert_int_eq(api->cudaMemcpy(device, host, sizeof(host), CUDA_COPY_HOST_TO_DEVICE), CUDA_OK);
                ck_assert_uint_eq(state->pageable, (unsigned)gpu);
        }
}

TEST(a_reset_unregisters_the_memory_of_its_context)
{
        static unsigned char host[64];
        start();
        ck_assert_int_eq(api->cudaHostRegister(host, sizeof(host), CUDA_HOST_REGISTER_PORTABLE), CUDA_OK);
        ck_assert_int_eq(api->cudaDeviceReset(), CUDA_OK);
        ck_assert_int_eq(api->cudaHostUnregister(host), (enum cuda_error)713);
}

TEST(streams_and_events_are_created_with_the_daemons_flags)
{
        struct CUstream_st *stream;
        struct CUevent_st *event;
        start();
        ck_assert_int_eq(api->cudaStreamCreateWithFlags(&stream, 0), CUDA_INVALID_VALUE);
        ck_assert_int_eq(api->cudaEventCreateWithFlags(&event, CUDA_EVENT_BLOCKING_SYNC), CUDA_INVALID_VALUE);
}

#define READ_ONLY 0x08u

TEST(memory_without_write_access_is_registered_for_reading_alone)
{
        start();
        void *map = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        ck_assert_ptr_ne(map, MAP_FAILED);
        ck_assert_int_eq(api->cudaHostRegister(map, 8192, CUDA_HOST_REGISTER_PORTABLE), CUDA_INVALID_VALUE);
        ck_assert_int_eq(api->cudaHostRegister(map, 8192, 0x100), CUDA_INVALID_VALUE);
        ck_assert_int_eq(api->cudaHostRegister(map, 8192, READ_ONLY), CUDA_OK);
        munmap(map, 8192);
}

static void use_stale(struct pipe *p, int call)
{
        switch (call) {
        case 0:
                pipe_copy(p);
                break;
        case 1:
                api->cudaStreamSynchronize(p->stream);
                break;
        case 2:
                api->cudaStreamDestroy(p->stream);
                break;
        case 3:
                api->cudaEventRecord(p->event, p->stream);
                break;
        case 4:
                api->cudaEventQuery(p->event);
                break;
        case 5:
                api->cudaEventSynchronize(p->event);
                break;
        default:
                api->cudaEventDestroy(p->event);
        }
}

TEST(streams_and_events_of_a_destroyed_context_abort, .signal = SIGABRT, .to = 7)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaDeviceReset(), CUDA_OK);
        p.device = device_memory(sizeof(p.host));
        use_stale(&p, _i);
}

/* A process that lets the next call go on that hangs. */
static pid_t wake(struct fake_state *state)
{
        pid_t waker = must(fork());
        if (waker == 0) {
                while (state->hung == 0)
                        usleep(1000);
                fake_unhang(state);
                _exit(0);
        }
        return waker;
}

static void assert_has_hung(struct fake_state *state, pid_t waker)
{
        ck_assert_int_eq(waitpid(waker, NULL, 0), waker);
        ck_assert_uint_eq(state->hung, 0);
        ck_assert_uint_eq(state->hang_gpus, 0);
}

TEST(a_call_hangs_on_request_on_one_gpu)
{
        struct fake_state *state = share_state();
        setenv("FAKECUDA_DEVICES", "2", 1);
        start();
        fake_hang(state, "cudaFree", 1);
        ck_assert_int_eq(api->cudaFree(NULL), CUDA_OK);
        ck_assert_int_eq(api->cudaSetDevice(1), CUDA_OK);
        pid_t waker = wake(state);
        ck_assert_int_eq(api->cudaFree(NULL), CUDA_OK);
        assert_has_hung(state, waker);
}

static cu_allocation allocate_on(int gpu)
{
        const struct cu_allocation_prop prop = {.type = CU_ALLOCATION_PINNED,
                                                .handle_types = CU_HANDLE_POSIX_FD,
                                                .location = {CU_LOCATION_DEVICE, gpu}};
        cu_allocation allocation;
        ck_assert_int_eq(api->cuMemCreate(&allocation, 2 * MIB, &prop, 0), CU_OK);
        return allocation;
}

TEST(calls_of_virtual_memory_hang_on_the_gpu_of_their_memory)
{
        struct fake_state *state = share_state();
        setenv("FAKECUDA_DEVICES", "2", 1);
        start();
        fake_hang(state, "cuMemCreate", 1);
        cu_allocation first = allocate_on(0);
        pid_t waker = wake(state);
        cu_allocation second = allocate_on(1);
        assert_has_hung(state, waker);
        fake_hang(state, "cuMemRelease", 1);
        ck_assert_int_eq(api->cuMemRelease(first), CU_OK);
        waker = wake(state);
        ck_assert_int_eq(api->cuMemRelease(second), CU_OK);
        assert_has_hung(state, waker);
}

TEST(a_call_of_no_gpu_hangs_on_request)
{
        struct fake_state *state = share_state();
        int device;
        start();
        fake_hang(state, "cudaGetDevice", -1);
        ck_assert_int_eq(api->cudaFree(NULL), CUDA_OK);
        pid_t waker = wake(state);
        ck_assert_int_eq(api->cudaGetDevice(&device), CUDA_OK);
        assert_has_hung(state, waker);
}

TEST(memory_is_registered_once)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaHostRegister(p.host + 8, 8, CUDA_HOST_REGISTER_PORTABLE), CUDA_ALREADY_REGISTERED);
        ck_assert_int_eq(api->cudaHostUnregister(p.host + 8), (enum cuda_error)713);
        pipe_end(&p);
}

TEST(free_waits_for_the_copies_to_its_gpu)
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

/* Loop: the runtime's major version. */
TEST(a_batch_is_copied_by_either_version, .from = 12, .to = 14)
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

TEST(a_descriptor_is_mapped_in_another_process)
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

TEST(memory_mapped_read_only_is_not_written)
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

TEST(addresses_are_freed_after_their_mappings)
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

TEST(vmm_memory_counts_until_its_last_mapping)
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
