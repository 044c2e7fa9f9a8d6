/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA device: segments are allocations of a GPU, handed out as legacy IPC handles, or as
 * descriptors of virtual memory (cuMemCreate).
 *
 * Contexts. None exists until the device's first segment, and it is given back with its last: a GPU
 * that holds nothing costs nothing. The ring is pinned by the first context, for all of them
 * (portable), so that device's context stays while others are in use. A reset ends the streams and
 * events of reader threads with it; `epoch` tells them to make new ones.
 *
 * Threads. alloc and release run on the device's thread; so the order "last release, reset, next
 * alloc" needs no lock. Copies run on reader threads, only while a load holds segments.
 *
 * How it fails. Out of memory is an ordinary answer. Any other error on a copy or an event may be
 * sticky, which means that the context is lost: the device then goes out of service (every later
 * allocation and copy says so), the daemon and its other devices do not.
 */
#include "daemon/device/cuda.h"

#include "daemon/base/log.h"
#include "daemon/base/numa.h"
#include "daemon/base/util.h"
#include "daemon/device/cuda_api.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

/* cudaMalloc may cut smaller requests from a block that others share, and a handle opens the whole
 * block: so whole multiples of this. It is the granularity of virtual memory, too. */
#define GRANULARITY (2 * MiB)
#define MAX_DEVICES 64
/* Copies in flight for one reader thread. */
#define EVENTS 4

struct cuda {
        struct cuda_api *api;
        void *ring;
        uint64_t ring_bytes;
        pthread_mutex_t mutex;
        int pinned_by; /* ordinal; -1: nobody yet */
        unsigned contexts;
};

struct cuda_device {
        struct device device;
        struct cuda *cuda;
        int ordinal;
        enum cuda_handles handles;
        unsigned n_segments; /* the device's thread */
        unsigned n_pinned;   /* host allocations; they need the context, too */
        uint64_t allocated;  /* bytes of them */
        bool context;        /* the device's thread */
        unsigned epoch;      /* atomic: counts resets */
        bool lost;           /* atomic: out of service */
};

struct cuda_copier {
        struct copier copier;
        struct cuda_device *device;
        unsigned epoch;
        struct CUstream_st *stream;
        struct CUevent_st *events[EVENTS]; /* not in use */
        unsigned n_events;
};

static struct cuda_device *cuda_of(struct device *device)
{
        return container_of(device, struct cuda_device, device);
}

/* ---- errors ---- */

static int lost_error(const struct cuda_device *d, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "%s: out of service after a failure of its context", d->device.name);
}

static bool is_lost(const struct cuda_device *d)
{
        return __atomic_load_n(&d->lost, __ATOMIC_ACQUIRE);
}

/* A failure that the context survives is answered once and then forgotten by the runtime; one that
 * it does not survive answers every call. */
static bool is_sticky(const struct cuda_device *d, enum cuda_error e)
{
        if (e == CUDA_OUT_OF_MEMORY)
                return false;
        const struct cuda_api *api = d->cuda->api;
        api->cudaGetLastError();
        size_t available, total;
        return api->cudaSetDevice(d->ordinal) != CUDA_OK || api->cudaMemGetInfo(&available, &total) != CUDA_OK;
}

static int failed(struct cuda_device *d, const char *call, enum cuda_error e, struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        if (is_sticky(d, e) && !__atomic_exchange_n(&d->lost, true, __ATOMIC_ACQ_REL))
                log_event(LOG_LEVEL_ERROR, LOG_DEVICE_LOST, LOG_FIELDS(LOG_TEXT("device", d->device.name)),
                          "%s: %s: %s: the device is out of service", d->device.name, call, api->cudaGetErrorString(e));
        return error_set(error, e == CUDA_OUT_OF_MEMORY ? STREAMER_ENOMEM : STREAMER_EFAILED, "%s: %s: %s (%s)",
                         d->device.name, call, api->cudaGetErrorString(e), api->cudaGetErrorName(e));
}

/* A kind of handle that this GPU does not have is the operator's to change. */
static int no_handle(struct cuda_device *d, const char *call, enum cuda_error e, struct error *error)
{
        struct error why;
        failed(d, call, e, &why);
        if (e != CUDA_NOT_SUPPORTED && e != CUDA_NOT_PERMITTED)
                return error_set(error, why.code, "%s", why.text);
        return error_set(error, STREAMER_EUNSUPPORTED, "%s; %s", why.text,
                         cuda_other_kind(d->cuda->api, d->ordinal, d->handles == CUDA_HANDLES_IPC));
}

