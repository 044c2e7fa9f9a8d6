/* SPDX-License-Identifier: Apache-2.0
 *
 * When a GPU has a context, and what an error of it means.
 *
 * Contexts. None exists until somebody holds it: for a segment, for pinned host memory, for the length
 * of a call. It is given back with the last holder: a GPU that holds nothing costs nothing. The ring is
 * pinned by the first context, for all of them (portable), so that device's context stays while others
 * are in use, and the last of these gives it back, too. A reset ends the streams and events of reader
 * threads with it; `epoch` tells them to make new ones.
 *
 *   none --hold--> held --drop--> none
 *                   |  \---drop, pins the ring for others---> unheld --hold--> held
 *                   \---leave---> unheld                         \---idle, the last other drops---> none
 *
 * How it fails. Out of memory is an ordinary answer. Any other error may be sticky, which means that the
 * context is lost: the device then goes out of service (every later allocation and copy says so), the
 * daemon and its other devices do not. One that cannot be made is not lost: another process may have the GPU for
 * itself, or what it needs is not up yet, and the next load tries again.
 */
#include "daemon/device/cuda_device.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

/* ---- errors ---- */

bool cuda_is_lost(const struct cuda_device *d)
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

static int says(const struct cuda_device *d, const char *call, enum cuda_error e, struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        return error_set(error, e == CUDA_OUT_OF_MEMORY ? STREAMER_ENOMEM : STREAMER_EFAILED, "%s: %s: %s (%s)",
                         d->device.name, call, api->cudaGetErrorString(e), api->cudaGetErrorName(e));
}

int cuda_failed(struct cuda_device *d, const char *call, enum cuda_error e, struct error *error)
{
        if (is_sticky(d, e) && !__atomic_exchange_n(&d->lost, true, __ATOMIC_ACQ_REL))
                log_event(LOG_LEVEL_ERROR, LOG_DEVICE_LOST, LOG_FIELDS(LOG_TEXT("device", d->device.name)),
                          "%s: %s: %s: the device is out of service", d->device.name, call,
                          d->cuda->api->cudaGetErrorString(e));
        return says(d, call, e, error);
}

int cuda_select(struct cuda_device *d, struct error *error)
{
        if (cuda_is_lost(d))
                return device_lost_error(&d->device, error);
        enum cuda_error e = d->cuda->api->cudaSetDevice(d->ordinal);
        return e == CUDA_OK ? 0 : cuda_failed(d, "cudaSetDevice", e, error);
}

/* ---- contexts: all of these with cuda->mutex held ---- */

static void pin_ring(struct cuda_device *d)
{
        struct cuda *cuda = d->cuda;
        if (cuda->ring == NULL || cuda->pinned_by != NULL)
                return;
        enum cuda_error e = cuda->api->cudaHostRegister(cuda->ring, cuda->ring_bytes, CUDA_HOST_REGISTER_PORTABLE);
        __atomic_store_n(cuda->ring_pinned, e == CUDA_OK ? RING_PINNED : RING_PIN_REFUSED, __ATOMIC_RELAXED);
        if (e == CUDA_OK) {
                cuda->pinned_by = d;
                return;
        }
        cuda->api->cudaGetLastError();
        log_warn("%s: the staging ring cannot be pinned (%s): copies will be slower", d->device.name,
                 cuda->api->cudaGetErrorString(e));
}

static void reset(struct cuda_device *d)
{
        struct cuda *cuda = d->cuda;
        if (cuda->pinned_by == d) {
                CUDA_GIVE_BACK(d, cudaHostUnregister, cuda->ring);
                cuda->pinned_by = NULL;
                __atomic_store_n(cuda->ring_pinned, RING_NOT_PINNED, __ATOMIC_RELAXED);
        }
        __atomic_add_fetch(&d->epoch, 1, __ATOMIC_RELEASE);
        CUDA_GIVE_BACK(d, cudaDeviceReset);
        cuda->contexts--;
        d->context = false;
}

/* The device is current. */
static void close_if_unused(struct cuda_device *d)
{
        struct cuda *cuda = d->cuda;
        if (!d->context || d->holders > 0 || (cuda->pinned_by == d && cuda->contexts > 1))
                return;
        reset(d);
        struct cuda_device *pins = cuda->pinned_by;
        if (pins != NULL && pins->holders == 0 && cuda->contexts == 1 &&
            cuda->api->cudaSetDevice(pins->ordinal) == CUDA_OK)
                reset(pins);
}

