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

uint64_t device_budget(const struct device *device)
{
        return device->ceiling != 0 && device->ceiling < device->budget ? device->ceiling : device->budget;
}

uint64_t device_unused(const struct device *device)
{
        uint64_t budget = device_budget(device);
        return budget > device->used ? budget - device->used : 0;
}

uint64_t device_spare(const struct device *device)
{
        return device->ops->spare != NULL ? device->ops->spare(device) : 0;
}

struct device *device_free(struct device *device)
{
        if (device == NULL)
                return NULL;
        work_pool_free(device->thread);
        device->ops->free(device);
        return NULL;
}
