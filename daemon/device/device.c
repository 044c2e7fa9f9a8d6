/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/device/device.h"

#include "daemon/base/util.h"

const char *page_kind_name(enum page_kind kind)
{
        static const char *const names[] = {
                [PAGES_HUGETLB] = "hugetlb",
                [PAGES_THP] = "thp",
                [PAGES_4K] = "4k",
                [PAGES_DEVICE] = "device",
        };
        return names[kind];
}

bool device_trusts(const struct device *device, enum page_kind pages)
{
        return (__atomic_load_n(&device->distrusted, __ATOMIC_RELAXED) & 1u << pages) == 0;
}

uint64_t device_budget(const struct device *device)
{
        return device->ceiling != 0 && device->ceiling < device->budget ? device->ceiling : device->budget;
}

uint64_t device_unused(const struct device *device)
{
        uint64_t budget = device_budget(device);
        return budget > device->used ? budget - device->used : 0;
}

bool device_in_service(const struct device *device)
{
        return !__atomic_load_n(&device->lost, __ATOMIC_ACQUIRE);
}

int device_lost_error(const struct device *device, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "%s: out of service after a failure of its context", device->name);
}

struct device *device_free(struct device *device)
{
        if (device == NULL)
                return NULL;
        work_pool_free(device->thread);
        device->ops->free(device);
        return NULL;
}
