/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles of GPU memory.
 *
 *   cuda-ipc      64 bytes that open one whole allocation of the daemon. The time to open it grows with its size, and
 *                 a process can open an allocation only once, so a table counts the uses of each open segment, over
 *                 all leases and clients. Handles of two daemons may be equal; the handles of a daemon that has
 *                 exited stay open as long as their leases.
 *   cuda-vmm-fd   a descriptor, which is mapped for reading only, or for writing where the driver refuses that.
 *                 Mapping takes almost no time, and each lease has its own mapping.
 *
 * The table (with the driver and the lock of cuda_driver.c) is the library's only state that does
 * not belong to a client, because CUDA keeps it per process, too.
 *
 * A child of fork() has none of it: CUDA ended there, and what the parent opened is left alone.
 */
#include "client/cuda_driver.h"

#include "client/fault.h"
#include "client/util.h"
#include "streamer/client.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <unistd.h>

#define SIZE_UNKNOWN SIZE_MAX

/* A segment of this process: memory of the daemon's that is open, or mapped, on a GPU. */
struct open_segment {
        struct open_segment *prev, *next; /* in the table; cuda-ipc only */
        struct cuda_context context;
        pid_t pid, daemon_pid;
        unsigned refs;
        struct cuda_ipc_handle handle;
        cu_pointer base;
        size_t size;
        cu_allocation allocation;
        bool writable;
        atomic_bool forgotten; /* its daemon was lost: no new lease uses it; set without the lock */
};

static struct open_segment *table; /* under cuda_lock() */

static int no_memory(struct fault *fault)
{
        return fault_set(fault, STREAMER_ENOMEM, "attach: no memory");
}

static int check_request(const struct handle *handle, enum map_mode mode, struct fault *fault)
{
        if (mode == MODE_COPY)
                return fault_set(fault, STREAMER_EUNSUPPORTED,
                                 "attach: a private copy of GPU memory is the application's to make");
        if (!handle->uuid)
                return fault_set(fault, STREAMER_EPROTO, "attach: the daemon does not say which GPU a segment is on");
        return 0;
}

static void hand_over(struct mapping *mapping, const struct handle_kind *kind, struct open_segment *s,
                      const struct handle *handle)
{
        *mapping = (struct mapping){.kind = kind,
                                    .data = (const void *)(uintptr_t)(s->base + handle->offset),
                                    .size = handle->size,
                                    .map = s,
                                    .map_size = s->size,
                                    .device_index = s->context.ordinal,
                                    .writable = s->writable};
}

static bool fits(const struct open_segment *s, const struct handle *handle)
{
        return handle->offset <= s->size && handle->size <= s->size - handle->offset;
}

static int too_small(const struct open_segment *s, const struct handle *handle, struct fault *fault)
{
        return fault_set(fault, STREAMER_ECORRUPT,
                         "segment: %" PRIu64 " bytes at %" PRIu64 " were announced, %zu are there", handle->size,
                         handle->offset, s->size);
}

/* One of `to` and `from` is host memory; the other is NULL, for the mapping. */
static int copy(const struct mapping *mapping, uint64_t offset, void *to, const void *from, size_t size,
                struct fault *fault)
{
        const struct open_segment *s = mapping->map;
        const struct cuda_driver *driver = s->context.driver;
        const cu_pointer at = (cu_pointer)(uintptr_t)mapping->data + offset;
        const char *what = to ? "read" : "write", *call = to ? "cuMemcpyDtoH" : "cuMemcpyHtoD";
        if (s->pid != getpid())
                return fault_set(fault, STREAMER_EFORK, "%s: a GPU's memory does not survive fork()", what);
        cuda_lock();
        bool entered = cuda_enter(&s->context);
        enum cu_result e = CU_INVALID_CONTEXT;
        if (entered) {
                e = to ? driver->cuMemcpyDtoH_v2(to, at, size) : driver->cuMemcpyHtoD_v2(at, from, size);
                cuda_leave(&s->context);
        }
        cuda_unlock();
        if (e == CU_OK)
                return 0;
        const char *name = NULL;
        driver->cuGetErrorName(e, &name);
        return fault_set(fault, STREAMER_EFAILED, "%s: %s: %s (%d)", what, entered ? call : "cuCtxPushCurrent",
                         name ? name : "error", (int)e);
}

