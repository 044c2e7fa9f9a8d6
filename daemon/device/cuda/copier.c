/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies from the ring to a GPU and back. Each thread that copies has one stream on each device, and each
 * block has an event behind its copies. Threads wait for events, not for streams.
 *
 *   spans > one copy or one batch of copies > event recorded > event fires > the slot is free
 *
 * Batches need pinned memory for which the GPU uses the host's addresses. Other copies are single, as are all copies
 * after the driver has refused a batch.
 *
 * Failure: if a copy cannot be started, or its event fails, the stream is synchronized before the error is returned,
 * so that the slot is free. Streams and events are destroyed with their context; the epoch of the device shows that.
 */
#include "daemon/device/cuda/device_private.h"

/* Copies in flight for one reader thread. */
#define EVENTS 4
/* Copies in one call. */
#define BATCH 256
/* Between two looks at a copy: a block of 8 MiB takes 150 us and more. */
#define POLL_NS 20000

struct cuda_copier {
        struct copier copier;
        struct cuda_device *device;
        unsigned epoch;
        struct CUstream_st *stream;
        struct CUevent_st *events[EVENTS]; /* not in use */
        unsigned n_events;
};

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

void cuda_copier_free(struct copier *base)
{
        struct cuda_copier *copier = container_of(base, struct cuda_copier, copier);
        struct cuda_device *d = copier->device;
        const struct cuda_api *api = d->cuda->api;
        /* A destroyed context has destroyed its streams and events. */
        if (copier->stream != NULL && cuda_context_hold_epoch(d, copier->epoch)) {
                for (unsigned i = 0; i < copier->n_events; i++)
                        api->cudaEventDestroy(copier->events[i]);
                api->cudaStreamDestroy(copier->stream);
                cuda_context_release(d);
        }
        free(copier);
}

/* The calling thread's stream on this device, a new one where the context was destroyed, and an event that is not in
 * use. */
static int copy_begin(struct cuda_copier *copier, struct CUevent_st **event, struct error *error)
{
        struct cuda_device *d = copier->device;
        int r = cuda_select(d, error);
        if (r < 0)
                return r;
        unsigned epoch = __atomic_load_n(&d->epoch, __ATOMIC_ACQUIRE);
        if (copier->epoch != epoch) {
                copier->epoch = epoch;
                copier->stream = NULL;
                copier->n_events = 0;
        }
        if (copier->stream == NULL) {
                struct CUstream_st *stream;
                r = cuda_make_current(d, true, error)
                            ?: CUDA_TRY(d, error, cudaStreamCreateWithFlags, &stream, CUDA_STREAM_NON_BLOCKING);
                if (r < 0)
                        return r;
                copier->stream = stream;
        }
        if (copier->n_events > 0) {
                *event = copier->events[--copier->n_events];
                return 0;
        }
        return CUDA_TRY(d, error, cudaEventCreateWithFlags, event,
                        CUDA_EVENT_DISABLE_TIMING | (d->cuda->settings.poll_copies ? 0 : CUDA_EVENT_BLOCKING_SYNC));
}

static void event_put(struct cuda_copier *copier, struct CUevent_st *event)
{
        if (copier->n_events < EVENTS)
                copier->events[copier->n_events++] = event;
        else
                copier->device->cuda->api->cudaEventDestroy(event);
}

