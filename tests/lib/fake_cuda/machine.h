/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the fake runtime and the fake driver: GPUs, contexts, memory, failures on
 * demand. It is part of libcuda.so.1, to which the
 * runtimes are linked, so that a process has one instance.
 *
 * "gpu" is a number on the machine, "ordinal" one in this process. Results are CUDA's error numbers.
 * Functions take `fake_lock` themselves unless the comment says otherwise; it guards all state of the libraries.
 */
#pragma once

#include "daemon/base/util.h"
#include "proto/cuda.h"
#include "tests/lib/base.h"
#include "tests/lib/fake_cuda/state.h"

/* CUDA's numbers, names and texts of errors. */
// clang-format off
#define FAKE_ERRORS(X) \
        X(E_OK, 0, "SUCCESS", "no error") \
        X(E_VALUE, 1, "INVALID_VALUE", "invalid argument") \
        X(E_MEMORY, 2, "OUT_OF_MEMORY", "out of memory") \
        X(E_UNINITIALISED, 3, "NOT_INITIALIZED", "initialization error") \
        X(E_DRIVER, 35, "INSUFFICIENT_DRIVER", "CUDA driver version is insufficient for CUDA runtime version") \
        X(E_NO_DEVICE, 100, "NO_DEVICE", "no CUDA-capable device is detected") \
        X(E_DEVICE, 101, "INVALID_DEVICE", "invalid device ordinal") \
        X(E_CONTEXT, 201, "INVALID_CONTEXT", "invalid device context") \
        X(E_MAP, 205, "MAP_FAILED", "mapping of buffer object failed") \
        X(E_PEER, 217, "PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices") \
        X(E_HANDLE, 400, "INVALID_HANDLE", "invalid resource handle") \
        X(E_NOT_READY, 600, "NOT_READY", "device not ready") \
        X(E_ILLEGAL, 700, "ILLEGAL_ADDRESS", "an illegal memory access was encountered") \
        X(E_DESTROYED, 709, "CONTEXT_IS_DESTROYED", "context is destroyed") \
        X(E_REGISTERED, 712, "HOST_MEMORY_ALREADY_REGISTERED", "part of the memory is already mapped") \
        X(E_NOT_REGISTERED, 713, "HOST_MEMORY_NOT_REGISTERED", "pointer to no registered memory") \
        X(E_NOT_SUPPORTED, 801, "NOT_SUPPORTED", "operation not supported")
// clang-format on

enum {
#define X(error, number, name, text) error = (number),
        FAKE_ERRORS(X)
#undef X
};

struct fake_settings {
        int gpus, version;
        uint64_t memory, others;
        uint64_t event_ns;
        int read_only; /* error */
        bool integrated, vmm, damage, dirty, host_pointers;
        char name[128];
};

/* The resources of a process; printed by the report. */
struct fake_resources {
        int allocations, opened, handles, reserved, mapped, streams, events, registered, retained;
};

extern pthread_mutex_t fake_lock;

const struct fake_settings *fake_settings(void); /* the first call reads the environment */
struct fake_state *fake_state(void);
struct fake_resources *fake_resources(void); /* under the lock */

/* The first call of each entry point: 0, or the error that it must return. gpu -1: the call belongs to none. */
int fake_enter(const char *call, int gpu);
const char *fake_error_name(int error);
const char *fake_error_text(int error);

/* A thread-local variable in static TLS: the dynamic TLS of a library that is opened later is allocated by malloc() and
 * freed by another thread, which ThreadSanitizer reports as a race. */
#define FAKE_THREAD __thread __attribute__((tls_model("initial-exec")))

/* ---- GPUs and contexts ---- */

int fake_count(void);
int fake_gpu(int ordinal);    /* -1: none */
int fake_ordinal_of(int gpu); /* -1 if it is not visible */

struct CUctx_st {
        int gpu;
        _Atomic bool alive; /* read without the lock, by threads to which it is current */
        bool runtime;       /* created by the runtime: until cudaDeviceReset() */
        int retained;
};

struct CUctx_st *fake_primary(int gpu, bool runtime); /* created if missing */
struct CUctx_st *fake_primary_or_null(int gpu);
struct CUctx_st *fake_current(void); /* NULL if none */
void fake_set_current(struct CUctx_st *context);

/* ---- memory ---- */

uint64_t fake_used(int gpu); /* by this process */
int fake_alloc(int gpu, size_t size, void **pointer);
int fake_free(void *pointer);
int fake_ipc_export(const void *pointer, struct cuda_ipc_handle *handle);
int fake_ipc_open(const struct cuda_ipc_handle *handle, int current_gpu, void **pointer);
int fake_ipc_close(void *pointer);
/* The GPU of [pointer, pointer + size), -1 if it is not device memory. base and whole may be NULL. */
int fake_gpu_of(const void *pointer, size_t size, void **base, size_t *whole);
void fake_memory_reset(int gpu);
void fake_ipc_reset(int gpu); /* imported memory, of any context */
