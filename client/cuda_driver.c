/* SPDX-License-Identifier: Apache-2.0
 *
 * Finding the driver, the GPU and a context, and saying what is wrong when one is missing.
 *
 * The daemon names GPUs by UUID, since numbers differ between processes (CUDA_VISIBLE_DEVICES) and
 * containers. A context costs hundreds of MiB on the GPU, so none is made where the application has
 * one: its current context is used, else the primary one, which CUDA's runtime and all frameworks
 * share. The primary one is held while a segment is mapped; a context that the application made by
 * itself is its own to keep.
 */
#include "client/cuda_driver.h"

#include "client/fault.h"
#include "streamer/client.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DRIVER "libcuda.so.1"

/* ---- the one thing that a process has once ---- */

static struct cuda_driver process_driver;
/* Recursive, since the driver itself may fork while it starts, to have device files made. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* A child must not find the lock taken, by a thread that it does not have or by its parent's own. */
static void renew_lock(void)
{
        lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

static void follow_forks(void)
{
        pthread_atfork(cuda_lock, cuda_unlock, renew_lock);
}

void cuda_lock(void)
{
        pthread_mutex_lock(&lock);
}

void cuda_unlock(void)
{
        pthread_mutex_unlock(&lock);
}

/* ---- the library ---- */

static const struct symbol {
        const char *name;
        size_t offset;
} symbols[] = {
#define X(name, result, arguments) {#name, offsetof(struct cuda_driver, name)},
        CUDA_CLIENT_CALLS(X)
#undef X
};

static int no_driver(const struct handle *handle, const char *why, struct fault *fault)
{
        return fault_set(fault, STREAMER_EUNSUPPORTED,
                         "attach: the model is on %.*s and this process cannot use CUDA: %s (in a container: start it "
                         "with the NVIDIA runtime)",
                         (int)handle->uuid_len, handle->uuid, why);
}

static int open_library(struct cuda_driver *driver, const struct handle *handle, struct fault *fault)
{
        char why[256];
        const char *name = secure_getenv("STREAMER_CUDA_LIBRARY");
        void *library = dlopen(name ? name : DRIVER, RTLD_NOW | RTLD_LOCAL);
        if (!library)
                return no_driver(handle, dlerror(), fault);
        for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
                void *address = dlsym(library, symbols[i].name);
                if (!address) {
                        snprintf(why, sizeof(why), "the driver is too old, it has no %s", symbols[i].name);
                        dlclose(library);
                        return no_driver(handle, why, fault);
                }
                memcpy((char *)driver + symbols[i].offset, &address, sizeof(address));
        }
        driver->library = library;
        return 0;
}

/* Initialising twice does no harm, and the application may have done it. */
static int start_driver(const struct cuda_driver *driver, const struct handle *handle, struct fault *fault)
{
        enum cu_result result = driver->cuInit(0);
        switch (result) {
        case CU_OK:
                return 0;
        case CU_NOT_INITIALIZED:
                return no_driver(handle, "CUDA was used before a fork(); start the process by exec or \"spawn\"",
                                 fault);
        case CU_NO_DEVICE:
                return no_driver(handle, "no GPU is visible, see CUDA_VISIBLE_DEVICES and nvidia-smi -L", fault);
        case CU_STUB_LIBRARY:
                return no_driver(handle, DRIVER " is the toolkit's stub, see LD_LIBRARY_PATH", fault);
        default:
                return cuda_fault(&(struct cuda_context){.driver = driver}, handle, "cuInit", result, fault);
        }
}

int cuda_driver_get(const struct cuda_driver **driver, const struct handle *handle, struct fault *fault)
{
        pthread_once(&fork_once, follow_forks);
        int rc = (process_driver.library ? 0 : open_library(&process_driver, handle, fault))
                         ?: start_driver(&process_driver, handle, fault);
        *driver = &process_driver;
        return rc;
}

/* ---- the GPU ---- */

static bool is_named(const struct cuda_driver *driver, cu_device device, const struct handle *handle)
{
        struct cu_uuid uuid;
        char text[CUDA_UUID_TEXT];
        if (driver->cuDeviceGetUuid_v2(&uuid, device) != CU_OK)
                return false;
        cuda_uuid_text(&uuid, text);
        return strlen(text) == handle->uuid_len && memcmp(text, handle->uuid, handle->uuid_len) == 0;
}

static int find_device(struct cuda_context *c, const struct handle *handle, struct fault *fault)
{
        int count = 0;
        c->driver->cuDeviceGetCount(&count);
        for (c->ordinal = 0; c->ordinal < count; c->ordinal++)
                if (c->driver->cuDeviceGet(&c->device, c->ordinal) == CU_OK && is_named(c->driver, c->device, handle))
                        return 0;
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return fault_set(fault, STREAMER_EUNSUPPORTED,
                         "attach: the model is on %.*s, which is not among the %d GPUs that this process sees "
                         "(CUDA_VISIBLE_DEVICES%s%s)",
                         (int)handle->uuid_len, handle->uuid, count, visible ? "=" : " is not set",
                         visible ? visible : "");
}

/* ---- contexts ---- */

