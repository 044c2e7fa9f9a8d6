/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens CUDA: the runtime by name, its entry points, the number of devices, then the driver library.
 *
 * Failure: a host without a GPU lacks some of these, so nothing here is fatal. The error names the reason why CUDA is
 * off, and what an operator can change.
 *
 * A newer runtime may refuse the driver that an older one accepts, so a runtime is used only if it finds a device.
 */
#include "daemon/device/cuda/api.h"

#include "daemon/base/util.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>

#define BATCH_SINCE 12080 /* cudaMemcpyBatchAsync */
#define BATCH_V13 13000   /* with one argument fewer */

struct symbol {
        const char *name;
        size_t offset; /* of its pointer in the table */
};

#define X(name, result, arguments) {#name, offsetof(struct cuda_api, name)},
static const struct symbol runtime_symbols[] = {CUDA_RUNTIME_CALLS(X)};
static const struct symbol driver_symbols[] = {CUDA_DRIVER_CALLS(X)};
#undef X

/* ---- why there is no device ---- */

/* The number of device files that this process may not open; the first one's name in `name`. */
static unsigned inaccessible_files(const char *dev, char *name, size_t size)
{
        unsigned n = 0;
        DIR *folder = opendir(dev);
        if (folder == NULL)
                return 0;
        for (struct dirent *e; (e = readdir(folder)) != NULL;) {
                if (strncmp(e->d_name, "nvidia", 6) != 0 || e->d_type == DT_DIR)
                        continue;
                if (faccessat(dirfd(folder), e->d_name, R_OK | W_OK, AT_EACCESS) == 0 || errno != EACCES)
                        continue;
                if (n++ == 0)
                        snprintf(name, size, "%s", e->d_name);
        }
        closedir(folder);
        return n;
}

/* What an operator checks first for an error whose text names no cause; "": nothing to add. */
static const char *advice(enum cuda_error error)
{
        switch (error) {
        case CUDA_SYSTEM_NOT_READY:
                return " (on machines with NVSwitch nvidia-fabricmanager has to run)";
        case CUDA_DRIVER_MISMATCH:
        case CUDA_COMPAT_UNSUPPORTED:
                return " (libcuda.so.1 is not of the kernel module's version: look for a \"compat\" folder in "
                       "LD_LIBRARY_PATH, or for a driver that was upgraded without a restart)";
        case CUDA_MPS_CONNECTION_FAILED:
                return " (CUDA_MPS_PIPE_DIRECTORY names a control daemon that does not answer, or is another user's)";
        case CUDA_UNKNOWN:
                return " (is the kernel module nvidia-uvm loaded, and is /dev/nvidia-uvm there?)";
        default:
                return "";
        }
}

int cuda_api_explain(const struct cuda_api *api, enum cuda_error e, const char *dev, struct error *error)
{
        char name[256], more[32] = "";
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        /* Without access to the files the driver finds no device, or its error names another cause. */
        unsigned closed = inaccessible_files(dev, name, sizeof(name));
        if (closed > 1)
                snprintf(more, sizeof(more), " and %u more", closed - 1);
        if (closed > 0)
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "no permission on %s/%s%s (the daemon's user needs read and write)", dev, name, more);
        switch (e) {
        case CUDA_INSUFFICIENT_DRIVER:
                if (api->driver_version == 0)
                        return error_set(error, STREAMER_EUNSUPPORTED,
                                         "no NVIDIA driver: libcuda.so.1 is missing or the kernel module is not loaded "
                                         "(in a container: start it with the NVIDIA runtime)");
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "the NVIDIA driver is too old: it is made for CUDA %d.%d, %s needs %d.%d",
                                 api->driver_version / 1000, api->driver_version % 1000 / 10, api->library,
                                 api->runtime_version / 1000, api->runtime_version % 1000 / 10);
        case CUDA_STUB_LIBRARY:
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "libcuda.so.1 is the toolkit's stub, not the driver's (look at LD_LIBRARY_PATH)");
        case CUDA_NO_DEVICE:
                return error_set(error, STREAMER_EUNSUPPORTED,
                                 "no GPU is visible (CUDA_VISIBLE_DEVICES%s%s; see nvidia-smi -L)",
                                 visible != NULL ? "=" : " is not set", visible != NULL ? visible : "");
        default:
                return error_set(error, STREAMER_EUNSUPPORTED, "cudaGetDeviceCount: %s (%d): %s%s",
                                 api->cudaGetErrorName(e), (int)e, api->cudaGetErrorString(e), advice(e));
        }
}

/* ---- opening ---- */

/* Opens a library and finds its entry points: 0 with *library, or STREAMER_ENOENT: it cannot be opened. It stays mapped
 * for good: an initialised driver has threads and handlers of its own. dlerror() begins with the name if the file is
 * missing, and may have several lines. */
