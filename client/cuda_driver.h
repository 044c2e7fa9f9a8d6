/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's driver library in the application's process. It is opened when the first GPU segment is, and
 * by name, so that an application without a GPU needs none and no version of the CUDA runtime is
 * forced on one that has its own.
 */
#pragma once

#include "client/attach.h"
#include "proto/cuda.h"

struct cuda_driver {
#define X(name, result, arguments) result(*name) arguments;
        CUDA_CLIENT_CALLS(X)
#undef X
        void *library;
};

/* What a lease's segment needs of a GPU for as long as it is mapped. */
struct cuda_context {
        const struct cuda_driver *driver;
        struct CUctx_st *context;
        cu_device device;
        int ordinal;
        bool retained; /* it is the device's primary context, and we hold it */
};

/* The process's driver, ready for use; it stays open, since a driver that is in use cannot be unloaded.
 * Callers hold cuda_lock(). */
int cuda_driver_get(const struct cuda_driver **driver, const struct handle *handle, struct fault *fault);

/* One lock for everything of CUDA that the library shares in a process; safe over fork(). */
void cuda_lock(void);
void cuda_unlock(void);

/* The GPU of a handle, whatever number it has here: the caller's context if that is on it, else its
 * primary one. Then current, until cuda_leave(). */
int cuda_context_init(struct cuda_context *c, const struct cuda_driver *driver, const struct handle *handle,
                      struct fault *fault);
void cuda_context_deinit(struct cuda_context *c);

/* Makes it current in the calling thread and back. False where the application has destroyed it, and
 * with it what was mapped. */
bool cuda_enter(const struct cuda_context *c);
void cuda_leave(const struct cuda_context *c);

/* Keeps "`call`: its error; what to do" and returns the STREAMER_E* that fits. */
int cuda_fault(const struct cuda_context *c, const struct handle *handle, const char *call, enum cu_result result,
               struct fault *fault);
