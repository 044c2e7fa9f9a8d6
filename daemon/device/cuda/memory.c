/* SPDX-License-Identifier: Apache-2.0
 *
 * A GPU as a device: its names, its segments, and host memory that is registered with CUDA. Segments by kind of handle:
 *
 *   cuda-ipc      cudaMalloc; a handle of 64 bytes opens the whole allocation for writing
 *   cuda-vmm-fd   cuMemCreate, mapped at a reserved address; a descriptor, mapped with the access that the importer
 *                 sets
 *
 * Threads: alloc, release and calls that need a context but no segment run on the device's thread; copies on
 * reader threads, while a load holds segments; the rest on workers.
 *
 * Failure: a failed call frees everything of its segment. An out-of-memory error has the free bytes; the error for a
 * kind of handle that the GPU lacks names the kind that would work.
 */
#include "daemon/device/cuda/device_private.h"

#include "daemon/base/util.h"
#include "daemon/base/sys/numa.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

#define SAMPLE_INTERVAL (256 * MiB) /* of bytes that a load reads one leaf of back */

/* One kind of handle. Called with the context held. */
struct cuda_memory {
        const char *kind; /* on the wire */
        unsigned caps;    /* enum device_caps */
        /* Fills in the segment's address and handle; nothing of it is left where it fails. */
        int (*alloc)(struct cuda_device *d, struct segment *segment, struct error *error);
        void (*release)(struct cuda_device *d, struct segment *segment);
};

/* ---- GPUs ---- */

/* -1: the driver does not know it. */
static int uuid_of(const struct cuda *cuda, int ordinal, char text[CUDA_UUID_TEXT])
{
        cu_device device;
        struct cu_uuid uuid;
        if (cuda->api->cuDeviceGet(&device, ordinal) != CU_OK || cuda->api->cuDeviceGetUuid_v2(&uuid, device) != CU_OK)
                return -1;
        cuda_uuid_text(&uuid, text);
        return 0;
}

int cuda_find(const struct cuda *cuda, const char *name, int *ordinals, int n, struct error *error)
{
        const char *which = name + strlen("cuda:");
        const size_t prefix = strlen("GPU-");
        /* nvidia-smi names a MIG instance by "MIG-" and its UUID; CUDA lists it as a GPU. */
        bool by_uuid = strncasecmp(which, "GPU-", prefix) == 0 || strncasecmp(which, "MIG-", prefix) == 0;
        int found = 0;
        for (int i = 0; i < cuda->api->n_devices && found < n; i++) {
                char uuid[CUDA_UUID_TEXT] = "", number[16];
                uuid_of(cuda, i, uuid);
                snprintf(number, sizeof(number), "%d", i);
                if (strcmp(which, "all") == 0 || strcmp(which, number) == 0 ||
                    (by_uuid && uuid[0] != '\0' && strcasecmp(which + prefix, uuid + prefix) == 0))
                        ordinals[found++] = i;
        }
        if (found == 0)
                return error_set(error, STREAMER_EUNSUPPORTED, "%s: no such GPU (%d visible)", name,
                                 cuda->api->n_devices);
        return found;
}

static bool has_attribute(const struct cuda_api *api, enum cu_attribute which, cu_device device)
{
        int value = 0;
        return api->cuDeviceGetAttribute(&value, which, device) == CU_OK && value != 0;
}

/* By driver calls that need no context. What the driver does not know stays empty. */
static void describe_gpu(const struct cuda_api *api, int ordinal, cu_device device, struct device_facts *facts)
{
        if (api->cudaDeviceGetPCIBusId(facts->pci, sizeof(facts->pci), ordinal) != CUDA_OK) {
                facts->pci[0] = '\0';
                api->cudaGetLastError();
        }
        if (api->cuDeviceGetName(facts->model, sizeof(facts->model), device) != CU_OK)
                facts->model[0] = '\0';
        static const char mig[] = " MIG "; /* "NVIDIA A100-SXM4-40GB MIG 1g.5gb" */
        char *at = strstr(facts->model, mig);
        if (at != NULL) {
                snprintf(facts->mig, sizeof(facts->mig), "%s", at + strlen(mig));
                *at = '\0';
        }
        facts->host_pointers = has_attribute(api, CU_ATTR_HOST_POINTERS, device);
        facts->integrated = has_attribute(api, CU_ATTR_INTEGRATED, device);
        facts->vmm = has_attribute(api, CU_ATTR_VMM_SUPPORTED, device) &&
                     has_attribute(api, CU_ATTR_POSIX_FD_SUPPORTED, device);
}

/* Why the GPU refuses this kind of handle (legacy, or not), and which kind would work. */
static const char *suggest_handles(const struct device_facts *facts, bool legacy)
{
        if (access("/dev/dxg", F_OK) == 0)
                return "WSL does not share GPU memory between processes, only the host device would work";
        if (!legacy)
                return facts->integrated ? "only the host device would work" : "handles: cuda-ipc may work";
        if (facts->integrated)
                return facts->vmm ? "integrated GPUs (Tegra) have no cuda-ipc, handles: cuda-vmm-fd would work"
                                  : "integrated GPUs (Tegra) have no cuda-ipc, only the host device would work";
        return facts->vmm ? "handles: cuda-vmm-fd would work" : "only the host device would work";
}

