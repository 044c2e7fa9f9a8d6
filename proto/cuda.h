/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA's driver library, as far as it is used at both ends of a connection: the daemon exports what
 * the client library opens, so both must mean the same 64 bytes by a handle and the same text by a
 * GPU. Declarations of our own, since neither end is built against a toolkit; where there is one,
 * tests/lib/cuda_headers.c compares every line with its headers.
 *
 * All of it has the same ABI in CUDA 12 and 13. Names of enum values are CUDA's in our spelling.
 */
#pragma once

#include <stddef.h>

/* ---- values ---- */

/* CUresult; any other number may come, too */
enum cu_result {
        CU_OK = 0,
        CU_INVALID_VALUE = 1,
        CU_OUT_OF_MEMORY = 2,
        CU_NOT_INITIALIZED = 3, /* also: in a child of the process that initialised it */
        CU_STUB_LIBRARY = 34,
        CU_NO_DEVICE = 100,
        CU_INVALID_CONTEXT = 201, /* also: a handle opened in the process that exported it */
        CU_NOT_PERMITTED = 800,
        CU_NOT_SUPPORTED = 801,
};

enum cu_attribute {
        CU_ATTR_INTEGRATED = 18,
        CU_ATTR_HOST_POINTERS = 91, /* the GPU knows registered host memory by the host's addresses */
        CU_ATTR_VMM_SUPPORTED = 102,
        CU_ATTR_POSIX_FD_SUPPORTED = 103,
};

#define CU_IPC_LAZY_PEER_ACCESS 0x01u
#define CUDA_HANDLE_SIZE 64

enum cu_allocation_type { CU_ALLOCATION_PINNED = 1 };
enum cu_handle_type { CU_HANDLE_POSIX_FD = 1 };
enum cu_location_type { CU_LOCATION_DEVICE = 1 };
enum cu_access { CU_ACCESS_READ = 1, CU_ACCESS_READ_WRITE = 3 };
enum cu_granularity { CU_GRANULARITY_MINIMUM = 0, CU_GRANULARITY_RECOMMENDED = 1 };

/* ---- types ---- */

struct CUctx_st; /* CUcontext points to it, in CUDA's headers as here */

struct cuda_ipc_handle { /* cudaIpcMemHandle_t and CUipcMemHandle */
        char bytes[CUDA_HANDLE_SIZE];
};

typedef int cu_device;
typedef unsigned long long cu_pointer;
typedef unsigned long long cu_allocation;

struct cu_uuid {
        char bytes[16];
};

struct cu_location {
        enum cu_location_type type;
        int id;
};

struct cu_allocation_prop {
        enum cu_allocation_type type;
        enum cu_handle_type handle_types;
        struct cu_location location;
        void *win32;
        struct {
                unsigned char compression, rdma;
                unsigned short usage;
                unsigned char reserved[4];
        } flags;
};

struct cu_access_desc {
        struct cu_location location;
        enum cu_access flags;
};

/* ---- entry points: X(name, result, arguments) ---- */

// clang-format off
/* What both the daemon and the client library call. */
#define CUDA_SHARED_CALLS(X) \
        X(cuInit, enum cu_result, (unsigned flags)) \
        X(cuDeviceGet, enum cu_result, (cu_device *device, int ordinal)) \
        X(cuDeviceGetAttribute, enum cu_result, (int *value, enum cu_attribute attribute, cu_device device)) \
        X(cuDeviceGetName, enum cu_result, (char *name, int size, cu_device device)) \
        X(cuDeviceGetUuid_v2, enum cu_result, (struct cu_uuid *uuid, cu_device device)) \
        X(cuGetErrorName, enum cu_result, (enum cu_result error, const char **name)) \
        X(cuGetErrorString, enum cu_result, (enum cu_result error, const char **text)) \
        X(cuMemGetAllocationGranularity, enum cu_result, \
          (size_t *granularity, const struct cu_allocation_prop *prop, enum cu_granularity option)) \
        X(cuMemRelease, enum cu_result, (cu_allocation allocation)) \
        X(cuMemAddressReserve, enum cu_result, \
          (cu_pointer *pointer, size_t size, size_t alignment, cu_pointer hint, unsigned long long flags)) \
        X(cuMemAddressFree, enum cu_result, (cu_pointer pointer, size_t size)) \
        X(cuMemMap, enum cu_result, \
          (cu_pointer pointer, size_t size, size_t offset, cu_allocation allocation, unsigned long long flags)) \
        X(cuMemUnmap, enum cu_result, (cu_pointer pointer, size_t size)) \
        X(cuMemSetAccess, enum cu_result, \
          (cu_pointer pointer, size_t size, const struct cu_access_desc *access, size_t n)) \
        X(cuMemImportFromShareableHandle, enum cu_result, \
          (cu_allocation *allocation, void *handle, enum cu_handle_type type))

/* What the daemon calls. */
#define CUDA_DRIVER_CALLS(X) \
        CUDA_SHARED_CALLS(X) \
        X(cuDeviceTotalMem_v2, enum cu_result, (size_t *bytes, cu_device device)) /* needs no context */ \
        X(cuMemCreate, enum cu_result, \
          (cu_allocation *allocation, size_t size, const struct cu_allocation_prop *prop, unsigned long long flags)) \
        X(cuMemExportToShareableHandle, enum cu_result, \
          (void *handle, cu_allocation allocation, enum cu_handle_type type, unsigned long long flags))

/* What the client library calls. */
#define CUDA_CLIENT_CALLS(X) \
        CUDA_SHARED_CALLS(X) \
        X(cuDeviceGetCount, enum cu_result, (int *count)) \
        X(cuCtxGetCurrent, enum cu_result, (struct CUctx_st **context)) \
        X(cuCtxGetDevice, enum cu_result, (cu_device *device)) \
        X(cuCtxPushCurrent_v2, enum cu_result, (struct CUctx_st *context)) \
        X(cuCtxPopCurrent_v2, enum cu_result, (struct CUctx_st **context)) \
        X(cuDevicePrimaryCtxGetState, enum cu_result, (cu_device device, unsigned *flags, int *active)) \
        X(cuDevicePrimaryCtxRetain, enum cu_result, (struct CUctx_st **context, cu_device device)) \
        X(cuDevicePrimaryCtxRelease_v2, enum cu_result, (cu_device device)) \
        X(cuIpcOpenMemHandle_v2, enum cu_result, \
          (cu_pointer *pointer, struct cuda_ipc_handle handle, unsigned flags)) \
        X(cuIpcCloseMemHandle, enum cu_result, (cu_pointer pointer)) \
        X(cuCtxSynchronize, enum cu_result, (void)) \
        X(cuMemcpyDtoH_v2, enum cu_result, (void *to, cu_pointer from, size_t size)) \
        X(cuMemcpyHtoD_v2, enum cu_result, (cu_pointer to, const void *from, size_t size)) \
        X(cuMemGetAddressRange_v2, enum cu_result, (cu_pointer *base, size_t *size, cu_pointer pointer))
// clang-format on

/* ---- names ---- */

#define CUDA_UUID_TEXT 41 /* "GPU-" and 36 characters, NUL */

/* As nvidia-smi prints it and CUDA_VISIBLE_DEVICES takes it. */
void cuda_uuid_text(const struct cu_uuid *uuid, char text[CUDA_UUID_TEXT]);
