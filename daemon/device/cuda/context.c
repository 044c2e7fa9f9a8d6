/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA on this host: the runtime, the contexts of GPUs, and what an error of one means.
 *
 *   none --hold--> held --last holder released--> idle --retention over--> none
 *                    ^-----------hold--------------'
 *
 * Holders are segments, pinned host memory and calls. The first holder creates the context and the last one leaves it
 * idle: creating a context and registering the ring again costs 0.5 to 1 s, so it is destroyed only when its retention
 * is over. The daemon's end is the end of every retention.
 *
 * A context is created and destroyed on its device's own thread. A GPU may hang in any call: then its own thread hangs,
 * and no other. The mutex is for the threads of several devices, and for readers, which release what they held; no
 * call is made with it held.
 *
 * The first context registers the ring for all of them (portable). It stays, idle, while other GPUs have contexts. The
 * contexts that exist meanwhile copy from a ring that is not pinned; if registering fails, the next load tries again.
 * Destroying a context destroys the streams and events of reader threads; `epoch` tells them to create new ones.
 *
 * Failure: out of memory is an ordinary error. Any other error may be sticky, which means that the context is lost: the
 * device then goes out of service (every later allocation and copy fails), while the daemon and its other devices
 * continue. A context that cannot be created is not lost: another process may use the GPU exclusively, or a service
 * may not run yet, and the next load tries again.
 */
#include "daemon/device/cuda/device_private.h"

/* ---- the runtime ---- */

void cuda_facts_read(const struct cuda *cuda, const char *library, struct cuda_facts *facts)
{
        cleanup_free struct cuda_api *opened = NULL;
        const struct cuda_api *api = cuda != NULL ? cuda->api : NULL;
        *facts = (struct cuda_facts){.gpus = 0};
        facts->on = api != NULL || cuda_api_open(library, &opened, &facts->error) == 0;
        if (!facts->on)
                return;
        if (api == NULL)
                api = opened;
        snprintf(facts->library, sizeof(facts->library), "%s", api->library);
        facts->runtime = api->runtime_version;
        facts->driver = api->driver_version;
        facts->gpus = api->n_devices;
}

int cuda_new(struct cuda **out, const char *library, const struct cuda_settings *settings, struct error *error)
{
        cleanup_free struct cuda *cuda = calloc(1, sizeof(*cuda));
        struct error why;
        if (cuda == NULL)
                return error_no_memory(error);
        if (cuda_api_open(library, &cuda->api, &why) < 0)
                return error_set(error, STREAMER_EUNSUPPORTED, "CUDA is unavailable: %s", why.text);
        cuda->settings = *settings;
        if (cuda->settings.context_retention_ns < CUDA_RETENTION_LEAST)
                cuda->settings.context_retention_ns = CUDA_RETENTION_LEAST;
        pthread_mutex_init(&cuda->mutex, NULL);
        list_init(&cuda->devices);
        *out = cuda;
        cuda = NULL;
        return 0;
}

struct cuda *cuda_free(struct cuda *cuda)
{
        if (cuda == NULL)
                return NULL;
        free(cuda->api);
        pthread_mutex_destroy(&cuda->mutex);
        free(cuda);
        return NULL;
}

void cuda_set_ring(struct cuda *cuda, void *base, uint64_t bytes, unsigned *pinned, void (*unpinned)(void *context),
                   void *context)
{
        cuda->ring_pinned = pinned;
        cuda->ring_unpinned = unpinned;
        cuda->ring_context = context;
        cuda->ring = base;
        cuda->ring_bytes = bytes;
}

void cuda_if_unpinned(void *context, void (*give_back)(void *arg), void *arg)
{
        struct cuda *cuda = context;
        lock_scope(&cuda->mutex);
        if (cuda->pinned_by == NULL)
                give_back(arg);
}

/* ---- errors ---- */

/* The runtime reports an error that the context survives once; it reports one that the context does not survive in
 * answer to every call. */
static bool is_sticky(const struct cuda_device *d, enum cuda_error e)
{
        if (e == CUDA_OUT_OF_MEMORY)
                return false;
        const struct cuda_api *api = d->cuda->api;
        api->cudaGetLastError();
        size_t available, total;
        return api->cudaSetDevice(d->ordinal) != CUDA_OK || api->cudaMemGetInfo(&available, &total) != CUDA_OK;
}

static int report(const struct cuda_device *d, const char *call, enum cuda_error e, struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        return error_set(error, e == CUDA_OUT_OF_MEMORY ? STREAMER_ENOMEM : STREAMER_EFAILED, "%s: %s: %s (%s)",
                         d->device.name, call, api->cudaGetErrorString(e), api->cudaGetErrorName(e));
}