/* What is given back must not stay taken for one failure that passes: it is tried again, and an operator
 * is told where that fails too. A lost context has been told of, and takes its memory along. */
#define GIVE_BACK(d, call, ...)                                                                                        \
        do {                                                                                                           \
                if ((d)->cuda->api->call(__VA_ARGS__) != 0 && (d)->cuda->api->call(__VA_ARGS__) != 0 && !is_lost(d))   \
                        log_warn("%s: %s failed twice: memory may stay taken until the daemon ends", (d)->device.name, \
                                 #call);                                                                               \
        } while (0)

/* ---- contexts ---- */

static void pin_ring(struct cuda_device *d)
{
        struct cuda *cuda = d->cuda;
        if (cuda->ring == NULL || cuda->pinned_by >= 0)
                return;
        enum cuda_error e = cuda->api->cudaHostRegister(cuda->ring, cuda->ring_bytes, CUDA_HOST_REGISTER_PORTABLE);
        if (e == CUDA_OK) {
                cuda->pinned_by = d->ordinal;
                return;
        }
        cuda->api->cudaGetLastError();
        log_warn("%s: the staging ring cannot be pinned (%s): copies will be slower", d->device.name,
                 cuda->api->cudaGetErrorString(e));
}

static int context_open(struct cuda_device *d, struct error *error)
{
        struct cuda *cuda = d->cuda;
        enum cuda_error e = cuda->api->cudaSetDevice(d->ordinal);
        if (e != CUDA_OK)
                return failed(d, "cudaSetDevice", e, error);
        if (d->context)
                return 0;
        pthread_mutex_lock(&cuda->mutex);
        d->context = true;
        cuda->contexts++;
        pin_ring(d);
        pthread_mutex_unlock(&cuda->mutex);
        return 0;
}

static void context_close(struct cuda_device *d)
{
        struct cuda *cuda = d->cuda;
        pthread_mutex_lock(&cuda->mutex);
        bool pins = cuda->pinned_by == d->ordinal;
        if (d->context && !(pins && cuda->contexts > 1)) {
                if (pins) {
                        GIVE_BACK(d, cudaHostUnregister, cuda->ring);
                        cuda->pinned_by = -1;
                }
                __atomic_add_fetch(&d->epoch, 1, __ATOMIC_RELEASE);
                GIVE_BACK(d, cudaDeviceReset);
                cuda->contexts--;
                d->context = false;
        }
        pthread_mutex_unlock(&cuda->mutex);
}

/* Nothing here needs it any more. */
static void close_if_unused(struct cuda_device *d)
{
        if (d->n_segments == 0 && d->n_pinned == 0)
                context_close(d);
}

/* ---- segments ---- */

static int out_of_memory(struct cuda_device *d, uint64_t size, struct error *error)
{
        size_t available = 0, total = 0;
        d->cuda->api->cudaGetLastError();
        d->cuda->api->cudaMemGetInfo(&available, &total);
        return error_set(error, STREAMER_ENOMEM,
                         "%s: %" PRIu64 " bytes needed, %zu of %zu free on the device, whoever uses the rest",
                         d->device.name, size, available, total);
}

static int alloc_ipc(struct cuda_device *d, struct segment *segment, struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        void *pointer;
        enum cuda_error e = api->cudaMalloc(&pointer, segment->size);
        if (e == CUDA_OUT_OF_MEMORY)
                return out_of_memory(d, segment->size, error);
        if (e != CUDA_OK)
                return failed(d, "cudaMalloc", e, error);
        struct cuda_ipc_handle handle;
        e = api->cudaIpcGetMemHandle(&handle, pointer);
        if (e != CUDA_OK) {
                int r = no_handle(d, "cudaIpcGetMemHandle", e, error);
                GIVE_BACK(d, cudaFree, pointer);
                return r;
        }
        segment->address = (uintptr_t)pointer;
        memcpy(segment->ipc, handle.bytes, sizeof(segment->ipc));
        return 0;
}

static void release_vmm(struct cuda_device *d, struct segment *segment, bool mapped)
{
        if (segment->fd >= 0)
                close(segment->fd);
        segment->fd = -1;
        if (mapped)
                GIVE_BACK(d, cuMemUnmap, segment->address, segment->size);
        if (segment->address != 0)
                GIVE_BACK(d, cuMemAddressFree, segment->address, segment->size);
        if (segment->allocation != 0)
                GIVE_BACK(d, cuMemRelease, segment->allocation);
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
                                             : no_handle(d, call, (enum cuda_error)e, error);
        release_vmm(d, segment, mapped);
        return r;
}

static int cuda_alloc(struct device *device, uint64_t size, struct segment *segment, struct error *error)
{
        struct cuda_device *d = cuda_of(device);
        *segment = (struct segment){.device = device, .size = size, .fd = -1, .pages = PAGES_DEVICE};
        require(size > 0 && size % GRANULARITY == 0);
        if (is_lost(d))
                return lost_error(d, error);
        int r = context_open(d, error);
        if (r == 0)
                r = d->handles == CUDA_HANDLES_IPC ? alloc_ipc(d, segment, error) : alloc_vmm(d, segment, error);
        if (r == 0) {
                d->n_segments++;
                d->allocated += size;
        } else {
                close_if_unused(d);
        }
        return r;
}

static void cuda_release(struct segment *segment)
{
        struct cuda_device *d = cuda_of(segment->device);
        d->cuda->api->cudaSetDevice(d->ordinal);
        if (d->handles == CUDA_HANDLES_IPC)
                GIVE_BACK(d, cudaFree, (void *)(uintptr_t)segment->address);
        else
                release_vmm(d, segment, true);
        require(d->n_segments > 0);
        d->allocated -= segment->size;
        d->n_segments--;
        close_if_unused(d);
}

/* Whoever else is on the card has memory too. The context that the question needs is the one that the
 * load needs next. */
static uint64_t cuda_ceiling(struct device *device)
{
        struct cuda_device *d = cuda_of(device);
        size_t available = 0, total = 0;
        if (is_lost(d) || context_open(d, NULL) < 0)
                return UINT64_MAX; /* the allocation says why */
        if (d->cuda->api->cudaMemGetInfo(&available, &total) != CUDA_OK)
                return UINT64_MAX;
        return available + d->allocated;
}

static void cuda_idle(struct device *device)
{
        struct cuda_device *d = cuda_of(device);
        close_if_unused(d);
}

static int cuda_host_alloc(struct device *device, uint64_t size, void **base, struct error *error)
{
        struct cuda_device *d = cuda_of(device);
        if (is_lost(d))
                return lost_error(d, error);
        int r = context_open(d, error);
        if (r < 0)
                return r;
        void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED) {
                close_if_unused(d);
                return error_errno(error, STREAMER_ENOMEM, errno, "%" PRIu64 " bytes of host memory", size);
        }
        madvise(map, size, MADV_HUGEPAGE);
        enum cuda_error e = d->cuda->api->cudaHostRegister(map, size, CUDA_HOST_REGISTER_PORTABLE);
        if (e != CUDA_OK) {
                r = failed(d, "cudaHostRegister", e, error);
                munmap(map, size);
                close_if_unused(d);
                return r;
        }
        d->n_pinned++;
        *base = map;
        return 0;
}

