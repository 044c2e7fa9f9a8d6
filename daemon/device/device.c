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

struct device *device_free(struct device *device)
{
        if (device == NULL)
                return NULL;
        work_pool_free(device->thread);
        device->ops->free(device);
        return NULL;
}
