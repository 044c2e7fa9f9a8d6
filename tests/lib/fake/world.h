/* SPDX-License-Identifier: Apache-2.0
 *
 * What the stand-ins of the runtime and of the driver share: GPUs, contexts, memory, failures on
 * demand. It lives in libcuda.so.1, which the runtimes are linked to, as one process has one of it.
 *
 * "gpu" is a number on the machine, "ordinal" one in this process. Results are CUDA's error numbers.
 * Functions take `fake_lock` themselves where nothing else is said; it guards whatever else the
 * libraries keep.
 */
#ifndef TESTS_LIB_FAKE_WORLD_H
#define TESTS_LIB_FAKE_WORLD_H

#include "proto/cuda.h"
#include "tests/lib/fake/state.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum {
        E_OK = 0,
        E_VALUE = 1,
        E_MEMORY = 2,
        E_UNINITIALISED = 3,
        E_DRIVER = 35,
        E_NO_DEVICE = 100,
        E_DEVICE = 101,
        E_CONTEXT = 201,
        E_MAP = 205,
        E_PEER = 217,
        E_HANDLE = 400,
        E_NOT_READY = 600,
        E_ILLEGAL = 700,
        E_DESTROYED = 709,
        E_REGISTERED = 712,
        E_NOT_REGISTERED = 713,
        E_NOT_SUPPORTED = 801,
};

struct fake_settings {
        int gpus, version;
        uint64_t memory, others;
        uint64_t largest; /* bytes that are free in one piece; more is out of memory */
        uint64_t event_ns;
        bool integrated, vmm, damage, host_pointers;
        char name[128];
};

/* What a process holds; printed by the report. */
struct fake_held {
        int allocations, opened, handles, reserved, mapped, streams, events, registered, retained;
};

extern pthread_mutex_t fake_lock;

const struct fake_settings *fake_settings(void); /* the first call reads the environment */
struct fake_state *fake_state(void);
struct fake_held *fake_held(void); /* under the lock */
uint64_t fake_now(void);

/* Each entry point begins with it: 0, or the error that the call must answer. gpu -1: the call
 * belongs to none. */
int fake_enter(const char *call, int gpu);
const char *fake_error_name(int error);
const char *fake_error_text(int error);

/* A variable of each thread, in the block that the thread is made with: of a library that is opened later it would
 * else be made by malloc(), and freed by whichever thread ends at that time, which ThreadSanitizer takes for a race. */
#define FAKE_THREAD __thread __attribute__((tls_model("initial-exec")))

/* ---- GPUs and contexts ---- */

int fake_count(void);
int fake_gpu(int ordinal);    /* -1 if there is none */
int fake_ordinal_of(int gpu); /* -1 if it is not visible */

struct CUctx_st {
        int gpu;
        _Atomic bool alive; /* asked without the lock, by whichever thread is current there */
        bool runtime;       /* held by it until cudaDeviceReset() */
        int retained;
};

struct CUctx_st *fake_primary(int gpu, bool runtime); /* made if need be */
struct CUctx_st *fake_primary_if_alive(int gpu);
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
int fake_where(const void *pointer, size_t size, void **base, size_t *whole);
void fake_memory_reset(int gpu);
void fake_ipc_reset(int gpu); /* what was opened there, by whatever context */

/* A memfd that remembers its GPU in its name; -1 if the descriptor is none. */
int fake_memfd(int gpu, uint64_t cookie, size_t size);
int fake_memfd_gpu(int fd);

/* ---- virtual memory management: what fake_where() asks of it ---- */

#define FAKE_GRANULARITY ((size_t)2 << 20)
int fake_vmm_where(const void *pointer, size_t size, void **base, size_t *whole); /* lock held */
uint64_t fake_vmm_used(int gpu);                                                  /* lock held */

#endif