/* A driver that refuses a batch gets single copies. It may have started some of the batch: these are repeated. */
static bool batch_is_refused(struct cuda_device *d, enum cuda_error e)
{
        if (e != CUDA_NOT_SUPPORTED && e != CUDA_INVALID_VALUE)
                return false;
        d->cuda->api->cudaGetLastError();
        if (__atomic_exchange_n(&d->batches, false, __ATOMIC_RELAXED))
                log_warn("%s: cudaMemcpyBatchAsync: %s: tensors are copied one by one from now on", d->device.name,
                         d->cuda->api->cudaGetErrorString(e));
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
        bool pinned = d->cuda->ring != NULL && load_relaxed(d->cuda->ring_pinned) == RING_PINNED;
        for (size_t i = 0; i < n && e == CUDA_OK;) {
                size_t m = 0;
                for (; i < n && m < BATCH; i++, m++) {
                        to[m] = (void *)(uintptr_t)(spans[i].segment->address + spans[i].offset);
                        from[m] = spans[i].from;
                        sizes[m] = spans[i].len;
                }
                if ((m > 1 || d->cuda->settings.batch_single_copies) && pinned && load_relaxed(&d->batches)) {
                        *call = "cudaMemcpyBatchAsync";
                        e = cuda_copy_batch(api, to, from, sizes, m, copier->stream);
                        if (!batch_is_refused(d, e))
                                continue;
                        e = CUDA_OK;
                }
                *call = "cudaMemcpyAsync";
                for (size_t k = 0; k < m && e == CUDA_OK; k++)
                        e = api->cudaMemcpyAsync(to[k], from[k], sizes[k], CUDA_COPY_HOST_TO_DEVICE, copier->stream);
        }
        return e;
}

/* After a failure, too, every copy that was started must be done before the slot is used again. */
static int copy_abort(struct cuda_copier *copier, struct CUevent_st *event, const char *call, enum cuda_error e,
                      struct error *error)
{
        copier->device->cuda->api->cudaStreamSynchronize(copier->stream);
        event_put(copier, event);
        return cuda_failed(copier->device, call, e, error);
}

/* Records the event behind the copies, or returns the error of starting them. */
static int copy_record(struct cuda_copier *copier, struct CUevent_st *event, const char *call, enum cuda_error e,
                       void **out, struct error *error)
{
        if (e == CUDA_OK) {
                call = "cudaEventRecord";
                e = copier->device->cuda->api->cudaEventRecord(event, copier->stream);
        }
        if (e != CUDA_OK)
                return copy_abort(copier, event, call, e, error);
        *out = event;
        return 0;
}

int cuda_copy(struct copier *base, const struct device_span *spans, size_t n, void **out, struct error *error)
{
        struct cuda_copier *copier = container_of(base, struct cuda_copier, copier);
        struct CUevent_st *event;
        int r = copy_begin(copier, &event, error);
        if (r < 0)
                return r;
        const char *call;
        enum cuda_error e = start_copies(copier, spans, n, &call);
        return copy_record(copier, event, call, e, out, error);
}

int cuda_fetch(struct copier *base, const struct segment *segment, uint64_t offset, void *to, uint64_t len, void **out,
               struct error *error)
{
        struct cuda_copier *copier = container_of(base, struct cuda_copier, copier);
        struct CUevent_st *event;
        require(offset <= segment->size && len <= segment->size - offset);
        int r = copy_begin(copier, &event, error);
        if (r < 0)
                return r;
        const void *from = (const void *)(uintptr_t)(segment->address + offset);
        enum cuda_error e =
                copier->device->cuda->api->cudaMemcpyAsync(to, from, len, CUDA_COPY_DEVICE_TO_HOST, copier->stream);
        return copy_record(copier, event, "cudaMemcpyAsync", e, out, error);
}

int cuda_copied(struct copier *base, void *event, bool wait, struct error *error)
{
        struct cuda_copier *copier = container_of(base, struct cuda_copier, copier);
        const struct cuda_api *api = copier->device->cuda->api;
        enum cuda_error e = api->cudaSetDevice(copier->device->ordinal);
        if (e != CUDA_OK)
                return copy_abort(copier, event, "cudaSetDevice", e, error);
        bool blocks = wait && !copier->device->cuda->settings.poll_copies;
        e = blocks ? api->cudaEventSynchronize(event) : api->cudaEventQuery(event);
        while (wait && e == CUDA_NOT_READY) {
                nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
                e = api->cudaEventQuery(event);
        }
        if (e == CUDA_NOT_READY)
                return 0;
        if (e != CUDA_OK)
                return copy_abort(copier, event, blocks ? "cudaEventSynchronize" : "cudaEventQuery", e, error);
        event_put(copier, event);
        return 1;
}