/* A kind of handle that this GPU does not have is the operator's to change. */
static int alloc_failed(struct cuda_device *d, uint64_t size, const char *call, enum cuda_error e, bool legacy,
                        struct error *error)
{
        size_t available = 0, total = 0;
        struct error why;
        if (e == CUDA_OUT_OF_MEMORY) {
                d->cuda->api->cudaGetLastError();
                d->cuda->api->cudaMemGetInfo(&available, &total);
                char needed[SIZE_TEXT], left[SIZE_TEXT], all[SIZE_TEXT];
                return error_set(error, STREAMER_ENOMEM, "%s: %s needed, %s of %s free on the device", d->device.name,
                                 size_text(needed, size), size_text(left, available), size_text(all, total));
        }
        cuda_failed(d, call, e, &why);
        if (e != CUDA_NOT_SUPPORTED && e != CUDA_NOT_PERMITTED)
                return error_set(error, why.code, "%s", why.text);
        return error_set(error, STREAMER_EUNSUPPORTED, "%s; %s", why.text, suggest_handles(&d->device.facts, legacy));
}

/* ---- cuda-ipc ---- */

static int alloc_ipc(struct cuda_device *d, struct segment *segment, struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        void *pointer;
        enum cuda_error e = api->cudaMalloc(&pointer, segment->size);
        if (e != CUDA_OK)
                return alloc_failed(d, segment->size, "cudaMalloc", e, true, error);
        struct cuda_ipc_handle handle;
        e = api->cudaIpcGetMemHandle(&handle, pointer);
        if (e != CUDA_OK) {
                int r = alloc_failed(d, segment->size, "cudaIpcGetMemHandle", e, true, error);
                CUDA_RELEASE(d, cudaFree, pointer);
                return r;
        }
        segment->ipc = malloc(IPC_SIZE);
        if (segment->ipc == NULL) {
                CUDA_RELEASE(d, cudaFree, pointer);
                return error_no_memory(error);
        }
        segment->address = (uintptr_t)pointer;
        _Static_assert(sizeof(handle.bytes) == IPC_SIZE, "the handle of a segment is CUDA's");
        memcpy(segment->ipc, handle.bytes, IPC_SIZE);
        return 0;
}

static void release_ipc(struct cuda_device *d, struct segment *segment)
{
        free(segment->ipc);
        segment->ipc = NULL;
        CUDA_RELEASE(d, cudaFree, (void *)(uintptr_t)segment->address);
}

static const struct cuda_memory memory_ipc = {
        .kind = "cuda-ipc",
        .caps = DEVICE_SHARED_WRITABLE,
        .alloc = alloc_ipc,
        .release = release_ipc,
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
        bool mapped = false;
        const char *call;
        enum cu_result e = CU_OK;
#define STEP(name, ...) (call = #name, e = api->name(__VA_ARGS__), e == CU_OK)
        cu_allocation allocation = 0;
        cu_pointer pointer = 0;
        int fd = -1;
        bool done = STEP(cuMemCreate, &allocation, segment->size, &prop, 0) &&
                    STEP(cuMemAddressReserve, &pointer, segment->size, 0, 0, 0) &&
                    (mapped = STEP(cuMemMap, pointer, segment->size, 0, allocation, 0)) &&
                    STEP(cuMemSetAccess, pointer, segment->size, &access, 1) &&
                    STEP(cuMemExportToShareableHandle, &fd, allocation, CU_HANDLE_POSIX_FD, 0);
#undef STEP
        segment->allocation = allocation;
        segment->address = pointer;
        segment->fd = done ? fd : -1;
        if (done)
                return 0;
        int r = alloc_failed(d, segment->size, call, (enum cuda_error)e, false, error);
        undo_vmm(d, segment, mapped);
        return r;
}

static void release_vmm(struct cuda_device *d, struct segment *segment)
{
        undo_vmm(d, segment, true);
}

static const struct cuda_memory memory_vmm = {
        .kind = "cuda-vmm-fd",
        .alloc = alloc_vmm,
        .release = release_vmm,
};

/* ---- segments ---- */

static int segment_alloc(struct device *device, uint64_t size, struct segment *segment, struct error *error)
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

static void segment_release(struct segment *segment)
{
        struct cuda_device *d = cuda_of(segment->device);
        d->cuda->api->cudaSetDevice(d->ordinal);
        d->memory->release(d, segment);
        d->allocated -= segment->size;
        cuda_context_release(d);
}

