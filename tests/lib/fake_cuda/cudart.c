/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake libcudart.so.13 and .12: devices, memory, handles. stream.c has streams and
 * events. As in CUDA 12 and newer, cudaSetDevice() creates the context of its device, and so do
 * all calls that need one.
 */
#include "tests/lib/fake_cuda/runtime.h"

static FAKE_THREAD int chosen; /* ordinal used while no context is current */
static FAKE_THREAD int last;

/* ---- calls ---- */

enum cuda_error runtime_result(int error)
{
        if (error != E_OK && error != E_NOT_READY)
                last = error;
        return (enum cuda_error)error;
}

int runtime_gpu_without_context(void)
{
        return fake_current() ? fake_current()->gpu : fake_gpu(chosen);
}

int runtime_gpu(void)
{
        int gpu = runtime_gpu_without_context();
        if (gpu >= 0 && (!fake_current() || !fake_current()->alive))
                fake_set_current(fake_primary(gpu, true));
        return gpu;
}

enum cuda_error cudaGetLastError(void)
{
        int error = last;
        last = E_OK;
        return (enum cuda_error)error;
}

const char *cudaGetErrorName(enum cuda_error error)
{
        return fake_error_name((int)error);
}

const char *cudaGetErrorString(enum cuda_error error)
{
        return fake_error_text((int)error);
}

/* ---- devices ---- */

enum cuda_error cudaDriverGetVersion(int *version)
{
        *version = fake_settings()->version;
        return CUDA_OK;
}

enum cuda_error cudaRuntimeGetVersion(int *version)
{
        *version = FAKE_RUNTIME;
        return CUDA_OK;
}

/* A driver serves runtimes of its own major version. */
enum cuda_error cudaGetDeviceCount(int *count)
{
        ENTER(cudaGetDeviceCount, -1);
        *count = fake_count();
        if (fake_settings()->version / 1000 < FAKE_RUNTIME / 1000)
                return runtime_result(E_DRIVER);
        return runtime_result(*count > 0 ? E_OK : E_NO_DEVICE);
}

enum cuda_error cudaSetDevice(int device)
{
        ENTER(cudaSetDevice, fake_gpu(device));
        if (fake_gpu(device) < 0)
                return runtime_result(E_DEVICE);
        /* A thread keeps the current context of the device, even a destroyed one, until a call needs a context. */
        const struct CUctx_st *current = fake_current();
        if (current == NULL || current->alive || chosen != device)
                fake_set_current(fake_primary(fake_gpu(device), true));
        chosen = device;
        return CUDA_OK;
}

/* The calling thread's context stays current, but is destroyed. */
enum cuda_error cudaDeviceReset(void)
{
        int gpu = runtime_gpu_without_context();
        ENTER(cudaDeviceReset, gpu);
        struct CUctx_st *context = gpu < 0 ? NULL : fake_primary_or_null(gpu);
        if (!context)
                return CUDA_OK;
        streams_reset(gpu);
        fake_memory_reset(gpu);
        context->alive = context->runtime = false;
        return CUDA_OK;
}

enum cuda_error cudaDeviceGetPCIBusId(char *id, int size, int device)
{
        ENTER(cudaDeviceGetPCIBusId, -1);
        if (fake_gpu(device) < 0)
                return runtime_result(E_DEVICE);
        if (snprintf(id, (size_t)size, "0000:%02X:00.0", fake_gpu(device) + 1) >= size)
                return runtime_result(E_VALUE);
        return CUDA_OK;
}

/* ---- memory ---- */

enum cuda_error cudaMemGetInfo(size_t *available, size_t *total)
{
        ENTER_GPU(cudaMemGetInfo);
        if (gpu < 0)
                return runtime_result(E_NO_DEVICE);
        const struct fake_settings *s = fake_settings();
        uint64_t taken = s->others + fake_used(gpu);
        *total = s->memory;
        *available = taken < s->memory ? s->memory - taken : 0;
        return CUDA_OK;
}

enum cuda_error cudaMalloc(void **pointer, size_t size)
{
        ENTER_GPU(cudaMalloc);
        return runtime_result(gpu < 0 ? E_NO_DEVICE : fake_alloc(gpu, size, pointer));
}

enum cuda_error cudaFree(void *pointer)
{
        int gpu = pointer ? fake_gpu_of(pointer, 1, NULL, NULL) : runtime_gpu();
        ENTER(cudaFree, gpu);
        if (pointer == NULL)
                return CUDA_OK;
        if (gpu >= 0)
                streams_finish(gpu);
        return runtime_result(fake_free(pointer));
}

enum cuda_error cudaMemcpy(void *to, const void *from, size_t size, enum cuda_copy_kind kind)
{
        ENTER_GPU(cudaMemcpy);
        if (fake_gpu_of(kind == CUDA_COPY_HOST_TO_DEVICE ? to : from, size, NULL, NULL) < 0)
                return runtime_result(E_VALUE);
        streams_touch(kind == CUDA_COPY_HOST_TO_DEVICE ? from : to, size, gpu);
        streams_await_release(gpu);
        memcpy(to, from, size);
        if (kind == CUDA_COPY_DEVICE_TO_HOST && fake_settings()->damage && size > 0)
                ((unsigned char *)to)[size - 1] ^= 1;
        return CUDA_OK;
}

enum cuda_error cudaMemset(void *pointer, int value, size_t size)
{
        ENTER_GPU(cudaMemset);
        if (fake_gpu_of(pointer, size, NULL, NULL) < 0)
                return runtime_result(E_VALUE);
        streams_await_release(gpu);
        memset(pointer, value, size);
        return CUDA_OK;
}

enum cuda_error cudaIpcGetMemHandle(struct cuda_ipc_handle *handle, void *pointer)
{
        ENTER(cudaIpcGetMemHandle, runtime_gpu());
        if (fake_settings()->integrated)
                return runtime_result(E_NOT_SUPPORTED);
        return runtime_result(fake_ipc_export(pointer, handle));
}

enum cuda_error cudaHostRegister(void *pointer, size_t size, unsigned flags)
{
        ENTER_GPU(cudaHostRegister);
        return runtime_result(pointer && size > 0 ? streams_register(pointer, size, gpu, flags) : E_VALUE);
}

enum cuda_error cudaHostUnregister(void *pointer)
{
        ENTER_GPU(cudaHostUnregister);
        return runtime_result(streams_unregister(pointer));
}