static void cuda_host_free(struct device *device, void *base, uint64_t size)
{
        struct cuda_device *d = cuda_of(device);
        d->cuda->api->cudaSetDevice(d->ordinal);
        d->cuda->api->cudaHostUnregister(base);
        munmap(base, size);
        require(d->n_pinned > 0);
        d->n_pinned--;
        close_if_unused(d);
}

static int cuda_prepare(struct segment *segment, uint64_t offset, uint64_t len, struct error *error)
{
        (void)offset;
        (void)len;
        return is_lost(cuda_of(segment->device)) ? lost_error(cuda_of(segment->device), error) : 0;
}

static int transfer(struct cuda_device *d, void *to, const void *from, uint64_t len, enum cuda_copy_kind kind,
                    struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        if (is_lost(d))
                return lost_error(d, error);
        enum cuda_error e = api->cudaSetDevice(d->ordinal);
        if (e != CUDA_OK)
                return failed(d, "cudaSetDevice", e, error);
        e = api->cudaMemcpy(to, from, len, kind);
        return e == CUDA_OK ? 0 : failed(d, "cudaMemcpy", e, error);
}

static int cuda_put(struct segment *segment, uint64_t offset, const void *from, uint64_t len, struct error *error)
{
        require(offset <= segment->size && len <= segment->size - offset);
        return transfer(cuda_of(segment->device), (void *)(uintptr_t)(segment->address + offset), from, len,
                        CUDA_COPY_HOST_TO_DEVICE, error);
}