/* Memory that the daemon has freed comes back with its contents, which the publisher may not be allowed to read. */
static int segment_lend(struct device *device, uint64_t size, struct segment *segment, struct error *error)
{
        struct cuda_device *d = cuda_of(device);
        int r = segment_alloc(device, size, segment, error);
        if (r < 0)
                return r;
        r = CUDA_TRY(d, error, cudaMemset, (void *)(uintptr_t)segment->address, 0, size)
                    ?: CUDA_TRY(d, error, cudaStreamSynchronize, NULL);
        if (r < 0)
                segment_release(segment);
        return r;
}

/* ---- contents ---- */

static int segment_put(struct segment *segment, uint64_t offset, const void *from, uint64_t len, struct error *error)
{
        struct cuda_device *d = cuda_of(segment->device);
        void *to = (void *)(uintptr_t)(segment->address + offset);
        require(offset <= segment->size && len <= segment->size - offset);
        return cuda_select(d, error) ?: CUDA_TRY(d, error, cudaMemcpy, to, from, len, CUDA_COPY_HOST_TO_DEVICE);
}

static int segment_read(const struct segment *segment, uint64_t offset, void *to, uint64_t len, struct error *error)
{
        struct cuda_device *d = cuda_of(segment->device);
        const void *from = (const void *)(uintptr_t)(segment->address + offset);
        require(offset <= segment->size && len <= segment->size - offset);
        return cuda_select(d, error) ?: CUDA_TRY(d, error, cudaMemcpy, to, from, len, CUDA_COPY_DEVICE_TO_HOST);
}

/* ---- host memory ---- */

static int cuda_host_alloc(struct device *device, uint64_t size, void **base, struct error *error)
{
        struct cuda_device *d = cuda_of(device);
        *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (*base == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "host: memory for %" PRIu64 " bytes", size);
        madvise(*base, size, MADV_HUGEPAGE);
        int r = cuda_context_hold(d, error);
        if (r == 0 && (r = CUDA_TRY(d, error, cudaHostRegister, *base, size, CUDA_HOST_REGISTER_PORTABLE)) < 0)
                cuda_context_release(d);
        if (r < 0)
                munmap(*base, size);
        return r;
}

static void cuda_host_free(struct device *device, void *base, uint64_t size)
{
        struct cuda_device *d = cuda_of(device);
        d->cuda->api->cudaSetDevice(d->ordinal);
        CUDA_RELEASE(d, cudaHostUnregister, base);
        munmap(base, size);
        cuda_context_release(d);
}

/* ---- the device ---- */

static void cuda_device_free(struct device *device)
{
        struct cuda_device *d = cuda_of(device);
        list_remove(&d->link);
        free(d);
}

static const struct device_ops cuda_ops = {
        .kind = "cuda",
        .alloc = segment_alloc,
        .release = segment_release,
        .lend = segment_lend,
        .put = segment_put,
        .copier_new = cuda_copier_new,
        .copier_free = cuda_copier_free,
        .copy = cuda_copy,
        .copied = cuda_copied,
        .fetch = cuda_fetch,
        .read = segment_read,
        .ceiling = cuda_ceiling,
        .host_alloc = cuda_host_alloc,
        .host_free = cuda_host_free,
        .free = cuda_device_free,
};

int cuda_device_new(struct device **out, struct cuda *cuda, int ordinal, const struct cuda_opts *opts,
                    struct wake *wake, struct error *error)
{
        cleanup_free struct cuda_device *d = calloc(1, sizeof(*d));
        cu_device gpu;
        size_t total = 0;
        if (d == NULL)
                return error_no_memory(error);
        struct device *device = &d->device;
        d->cuda = cuda;
        d->ordinal = ordinal;
        d->memory = opts->handles == CUDA_HANDLES_VMM_FD ? &memory_vmm : &memory_ipc;
        device->ops = &cuda_ops;
        device->caps = d->memory->caps;
        device->handles = d->memory->kind;
        device->shared = "others use the device too";
        device->pages = PAGES_DEVICE;
        device->layout = (struct plan_layout){
                .page = 0, .align = 256, .granularity = CUDA_GRANULARITY, .max_segment = opts->max_segment};
        snprintf(device->name, sizeof(device->name), "cuda:%d", ordinal);
        if (uuid_of(cuda, ordinal, device->uuid) < 0 || cuda->api->cuDeviceGet(&gpu, ordinal) != CU_OK ||
            cuda->api->cuDeviceTotalMem_v2(&total, gpu) != CU_OK)
                return error_set(error, STREAMER_EUNSUPPORTED, "cuda:%d: the driver does not describe it", ordinal);
        describe_gpu(cuda->api, ordinal, gpu, &device->facts);
        device->sample_interval = opts->readback ? SAMPLE_INTERVAL : 0;
        device->numa_node = numa_of_pci(device->facts.pci);
        d->batches = cuda_has_batch(cuda->api) && device->facts.host_pointers;
        device->budget = opts->budget > 0 ? opts->budget : total / 100 * opts->budget_percent;
        device->thread = work_pool_new(wake, "device-cuda", 1, 1);
        if (device->thread == NULL)
                return error_no_memory(error);
        list_append(&cuda->devices, &d->link);
        d = NULL;
        *out = device;
        return 0;
}