/* ---- cuda-ipc ---- */

/* In its context: how much there is from its address on; SIZE_UNKNOWN where the driver does not tell that of memory
 * that another process exported. */
static size_t ipc_size(const struct open_segment *s)
{
        cu_pointer base = 0;
        size_t size = 0;
        if (s->context.driver->cuMemGetAddressRange_v2(&base, &size, s->base) != CU_OK || s->base < base ||
            s->base - base >= size)
                return SIZE_UNKNOWN;
        return size - (size_t)(s->base - base);
}

/* Does CUDA still know it? An application may reset its device, or end the context that it was in. */
static bool is_alive(const struct open_segment *s)
{
        if (!cuda_enter(&s->context))
                return false;
        bool alive = ipc_size(s) == s->size;
        cuda_leave(&s->context);
        return alive;
}

static void unlink_segment(struct open_segment *s)
{
        list_remove(table, s);
}

static struct open_segment *find(const struct handle *handle)
{
        for (struct open_segment *s = table, *next; s; s = next) {
                next = s->next;
                if (s->pid != getpid() || atomic_load(&s->forgotten))
                        unlink_segment(s); /* the parent's, or a lost daemon's: its leases keep that open */
                else if (s->daemon_pid == handle->daemon_pid &&
                         memcmp(s->handle.bytes, handle->bytes, sizeof(s->handle.bytes)) == 0) {
                        if (is_alive(s))
                                return s;
                        unlink_segment(s); /* its leases keep it open; no new lease uses it */
                }
        }
        return NULL;
}

/* In its context: opens the memory and queries its size. If the driver does not know it, the announced size is used. */
static int ipc_open(struct open_segment *s, const struct handle *handle, struct fault *fault)
{
        const struct cuda_driver *driver = s->context.driver;
        enum cu_result result = driver->cuIpcOpenMemHandle_v2(&s->base, s->handle, CU_IPC_LAZY_PEER_ACCESS);
        if (result != CU_OK)
                return cuda_fault(&s->context, handle, "cuIpcOpenMemHandle", result, fault);
        s->size = ipc_size(s);
        if (fits(s, handle))
                return 0;
        driver->cuIpcCloseMemHandle(s->base);
        return too_small(s, handle, fault);
}

static int ipc_new(struct open_segment **out, const struct handle *handle, struct fault *fault)
{
        const struct cuda_driver *driver;
        int rc = cuda_driver_get(&driver, handle, fault);
        if (rc != 0)
                return rc;
        cleanup_free struct open_segment *s = calloc(1, sizeof(*s));
        if (!s)
                return no_memory(fault);
        memcpy(s->handle.bytes, handle->bytes, sizeof(s->handle.bytes));
        s->pid = getpid();
        s->daemon_pid = handle->daemon_pid;
        s->writable = true;
        rc = cuda_context_init(&s->context, driver, handle, fault);
        if (rc != 0)
                return rc;
        rc = ipc_open(s, handle, fault);
        cuda_leave(&s->context);
        if (rc != 0) {
                cuda_context_deinit(&s->context);
                return rc;
        }
        list_add(table, s);
        *out = s;
        s = NULL;
        return 0;
}

/* Every client can write to it, of a publication before its commit and after it: the daemon refuses that unless it is
 * configured. */
static int ipc_map(struct mapping *mapping, const struct handle *handle, enum map_mode mode, struct fault *fault)
{
        int rc = check_request(handle, mode, fault);
        if (rc != 0)
                return rc;
        if (handle->n_bytes != CUDA_HANDLE_SIZE)
                return fault_set(fault, STREAMER_EPROTO, "attach: a cuda-ipc handle of %zu bytes", handle->n_bytes);
        cuda_lock();
        struct open_segment *s = find(handle);
        if (!s)
                rc = ipc_new(&s, handle, fault);
        else if (!fits(s, handle))
                rc = too_small(s, handle, fault);
        if (rc == 0) {
                s->refs++;
                hand_over(mapping, &handle_kind_cuda_ipc, s, handle);
        }
        cuda_unlock();
        return rc;
}