static int cuda_read(const struct segment *segment, uint64_t offset, void *to, uint64_t len, struct error *error)
{
        require(offset <= segment->size && len <= segment->size - offset);
        return transfer(cuda_of(segment->device), to, (const void *)(uintptr_t)(segment->address + offset), len,
                        CUDA_COPY_DEVICE_TO_HOST, error);
}

static void cuda_handle(const struct segment *segment, struct handle *handle)
{
        if (cuda_of(segment->device)->handles == CUDA_HANDLES_VMM_FD) {
                *handle = (struct handle){.kind = "cuda-vmm-fd", .fd = segment->fd};
                return;
        }
        *handle = (struct handle){.kind = "cuda-ipc", .fd = -1, .n_bytes = sizeof(segment->ipc)};
        memcpy(handle->bytes, segment->ipc, sizeof(segment->ipc));
}

/* ---- copies ---- */

static struct cuda_copier *copier_of(struct copier *copier)
{
        return container_of(copier, struct cuda_copier, copier);
}

static struct copier *cuda_copier_new(struct device *device, struct error *error)
{
        struct cuda_copier *copier = calloc(1, sizeof(*copier));
        if (copier == NULL) {
                error_set(error, STREAMER_ENOMEM, "%s: no memory", device->name);
                return NULL;
        }
        copier->copier.ops = device->ops;
        copier->device = cuda_of(device);
        return &copier->copier;
}

static void copier_drop(struct cuda_copier *copier)
{
        const struct cuda_api *api = copier->device->cuda->api;
        for (unsigned i = 0; i < copier->n_events; i++)
                api->cudaEventDestroy(copier->events[i]);
        if (copier->stream != NULL)
                api->cudaStreamDestroy(copier->stream);
        copier->n_events = 0;
        copier->stream = NULL;
}

static void cuda_copier_free(struct copier *base)
{
        struct cuda_copier *copier = copier_of(base);
        /* What a reset took needs no ending. */
        if (copier->epoch == __atomic_load_n(&copier->device->epoch, __ATOMIC_ACQUIRE))
                copier_drop(copier);
        free(copier);
}

/* The calling thread's stream on this device, made anew after a reset. */
static int copier_ready(struct cuda_copier *copier, struct error *error)
{
        struct cuda_device *d = copier->device;
        const struct cuda_api *api = d->cuda->api;
        if (is_lost(d))
                return lost_error(d, error);
        enum cuda_error e = api->cudaSetDevice(d->ordinal);
        if (e != CUDA_OK)
                return failed(d, "cudaSetDevice", e, error);
        unsigned epoch = __atomic_load_n(&d->epoch, __ATOMIC_ACQUIRE);
        if (copier->epoch != epoch) {
                copier->epoch = epoch;
                copier->stream = NULL;
                copier->n_events = 0;
        }
        if (copier->stream != NULL)
                return 0;
        e = api->cudaStreamCreateWithFlags(&copier->stream, CUDA_STREAM_NON_BLOCKING);
        if (e != CUDA_OK)
                copier->stream = NULL;
        return e == CUDA_OK ? 0 : failed(d, "cudaStreamCreateWithFlags", e, error);
}

static int event_get(struct cuda_copier *copier, struct CUevent_st **event, struct error *error)
{
        if (copier->n_events > 0) {
                *event = copier->events[--copier->n_events];
                return 0;
        }
        enum cuda_error e = copier->device->cuda->api->cudaEventCreateWithFlags(
                event, CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_BLOCKING_SYNC);
        return e == CUDA_OK ? 0 : failed(copier->device, "cudaEventCreateWithFlags", e, error);
}

static void event_put(struct cuda_copier *copier, struct CUevent_st *event)
{
        if (copier->n_events < EVENTS)
                copier->events[copier->n_events++] = event;
        else
                copier->device->cuda->api->cudaEventDestroy(event);
}

