/* SPDX-License-Identifier: Apache-2.0
 *
 * Segments on a GPU, by kind of handle:
 *
 *   cuda-ipc      cudaMalloc; a handle of 64 bytes opens the whole allocation for writing
 *   cuda-vmm-fd   cuMemCreate, mapped at a reserved address; a descriptor, mapped with the access that the importer
 *                 sets
 *
 * alloc and release run on the device's thread, the other calls on workers, while a segment holds the context.
 *
 * Failure: a failed call frees everything of its segment. An out-of-memory error has the free bytes; the error for a
 * kind of handle that the GPU lacks names the kind that would work.
 */
#include "daemon/device/cuda/device_private.h"

#include <inttypes.h>
#include <string.h>

static int out_of_memory(struct cuda_device *d, uint64_t size, struct error *error)
{
        size_t available = 0, total = 0;
        d->cuda->api->cudaGetLastError();
        d->cuda->api->cudaMemGetInfo(&available, &total);
        return error_set(error, STREAMER_ENOMEM, "%s: %" PRIu64 " bytes needed, %zu of %zu free on the device",
                         d->device.name, size, available, total);
}

/* A kind of handle that this GPU does not have is the operator's to change. */
static int no_handle(struct cuda_device *d, const char *call, enum cuda_error e, bool legacy, struct error *error)
{
        struct error why;
        cuda_failed(d, call, e, &why);
        if (e != CUDA_NOT_SUPPORTED && e != CUDA_NOT_PERMITTED)
                return error_set(error, why.code, "%s", why.text);
        return error_set(error, STREAMER_EUNSUPPORTED, "%s; %s", why.text,
                         cuda_suggest_handles(d->cuda->api, d->ordinal, legacy));
}

/* ---- cuda-ipc ---- */

static int alloc_ipc(struct cuda_device *d, struct segment *segment, struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        void *pointer;
        enum cuda_error e = api->cudaMalloc(&pointer, segment->size);
        if (e == CUDA_OUT_OF_MEMORY)
                return out_of_memory(d, segment->size, error);
        if (e != CUDA_OK)
                return cuda_failed(d, "cudaMalloc", e, error);
        struct cuda_ipc_handle handle;
        e = api->cudaIpcGetMemHandle(&handle, pointer);
        if (e != CUDA_OK) {
                int r = no_handle(d, "cudaIpcGetMemHandle", e, true, error);
                CUDA_RELEASE(d, cudaFree, pointer);
                return r;
        }
        segment->address = (uintptr_t)pointer;
        memcpy(segment->ipc, handle.bytes, sizeof(segment->ipc));
        return 0;
}

static void release_ipc(struct cuda_device *d, struct segment *segment)
{
        CUDA_RELEASE(d, cudaFree, (void *)(uintptr_t)segment->address);
}

static void handle_ipc(const struct segment *segment, struct handle *handle)
{
        *handle = (struct handle){.kind = "cuda-ipc", .fd = -1, .n_bytes = sizeof(segment->ipc)};
        memcpy(handle->bytes, segment->ipc, sizeof(segment->ipc));
}

static const struct cuda_memory memory_ipc = {
        .kind = "cuda-ipc",
        .caps = DEVICE_SHARED_WRITABLE,
        .alloc = alloc_ipc,
        .release = release_ipc,
        .handle = handle_ipc,
};

/* ---- cuda-vmm-fd ---- */

static void undo_vmm(struct cuda_device *d, struct segment *segment, bool mapped)
{
        if (segment->fd >= 0)
                close(segment->fd);
        segment->fd = -1;
        if (mapped)
                CUDA_RELEASE(d, cuMemUnmap, segment->address, segment->size);
        if (segment->address != 0)
                CUDA_RELEASE(d, cuMemAddressFree, segment->address, segment->size);
        if (segment->allocation != 0)
                CUDA_RELEASE(d, cuMemRelease, segment->allocation);
        segment->address = segment->allocation = 0;
}

