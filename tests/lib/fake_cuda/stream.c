/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events, asynchronous copies. A stream is a list of copies and marks. A query of an event that is due
 * performs everything before its mark; nothing else
 * does. So no byte is copied before the event has been seen to
 * fire, and a buffer that is filled again too early always gives wrong bytes.
 *
 *   copy copy [event a] copy [event b] copy
 *                  ^ due: query(a) carries out two copies; the third waits for b
 */
#include "tests/lib/fake_cuda/runtime.h"

struct op { /* a copy, or a mark where `event` is set */
        struct op *next;
        struct CUevent_st *event; /* NULL: none, or already destroyed */
        void *to;
        const void *from;
        size_t size;
        bool mark, to_host;
        uint64_t due;
};

struct CUstream_st {
        struct CUstream_st *next;
        struct op *first, **last;
        int gpu;
        bool destroyed; /* listed all the same, so that a later use is found */
};

struct CUevent_st {
        struct CUevent_st *next;
        struct op *mark; /* mark mark of the last record; NULL: none pending */
        struct CUstream_st *stream;
        int gpu;
        bool blocking;
        bool destroyed; /* likewise */
};

struct host_range {
        struct host_range *next;
        const char *base;
        size_t size;
        int gpu; /* of the context that registered it; its end unregisters it */
        unsigned flags;
};

/* Flags of cudaHostRegister() that the daemon does not use. */
#define MAPPED 0x02u
#define READ_ONLY 0x08u

static struct CUstream_st *streams;
static struct CUevent_st *events;
static struct host_range *pinned;

/* ---- pinned memory ---- */

static bool is_pinned(const void *pointer, size_t size, int gpu)
{
        const char *p = pointer;
        for (struct host_range *r = pinned; r; r = r->next)
                if (p >= r->base && p < r->base + r->size && size <= r->size - (size_t)(p - r->base))
                        return (r->flags & CUDA_HOST_REGISTER_PORTABLE) != 0 || r->gpu == gpu;
        return false;
}

void streams_touch(const void *host, size_t size, int gpu)
{
        lock_scope(&fake_lock);
        if (!is_pinned(host, size, gpu))
                fake_state()->pageable++;
}

/* Whether no part of it is mapped without the right to write. Addresses that are not mapped may be registered: tests
 * register more than a machine has. */
static bool is_writable(const char *begin, const char *end)
{
        char line[4352], mode[5];
        uintptr_t from, to;
        bool writable = true;
        FILE *maps = fopen("/proc/self/maps", "re");
        while (maps && writable && fgets(line, sizeof(line), maps))
                if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, mode) == 3)
                        writable = to <= (uintptr_t)begin || from >= (uintptr_t)end || mode[1] == 'w';
        if (maps)
                fclose(maps);
        return writable;
}

/* The GPU writes to pinned memory, unless it is registered for reading alone. */
static int check_flags(const char *p, size_t size, unsigned flags)
{
        const unsigned known = CUDA_HOST_REGISTER_PORTABLE | MAPPED | READ_ONLY;
        if ((flags & ~known) != 0)
                return E_VALUE;
        return (flags & READ_ONLY) != 0 || is_writable(p, p + size) ? E_OK : E_VALUE;
}

int streams_register(const void *pointer, size_t size, int gpu, unsigned flags)
{
        const char *p = pointer;
        int error = check_flags(p, size, flags);
        if (error)
                return error;
        lock_scope(&fake_lock);
        for (struct host_range *r = pinned; r; r = r->next)
                if (p < r->base + r->size && r->base < p + size)
                        error = E_REGISTERED;
        struct host_range *r = error ? NULL : calloc(1, sizeof(*r));
        if (r) {
                *r = (struct host_range){.next = pinned, .base = p, .size = size, .gpu = gpu, .flags = flags};
                pinned = r;
                fake_resources()->registered++;
                uint64_t now = atomic_fetch_add(&fake_state()->pinned, size) + size;
                if (now > fake_state()->pinned_most)
                        fake_state()->pinned_most = now;
        }
        return error;
}