static enum cuda_error start_copies(const struct cuda_copier *copier, const struct device_span *spans, size_t n,
                                    const char **call)
{
        const struct cuda_api *api = copier->device->cuda->api;
        void *to[256];
        const void *from[256];
        size_t sizes[256];
        enum cuda_error e = CUDA_OK;
        for (size_t i = 0; i < n && e == CUDA_OK;) {
                size_t m = 0;
                for (; i < n && m < ARRAY_SIZE(to); i++, m++) {
                        to[m] = (void *)(uintptr_t)(spans[i].segment->address + spans[i].offset);
                        from[m] = spans[i].from;
                        sizes[m] = spans[i].len;
                }
                bool batch = m > 1 && cuda_has_batch(api);
                *call = batch ? "cudaMemcpyBatchAsync" : "cudaMemcpyAsync";
                if (batch)
                        e = cuda_copy_batch(api, to, from, sizes, m, copier->stream);
                else
                        for (size_t k = 0; k < m && e == CUDA_OK; k++)
                                e = api->cudaMemcpyAsync(to[k], from[k], sizes[k], CUDA_COPY_HOST_TO_DEVICE,
                                                         copier->stream);
        }
        return e;
}

/* Whatever was started must have ended before the slot is used again, also where it went wrong. */
static int give_up(struct cuda_copier *copier, struct CUevent_st *event, const char *call, enum cuda_error e,
                   struct error *error)
{
        copier->device->cuda->api->cudaStreamSynchronize(copier->stream);
        event_put(copier, event);
        return failed(copier->device, call, e, error);
}

static int cuda_copy(struct copier *base, const struct device_span *spans, size_t n, void **out, struct error *error)
{
        struct cuda_copier *copier = copier_of(base);
        struct CUevent_st *event;
        int r = copier_ready(copier, error);
        if (r == 0)
                r = event_get(copier, &event, error);
        if (r < 0)
                return r;
        const char *call;
        enum cuda_error e = start_copies(copier, spans, n, &call);
        if (e != CUDA_OK)
                return give_up(copier, event, call, e, error);
        e = copier->device->cuda->api->cudaEventRecord(event, copier->stream);
        if (e != CUDA_OK)
                return give_up(copier, event, "cudaEventRecord", e, error);
        *out = event;
        return 0;
}

static int cuda_copied(struct copier *base, void *event, bool wait, struct error *error)
{
        struct cuda_copier *copier = copier_of(base);
        const struct cuda_api *api = copier->device->cuda->api;
        enum cuda_error e = api->cudaSetDevice(copier->device->ordinal);
        if (e != CUDA_OK)
                return give_up(copier, event, "cudaSetDevice", e, error);
        e = wait ? api->cudaEventSynchronize(event) : api->cudaEventQuery(event);
        if (e == CUDA_NOT_READY)
                return 0;
        if (e != CUDA_OK)
                return give_up(copier, event, wait ? "cudaEventSynchronize" : "cudaEventQuery", e, error);
        event_put(copier, event);
        return 1;
}

/* ---- facts ---- */

static void describe_device(struct device *device, struct device_facts *facts)
{
        struct cuda_device *d = cuda_of(device);
        cuda_describe(d->cuda->api, d->ordinal, facts);
        facts->handles = d->handles == CUDA_HANDLES_VMM_FD ? "cuda-vmm-fd" : "cuda-ipc";
        facts->in_service = !is_lost(d);
}

void cuda_look(const struct cuda *cuda, const char *library, struct cuda_facts *facts)
{
        struct cuda_api *opened = NULL;
        const struct cuda_api *api = cuda != NULL ? cuda->api : NULL;
        *facts = (struct cuda_facts){.on = true};
        if (api == NULL && cuda_api_open(library, &opened, facts->why, sizeof(facts->why)) < 0) {
                facts->on = false;
                return;
        }
        if (api == NULL)
                api = opened;
        snprintf(facts->library, sizeof(facts->library), "%s", api->library);
        facts->runtime = api->runtime_version;
        facts->driver = api->driver_version;
        facts->gpus = api->n_devices;
        cuda_api_close(opened);
}

/* ---- life ---- */

static void cuda_device_free(struct device *device)
{
        free(cuda_of(device));
}

