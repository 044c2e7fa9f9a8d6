/* SPDX-License-Identifier: Apache-2.0
 *
 * The child sends the handle over a socket pair. It exits when the parent closes the socket or dies.
 */
#include "tests/lib/exporter.h"

#include "daemon/device/cuda/api.h"
#include "proto/frame.h"
#include "tests/lib/base.h"
#include "tests/lib/fake_cuda/state.h"

#include <sys/socket.h>

struct hello {
        struct cuda_ipc_handle handle;
        char uuid[CUDA_UUID_TEXT];
};

struct memory {
        struct cuda_api *api;
        void *pointer;
        size_t size;
        int fd;
};

unsigned char exporter_byte(int ordinal, size_t offset)
{
        return (unsigned char)(offset * 7 + offset / 4096 + (size_t)ordinal * 31 + 1);
}

/* ---- in the child ---- */

/* The parent handles the signals that end the test's process. */
static void abort_exporter(const char *text)
{
        fprintf(stderr, "%s\n", text);
        _exit(1);
}

static void check(int error, const char *call)
{
        if (error != 0)
                die("exporter: %s: error %d", call, error);
}
#define CHECK(api, call, ...) check((int)(api)->call(__VA_ARGS__), #call)

static void map_vmm(struct memory *m, int ordinal)
{
        struct cu_allocation_prop prop = {.type = CU_ALLOCATION_PINNED,
                                          .handle_types = CU_HANDLE_POSIX_FD,
                                          .location = {CU_LOCATION_DEVICE, ordinal}};
        struct cu_access_desc access = {.location = prop.location, .flags = CU_ACCESS_READ_WRITE};
        cu_allocation allocation;
        cu_pointer pointer;
        CHECK(m->api, cuMemCreate, &allocation, m->size, &prop, 0);
        CHECK(m->api, cuMemExportToShareableHandle, &m->fd, allocation, CU_HANDLE_POSIX_FD, 0);
        CHECK(m->api, cuMemAddressReserve, &pointer, m->size, 0, 0, 0);
        CHECK(m->api, cuMemMap, pointer, m->size, 0, allocation, 0);
        CHECK(m->api, cuMemSetAccess, pointer, m->size, &access, 1);
        CHECK(m->api, cuMemRelease, allocation);
        m->pointer = (void *)(uintptr_t)pointer;
}

static void fill(struct memory *m, int ordinal)
{
        cleanup_free unsigned char *bytes = must_alloc(m->size);
        for (size_t i = 0; i < m->size; i++)
                bytes[i] = exporter_byte(ordinal, i);
        CHECK(m->api, cudaMemcpy, m->pointer, bytes, m->size, CUDA_COPY_HOST_TO_DEVICE);
}

static void make(struct memory *m, int ordinal, bool vmm, struct hello *hello)
{
        char library[PATH_SIZE];
        struct error why;
        cu_device device;
        struct cu_uuid uuid;
        fake_library("libcudart.so.13", library, sizeof(library));
        if (cuda_api_open(library, &m->api, &why) < 0)
                die("exporter: %s", why.text);
        CHECK(m->api, cudaSetDevice, ordinal);
        CHECK(m->api, cuDeviceGet, &device, ordinal);
        CHECK(m->api, cuDeviceGetUuid_v2, &uuid, device);
        cuda_uuid_text(&uuid, hello->uuid);
        if (vmm) {
                map_vmm(m, ordinal);
        } else {
                CHECK(m->api, cudaMalloc, &m->pointer, m->size);
                CHECK(m->api, cudaIpcGetMemHandle, &hello->handle, m->pointer);
        }
        fill(m, ordinal);
}

static _Noreturn void serve(int sock, int ordinal, size_t size, bool vmm)
{
        struct memory memory = {.size = size, .fd = -1};
        struct hello hello = {0};
        char c;
        make(&memory, ordinal, vmm, &hello);
        must(frame_send_fds(sock, &hello, sizeof(hello), &memory.fd, memory.fd >= 0));
        must(read(sock, &c, 1)); /* the end of the test */
        _exit(0);
}

/* ---- in the test ---- */

static void receive_hello(struct exporter *e)
{
        struct hello hello;
        size_t n_fds = 0;
        bool lost = false;
        if (frame_recv_fds(e->socket, &hello, sizeof(hello), &e->fd, &n_fds, 1, &lost) != sizeof(hello))
                die("the exporter did not start");
        e->handle = hello.handle;
        memcpy(e->uuid, hello.uuid, sizeof(e->uuid));
}

void exporter_start(struct exporter *e, int ordinal, size_t size, bool vmm)
{
        int sockets[2];
        *e = (struct exporter){.size = size, .fd = -1};
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets));
        e->pid = must(fork());
        if (e->pid == 0) {
                close(sockets[0]);
                die_hook = abort_exporter;
                serve(sockets[1], ordinal, size, vmm);
        }
        close(sockets[1]);
        e->socket = sockets[0];
        receive_hello(e);
}
