/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares our declarations of CUDA with the toolkit's headers, at compile time, where a toolkit is installed.
 *
 * Every line of the tables in api.h and proto/cuda.h is expanded a second time with our type names replaced by the
 * toolkit's, and must then have the type of the toolkit's declaration. The replaced
 * types are compared by size and by the offset of each member, the values by number.
 */
#if __has_include(<cuda_runtime_api.h>) && __has_include(<cuda.h>)

#include "daemon/device/cuda/api.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

/* ---- values ---- */

#define VALUE(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours)
#define X(ours, number, theirs) VALUE(ours, theirs);
CUDA_ERRORS(X)
#undef X
VALUE(CU_OK, CUDA_SUCCESS);
VALUE(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
VALUE(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
VALUE(CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
VALUE(CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
VALUE(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
VALUE(CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
VALUE(CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
VALUE(CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
VALUE(CU_ATTR_INTEGRATED, CU_DEVICE_ATTRIBUTE_INTEGRATED);
VALUE(CUDA_COPY_HOST_TO_DEVICE, cudaMemcpyHostToDevice);
VALUE(CUDA_COPY_DEVICE_TO_HOST, cudaMemcpyDeviceToHost);
VALUE(CU_ATTR_HOST_POINTERS, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
VALUE(CU_ATTR_VMM_SUPPORTED, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
VALUE(CU_ATTR_POSIX_FD_SUPPORTED, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
VALUE(CUDA_STREAM_NON_BLOCKING, cudaStreamNonBlocking);
VALUE(CUDA_EVENT_BLOCKING_SYNC, cudaEventBlockingSync);
VALUE(CUDA_EVENT_DISABLE_TIMING, cudaEventDisableTiming);
VALUE(CUDA_HOST_REGISTER_PORTABLE, cudaHostRegisterPortable);
VALUE(CU_IPC_LAZY_PEER_ACCESS, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
VALUE(CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
VALUE(CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
VALUE(CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
VALUE(CU_ACCESS_READ, CU_MEM_ACCESS_FLAGS_PROT_READ);
VALUE(CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
VALUE(CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
VALUE(CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

/* ---- types ---- */

#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs) && _Alignof(ours) == _Alignof(theirs), #ours)
#define MEMBER(ours, our, theirs, their)                                                                               \
        _Static_assert(offsetof(ours, our) == offsetof(theirs, their) &&                                               \
                               sizeof(((ours *)0)->our) == sizeof(((theirs *)0)->their),                               \
                       #ours "." #our)
SIZE(struct cuda_ipc_handle, cudaIpcMemHandle_t);
SIZE(struct cuda_ipc_handle, CUipcMemHandle); /* the client opens by the driver what the runtime exports */
SIZE(struct cu_uuid, CUuuid);
SIZE(struct cu_location, CUmemLocation);
MEMBER(struct cu_location, type, CUmemLocation, type);
MEMBER(struct cu_location, id, CUmemLocation, id);
SIZE(struct cu_allocation_prop, CUmemAllocationProp);
MEMBER(struct cu_allocation_prop, type, CUmemAllocationProp, type);
MEMBER(struct cu_allocation_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
MEMBER(struct cu_allocation_prop, location, CUmemAllocationProp, location);
MEMBER(struct cu_allocation_prop, win32, CUmemAllocationProp, win32HandleMetaData);
MEMBER(struct cu_allocation_prop, flags, CUmemAllocationProp, allocFlags);
MEMBER(struct cu_allocation_prop, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
MEMBER(struct cu_allocation_prop, flags.rdma, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
MEMBER(struct cu_allocation_prop, flags.usage, CUmemAllocationProp, allocFlags.usage);
SIZE(struct cu_access_desc, CUmemAccessDesc);
MEMBER(struct cu_access_desc, location, CUmemAccessDesc, location);
MEMBER(struct cu_access_desc, flags, CUmemAccessDesc, flags);
_Static_assert(__builtin_types_compatible_p(cu_device, CUdevice), "cu_device");
_Static_assert(__builtin_types_compatible_p(cu_pointer, CUdeviceptr), "cu_pointer");
_Static_assert(__builtin_types_compatible_p(cu_allocation, CUmemGenericAllocationHandle), "cu_allocation");
#if CUDART_VERSION >= 12080
SIZE(struct cuda_batch_attributes, struct cudaMemcpyAttributes);
MEMBER(struct cuda_batch_attributes, order, struct cudaMemcpyAttributes, srcAccessOrder);
MEMBER(struct cuda_batch_attributes, from, struct cudaMemcpyAttributes, srcLocHint);
MEMBER(struct cuda_batch_attributes, to, struct cudaMemcpyAttributes, dstLocHint);
MEMBER(struct cuda_batch_attributes, flags, struct cudaMemcpyAttributes, flags);
VALUE(CUDA_BATCH_STREAM_ORDER, cudaMemcpySrcAccessOrderStream);
#endif

/* ---- entry points ---- */

#define cuda_error cudaError
#define cuda_copy_kind cudaMemcpyKind
#define cuda_ipc_handle cudaIpcMemHandle_st
#define cuda_batch_attributes cudaMemcpyAttributes
#define cu_result cudaError_enum
#define cu_attribute CUdevice_attribute_enum
#define cu_uuid CUuuid_st
#define cu_allocation_prop CUmemAllocationProp_st
#define cu_access_desc CUmemAccessDesc_st
#define cu_granularity CUmemAllocationGranularity_flags_enum
#define cu_handle_type CUmemAllocationHandleType_enum

#define X(name, result, arguments)                                                                                     \
        _Static_assert(__builtin_types_compatible_p(result arguments, __typeof__(name)), #name);
CUDA_RUNTIME_CALLS(X)
CUDA_DRIVER_CALLS(X)
#if CUDART_VERSION >= 13000
X(cudaMemcpyBatchAsync, enum cuda_error, CUDA_BATCH_13)
#elif CUDART_VERSION >= 12080
X(cudaMemcpyBatchAsync, enum cuda_error, CUDA_BATCH_12)
#endif
#undef cuda_ipc_handle
#define cuda_ipc_handle CUipcMemHandle_st /* the driver's name for the same */
CUDA_CLIENT_CALLS(X)

#endif