static int alloc_vmm(struct cuda_device *d, struct segment *segment, struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        struct cu_allocation_prop prop = {.type = CU_ALLOCATION_PINNED,
                                          .handle_types = CU_HANDLE_POSIX_FD,
                                          .location = {CU_LOCATION_DEVICE, d->ordinal}};
        struct cu_access_desc access = {.location = prop.location, .flags = CU_ACCESS_READ_WRITE};
        cu_allocation allocation = 0;
        cu_pointer pointer = 0;
        bool mapped = false;
        int fd = -1;
        const char *call = "cuMemCreate";
        enum cu_result e = api->cuMemCreate(&allocation, segment->size, &prop, 0);
        segment->allocation = allocation;
        if (e == CU_OK) {
                call = "cuMemAddressReserve";
                e = api->cuMemAddressReserve(&pointer, segment->size, 0, 0, 0);
                segment->address = pointer;
        }
        if (e == CU_OK) {
                call = "cuMemMap";
                e = api->cuMemMap(pointer, segment->size, 0, allocation, 0);
                mapped = e == CU_OK;
        }
        if (e == CU_OK) {
                call = "cuMemSetAccess";
                e = api->cuMemSetAccess(pointer, segment->size, &access, 1);
        }
        if (e == CU_OK) {
                call = "cuMemExportToShareableHandle";
                e = api->cuMemExportToShareableHandle(&fd, allocation, CU_HANDLE_POSIX_FD, 0);
                segment->fd = e == CU_OK ? fd : -1;
        }
        if (e == CU_OK)
                return 0;
        int r = (int)e == CUDA_OUT_OF_MEMORY ? out_of_memory(d, segment->size, error)
                                             : no_handle(d, call, (enum cuda_error)e, false, error);
        undo_vmm(d, segment, mapped);
        return r;
}

static void release_vmm(struct cuda_device *d, struct segment *segment)
{
        undo_vmm(d, segment, true);
}

static void handle_vmm(const struct segment *segment, struct handle *handle)
{
        *handle = (struct handle){.kind = "cuda-vmm-fd", .fd = segment->fd};
}

static const struct cuda_memory memory_vmm = {
        .kind = "cuda-vmm-fd",
        .alloc = alloc_vmm,
        .release = release_vmm,
        .handle = handle_vmm,
};

/* ---- segments ---- */

const struct cuda_memory *cuda_memory_of(enum cuda_handles handles)
{
        return handles == CUDA_HANDLES_VMM_FD ? &memory_vmm : &memory_ipc;
}

int cuda_alloc(struct device *device, uint64_t size, struct segment *segment, struct error *error)
{
        struct cuda_device *d = cuda_of(device);
        *segment = (struct segment){.device = device, .size = size, .fd = -1, .pages = PAGES_DEVICE};
        require(size > 0 && size % CUDA_GRANULARITY == 0);
        int r = cuda_context_hold(d, error);
        if (r < 0)
                return r;
        r = d->memory->alloc(d, segment, error);
        if (r == 0)
                d->allocated += size;
        else
                cuda_context_release(d);
        return r;
}

void cuda_release(struct segment *segment)
{
        struct cuda_device *d = cuda_of(segment->device);
        d->cuda->api->cudaSetDevice(d->ordinal);
        d->memory->release(d, segment);
        d->allocated -= segment->size;
        cuda_context_release(d);
}

void cuda_handle(const struct segment *segment, struct handle *handle)
{
        cuda_of(segment->device)->memory->handle(segment, handle);
}

/* ---- contents ---- */

int cuda_prepare(struct segment *segment, uint64_t offset, uint64_t len, struct error *error)
{
        (void)offset;
        (void)len;
        return cuda_is_lost(cuda_of(segment->device)) ? device_lost_error(segment->device, error) : 0;
}

static int transfer(struct cuda_device *d, void *to, const void *from, uint64_t len, enum cuda_copy_kind kind,
                    struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        int r = cuda_select(d, error);
        if (r < 0)
                return r;
        enum cuda_error e = api->cudaMemcpy(to, from, len, kind);
        return e == CUDA_OK ? 0 : cuda_failed(d, "cudaMemcpy", e, error);
}

int cuda_put(struct segment *segment, uint64_t offset, const void *from, uint64_t len, struct error *error)
{
        require(offset <= segment->size && len <= segment->size - offset);
        return transfer(cuda_of(segment->device), (void *)(uintptr_t)(segment->address + offset), from, len,
                        CUDA_COPY_HOST_TO_DEVICE, error);
}

int cuda_read(const struct segment *segment, uint64_t offset, void *to, uint64_t len, struct error *error)
{
        require(offset <= segment->size && len <= segment->size - offset);
        return transfer(cuda_of(segment->device), to, (const void *)(uintptr_t)(segment->address + offset), len,
                        CUDA_COPY_DEVICE_TO_HOST, error);
}
