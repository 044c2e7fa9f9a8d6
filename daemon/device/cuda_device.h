/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the CUDA device share, and nobody else sees:
 *
 *   cuda.c           the runtime, the GPUs there are, a device and its vtable
 *   cuda_context.c   when a GPU has a context; what an error means
 *   cuda_memory.c    segments, by kind of handle
 *   cuda_copy.c      copies from the ring, by events
 */
#ifndef DAEMON_DEVICE_CUDA_DEVICE_H
#define DAEMON_DEVICE_CUDA_DEVICE_H

#include "daemon/base/log.h"
#include "daemon/base/util.h"
#include "daemon/device/cuda.h"
#include "daemon/device/cuda_api.h"

#include <pthread.h>

/* cudaMalloc may cut smaller requests from a block that others share, and a handle opens the whole
 * block: so whole multiples of this. It is the granularity of virtual memory, too. */
#define CUDA_GRANULARITY (2 * MiB)

struct cuda {
        struct cuda_api *api;
        void *ring;
        uint64_t ring_bytes;
        unsigned *ring_pinned; /* enum ring_pinned, atomic */
        pthread_mutex_t mutex;
        struct cuda_device *pinned_by; /* whose context pins the ring; NULL: none yet */
        unsigned contexts;
};

struct cuda_device {
        struct device device;
        struct cuda *cuda;
        int ordinal;
        const struct cuda_memory *memory;
        uint64_t allocated; /* bytes of segments; the device's thread */
        unsigned holders;   /* of the context, under cuda->mutex: segments, pinned host memory, calls */
        bool context;       /* under cuda->mutex */
        unsigned epoch;     /* atomic: counts resets */
        bool lost;          /* atomic: out of service */
        bool batches;       /* atomic: may be tried; see cuda_copy_batch() */
};

static inline struct cuda_device *cuda_of(struct device *device)
{
        return container_of(device, struct cuda_device, device);
}

/* ---- errors (cuda_context.c) ---- */

/* Answers with what failed; an error that the context does not survive takes the device out of service. */
int cuda_failed(struct cuda_device *d, const char *call, enum cuda_error e, struct error *error);
bool cuda_is_lost(const struct cuda_device *d);
/* The calling thread's device from here on, unless it is lost. */
int cuda_select(struct cuda_device *d, struct error *error);

/* What is given back must not stay taken for one failure that passes: it is tried again, and an operator
 * is told where that fails too. A lost context has been told of, and takes its memory along. */
#define CUDA_GIVE_BACK(d, call, ...)                                                                                   \
        do {                                                                                                           \
                if ((d)->cuda->api->call(__VA_ARGS__) != 0 && (d)->cuda->api->call(__VA_ARGS__) != 0 &&                \
                    !cuda_is_lost(d))                                                                                  \
                        log_warn("%s: %s failed twice: memory may stay taken until the daemon ends", (d)->device.name, \
                                 #call);                                                                               \
        } while (0)

/* ---- contexts (cuda_context.c) ---- */

/* Makes the device current in this thread and keeps its context from being given back. */
int cuda_context_hold(struct cuda_device *d, struct error *error);
/* The last one gives it back; or leaves it for who is expected next, until cuda_context_idle(). */
void cuda_context_drop(struct cuda_device *d);
void cuda_context_leave(struct cuda_device *d);
void cuda_context_idle(struct device *device);

/* device_ops: see device.h. */
uint64_t cuda_ceiling(struct device *device);
int cuda_host_alloc(struct device *device, uint64_t size, void **base, struct error *error);
void cuda_host_free(struct device *device, void *base, uint64_t size);

/* ---- memory (cuda_memory.c) ---- */

/* One kind of handle. Called with the context held. */
struct cuda_memory {
        const char *kind; /* on the wire */
        unsigned caps;    /* enum device_caps */
        /* Fills in the segment's address and handle; nothing of it is left where it fails. */
        int (*alloc)(struct cuda_device *d, struct segment *segment, struct error *error);
        void (*release)(struct cuda_device *d, struct segment *segment);
        void (*handle)(const struct segment *segment, struct handle *handle);
};

const struct cuda_memory *cuda_memory_of(enum cuda_handles handles);

int cuda_alloc(struct device *device, uint64_t size, struct segment *segment, struct error *error);
void cuda_release(struct segment *segment);
int cuda_prepare(struct segment *segment, uint64_t offset, uint64_t len, struct error *error);
int cuda_put(struct segment *segment, uint64_t offset, const void *from, uint64_t len, struct error *error);
int cuda_read(const struct segment *segment, uint64_t offset, void *to, uint64_t len, struct error *error);
void cuda_handle(const struct segment *segment, struct handle *handle);

/* ---- copies (cuda_copy.c) ---- */

struct copier *cuda_copier_new(struct device *device, struct error *error);
void cuda_copier_free(struct copier *copier);
int cuda_copy(struct copier *copier, const struct device_span *spans, size_t n, void **event, struct error *error);
int cuda_copied(struct copier *copier, void *event, bool wait, struct error *error);
int cuda_fetch(struct copier *copier, const struct segment *segment, uint64_t offset, void *to, uint64_t len,
               void **event, struct error *error);

#endif