static void ipc_unmap(struct mapping *mapping)
{
        struct open_segment *s = mapping->map;
        *mapping = (struct mapping){0};
        if (s->pid != getpid())
                return;
        cuda_lock();
        bool last = --s->refs == 0;
        if (last) {
                unlink_segment(s);
                if (cuda_enter(&s->context)) {
                        s->context.driver->cuIpcCloseMemHandle(s->base);
                        cuda_leave(&s->context);
                }
                cuda_context_deinit(&s->context);
        }
        cuda_unlock();
        if (last)
                free(s);
}

static int ipc_make_private(struct mapping *mapping, int reading, struct fault *fault)
{
        struct open_segment *s = mapping->map;
        const struct handle handle = {.fd = reading, .size = mapping->size};
        enum cu_result e = CU_INVALID_CONTEXT;
        cuda_lock();
        if (cuda_enter(&s->context)) {
                e = s->context.driver->cuCtxSynchronize();
                cuda_leave(&s->context);
        }
        int rc = e == CU_OK ? 0 : cuda_fault(&s->context, &handle, "cuCtxSynchronize", e, fault);
        cuda_unlock();
        return rc;
}

static void ipc_forget(struct mapping *mapping)
{
        struct open_segment *s = mapping->map;
        atomic_store(&s->forgotten, true);
}

const struct handle_kind handle_kind_cuda_ipc = {
        .name = "cuda-ipc",
        .device_kind = "cuda",
        .map = ipc_map,
        .unmap = ipc_unmap,
        .make_private = ipc_make_private,
        .forget = ipc_forget,
        .copy = copy,
};

/* ---- cuda-vmm-fd ---- */

/* Mappings are whole granules; the allocation is, too, or cuMemMap refuses. */
static enum cu_result whole_granules(struct open_segment *s, const struct handle *handle)
{
        struct cu_allocation_prop prop = {.type = CU_ALLOCATION_PINNED,
                                          .handle_types = CU_HANDLE_POSIX_FD,
                                          .location = {CU_LOCATION_DEVICE, s->context.ordinal}};
        size_t granule = 0, end;
        enum cu_result result =
                s->context.driver->cuMemGetAllocationGranularity(&granule, &prop, CU_GRANULARITY_MINIMUM);
        if (result != CU_OK)
                return result;
        if (granule == 0 || __builtin_add_overflow(handle->size, handle->offset, &end) ||
            __builtin_add_overflow(end, granule - 1, &end))
                return CU_INVALID_VALUE;
        s->size = end / granule * granule;
        return CU_OK;
}

static void vmm_undo(struct open_segment *s, bool mapped)
{
        const struct cuda_driver *driver = s->context.driver;
        if (mapped)
                driver->cuMemUnmap(s->base, s->size);
        if (s->base != 0)
                driver->cuMemAddressFree(s->base, s->size);
        if (s->allocation != 0)
                driver->cuMemRelease(s->allocation);
}

/* Some drivers cannot map imported memory for reading alone. What is published is written to by its publisher, which is
 * the only process that can map it until the commit. */
static enum cu_result set_access(struct open_segment *s, enum map_mode mode)
{
        const struct cuda_driver *driver = s->context.driver;
        struct cu_access_desc access = {.location = {CU_LOCATION_DEVICE, s->context.ordinal}, .flags = CU_ACCESS_READ};
        enum cu_result result = CU_NOT_SUPPORTED;
        if (mode != MODE_LENT)
                result = driver->cuMemSetAccess(s->base, s->size, &access, 1);
        if (result != CU_NOT_SUPPORTED && result != CU_INVALID_VALUE)
                return result;
        access.flags = CU_ACCESS_READ_WRITE;
        result = driver->cuMemSetAccess(s->base, s->size, &access, 1);
        s->writable = result == CU_OK;
        return result;
}

