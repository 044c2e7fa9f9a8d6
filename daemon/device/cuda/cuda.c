/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA on this host: the runtime, and the GPUs by name; device_private.h lists the other files.
 */
#include "daemon/device/cuda/device_private.h"

void cuda_facts_read(const struct cuda *cuda, const char *library, struct cuda_facts *facts)
{
        struct cuda_api *opened = NULL;
        const struct cuda_api *api = cuda != NULL ? cuda->api : NULL;
        *facts = (struct cuda_facts){.gpus = 0};
        facts->on = api != NULL || cuda_api_open(library, &opened, &facts->error) == 0;
        if (!facts->on)
                return;
        if (api == NULL)
                api = opened;
        snprintf(facts->library, sizeof(facts->library), "%s", api->library);
        facts->runtime = api->runtime_version;
        facts->driver = api->driver_version;
        facts->gpus = api->n_devices;
        cuda_api_close(opened);
}

int cuda_new(struct cuda **out, const char *library, const struct cuda_settings *settings, struct error *error)
{
        cleanup_free struct cuda *cuda = calloc(1, sizeof(*cuda));
        struct error why;
        if (cuda == NULL)
                return error_no_memory(error);
        if (cuda_api_open(library, &cuda->api, &why) < 0)
                return error_set(error, STREAMER_EUNSUPPORTED, "CUDA is unavailable: %s", why.text);
        cuda->settings = *settings;
        if (cuda->settings.context_retention_ns < CUDA_RETENTION_LEAST)
                cuda->settings.context_retention_ns = CUDA_RETENTION_LEAST;
        pthread_mutex_init(&cuda->mutex, NULL);
        *out = cuda;
        cuda = NULL;
        return 0;
}

struct cuda *cuda_free(struct cuda *cuda)
{
        if (cuda == NULL)
                return NULL;
        cuda_api_close(cuda->api);
        pthread_mutex_destroy(&cuda->mutex);
        free(cuda);
        return NULL;
}

void cuda_set_ring(struct cuda *cuda, void *base, uint64_t bytes, unsigned *pinned)
{
        cuda->ring_pinned = pinned;
        cuda->ring = base;
        cuda->ring_bytes = bytes;
}

int cuda_uuid_of(const struct cuda *cuda, int ordinal, char text[CUDA_UUID_TEXT])
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
                cuda_uuid_of(cuda, i, uuid);
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