int cuda_failed(struct cuda_device *d, const char *call, enum cuda_error e, struct error *error)
{
        if (is_sticky(d, e) && !__atomic_exchange_n(&d->device.lost, true, __ATOMIC_ACQ_REL))
                log_event(LOG_LEVEL_ERROR, LOG_DEVICE_LOST, LOG_FIELDS(LOG_TEXT("device", d->device.name)),
                          "%s: %s: %s: the device is out of service", d->device.name, call,
                          d->cuda->api->cudaGetErrorString(e));
        return report(d, call, e, error);
}

int cuda_select(struct cuda_device *d, struct error *error)
{
        if (!device_in_service(&d->device))
                return device_lost_error(&d->device, error);
        return CUDA_TRY(d, error, cudaSetDevice, d->ordinal);
}

/* Another thread may have destroyed the context since this one made the device current: cudaSetDevice() sees no
 * change then, and driver calls would fail. A call that needs a context creates it and makes it current;
 * cudaMemGetInfo() would ask the driver for more, which takes milliseconds in some containers. */
int cuda_make_current(struct cuda_device *d, bool exists, struct error *error)
{
        const struct cuda_api *api = d->cuda->api;
        const char *call = "cudaSetDevice";
        enum cuda_error e = api->cudaSetDevice(d->ordinal);
        if (e == CUDA_OK) {
                call = "cudaFree";
                e = api->cudaFree(NULL);
        }
        if (e == CUDA_OK)
                return 0;
        api->cudaGetLastError();
        return exists ? cuda_failed(d, call, e, error) : report(d, call, e, error);
}

/* ---- with cuda->mutex held ---- */

static void set_exists(struct cuda_device *d, bool exists)
{
        d->cuda->contexts += exists - d->exists;
        d->exists = exists;
}

static void context_unhold(struct cuda_device *d)
{
        const struct cuda *cuda = d->cuda;
        bool retains = device_in_service(&d->device) && !cuda->closing;
        require(d->holders > 0);
        if (--d->holders == 0)
                d->idle_until = ns_after(now_ns(), retains ? cuda->settings.context_retention_ns : 0);
}

/* True: the caller registers the ring. */
static bool claim_ring(struct cuda_device *d)
{
        struct cuda *cuda = d->cuda;
        if (cuda->ring == NULL || cuda->closing || cuda->pinned_by != NULL ||
            load_relaxed(cuda->ring_pinned) == RING_PIN_REFUSED)
                return false;
        cuda->pinned_by = d;
        return true;
}

/* ---- holding ---- */

/* The context is held. */
static void register_ring(struct cuda_device *d)
{
        struct cuda *cuda = d->cuda;
        enum cuda_error e = cuda->api->cudaHostRegister(cuda->ring, cuda->ring_bytes, CUDA_HOST_REGISTER_PORTABLE);
        if (e != CUDA_OK) {
                cuda->api->cudaGetLastError();
                log_warn("%s: the staging ring cannot be pinned (%s): copies will be slower", d->device.name,
                         cuda->api->cudaGetErrorString(e));
        }
        lock_scope(&cuda->mutex);
        store_relaxed(cuda->ring_pinned, e == CUDA_OK ? RING_PINNED : RING_PIN_REFUSED);
        if (e != CUDA_OK)
                cuda->pinned_by = NULL;
}

int cuda_context_hold(struct cuda_device *d, struct error *error)
{
        struct cuda *cuda = d->cuda;
        if (!device_in_service(&d->device))
                return device_lost_error(&d->device, error);
        pthread_mutex_lock(&cuda->mutex);
        d->holders++;
        bool exists = d->exists;
        pthread_mutex_unlock(&cuda->mutex);
        int r = cuda_make_current(d, exists, error);
        pthread_mutex_lock(&cuda->mutex);
        if (r == 0)
                set_exists(d, true);
        else
                context_unhold(d);
        bool registers = r == 0 && claim_ring(d);
        pthread_mutex_unlock(&cuda->mutex);
        if (registers)
                register_ring(d);
        return r;
}

void cuda_context_release(struct cuda_device *d)
{
        lock_scope(&d->cuda->mutex);
        context_unhold(d);
}

bool cuda_context_hold_epoch(struct cuda_device *d, unsigned epoch)
{
        lock_scope(&d->cuda->mutex);
        bool exists = d->exists && epoch == __atomic_load_n(&d->epoch, __ATOMIC_ACQUIRE);
        d->holders += exists;
        return exists;
}

/* ---- works on the device's thread ---- */

