/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the stand-in of the runtime: how a call begins and ends, and what cudart.c and stream.c want
 * of each other.
 */
#ifndef TESTS_LIB_FAKE_RUNTIME_H
#define TESTS_LIB_FAKE_RUNTIME_H

#include "daemon/device/cuda_api.h"
#include "tests/lib/fake/world.h"

#define X(name, result, arguments) result name arguments;
CUDA_RUNTIME_CALLS(X)
#undef X

/* Remembers a failure for cudaGetLastError(); an event that has not fired is none. */
enum cuda_error runtime_result(int error);

/* The GPU that calls without an object belong to, -1 if there is none; its context is made. */
int runtime_gpu(void);
int runtime_gpu_without_context(void);

#define ENTER(name, gpu)                                                                                               \
        int error = fake_enter(#name, gpu);                                                                            \
        if (error)                                                                                                     \
        return runtime_result(error)

/* ---- streams ---- */

void streams_finish(int gpu); /* all that was asked of a GPU, as cudaFree() waits for it */
void streams_reset(int gpu);
void streams_touch(const void *host, size_t size, int gpu); /* a copy goes from there, or to it */
int streams_register(const void *pointer, size_t size, int gpu, bool portable);
int streams_unregister(const void *pointer);
void streams_await_unpins(int gpu);  /* for as long as a test holds them up */
void streams_await_release(int gpu); /* the same of its events, for a copy that waits for its end */

#endif
