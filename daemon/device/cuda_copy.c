/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies from the ring to a GPU and back: each thread that copies has a stream of its own on each device, and each
 * block an event behind its copies. Nobody waits for a whole stream, unless something went wrong.
 *
 *   spans > one copy or one batch of them > event recorded > [fires] > the slot may be used again
 *
 * A batch is for pinned memory that the GPU knows by the host's addresses; anything else goes copy by copy, and so
 * does all that follows a batch which the driver refused.
 *
 * How it fails: a copy that cannot be started, or whose event fails, ends what is on its stream first (the
 * slot must be nobody's when it is given back), then says so. Streams and events end with their context;
 * the epoch of the device tells.
 */
#include "daemon/device/cuda_device.h"

#include <string.h>

/* Copies in flight for one reader thread. */
#define EVENTS 4
/* Copies in one call. */
#define BATCH 256

struct cuda_copier {
        struct copier copier;
        struct cuda_device *device;
        unsigned epoch;
        struct CUstream_st *stream;
        struct CUevent_st *events[EVENTS]; /* not in use */
        unsigned n_events;
};

static struct cuda_copier *copier_of(struct copier *copier)
{
        return container_of(copier, struct cuda_copier, copier);
}

struct copier *cuda_copier_new(struct device *device, struct error *error)
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

void cuda_copier_free(struct copier *base)
{
        struct cuda_copier *copier = copier_of(base);
        struct cuda_device *d = copier->device;
        /* What a reset took needs no ending; none comes in between. */
        pthread_mutex_lock(&d->cuda->mutex);
        if (copier->epoch == __atomic_load_n(&d->epoch, __ATOMIC_ACQUIRE))
                copier_drop(copier);
        pthread_mutex_unlock(&d->cuda->mutex);
        free(copier);
}

/* The calling thread's stream on this device, made anew after a reset. */
static int copier_ready(struct cuda_copier *copier, struct error *error)
{
        struct cuda_device *d = copier->device;
        const struct cuda_api *api = d->cuda->api;
        int r = cuda_select(d, error);
        if (r < 0)
                return r;
        unsigned epoch = __atomic_load_n(&d->epoch, __ATOMIC_ACQUIRE);
        if (copier->epoch != epoch) {
                copier->epoch = epoch;
                copier->stream = NULL;
                copier->n_events = 0;
        }
        if (copier->stream != NULL)
                return 0;
        enum cuda_error e = api->cudaStreamCreateWithFlags(&copier->stream, CUDA_STREAM_NON_BLOCKING);
        if (e != CUDA_OK)
                copier->stream = NULL;
        return e == CUDA_OK ? 0 : cuda_failed(d, "cudaStreamCreateWithFlags", e, error);
}

static int event_get(struct cuda_copier *copier, struct CUevent_st **event, struct error *error)
{
        if (copier->n_events > 0) {
                *event = copier->events[--copier->n_events];
                return 0;
        }
        enum cuda_error e = copier->device->cuda->api->cudaEventCreateWithFlags(
                event, CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_BLOCKING_SYNC);
        return e == CUDA_OK ? 0 : cuda_failed(copier->device, "cudaEventCreateWithFlags", e, error);
}

static void event_put(struct cuda_copier *copier, struct CUevent_st *event)
{
        if (copier->n_events < EVENTS)
                copier->events[copier->n_events++] = event;
        else
                copier->device->cuda->api->cudaEventDestroy(event);
}

static bool may_batch(const struct cuda_device *d)
{
        return __atomic_load_n(&d->batches, __ATOMIC_RELAXED) && d->cuda->ring != NULL &&
               __atomic_load_n(d->cuda->ring_pinned, __ATOMIC_RELAXED) == RING_PINNED;
}

/* What a driver does not take in a batch it takes one by one: some of it again, which does no harm. */
static bool is_refused(struct cuda_device *d, enum cuda_error e)
{
        if (e != CUDA_NOT_SUPPORTED && e != CUDA_INVALID_VALUE)
                return false;
        d->cuda->api->cudaGetLastError();
        if (__atomic_exchange_n(&d->batches, false, __ATOMIC_RELAXED))
                log_warn("%s: cudaMemcpyBatchAsync: %s: small tensors are copied one by one from here on",
                         d->device.name, d->cuda->api->cudaGetErrorString(e));
        return true;
}

static enum cuda_error start_copies(const struct cuda_copier *copier, const struct device_span *spans, size_t n,
                                    const char **call)
{
        struct cuda_device *d = copier->device;
        const struct cuda_api *api = d->cuda->api;
        void *to[BATCH];
        const void *from[BATCH];
        size_t sizes[BATCH];
        enum cuda_error e = CUDA_OK;
        for (size_t i = 0; i < n && e == CUDA_OK;) {
                size_t m = 0;
                for (; i < n && m < BATCH; i++, m++) {
                        to[m] = (void *)(uintptr_t)(spans[i].segment->address + spans[i].offset);
                        from[m] = spans[i].from;
                        sizes[m] = spans[i].len;
                }
                if (m > 1 && may_batch(d)) {
                        *call = "cudaMemcpyBatchAsync";
                        e = cuda_copy_batch(api, to, from, sizes, m, copier->stream);
                        if (!is_refused(d, e))
                                continue;
                        e = CUDA_OK;
                }
                *call = "cudaMemcpyAsync";
                for (size_t k = 0; k < m && e == CUDA_OK; k++)
                        e = api->cudaMemcpyAsync(to[k], from[k], sizes[k], CUDA_COPY_HOST_TO_DEVICE, copier->stream);
        }
        return e;
}

/* Whatever was started must have ended before the slot is used again, also where it went wrong. */
static int give_up(struct cuda_copier *copier, struct CUevent_st *event, const char *call, enum cuda_error e,
                   struct error *error)
{
        copier->device->cuda->api->cudaStreamSynchronize(copier->stream);
        event_put(copier, event);
        return cuda_failed(copier->device, call, e, error);
}

static int begin(struct cuda_copier *copier, struct CUevent_st **event, struct error *error)
{
        int r = copier_ready(copier, error);
        return r < 0 ? r : event_get(copier, event, error);
}

/* Behind what was started, or answered an error. */
static int record(struct cuda_copier *copier, struct CUevent_st *event, const char *call, enum cuda_error e, void **out,
                  struct error *error)
{
        if (e != CUDA_OK)
                return give_up(copier, event, call, e, error);
        e = copier->device->cuda->api->cudaEventRecord(event, copier->stream);
        if (e != CUDA_OK)
                return give_up(copier, event, "cudaEventRecord", e, error);
        *out = event;
        return 0;
}

int cuda_copy(struct copier *base, const struct device_span *spans, size_t n, void **out, struct error *error)
{
        struct cuda_copier *copier = copier_of(base);
        struct CUevent_st *event;
        int r = begin(copier, &event, error);
        if (r < 0)
                return r;
        const char *call;
        enum cuda_error e = start_copies(copier, spans, n, &call);
        return record(copier, event, call, e, out, error);
}

int cuda_fetch(struct copier *base, const struct segment *segment, uint64_t offset, void *to, uint64_t len, void **out,
               struct error *error)
{
        struct cuda_copier *copier = copier_of(base);
        struct CUevent_st *event;
        require(offset <= segment->size && len <= segment->size - offset);
        int r = begin(copier, &event, error);
        if (r < 0)
                return r;
        const void *from = (const void *)(uintptr_t)(segment->address + offset);
        enum cuda_error e =
                copier->device->cuda->api->cudaMemcpyAsync(to, from, len, CUDA_COPY_DEVICE_TO_HOST, copier->stream);
        return record(copier, event, "cudaMemcpyAsync", e, out, error);
}

int cuda_copied(struct copier *base, void *event, bool wait, struct error *error)
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