static int open_library(struct cuda_api *api, const char *name, const struct symbol *symbols, size_t n, void **library,
                        struct error *error)
{
        *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        const char *text = *library == NULL ? dlerror() : "";
        size_t len = strlen(name);
        bool named = strncmp(text, name, len) == 0 && text[len] == ':';
        if (*library == NULL)
                return error_set(error, STREAMER_ENOENT, "%s%s%.*s", named ? "" : name, named ? "" : ": ",
                                 (int)strcspn(text, "\n"), text);
        for (size_t i = 0; i < n; i++) {
                void *address = dlsym(*library, symbols[i].name);
                if (address == NULL)
                        return error_set(error, STREAMER_EUNSUPPORTED, "%s has no %s", name, symbols[i].name);
                memcpy((char *)api + symbols[i].offset, &address, sizeof(address));
        }
        return 0;
}

static int open_runtime(struct cuda_api *api, const char *name, struct error *error)
{
        void *runtime, *batch;
        int r = open_library(api, name, runtime_symbols, ARRAY_SIZE(runtime_symbols), &runtime, error);
        if (r < 0)
                return r;
        snprintf(api->library, sizeof(api->library), "%s", name);
        batch = dlsym(runtime, "cudaMemcpyBatchAsync");
        memcpy(&api->batch, &batch, sizeof(batch));
        api->cudaRuntimeGetVersion(&api->runtime_version);
        api->cudaDriverGetVersion(&api->driver_version);

        enum cuda_error e = api->cudaGetDeviceCount(&api->n_devices);
        if (e == CUDA_OK && api->n_devices < 1)
                e = CUDA_NO_DEVICE;
        return e == CUDA_OK ? 0 : cuda_api_explain(api, e, "/dev", error);
}

static int open_driver(struct cuda_api *api, struct error *error)
{
        void *driver;
        const char *name = getenv("STREAMER_CUDA_LIBRARY"); /* as in the client library */
        if (name == NULL)
                name = "libcuda.so.1";
        if (open_library(api, name, driver_symbols, ARRAY_SIZE(driver_symbols), &driver, error) < 0)
                return STREAMER_EUNSUPPORTED;
        enum cuda_error e = (enum cuda_error)api->cuInit(0);
        if (e == CUDA_OK)
                return 0;
        return error_set(error, STREAMER_EUNSUPPORTED, "cuInit: %s (%d)%s", api->cudaGetErrorName(e), (int)e,
                         advice(e));
}

/* STREAMER_ENOENT: another runtime may work, as this one is missing, or too new for the driver. */
static int open_both(const char *name, struct cuda_api **out, struct error *error)
{
        cleanup_free struct cuda_api *api = calloc(1, sizeof(*api));
        if (api == NULL)
                return error_no_memory(error);
        int r = open_runtime(api, name, error) ?: open_driver(api, error);
        if (r < 0)
                return api->driver_version > 0 && api->driver_version < api->runtime_version ? STREAMER_ENOENT : r;
        *out = api;
        api = NULL;
        return 0;
}

/* The runtime of one version: from the usual places, then from the folders of $STREAMERD_CUDART_PATH. */
static int open_version(const char *name, struct cuda_api **api, struct error *error)
{
        const char *folders = getenv("STREAMERD_CUDART_PATH");
        int r = open_both(name, api, error);
        while (r == STREAMER_ENOENT && folders != NULL && *folders != '\0') {
                char path[PATH_MAX];
                int len = (int)strcspn(folders, ":");
                if (snprintf(path, sizeof(path), "%.*s/%s", len, folders, name) < (int)sizeof(path) &&
                    access(path, R_OK) == 0)
                        r = open_both(path, api, error);
                folders += len + (folders[len] == ':');
        }
        return r;
}

int cuda_api_open(const char *library, struct cuda_api **api, struct error *error)
{
        struct error newer, older;
        if (library != NULL)
                return open_both(library, api, error);
        int r = open_version("libcudart.so.13", api, &newer);
        if (r != STREAMER_ENOENT)
                return r < 0 ? error_set(error, r, "%s", newer.text) : 0;
        r = open_version("libcudart.so.12", api, &older);
        if (r == STREAMER_ENOENT)
                return error_set(error, r, "%s; %s", newer.text, older.text);
        return r < 0 ? error_set(error, r, "%s", older.text) : 0;
}

/* ---- batched copies ---- */

typedef enum cuda_error batch_12 CUDA_BATCH_12;
typedef enum cuda_error batch_13 CUDA_BATCH_13;

bool cuda_has_batch(const struct cuda_api *api)
{
        return api->batch != NULL && api->runtime_version >= BATCH_SINCE && api->driver_version >= BATCH_SINCE;
}

enum cuda_error cuda_copy_batch(const struct cuda_api *api, void *const *to, const void *const *from,
                                const size_t *sizes, size_t n, struct CUstream_st *stream)
{
        struct cuda_batch_attributes attributes = {.order = CUDA_BATCH_STREAM_ORDER};
        size_t first = 0, failed;
        if (api->runtime_version >= BATCH_V13)
                return ((batch_13 *)api->batch)(to, from, sizes, n, &attributes, &first, 1, stream);
        /* 12 declares the arrays writable and does not write. */
        return ((batch_12 *)api->batch)((void **)(uintptr_t)to, (void **)(uintptr_t)from, (size_t *)(uintptr_t)sizes, n,
                                        &attributes, &first, 1, &failed, stream);
}
