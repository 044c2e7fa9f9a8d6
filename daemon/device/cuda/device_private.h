/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the CUDA device alone:
 *
 *   context.c   the runtime; when a GPU has a context; what an error means
 *   memory.c    GPUs by name; a device and its vtable; segments, by kind of handle
 *   copier.c    copies from the ring, by events
 */
#pragma once

#include "daemon/base/list.h"
#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/device/cuda/api.h"
#include "daemon/device/cuda/cuda.h"

#include <pthread.h>

/* cudaMalloc may cut smaller requests from a block that others share, and a handle opens the whole
 * block: so whole multiples of this. It is the granularity of virtual memory, too. */
#define CUDA_GRANULARITY (2 * MiB)

struct cuda {
        struct cuda_api *api;
        struct cuda_settings settings;
        void *ring;
        uint64_t ring_bytes;
        unsigned *ring_pinned; /* enum ring_pinned, atomic */
        void (*ring_unpinned)(void *context);
        void *ring_context;
        struct list devices;   /* the loop's */
        pthread_mutex_t mutex; /* guards what follows, and the contexts' states. No CUDA call is made with it held */
        bool closing;
        struct cuda_device *pinned_by; /* whose context pins the ring, or is about to; NULL: none */
        unsigned contexts;             /* that exist */
};

struct cuda_device {
        struct device device;
        struct cuda *cuda;
        int ordinal;
        const struct cuda_memory *memory;
        struct list link;   /* in cuda->devices */
        struct work work;   /* creates or destroys the context */
        bool working;       /* it was submitted; the loop's */
        uint64_t allocated; /* bytes of segments; the device's thread */
        unsigned epoch;     /* atomic: counts contexts that were destroyed */
        bool batches;       /* atomic: may be tried; see cuda_copy_batch() */
        /* Under cuda->mutex. */
        bool exists; /* the context */
        unsigned holders;
        uint64_t idle_until; /* when its retention is over */
};

static inline struct cuda_device *cuda_of(struct device *device)
{
        return container_of(device, struct cuda_device, device);
}

/* ---- errors (context.c) ---- */

/* Answers with what failed; an error that the context does not survive takes the device out of service. */
int cuda_failed(struct cuda_device *d, const char *call, enum cuda_error e, struct error *error);
/* Makes the device the calling thread's, unless it is lost. */
int cuda_select(struct cuda_device *d, struct error *error);
/* Makes the device's context current in the calling thread, too, whatever has been destroyed since. `exists`: a failure
 * may mean that it is lost. */
int cuda_make_current(struct cuda_device *d, bool exists, struct error *error);

/* Of a call of the runtime: 0, or the answer of cuda_failed(). */
#define CUDA_TRY(d, error, call, ...) cuda_check(d, #call, (d)->cuda->api->call(__VA_ARGS__), error)
static inline int cuda_check(struct cuda_device *d, const char *call, enum cuda_error e, struct error *error)
{
        return e == CUDA_OK ? 0 : cuda_failed(d, call, e, error);
}

/* A failed release is tried again, since an error may be transient, and logged if that fails, too. A lost context has
 * been logged, and its memory is freed with it. */
#define CUDA_RELEASE(d, call, ...)                                                                                     \
        do {                                                                                                           \
                if ((d)->cuda->api->call(__VA_ARGS__) != 0 && (d)->cuda->api->call(__VA_ARGS__) != 0 &&                \
                    device_in_service(&(d)->device))                                                                   \
                        log_warn("%s: %s failed twice: memory may leak until the daemon ends", (d)->device.name,       \
                                 #call);                                                                               \
        } while (0)

/* ---- contexts (context.c) ---- */

/* On the device's thread: makes the device current and keeps its context from being destroyed. Fails on a lost device.
 */
int cuda_context_hold(struct cuda_device *d, struct error *error);
void cuda_context_release(struct cuda_device *d); /* on any thread */
/* Holds the context if it is the one of this epoch, without making it current; false: it has been destroyed. */
bool cuda_context_hold_epoch(struct cuda_device *d, unsigned epoch);

uint64_t cuda_ceiling(struct device *device); /* device_ops: see device.h */

/* ---- copies (copier.c) ---- */

struct copier *cuda_copier_new(struct device *device, struct error *error);
void cuda_copier_free(struct copier *copier);
int cuda_copy(struct copier *copier, const struct device_span *spans, size_t n, void **event, struct error *error);
int cuda_copied(struct copier *copier, void *event, bool wait, struct error *error);
int cuda_fetch(struct copier *copier, const struct segment *segment, uint64_t offset, void *to, uint64_t len,
               void **event, struct error *error);