/* Returns 0 or CUDA's error with the call that made it: then vmm_undo() is due. */
static enum cu_result vmm_map_steps(struct open_segment *s, const struct handle *handle, enum map_mode mode,
                                    bool *mapped, const char **call)
{
        const struct cuda_driver *driver = s->context.driver;
        *call = "cuMemGetAllocationGranularity";
        enum cu_result result = whole_granules(s, handle);
        if (result != CU_OK)
                return result;
        *call = "cuMemImportFromShareableHandle";
        result = driver->cuMemImportFromShareableHandle(&s->allocation, (void *)(intptr_t)handle->fd,
                                                        CU_HANDLE_POSIX_FD);
        if (result != CU_OK)
                return result;
        *call = "cuMemAddressReserve";
        result = driver->cuMemAddressReserve(&s->base, s->size, 0, 0, 0);
        if (result != CU_OK)
                return result;
        *call = "cuMemMap";
        result = driver->cuMemMap(s->base, s->size, 0, s->allocation, 0);
        if (result != CU_OK)
                return result;
        *mapped = true;
        *call = "cuMemSetAccess";
        return set_access(s, mode);
}

/* Lock held. */
static int vmm_new(struct open_segment *s, const struct handle *handle, enum map_mode mode, struct fault *fault)
{
        const struct cuda_driver *driver;
        const char *call;
        bool mapped = false;
        int rc = cuda_driver_get(&driver, handle, fault) ?: cuda_context_init(&s->context, driver, handle, fault);
        if (rc != 0)
                return rc;
        enum cu_result result = vmm_map_steps(s, handle, mode, &mapped, &call);
        if (result != CU_OK) {
                rc = cuda_fault(&s->context, handle, call, result, fault);
                vmm_undo(s, mapped);
        }
        cuda_leave(&s->context);
        if (rc != 0)
                cuda_context_deinit(&s->context);
        return rc;
}

static int vmm_map(struct mapping *mapping, const struct handle *handle, enum map_mode mode, struct fault *fault)
{
        int rc = check_request(handle, mode, fault);
        if (rc != 0)
                return rc;
        if (handle->fd < 0)
                return fault_set(fault, STREAMER_EPROTO, "segment: the daemon sent no descriptor for it");
        cleanup_free struct open_segment *s = calloc(1, sizeof(*s));
        if (!s)
                return no_memory(fault);
        s->pid = getpid();
        cuda_lock();
        rc = vmm_new(s, handle, mode, fault);
        cuda_unlock();
        if (rc != 0)
                return rc;
        hand_over(mapping, &handle_kind_cuda_vmm_fd, s, handle);
        s = NULL;
        return 0;
}

/* The access of memory that is mapped can only be widened, so it is mapped anew, at the same address. */
static int vmm_make_private(struct mapping *mapping, int reading, struct fault *fault)
{
        struct open_segment *s = mapping->map;
        const struct cuda_driver *driver = s->context.driver;
        const struct handle handle = {.fd = reading, .size = mapping->size};
        const char *call = "cuCtxPushCurrent";
        enum cu_result e = CU_INVALID_CONTEXT;
        cuda_lock();
        if (cuda_enter(&s->context)) {
                call = "cuCtxSynchronize";
                e = driver->cuCtxSynchronize();
                if (e == CU_OK) {
                        call = "cuMemUnmap";
                        e = driver->cuMemUnmap(s->base, s->size);
                }
                if (e == CU_OK) {
                        call = "cuMemMap";
                        e = driver->cuMemMap(s->base, s->size, 0, s->allocation, 0);
                }
                s->writable = false;
                if (e == CU_OK) {
                        call = "cuMemSetAccess";
                        e = set_access(s, MODE_READ);
                }
                cuda_leave(&s->context);
        }
        int rc = e == CU_OK ? 0 : cuda_fault(&s->context, &handle, call, e, fault);
        cuda_unlock();
        mapping->writable = s->writable;
        return rc;
}

static void vmm_unmap(struct mapping *mapping)
{
        struct open_segment *s = mapping->map;
        *mapping = (struct mapping){0};
        if (s->pid != getpid())
                return;
        vmm_undo(s, true); /* mappings belong to the process, whatever became of the context */
        cuda_context_deinit(&s->context);
        free(s);
}

const struct handle_kind handle_kind_cuda_vmm_fd = {
        .name = "cuda-vmm-fd",
        .device_kind = "cuda",
        .outlives_daemon = true,
        .map = vmm_map,
        .unmap = vmm_unmap,
        .make_private = vmm_make_private,
        .copy = copy,
};
