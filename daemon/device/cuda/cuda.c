/* SPDX-License-Identifier: Apache-2.0
 *
 * Creates and names the CUDA devices; device_private.h lists the other files.
 *
 * Threads: alloc, release and calls that need a context but no segment run on the device's thread; copies on
 * reader threads, while a load holds segments; the rest on workers.
 */
#include "daemon/device/cuda/device_private.h"

#include "daemon/base/sys/numa.h"

/* ---- facts ---- */

static bool in_service(struct device *device)
{
        return !cuda_is_lost(cuda_of(device));
}

static void describe_device(struct device *device, struct device_facts *facts)
{
        struct cuda_device *d = cuda_of(device);
        cuda_describe(d->cuda->api, d->ordinal, facts);
        facts->handles = d->memory->kind;
        facts->in_service = in_service(device);
}

void cuda_facts_read(const struct cuda *cuda, const char *library, struct cuda_facts *facts)
{
        struct cuda_api *opened = NULL;
        const struct cuda_api *api = cuda != NULL ? cuda->api : NULL;
        *facts = (struct cuda_facts){.on = true};
        if (api == NULL && cuda_api_open(library, &opened, facts->why, sizeof(facts->why)) < 0) {
                facts->on = false;
                return;
        }
        if (api == NULL)
                api = opened;
        snprintf(facts->library, sizeof(facts->library), "%s", api->library);
        facts->runtime = api->runtime_version;
        facts->driver = api->driver_version;
        facts->gpus = api->n_devices;
        cuda_api_close(opened);
}

/* ---- lifecycle ---- */

static void cuda_device_free(struct device *device)
{
        struct cuda_device *d = cuda_of(device), **at = &d->cuda->devices;
        require(d->context == CONTEXT_NONE || d->cuda->joined);
        pthread_mutex_lock(&d->cuda->mutex);
        while (*at != d)
                at = &(*at)->next;
        *at = d->next;
        pthread_mutex_unlock(&d->cuda->mutex);
        free(d);
}

static const struct device_ops cuda_ops = {
        .kind = "cuda",
        .alloc = cuda_alloc,
        .release = cuda_release,
        .lend = cuda_lend,
        .seal = cuda_seal,
        .put = cuda_put,
        .copier_new = cuda_copier_new,
        .copier_free = cuda_copier_free,
        .copy = cuda_copy,
        .copied = cuda_copied,
        .fetch = cuda_fetch,
        .read = cuda_read,
        .handle = cuda_handle,
        .describe = describe_device,
        .ceiling = cuda_ceiling,
        .in_service = in_service,
        .host_alloc = cuda_host_alloc,
        .host_free = cuda_host_free,
        .free = cuda_device_free,
};

int cuda_new(struct cuda **out, const char *library, const struct cuda_settings *settings, struct error *error)
{
        cleanup_free struct cuda *cuda = calloc(1, sizeof(*cuda));
        char why[400];
        if (cuda == NULL)
                return error_no_memory(error);
        if (cuda_api_open(library, &cuda->api, why, sizeof(why)) < 0)
                return error_set(error, STREAMER_EUNSUPPORTED, "CUDA is unavailable: %s", why);
        cuda->settings = *settings;
        int r = cuda_contexts_init(cuda);
        if (r != 0) {
                cuda_api_close(cuda->api);
                return error_errno(error, STREAMER_ENOMEM, r, "the thread for idle contexts cannot be started");
        }
        *out = cuda;
        cuda = NULL;
        return 0;
}

struct cuda *cuda_free(struct cuda *cuda)
{
        if (cuda == NULL)
                return NULL;
        cuda_stop(cuda, UINT64_MAX);
        cuda_api_close(cuda->api);
        pthread_mutex_destroy(&cuda->mutex);
        pthread_cond_destroy(&cuda->changed);
        free(cuda);
        return NULL;
}

void cuda_set_ring(struct cuda *cuda, void *base, uint64_t bytes, uint64_t slot, unsigned *pinned)
{
        cuda->ring_slot = slot;
        cuda->ring_pinned = pinned;
        cuda->ring = base;
        cuda->ring_bytes = bytes;
}

static int uuid_of(const struct cuda *cuda, int ordinal, char text[CUDA_UUID_TEXT])
{
        cu_device device;
        struct cu_uuid uuid;
        if (cuda->api->cuDeviceGet(&device, ordinal) != CU_OK || cuda->api->cuDeviceGetUuid_v2(&uuid, device) != CU_OK)
                return -1;
        cuda_uuid_text(&uuid, text);
        return 0;
}

int cuda_find(const struct cuda *cuda, const char *name, int *ordinals, int n, struct error *error)
{
        const char *which = name + strlen("cuda:");
        const size_t prefix = strlen("GPU-");
        /* nvidia-smi names a MIG instance by "MIG-" and its UUID; CUDA lists it as a GPU. */
        bool by_uuid = strncasecmp(which, "GPU-", prefix) == 0 || strncasecmp(which, "MIG-", prefix) == 0;
        int found = 0;
        for (int i = 0; i < cuda->api->n_devices && found < n; i++) {
                char uuid[CUDA_UUID_TEXT] = "", number[16];
                uuid_of(cuda, i, uuid);
                snprintf(number, sizeof(number), "%d", i);
                if (strcmp(which, "all") == 0 || strcmp(which, number) == 0 ||
                    (by_uuid && uuid[0] != '\0' && strcasecmp(which + prefix, uuid + prefix) == 0))
                        ordinals[found++] = i;
        }
        if (found == 0)
                return error_set(error, STREAMER_EUNSUPPORTED, "%s: no such GPU (%d visible)", name,
                                 cuda->api->n_devices);
        return found;
}

int cuda_device_new(struct device **out, struct cuda *cuda, int ordinal, const struct cuda_opts *opts,
                    struct wake *wake, struct error *error)
{
        cleanup_free struct cuda_device *d = calloc(1, sizeof(*d));
        cu_device gpu;
        size_t total = 0;
        if (d == NULL)
                return error_no_memory(error);
        struct device *device = &d->device;
        d->cuda = cuda;
        d->ordinal = ordinal;
        d->memory = cuda_memory_of(opts->handles);
        device->ops = &cuda_ops;
        device->caps = d->memory->caps;
        device->pages = PAGES_DEVICE;
        device->layout = (struct plan_layout){
                .page = 0, .align = 256, .granularity = CUDA_GRANULARITY, .max_segment = opts->max_segment};
        snprintf(device->name, sizeof(device->name), "cuda:%d", ordinal);
        if (uuid_of(cuda, ordinal, device->uuid) < 0 || cuda->api->cuDeviceGet(&gpu, ordinal) != CU_OK ||
            cuda->api->cuDeviceTotalMem_v2(&total, gpu) != CU_OK)
                return error_set(error, STREAMER_EUNSUPPORTED, "cuda:%d: the driver does not describe it", ordinal);
        struct device_facts facts;
        cuda_describe(cuda->api, ordinal, &facts);
        device->numa_node = numa_of_pci(facts.pci);
        d->batches = cuda_has_batch(cuda->api) && facts.host_pointers;
        device->budget = opts->budget > 0 ? opts->budget : total / 100 * opts->budget_percent;
        device->thread = work_pool_new(wake, "device-cuda", 1, 1);
        if (device->thread == NULL)
                return error_no_memory(error);
        pthread_mutex_lock(&cuda->mutex);
        d->next = cuda->devices;
        cuda->devices = d;
        pthread_mutex_unlock(&cuda->mutex);
        d = NULL;
        *out = device;
        return 0;
}
