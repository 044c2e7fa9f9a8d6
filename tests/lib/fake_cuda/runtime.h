/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the fake runtime: the begin and end of a call, and what cudart.c and stream.c share.
 */
#pragma once

#include "daemon/device/cuda/api.h"
#include "tests/lib/fake_cuda/machine.h"

#define X(name, result, arguments) result name arguments;
CUDA_RUNTIME_CALLS(X)
#undef X

/* Stores an error for cudaGetLastError(); an event that has not fired is none. */
enum cuda_error runtime_result(int error);

/* The GPU of calls without an object, -1 if there is none; creates its context. */
int runtime_gpu(void);
int runtime_gpu_without_context(void);

#define ENTER(name, gpu)                                                                                               \
        int error = fake_enter(#name, gpu);                                                                            \
        if (error)                                                                                                     \
        return runtime_result(error)
/* A call without an object. */
#define ENTER_GPU(name)                                                                                                \
        int gpu = runtime_gpu();                                                                                       \
        ENTER(name, gpu)

/* ---- streams ---- */

void streams_finish(int gpu); /* carries out everything on a GPU, as cudaFree() does */
void streams_reset(int gpu);
void streams_touch(const void *host, size_t size, int gpu); /* counts copies from or to memory that is not registered */
int streams_register(const void *pointer, size_t size, int gpu, unsigned flags);
int streams_unregister(const void *pointer);
void streams_await_release(int gpu); /* while a test blocks its events: for synchronous copies */