static const struct device_ops cuda_ops = {
        .kind = "cuda",
        .alloc = cuda_alloc,
        .release = cuda_release,
        .prepare = cuda_prepare,
        .put = cuda_put,
        .copier_new = cuda_copier_new,
        .copier_free = cuda_copier_free,
        .copy = cuda_copy,
        .copied = cuda_copied,
        .read = cuda_read,
        .handle = cuda_handle,
        .describe = describe_device,
        .ceiling = cuda_ceiling,
        .idle = cuda_idle,
        .host_alloc = cuda_host_alloc,
        .host_free = cuda_host_free,
        .free = cuda_device_free,
};

int cuda_new(struct cuda **out, const char *library, struct error *error)
{
        struct cuda *cuda = calloc(1, sizeof(*cuda));
        char why[400];
        if (cuda == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        if (cuda_api_open(library, &cuda->api, why, sizeof(why)) < 0) {
                free(cuda);
                return error_set(error, STREAMER_EUNSUPPORTED, "CUDA is off: %s", why);
        }
        pthread_mutex_init(&cuda->mutex, NULL);
        cuda->pinned_by = -1;
        *out = cuda;
        return 0;
}

struct cuda *cuda_free(struct cuda *cuda)
{
        if (cuda == NULL)
                return NULL;
        /* The context that pins the ring stays while others are in use, and may be the last of them. */
        if (cuda->pinned_by >= 0 && cuda->api->cudaSetDevice(cuda->pinned_by) == CUDA_OK) {
                cuda->api->cudaHostUnregister(cuda->ring);
                cuda->api->cudaDeviceReset();
        }
        cuda_api_close(cuda->api);
        pthread_mutex_destroy(&cuda->mutex);
        free(cuda);
        return NULL;
}

void cuda_set_ring(struct cuda *cuda, void *base, uint64_t bytes)
{
        cuda->ring = base;
        cuda->ring_bytes = bytes;
}

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
        int found = 0;
        for (int i = 0; i < cuda->api->n_devices && found < n; i++) {
                char uuid[CUDA_UUID_TEXT] = "", number[16];
                uuid_of(cuda, i, uuid);
                snprintf(number, sizeof(number), "%d", i);
                if (strcmp(which, "all") == 0 || strcmp(which, number) == 0 || strcasecmp(which, uuid) == 0)
                        ordinals[found++] = i;
        }
        if (found == 0)
                return error_set(error, STREAMER_EUNSUPPORTED, "%s: no such GPU (%d visible)", name,
                                 cuda->api->n_devices);
        return found;
}

static int memory_of(const struct cuda *cuda, int ordinal, uint64_t *bytes)
{
        cu_device device;
        size_t total;
        if (cuda->api->cuDeviceGet(&device, ordinal) != CU_OK ||
            cuda->api->cuDeviceTotalMem_v2(&total, device) != CU_OK)
                return -1;
        *bytes = total;
        return 0;
}

int cuda_device_new(struct device **out, struct cuda *cuda, int ordinal, const struct cuda_opts *opts,
                    struct wake *wake, struct error *error)
{
        struct cuda_device *d = calloc(1, sizeof(*d));
        uint64_t total = 0;
        if (d == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        struct device *device = &d->device;
        d->cuda = cuda;
        d->ordinal = device->index = ordinal;
        d->handles = opts->handles;
        device->ops = &cuda_ops;
        device->caps = opts->handles == CUDA_HANDLES_IPC ? DEVICE_SHARED_WRITABLE : 0;
        device->pages = PAGES_DEVICE;
        device->layout = (struct device_layout){
                .page = 0, .align = 256, .granularity = GRANULARITY, .max_segment = opts->max_segment};
        snprintf(device->name, sizeof(device->name), "cuda:%d", ordinal);
        if (uuid_of(cuda, ordinal, device->uuid) < 0 || memory_of(cuda, ordinal, &total) < 0) {
                free(d);
                return error_set(error, STREAMER_EUNSUPPORTED, "cuda:%d: the driver does not describe it", ordinal);
        }
        struct device_facts facts;
        cuda_describe(cuda->api, ordinal, &facts);
        device->numa_node = numa_of_pci("", facts.pci);
        device->budget = opts->budget > 0 ? opts->budget : total / 100 * opts->budget_percent;
        device->thread = work_pool_new(wake, "device-cuda", 1, 1);
        if (device->thread == NULL) {
                free(d);
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        *out = device;
        return 0;
}