/* With the mutex. One that pins the ring for others stays. */
static bool is_expired(const struct cuda_device *d)
{
        const struct cuda *cuda = d->cuda;
        return d->exists && d->holders == 0 && d->idle_until <= now_ns() &&
               (cuda->pinned_by != d || cuda->contexts == 1);
}

/* Readers cannot hold the context meanwhile. True: the ring was pinned, and is not any more. */
static bool destroy_context(struct cuda_device *d)
{
        struct cuda *cuda = d->cuda;
        lock_scope(&cuda->mutex);
        bool pins = cuda->pinned_by == d;
        if (!is_expired(d))
                return false;
        set_exists(d, false);
        pthread_mutex_unlock(&cuda->mutex);
        bool current = cuda_make_current(d, false, NULL) == 0 || !device_in_service(&d->device);
        if (current && pins) {
                CUDA_RELEASE(d, cudaHostUnregister, cuda->ring);
                store_relaxed(cuda->ring_pinned, RING_NOT_PINNED);
        }
        if (current) {
                __atomic_add_fetch(&d->epoch, 1, __ATOMIC_RELEASE);
                CUDA_RELEASE(d, cudaDeviceReset);
        }
        pthread_mutex_lock(&cuda->mutex);
        if (!current)
                set_exists(d, true);
        else if (pins)
                cuda->pinned_by = NULL;
        d->idle_until = UINT64_MAX; /* until it is held again */
        return current && pins;
}

static void destroy_run(struct work *work)
{
        struct cuda_device *d = container_of(work, struct cuda_device, work);
        if (destroy_context(d))
                d->cuda->ring_unpinned(d->cuda->ring_context);
}

/* Created at start. */
static void create_run(struct work *work)
{
        struct cuda_device *d = container_of(work, struct cuda_device, work);
        struct error error = {0};
        if (cuda_context_hold(d, &error) == 0)
                cuda_context_release(d);
        else
                log_warn("%s: no context at start: the first load creates it", error.text);
}

static void work_done(struct work *work)
{
        container_of(work, struct cuda_device, work)->working = false;
}

static void submit(struct cuda_device *d, void (*run)(struct work *))
{
        d->working = true;
        work_submit(d->device.thread, WORK_LANE_CPU, &d->work, run, work_done);
}

void cuda_create_contexts(struct cuda *cuda)
{
        cuda->settings.context_retention_ns = UINT64_MAX;
        list_each_item (struct cuda_device, d, &cuda->devices, link)
                submit(d, create_run);
}

/* Other threads than the loop's release a context that is held. */
#define HELD_NS UINT64_C(1000000000)

uint64_t cuda_tick(struct cuda *cuda)
{
        uint64_t next = UINT64_MAX;
        if (cuda == NULL)
                return next;
        lock_scope(&cuda->mutex);
        list_each_item (struct cuda_device, d, &cuda->devices, link) {
                if (!d->working && is_expired(d))
                        submit(d, destroy_run);
                uint64_t at = !d->exists ? UINT64_MAX : d->holders > 0 ? now_ns() + HELD_NS : d->idle_until;
                next = at < next ? at : next;
        }
        return next;
}

bool cuda_close(struct cuda *cuda)
{
        bool closed = true;
        if (cuda == NULL)
                return true;
        pthread_mutex_lock(&cuda->mutex);
        list_each_item (struct cuda_device, d, &cuda->devices, link)
                if (!cuda->closing)
                        d->idle_until = 0;
        cuda->closing = true;
        pthread_mutex_unlock(&cuda->mutex);
        cuda_tick(cuda);
        lock_scope(&cuda->mutex);
        list_each_item (const struct cuda_device, d, &cuda->devices, link)
                closed = closed && !d->working && d->holders == 0;
        return closed;
}

/* Other processes may use the GPU's memory, too. The context that the question needs is the one that the
 * load needs next. */
uint64_t cuda_ceiling(struct device *device)
{
        struct cuda_device *d = cuda_of(device);
        size_t available = 0, total = 0;
        pthread_mutex_lock(&d->cuda->mutex);
        if (d->cuda->ring != NULL && d->cuda->pinned_by == NULL)
                store_relaxed(d->cuda->ring_pinned, RING_NOT_PINNED); /* each load tries again */
        pthread_mutex_unlock(&d->cuda->mutex);
        if (cuda_context_hold(d, NULL) < 0)
                return UINT64_MAX; /* the allocation says why */
        enum cuda_error e = d->cuda->api->cudaMemGetInfo(&available, &total);
        if (e != CUDA_OK)
                cuda_failed(d, "cudaMemGetInfo", e, NULL); /* a lost context is found before anything is evicted */
        cuda_context_release(d);
        return e == CUDA_OK ? available + d->allocated : UINT64_MAX;
}