/* ---- holding ---- */

/* A thread whose device it was keeps the context that another has reset meanwhile: cudaSetDevice() sees no change, and
 * calls of the driver fail in it. Nothing that is freed makes the runtime look, and begin a new one. */
static enum cuda_error make_current(const struct cuda_device *d, const char **call)
{
        *call = "cudaSetDevice";
        enum cuda_error e = d->cuda->api->cudaSetDevice(d->ordinal);
        if (e != CUDA_OK)
                return e;
        *call = "cudaFree";
        return d->cuda->api->cudaFree(NULL);
}

int cuda_context_hold(struct cuda_device *d, struct error *error)
{
        struct cuda *cuda = d->cuda;
        pthread_mutex_lock(&cuda->mutex);
        d->holders++; /* before it is made current: nobody resets it from here on */
        bool made = d->context;
        pthread_mutex_unlock(&cuda->mutex);
        const char *call;
        enum cuda_error e = make_current(d, &call);
        if (e != CUDA_OK) {
                cuda->api->cudaGetLastError();
                int r = made ? cuda_failed(d, call, e, error) : says(d, call, e, error);
                cuda_context_leave(d);
                return r;
        }
        pthread_mutex_lock(&cuda->mutex);
        if (!d->context) {
                d->context = true;
                cuda->contexts++;
                pin_ring(d);
        }
        pthread_mutex_unlock(&cuda->mutex);
        return 0;
}

void cuda_context_leave(struct cuda_device *d)
{
        pthread_mutex_lock(&d->cuda->mutex);
        require(d->holders > 0);
        d->holders--;
        pthread_mutex_unlock(&d->cuda->mutex);
}

void cuda_context_drop(struct cuda_device *d)
{
        pthread_mutex_lock(&d->cuda->mutex);
        require(d->holders > 0);
        d->holders--;
        close_if_unused(d);
        pthread_mutex_unlock(&d->cuda->mutex);
}

void cuda_context_idle(struct device *device)
{
        struct cuda_device *d = cuda_of(device);
        pthread_mutex_lock(&d->cuda->mutex);
        if (d->context && d->cuda->api->cudaSetDevice(d->ordinal) == CUDA_OK)
                close_if_unused(d);
        pthread_mutex_unlock(&d->cuda->mutex);
}

/* ---- what needs a context and no segment ---- */

/* Whoever else is on the card has memory too. The context that the question needs is the one that the
 * load needs next. */
uint64_t cuda_ceiling(struct device *device)
{
        struct cuda_device *d = cuda_of(device);
        size_t available = 0, total = 0;
        if (cuda_is_lost(d) || cuda_context_hold(d, NULL) < 0)
                return UINT64_MAX; /* the allocation says why */
        enum cuda_error e = d->cuda->api->cudaMemGetInfo(&available, &total);
        if (e != CUDA_OK)
                cuda_failed(d, "cudaMemGetInfo", e, NULL); /* a lost context is found before anything makes room */
        cuda_context_leave(d);
        return e == CUDA_OK ? available + d->allocated : UINT64_MAX;
}

int cuda_host_alloc(struct device *device, uint64_t size, void **base, struct error *error)
{
        struct cuda_device *d = cuda_of(device);
        if (cuda_is_lost(d))
                return device_lost_error(&d->device, error);
        int r = cuda_context_hold(d, error);
        if (r < 0)
                return r;
        void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED) {
                r = error_errno(error, STREAMER_ENOMEM, errno, "%" PRIu64 " bytes of host memory", size);
                cuda_context_drop(d);
                return r;
        }
        madvise(map, size, MADV_HUGEPAGE);
        enum cuda_error e = d->cuda->api->cudaHostRegister(map, size, CUDA_HOST_REGISTER_PORTABLE);
        if (e != CUDA_OK) {
                r = cuda_failed(d, "cudaHostRegister", e, error);
                munmap(map, size);
                cuda_context_drop(d);
                return r;
        }
        *base = map;
        return 0;
}

void cuda_host_free(struct device *device, void *base, uint64_t size)
{
        struct cuda_device *d = cuda_of(device);
        d->cuda->api->cudaSetDevice(d->ordinal);
        CUDA_GIVE_BACK(d, cudaHostUnregister, base);
        munmap(base, size);
        cuda_context_drop(d);
}
