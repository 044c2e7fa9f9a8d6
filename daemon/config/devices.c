/* SPDX-License-Identifier: Apache-2.0
 *
 * One entry of `devices` is one device, or several ("cuda:all"). A GPU may be named in several ways, so
 * that two entries are the same device is seen only once both are there, by their UUIDs.
 */
#include "daemon/config/devices.h"

#include "daemon/base/log.h"
#include "daemon/base/util.h"

#include <inttypes.h>
#include <string.h>

static enum host_pages pages_of(enum config_pages pages)
{
        static const enum host_pages map[] = {[CONFIG_PAGES_AUTO] = HOST_PAGES_AUTO,
                                              [CONFIG_PAGES_HUGETLB] = HOST_PAGES_HUGETLB,
                                              [CONFIG_PAGES_THP] = HOST_PAGES_THP,
                                              [CONFIG_PAGES_4K] = HOST_PAGES_4K};
        return map[pages];
}

static int new_host(struct device **device, const struct config_device *c, struct wake *wake, struct error *error)
{
        bool is_auto = c->spare == CONFIG_SPARE_AUTO;
        const struct host_opts opts = {
                .budget = c->budget, .pages = pages_of(c->pages), .spare = is_auto ? HOST_SPARE_AUTO : c->spare};
        if (!is_auto && c->spare > c->budget)
                log_warn("host: a spare of %" PRIu64 " bytes is more than the budget: it stays within that", c->spare);
        return host_device_new(device, &opts, wake, error);
}

static int add(struct devices *d, struct device *device, struct error *error)
{
        for (size_t i = 0; i < d->n; i++)
                if (strcmp(d->v[i]->uuid, device->uuid) == 0 && d->v[i]->ops == device->ops) {
                        error_set(error, STREAMER_EINVAL, "device %s is configured twice", device->name);
                        device_free(device);
                        return error->code;
                }
        require(d->n < DEVICES_MAX);
        device->number = (unsigned)d->n;
        d->v[d->n++] = device;
        log_info("device %s: budget %" PRIu64 " bytes, %s pages (%s)", device->name, device->budget,
                 page_kind_name(device->pages), device->uuid);
        return 0;
}

static int add_cuda(struct devices *d, const struct config *config, const struct config_device *c, struct wake *wake,
                    struct error *error)
{
        int ordinals[DEVICES_MAX];
        bool vmm = c->handles == CONFIG_HANDLES_VMM_FD;
        struct cuda_opts opts = {.budget = c->budget,
                                 .budget_percent = c->budget_percent,
                                 .handles = vmm ? CUDA_HANDLES_VMM_FD : CUDA_HANDLES_IPC,
                                 .max_segment = config->cuda.segment_size};
        int r = d->cuda == NULL ? cuda_new(&d->cuda, config_text(config->cuda.library), error) : 0;
        int n = r < 0 ? r : cuda_find(d->cuda, c->name, ordinals, (int)(DEVICES_MAX - d->n), error);
        for (int i = 0; i < n; i++) {
                struct device *device;
                r = cuda_device_new(&device, d->cuda, ordinals[i], &opts, wake, error);
                if (r == 0)
                        r = add(d, device, error);
                if (r < 0)
                        return r;
        }
        return n < 0 ? n : 0;
}

int devices_init(struct devices *d, const struct config *config, struct wake *wake, struct error *error)
{
        for (size_t i = 0; i < config->n_devices; i++) {
                const struct config_device *c = &config->devices[i];
                struct device *device;
                int r;
                if (strcmp(c->name, "host") != 0)
                        r = add_cuda(d, config, c, wake, error);
                else if ((r = new_host(&device, c, wake, error)) == 0)
                        r = add(d, device, error);
                if (r < 0)
                        return r;
        }
        return 0;
}

void devices_deinit(struct devices *d)
{
        for (size_t i = 0; i < d->n; i++)
                device_free(d->v[i]);
        cuda_free(d->cuda);
}

struct numa_choice devices_numa(const struct devices *d)
{
        int nodes[DEVICES_MAX];
        for (size_t i = 0; i < d->n; i++)
                nodes[i] = d->v[i]->numa_node;
        return numa_choose(numa_online(""), nodes, d->n);
}
