/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake libcuda.so.1: devices, contexts, IPC handles, and calls by which tests read
 * memory. memory.c has the virtual memory management.
 */
#include "tests/lib/fake_cuda/machine.h"

#include <stdatomic.h>
#include <sys/uio.h>

#define RESULT(e) ((enum cu_result)(e))
/* Every call fails before cuInit() and on a GPU that is set to fail. */
#define ENTER(name)                                                                                                    \
        int error = fake_enter(#name, fake_current() ? fake_current()->gpu : -1);                                      \
        if (error == E_OK && !initialised)                                                                             \
                error = E_UNINITIALISED;                                                                               \
        if (error)                                                                                                     \
        return RESULT(error)
/* The same of calls for a device, and of calls that need a current context. */
#define ENTER_DEVICE(name, device)                                                                                     \
        ENTER(name);                                                                                                   \
        if (fake_gpu(device) < 0)                                                                                      \
        return RESULT(E_DEVICE)
#define ENTER_CONTEXT(name)                                                                                            \
        ENTER(name);                                                                                                   \
        if (!fake_current())                                                                                           \
        return RESULT(E_CONTEXT)

#define STACK 16

static atomic_bool initialised;
static FAKE_THREAD struct CUctx_st *below[STACK]; /* contexts under the current one */
static FAKE_THREAD unsigned depth;

/* Called only by tests, so the daemon and the library do not load it. */
enum cu_result cuCtxSetCurrent(struct CUctx_st *context);
enum cu_result cuCtxCreate_v2(struct CUctx_st **context, unsigned flags, cu_device device);
enum cu_result cuCtxDestroy_v2(struct CUctx_st *context);
enum cu_result cuMemcpyDtoH_v2(void *to, cu_pointer from, size_t size);
enum cu_result cuMemcpyHtoD_v2(cu_pointer to, const void *from, size_t size);
enum cu_result cuMemsetD8_v2(cu_pointer to, unsigned char byte, size_t size);
enum cu_result cuDriverGetVersion(int *version);

#define X(name, result, arguments) result name arguments;
CUDA_DRIVER_CALLS(X)
CUDA_CLIENT_CALLS(X)
#undef X

/* ---- the library ---- */

enum cu_result cuInit(unsigned flags)
{
        int error = fake_enter("cuInit", -1);
        if (error == E_OK && flags != 0)
                error = E_VALUE;
        if (error == E_OK && fake_count() == 0)
                error = E_NO_DEVICE;
        if (error == E_OK)
                initialised = true;
        return RESULT(error);
}

enum cu_result cuDriverGetVersion(int *version)
{
        *version = fake_settings()->version;
        return CU_OK;
}

enum cu_result cuGetErrorName(enum cu_result error, const char **name)
{
        *name = fake_error_name((int)error);
        return CU_OK;
}

enum cu_result cuGetErrorString(enum cu_result error, const char **text)
{
        *text = fake_error_text((int)error);
        return CU_OK;
}

/* ---- devices ---- */

enum cu_result cuDeviceGetCount(int *count)
{
        ENTER(cuDeviceGetCount);
        *count = fake_count();
        return CU_OK;
}

enum cu_result cuDeviceGet(cu_device *device, int ordinal)
{
        ENTER(cuDeviceGet);
        *device = ordinal;
        return RESULT(fake_gpu(ordinal) < 0 ? E_DEVICE : E_OK);
}

enum cu_result cuDeviceGetName(char *name, int size, cu_device device)
{
        ENTER(cuDeviceGetName);
        snprintf(name, (size_t)size, "%s", fake_settings()->name);
        return RESULT(fake_gpu(device) < 0 ? E_DEVICE : E_OK);
}

enum cu_result cuDeviceTotalMem_v2(size_t *bytes, cu_device device)
{
        ENTER(cuDeviceTotalMem_v2);
        *bytes = fake_settings()->memory;
        return RESULT(fake_gpu(device) < 0 ? E_DEVICE : E_OK);
}

enum cu_result cuDeviceGetUuid_v2(struct cu_uuid *uuid, cu_device device)
{
        ENTER_DEVICE(cuDeviceGetUuid_v2, device);
        char text[41];
        fake_gpu_uuid(fake_gpu(device), text);
        const char *digit = text + 4;
        for (unsigned i = 0; i < sizeof(uuid->bytes); i++, digit += 2) {
                if (*digit == '-')
                        digit++;
                uuid->bytes[i] = (char)strtoul((char[]){digit[0], digit[1], '\0'}, NULL, 16);
        }
        return CU_OK;
}

enum cu_result cuDeviceGetAttribute(int *value, enum cu_attribute attribute, cu_device device)
{
        ENTER_DEVICE(cuDeviceGetAttribute, device);
        switch (attribute) {
        case CU_ATTR_INTEGRATED:
                *value = fake_settings()->integrated;
                return CU_OK;
        case CU_ATTR_HOST_POINTERS:
                *value = fake_settings()->host_pointers;
                return CU_OK;
        case CU_ATTR_VMM_SUPPORTED:
        case CU_ATTR_POSIX_FD_SUPPORTED:
                *value = fake_settings()->vmm;
                return CU_OK;
        }
        return RESULT(E_VALUE);
}

/* ---- contexts ---- */

enum cu_result cuCtxGetCurrent(struct CUctx_st **context)
{
        ENTER(cuCtxGetCurrent);
        *context = fake_current();
        return CU_OK;
}

enum cu_result cuCtxSetCurrent(struct CUctx_st *context)
{
        ENTER(cuCtxSetCurrent);
        if (context && !context->alive)
                return RESULT(E_CONTEXT);
        fake_set_current(context);
        return CU_OK;
}

enum cu_result cuCtxGetDevice(cu_device *device)
{
        ENTER(cuCtxGetDevice);
        if (!fake_current() || !fake_current()->alive)
                return RESULT(fake_current() ? E_DESTROYED : E_CONTEXT);
        *device = fake_ordinal_of(fake_current()->gpu);
        return CU_OK;
}

enum cu_result cuCtxPushCurrent_v2(struct CUctx_st *context)
{
        ENTER(cuCtxPushCurrent_v2);
        if (!context || !context->alive)
                return RESULT(E_CONTEXT);
        if (depth == STACK)
                return RESULT(E_VALUE);
        below[depth++] = fake_current();
        fake_set_current(context);
        return CU_OK;
}

enum cu_result cuCtxPopCurrent_v2(struct CUctx_st **context)
{
        ENTER(cuCtxPopCurrent_v2);
        if (depth == 0)
                return RESULT(E_CONTEXT);
        *context = fake_current();
        fake_set_current(below[--depth]);
        return CU_OK;
}

enum cu_result cuCtxCreate_v2(struct CUctx_st **context, unsigned flags, cu_device device)
{
        ENTER(cuCtxCreate_v2);
        struct CUctx_st *c = fake_gpu(device) < 0 ? NULL : calloc(1, sizeof(*c));
        if (!c)
                return RESULT(E_DEVICE);
        *c = (struct CUctx_st){.gpu = fake_gpu(device), .alive = true};
        fake_state()->contexts[c->gpu]++;
        *context = c;
        return cuCtxPushCurrent_v2(c);
}

/* Unmaps the memory that was opened in the context. The struct stays, so that later uses of the context are
 * detected. */
enum cu_result cuCtxDestroy_v2(struct CUctx_st *context)
{
        ENTER(cuCtxDestroy_v2);
        if (context == fake_current())
                fake_set_current(NULL);
        context->alive = false;
        fake_ipc_reset(context->gpu);
        return CU_OK;
}

enum cu_result cuDevicePrimaryCtxGetState(cu_device device, unsigned *flags, int *active)
{
        ENTER_DEVICE(cuDevicePrimaryCtxGetState, device);
        *flags = 0;
        *active = fake_primary_or_null(fake_gpu(device)) != NULL;
        return CU_OK;
}

enum cu_result cuDevicePrimaryCtxRetain(struct CUctx_st **context, cu_device device)
{
        ENTER_DEVICE(cuDevicePrimaryCtxRetain, device);
        struct CUctx_st *c = fake_primary(fake_gpu(device), false);
        pthread_mutex_lock(&fake_lock);
        c->retained++;
        fake_resources()->retained++;
        pthread_mutex_unlock(&fake_lock);
        *context = c;
        return CU_OK;
}

/* The last release destroys the context and unmaps the memory that was opened in it. */
enum cu_result cuDevicePrimaryCtxRelease_v2(cu_device device)
{
        ENTER(cuDevicePrimaryCtxRelease_v2);
        struct CUctx_st *c = fake_gpu(device) < 0 ? NULL : fake_primary_or_null(fake_gpu(device));
        if (!c || c->retained == 0)
                return RESULT(E_CONTEXT);
        pthread_mutex_lock(&fake_lock);
        fake_resources()->retained--;
        bool last = --c->retained == 0 && !c->runtime;
        if (last)
                c->alive = false;
        pthread_mutex_unlock(&fake_lock);
        if (last)
                fake_memory_reset(c->gpu);
        return CU_OK;
}

/* ---- memory ---- */

enum cu_result cuIpcOpenMemHandle_v2(cu_pointer *pointer, struct cuda_ipc_handle handle, unsigned flags)
{
        ENTER_CONTEXT(cuIpcOpenMemHandle_v2);
        void *p = NULL;
        if (flags != CU_IPC_LAZY_PEER_ACCESS)
                return RESULT(E_VALUE);
        error = fake_ipc_open(&handle, fake_current()->gpu, &p);
        *pointer = (cu_pointer)(uintptr_t)p;
        return RESULT(error);
}

enum cu_result cuIpcCloseMemHandle(cu_pointer pointer)
{
        ENTER_CONTEXT(cuIpcCloseMemHandle);
        return RESULT(fake_ipc_close((void *)(uintptr_t)pointer));
}

enum cu_result cuMemGetAddressRange_v2(cu_pointer *base, size_t *size, cu_pointer pointer)
{
        ENTER(cuMemGetAddressRange_v2);
        void *b = NULL;
        if (fake_gpu_of((const void *)(uintptr_t)pointer, 1, &b, size) < 0)
                return RESULT(E_VALUE);
        *base = (cu_pointer)(uintptr_t)b;
        return CU_OK;
}

enum cu_result cuCtxSynchronize(void)
{
        ENTER_CONTEXT(cuCtxSynchronize);
        return CU_OK;
}

enum cu_result cuMemcpyDtoH_v2(void *to, cu_pointer from, size_t size)
{
        ENTER_CONTEXT(cuMemcpyDtoH_v2);
        if (fake_gpu_of((const void *)(uintptr_t)from, size, NULL, NULL) < 0)
                return RESULT(E_VALUE);
        memcpy(to, (const void *)(uintptr_t)from, size);
        if (fake_settings()->damage && size > 0)
                ((unsigned char *)to)[size - 1] ^= 1;
        return CU_OK;
}

enum cu_result cuMemsetD8_v2(cu_pointer to, unsigned char byte, size_t size)
{
        ENTER_CONTEXT(cuMemsetD8_v2);
        if (fake_gpu_of((const void *)(uintptr_t)to, size, NULL, NULL) < 0)
                return RESULT(E_VALUE);
        memset((void *)(uintptr_t)to, byte, size);
        return CU_OK;
}

/* Written by a system call: a read-only mapping causes an error, not a signal. */
enum cu_result cuMemcpyHtoD_v2(cu_pointer to, const void *from, size_t size)
{
        ENTER_CONTEXT(cuMemcpyHtoD_v2);
        if (fake_gpu_of((const void *)(uintptr_t)to, size, NULL, NULL) < 0)
                return RESULT(E_VALUE);
        struct iovec source = {(void *)(uintptr_t)from, size}, target = {(void *)(uintptr_t)to, size};
        if (process_vm_writev(getpid(), &source, 1, &target, 1, 0) != (ssize_t)size)
                return RESULT(E_ILLEGAL);
        return CU_OK;
}
