/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of CUDA that the daemon uses: declarations of our own (the driver's are in proto/cuda.h) and a table of
 * entry points that is filled when the daemon starts, so that one binary runs with CUDA 12, with 13, and with neither.
 * Their ABI is the same in both, but for the batched copy (cuda_copy_batch()). Where a toolkit is installed,
 * tests/lib/cuda_headers.c compares every line below with its headers. Runtime and driver number errors alike.
 */
#pragma once

#include "daemon/base/error.h"
#include "proto/cuda.h"

/* ---- values ---- */

/* cudaError_t; other numbers occur, too: X(our name, number, CUDA's name) */
// clang-format off
#define CUDA_ERRORS(X) \
        X(CUDA_OK, 0, cudaSuccess) \
        X(CUDA_INVALID_VALUE, 1, cudaErrorInvalidValue) \
        X(CUDA_OUT_OF_MEMORY, 2, cudaErrorMemoryAllocation) \
        X(CUDA_STUB_LIBRARY, 34, cudaErrorStubLibrary) \
        X(CUDA_INSUFFICIENT_DRIVER, 35, cudaErrorInsufficientDriver) \
        X(CUDA_NO_DEVICE, 100, cudaErrorNoDevice) \
        X(CUDA_NOT_READY, 600, cudaErrorNotReady) /* an event that has not fired: no error */ \
        X(CUDA_NOT_PERMITTED, 800, cudaErrorNotPermitted) \
        X(CUDA_NOT_SUPPORTED, 801, cudaErrorNotSupported) \
        X(CUDA_SYSTEM_NOT_READY, 802, cudaErrorSystemNotReady) \
        X(CUDA_DRIVER_MISMATCH, 803, cudaErrorSystemDriverMismatch) \
        X(CUDA_COMPAT_UNSUPPORTED, 804, cudaErrorCompatNotSupportedOnDevice) \
        X(CUDA_MPS_CONNECTION_FAILED, 805, cudaErrorMpsConnectionFailed) \
        X(CUDA_UNKNOWN, 999, cudaErrorUnknown)
// clang-format on

enum cuda_error {
#define X(ours, number, theirs) ours = (number),
        CUDA_ERRORS(X)
#undef X
};

enum cuda_copy_kind { CUDA_COPY_HOST_TO_DEVICE = 1, CUDA_COPY_DEVICE_TO_HOST = 2 };

#define CUDA_STREAM_NON_BLOCKING 0x01u
#define CUDA_EVENT_BLOCKING_SYNC 0x01u
#define CUDA_EVENT_DISABLE_TIMING 0x02u
#define CUDA_HOST_REGISTER_PORTABLE 0x01u

/* ---- types ---- */

struct CUstream_st; /* cudaStream_t points to it, in CUDA's headers as here */
struct CUevent_st;

struct cuda_location {
        int type, id;
};

#define CUDA_BATCH_STREAM_ORDER 1 /* the source is read in the order of the stream */
struct cuda_batch_attributes {    /* cudaMemcpyAttributes of 12.8 and newer */
        int order;
        struct cuda_location from, to; /* hints for managed memory */
        unsigned flags;
};

/* ---- entry points: X(name, result, arguments) ---- */

// clang-format off
#define CUDA_RUNTIME_CALLS(X) \
        X(cudaGetDeviceCount, enum cuda_error, (int *count)) \
        X(cudaSetDevice, enum cuda_error, (int device)) /* creates its context, 12 and newer */ \
        X(cudaDeviceReset, enum cuda_error, (void)) \
        X(cudaDeviceGetPCIBusId, enum cuda_error, (char *id, int size, int device)) \
        X(cudaDriverGetVersion, enum cuda_error, (int *version)) /* 1000 x major + 10 x minor */ \
        X(cudaRuntimeGetVersion, enum cuda_error, (int *version)) \
        X(cudaGetLastError, enum cuda_error, (void)) \
        X(cudaGetErrorName, const char *, (enum cuda_error error)) \
        X(cudaGetErrorString, const char *, (enum cuda_error error)) \
        X(cudaMemGetInfo, enum cuda_error, (size_t *available, size_t *total)) \
        X(cudaMalloc, enum cuda_error, (void **pointer, size_t size)) \
        X(cudaFree, enum cuda_error, (void *pointer)) \
        X(cudaMemcpy, enum cuda_error, (void *to, const void *from, size_t size, enum cuda_copy_kind kind)) \
        X(cudaMemset, enum cuda_error, (void *pointer, int value, size_t size)) /* may return before it is done */ \
        X(cudaMemcpyAsync, enum cuda_error, \
          (void *to, const void *from, size_t size, enum cuda_copy_kind kind, struct CUstream_st *stream)) \
        X(cudaIpcGetMemHandle, enum cuda_error, (struct cuda_ipc_handle *handle, void *pointer)) \
        X(cudaHostRegister, enum cuda_error, (void *pointer, size_t size, unsigned flags)) \
        X(cudaHostUnregister, enum cuda_error, (void *pointer)) \
        X(cudaStreamCreateWithFlags, enum cuda_error, (struct CUstream_st **stream, unsigned flags)) \
        X(cudaStreamSynchronize, enum cuda_error, (struct CUstream_st *stream)) \
        X(cudaStreamDestroy, enum cuda_error, (struct CUstream_st *stream)) \
        X(cudaEventCreateWithFlags, enum cuda_error, (struct CUevent_st **event, unsigned flags)) \
        X(cudaEventRecord, enum cuda_error, (struct CUevent_st *event, struct CUstream_st *stream)) \
        X(cudaEventQuery, enum cuda_error, (struct CUevent_st *event)) \
        X(cudaEventSynchronize, enum cuda_error, (struct CUevent_st *event)) \
        X(cudaEventDestroy, enum cuda_error, (struct CUevent_st *event))

/* The arguments of cudaMemcpyBatchAsync, which differ in 13. */
#define CUDA_BATCH_12 \
        (void **to, void **from, size_t *sizes, size_t n, struct cuda_batch_attributes *attributes, size_t *first, \
         size_t n_attributes, size_t *failed, struct CUstream_st *stream)
#define CUDA_BATCH_13 \
        (void *const *to, const void *const *from, const size_t *sizes, size_t n, \
         struct cuda_batch_attributes *attributes, size_t *first, size_t n_attributes, struct CUstream_st *stream)
// clang-format on

struct cuda_api {
#define X(name, result, arguments) result(*name) arguments;
        CUDA_RUNTIME_CALLS(X)
        CUDA_DRIVER_CALLS(X)
#undef X
        int runtime_version, driver_version; /* 13000: 13.0 */
        int n_devices;                       /* at least one */
        char library[256];                   /* the runtime that was opened */
        void (*batch)(void);                 /* cudaMemcpyBatchAsync, see cuda_copy_batch() */
};

/* ---- lifecycle ---- */

/* Opens `library`, or if that is NULL the first of libcudart.so.13 and .12 that finds a device (each in the usual
 * places and then in the folders of $STREAMERD_CUDART_PATH), and the driver library. Creates no context, so no GPU
 * memory is used. May take a second if the driver is not loaded. *api is freed by free(). */
int cuda_api_open(const char *library, struct cuda_api **api, struct error *error);

/* Describes `e` of cudaGetDeviceCount(), using the device files in `dev` ("/dev"). Returns the error's code. */
int cuda_api_explain(const struct cuda_api *api, enum cuda_error e, const char *dev, struct error *error);

/* ---- batched copies ---- */

/* Whether cuda_copy_batch() may be called: runtime and driver of 12.8 and newer. */
bool cuda_has_batch(const struct cuda_api *api);

/* Starts n copies in one call, host to device, on a stream other than the default one. The host memory is
 * registered, and the GPU uses the host's addresses for it: with other addresses the context is lost. The memory must
 * not change until the copies are done. */
enum cuda_error cuda_copy_batch(const struct cuda_api *api, void *const *to, const void *const *from,
                                const size_t *sizes, size_t n, struct CUstream_st *stream);