static void unpin(struct host_range **at)
{
        struct host_range *r = *at;
        *at = r->next;
        fake_state()->pinned -= r->size;
        free(r);
        fake_resources()->registered--;
}

int streams_unregister(const void *pointer)
{
        lock_scope(&fake_lock);
        struct host_range **at = &pinned;
        while (*at && (*at)->base != pointer)
                at = &(*at)->next;
        bool known = *at != NULL;
        if (known)
                unpin(at);
        return known ? E_OK : E_NOT_REGISTERED;
}

/* ---- streams, under the lock ---- */

/* CUDA would crash, or use another's stream. */
static void require_live(const char *call, bool destroyed)
{
        if (!destroyed)
                return;
        fprintf(stderr, "fake CUDA: %s with a stream or an event that was destroyed\n", call);
        abort();
}

/* A call of a stream or an event. */
#define ENTER_OF(name, object)                                                                                         \
        if (!(object))                                                                                                 \
                return runtime_result(E_HANDLE);                                                                       \
        require_live(#name, (object)->destroyed);                                                                      \
        ENTER(name, (object)->gpu)

static bool is_held(int gpu)
{
        return fake_state()->hold != 0 || fake_state()->held[gpu] != 0;
}

static bool is_due(const struct CUstream_st *s, const struct op *op)
{
        return !is_held(s->gpu) && now_ns() >= op->due;
}

static void carry_out(struct CUstream_st *s)
{
        struct op *op = s->first;
        s->first = op->next;
        if (!s->first)
                s->last = &s->first;
        if (op->mark && op->event)
                op->event->mark = NULL;
        if (!op->mark) {
                memcpy(op->to, op->from, op->size);
                if (!op->to_host)
                        fake_state()->copied[s->gpu] += op->size;
                else if (fake_settings()->damage && op->size > 0)
                        ((unsigned char *)op->to)[op->size - 1] ^= 1;
        }
        free(op);
}

static bool finish(struct CUstream_st *s)
{
        while (s->first && is_due(s, s->first))
                carry_out(s);
        return s->first == NULL;
}

static int append(struct CUstream_st *s, struct op op)
{
        struct op *copy = malloc(sizeof(*copy));
        if (!copy)
                return E_MEMORY;
        *copy = op;
        copy->due = now_ns() + fake_settings()->event_ns;
        *s->last = copy;
        s->last = &copy->next;
        if (copy->mark)
                copy->event->mark = copy;
        return E_OK;
}

/* True if the event has fired; everything before it is then complete. */
static bool event_fired(struct CUevent_st *e)
{
        if (!e->mark)
                return true;
        if (!is_due(e->stream, e->mark))
                return false;
        while (e->mark)
                carry_out(e->stream);
        return true;
}

/* Returns the error of a GPU that was set to fail before its events were released, even if the query began earlier. */
static int outcome(int gpu)
{
        return (int)fake_state()->broken[gpu];
}

static void remove_stream(struct CUstream_st *s)
{
        s->destroyed = true;
        fake_resources()->streams--;
}

static void remove_event(struct CUevent_st *e)
{
        if (e->mark)
                e->mark->event = NULL;
        e->mark = NULL;
        e->destroyed = true;
        fake_resources()->events--;
}

/* Releases the lock for a moment, in waits of any length. */
static void breathe(void)
{
        pthread_mutex_unlock(&fake_lock);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        pthread_mutex_lock(&fake_lock);
}

void streams_await_release(int gpu)
{
        lock_scope(&fake_lock);
        while (gpu >= 0 && is_held(gpu))
                breathe();
}

static bool gpu_idle(int gpu)
{
        bool idle = true;
        for (struct CUstream_st *s = streams; s; s = s->next)
                if (s->gpu == gpu)
                        idle &= finish(s);
        return idle;
}

void streams_finish(int gpu)
{
        lock_scope(&fake_lock);
        while (!gpu_idle(gpu))
                breathe();
}

void streams_reset(int gpu)
{
        lock_scope(&fake_lock);
        for (struct CUstream_st *s = streams; s; s = s->next) {
                if (s->gpu != gpu || s->destroyed)
                        continue;
                while (s->first)
                        carry_out(s);
                remove_stream(s);
        }
        for (struct CUevent_st *e = events; e; e = e->next)
                if (e->gpu == gpu && !e->destroyed)
                        remove_event(e);
        for (struct host_range **at = &pinned; *at;)
                if ((*at)->gpu == gpu)
                        unpin(at);
                else
                        at = &(*at)->next;
}

/* ---- streams ---- */

enum cuda_error cudaStreamCreateWithFlags(struct CUstream_st **stream, unsigned flags)
{
        ENTER_GPU(cudaStreamCreateWithFlags);
        if (flags != CUDA_STREAM_NON_BLOCKING) /* such a stream would wait for the default stream */
                return runtime_result(E_VALUE);
        struct CUstream_st *s = gpu < 0 ? NULL : calloc(1, sizeof(*s));
        if (!s)
                return runtime_result(gpu < 0 ? E_NO_DEVICE : E_MEMORY);
        pthread_mutex_lock(&fake_lock);
        *s = (struct CUstream_st){.next = streams, .last = &s->first, .gpu = gpu};
        streams = s;
        fake_resources()->streams++;
        pthread_mutex_unlock(&fake_lock);
        *stream = s;
        return CUDA_OK;
}

/* NULL: the default stream, whose calls here are complete when they return. */
enum cuda_error cudaStreamSynchronize(struct CUstream_st *stream)
{
        if (!stream) {
                ENTER(cudaStreamSynchronize, runtime_gpu());
                return CUDA_OK;
        }
        require_live("cudaStreamSynchronize", stream->destroyed);
        ENTER(cudaStreamSynchronize, stream->gpu);
        lock_scope(&fake_lock);
        while (!finish(stream))
                breathe();
        error = outcome(stream->gpu);
        return runtime_result(error);
}

/* CUDA completes the work before it frees the stream. */
enum cuda_error cudaStreamDestroy(struct CUstream_st *stream)
{
        ENTER_OF(cudaStreamDestroy, stream);
        lock_scope(&fake_lock);
        while (stream->first)
                carry_out(stream);
        remove_stream(stream);
        return CUDA_OK;
}

static int copy(void *to, const void *from, size_t size, bool to_host, struct CUstream_st *stream)
{
        const void *device = to_host ? from : to, *host = to_host ? to : from;
        if (fake_gpu_of(device, size, NULL, NULL) < 0)
                return E_VALUE;
        lock_scope(&fake_lock);
        if (!is_pinned(host, size, stream->gpu))
                fake_state()->pageable++;
        return append(stream, (struct op){.to = to, .from = from, .size = size, .to_host = to_host});
}

enum cuda_error cudaMemcpyAsync(void *to, const void *from, size_t size, enum cuda_copy_kind kind,
                                struct CUstream_st *stream)
{
        ENTER_OF(cudaMemcpyAsync, stream);
        fake_state()->copies++;
        return runtime_result(copy(to, from, size, kind == CUDA_COPY_DEVICE_TO_HOST, stream));
}

/* Whether host memory has the same address on the GPU. */
static bool same_address(const void *host, size_t size, int gpu)
{
        lock_scope(&fake_lock);
        return fake_settings()->host_pointers && is_pinned(host, size, gpu);
}

/* Starts all copies or none, which CUDA does not promise. */
static enum cuda_error batch(void *const *to, const void *const *from, const size_t *sizes, size_t n,
                             const struct cuda_batch_attributes *attributes, struct CUstream_st *stream)
{
        ENTER_OF(cudaMemcpyBatchAsync, stream);
        if (n == 0 || attributes->order != CUDA_BATCH_STREAM_ORDER)
                return runtime_result(E_VALUE);
        for (size_t i = 0; i < n; i++) {
                if (sizes[i] == 0 || fake_gpu_of(to[i], sizes[i], NULL, NULL) < 0)
                        return runtime_result(E_VALUE);
                if (!same_address(from[i], sizes[i], stream->gpu))
                        fake_state()->broken[stream->gpu] = E_ILLEGAL; /* which its event reports */
        }
        fake_state()->batches++;
        fake_state()->batched += (uint32_t)n;
        for (size_t i = 0; i < n && error == E_OK; i++)
                error = copy(to[i], from[i], sizes[i], false, stream);
        return runtime_result(error);
}

#if FAKE_RUNTIME >= 13000
enum cuda_error cudaMemcpyBatchAsync CUDA_BATCH_13
{
        return n_attributes == 1 && *first == 0 ? batch(to, from, sizes, n, attributes, stream)
                                                : runtime_result(E_VALUE);
}
#else
enum cuda_error cudaMemcpyBatchAsync CUDA_BATCH_12
{
        *failed = 0; /* version 13 has the stream here: a caller that confuses the versions crashes */
        return n_attributes == 1 && *first == 0 ? batch(to, (const void *const *)from, sizes, n, attributes, stream)
                                                : runtime_result(E_VALUE);
}
#endif

/* ---- events ---- */

enum cuda_error cudaEventCreateWithFlags(struct CUevent_st **event, unsigned flags)
{
        ENTER_GPU(cudaEventCreateWithFlags);
        if ((flags & CUDA_EVENT_DISABLE_TIMING) == 0) /* an event with timing is slower */
                return runtime_result(E_VALUE);
        struct CUevent_st *e = gpu < 0 ? NULL : calloc(1, sizeof(*e));
        if (!e)
                return runtime_result(gpu < 0 ? E_NO_DEVICE : E_MEMORY);
        pthread_mutex_lock(&fake_lock);
        *e = (struct CUevent_st){.next = events, .gpu = gpu, .blocking = (flags & CUDA_EVENT_BLOCKING_SYNC) != 0};
        events = e;
        fake_resources()->events++;
        pthread_mutex_unlock(&fake_lock);
        *event = e;
        return CUDA_OK;
}

enum cuda_error cudaEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
        if (!event || !stream)
                return runtime_result(E_HANDLE);
        require_live("cudaEventRecord", event->destroyed || stream->destroyed);
        ENTER(cudaEventRecord, stream->gpu);
        if (event->gpu != stream->gpu)
                return runtime_result(E_HANDLE);
        lock_scope(&fake_lock);
        if (event->mark) /* recorded again: the old mark has no event */
                event->mark->event = NULL;
        event->stream = stream;
        error = append(stream, (struct op){.mark = true, .event = event});
        return runtime_result(error);
}

enum cuda_error cudaEventQuery(struct CUevent_st *event)
{
        ENTER_OF(cudaEventQuery, event);
        lock_scope(&fake_lock);
        error = event_fired(event) ? outcome(event->gpu) : E_NOT_READY;
        return runtime_result(error);
}

enum cuda_error cudaEventSynchronize(struct CUevent_st *event)
{
        ENTER_OF(cudaEventSynchronize, event);
        if (!event->blocking) /* CUDA would spin: such an event must be polled */
                return runtime_result(E_VALUE);
        lock_scope(&fake_lock);
        while (!event_fired(event))
                breathe();
        error = outcome(event->gpu);
        return runtime_result(error);
}

enum cuda_error cudaEventDestroy(struct CUevent_st *event)
{
        ENTER_OF(cudaEventDestroy, event);
        lock_scope(&fake_lock);
        remove_event(event);
        return CUDA_OK;
}