/* The caller's current context, if it is on our device. Where that is the primary one it is held. */
static bool take_current(struct cuda_context *c)
{
        struct CUctx_st *current = NULL, *primary;
        cu_device device;
        unsigned flags;
        int active = 0;
        if (c->driver->cuCtxGetCurrent(&current) != CU_OK || !current || c->driver->cuCtxGetDevice(&device) != CU_OK ||
            device != c->device)
                return false;
        c->context = current;
        /* To hold a primary context that is not active would make it, for nothing. */
        if (c->driver->cuDevicePrimaryCtxGetState(device, &flags, &active) != CU_OK || !active ||
            c->driver->cuDevicePrimaryCtxRetain(&primary, device) != CU_OK)
                return true;
        c->retained = primary == current;
        if (!c->retained)
                c->driver->cuDevicePrimaryCtxRelease_v2(device);
        return true;
}

int cuda_context_init(struct cuda_context *c, const struct cuda_driver *driver, const struct handle *handle,
                      struct fault *fault)
{
        *c = (struct cuda_context){.driver = driver};
        int rc = find_device(c, handle, fault);
        if (rc != 0)
                return rc;
        if (!take_current(c)) {
                enum cu_result result = driver->cuDevicePrimaryCtxRetain(&c->context, c->device);
                if (result != CU_OK)
                        return cuda_fault(c, handle, "cuDevicePrimaryCtxRetain", result, fault);
                c->retained = true;
        }
        enum cu_result result = driver->cuCtxPushCurrent_v2(c->context);
        if (result == CU_OK)
                return 0;
        rc = cuda_fault(c, handle, "cuCtxPushCurrent", result, fault);
        cuda_context_deinit(c);
        return rc;
}

void cuda_context_deinit(struct cuda_context *c)
{
        if (c->retained)
                c->driver->cuDevicePrimaryCtxRelease_v2(c->device);
        *c = (struct cuda_context){0};
}

bool cuda_enter(const struct cuda_context *c)
{
        return c->driver->cuCtxPushCurrent_v2(c->context) == CU_OK;
}

void cuda_leave(const struct cuda_context *c)
{
        struct CUctx_st *popped;
        c->driver->cuCtxPopCurrent_v2(&popped);
}

/* ---- what is wrong ---- */

static bool attribute(const struct cuda_context *c, enum cu_attribute attribute)
{
        int value = 0;
        return c->context && c->driver->cuDeviceGetAttribute(&value, attribute, c->device) == CU_OK && value != 0;
}

static bool is_mig(const struct cuda_context *c)
{
        char name[256] = "";
        return c->context && c->driver->cuDeviceGetName(name, sizeof(name), c->device) == CU_OK &&
               strstr(name, " MIG ") != NULL;
}

/* Why this kind of handle cannot work here, as far as can be known, and which one would. */
static void advise(const struct cuda_context *c, const struct handle *handle, const char *call, enum cu_result result,
                   char *text, size_t size)
{
        bool ipc = strncmp(call, "cuIpc", 5) == 0;
        if (!ipc && strncmp(call, "cuMem", 5) != 0)
                return;
        const char *other = ipc && attribute(c, CU_ATTR_POSIX_FD_SUPPORTED) ? "handles of kind cuda-vmm-fd would work"
                            : ipc                                           ? "only the host device would work"
                                                                            : "handles of kind cuda-ipc may work";
        if (ipc && handle->daemon_pid == getpid())
                snprintf(text, size, "; handles do not open in the process that exported them");
        else if (ipc && handle->daemon_pid == 0)
                snprintf(text, size, "; cuda-ipc needs the daemon's PID namespace (share it), else %s", other);
        else if (access("/dev/dxg", F_OK) == 0)
                snprintf(text, size,
                         "; WSL does not share GPU memory between processes, only the host device would work");
        else if (is_mig(c))
                snprintf(text, size,
                         "; this is a MIG instance, and GPU memory is shared within one only, not between "
                         "two: run the daemon in the same one");
        else if (ipc && attribute(c, CU_ATTR_INTEGRATED))
                snprintf(text, size, "; integrated GPUs (Tegra) have no cuda-ipc, %s", other);
        else if (result == CU_NOT_SUPPORTED || result == CU_NOT_PERMITTED)
                snprintf(text, size, "; %s here", other);
        else if (ipc && result != CU_OUT_OF_MEMORY)
                snprintf(text, size, "; where cuda-ipc does not open, as it may not between users or containers, %s",
                         other);
}

int cuda_fault(const struct cuda_context *c, const struct handle *handle, const char *call, enum cu_result result,
               struct fault *fault)
{
        char advice[256] = "";
        const char *name = NULL, *text = NULL;
        c->driver->cuGetErrorName(result, &name);
        c->driver->cuGetErrorString(result, &text);
        advise(c, handle, call, result, advice, sizeof(advice));
        return fault_set(fault, result == CU_OUT_OF_MEMORY ? STREAMER_ENOMEM : STREAMER_EUNSUPPORTED,
                         "attach: a segment on %.*s cannot be mapped: %s: %s (%d, %s)%s", (int)handle->uuid_len,
                         handle->uuid, call, name ? name : "error", (int)result, text ? text : "unknown", advice);
}
