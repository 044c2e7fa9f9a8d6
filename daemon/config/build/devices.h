/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds the devices that the settings name.
 */
#ifndef DAEMON_CONFIG_BUILD_DEVICES_H
#define DAEMON_CONFIG_BUILD_DEVICES_H

#include "daemon/base/sys/numa.h"
#include "daemon/config/config.h"
#include "daemon/device/cuda/cuda.h"

#define DEVICES_MAX 64

struct devices {
        struct device *v[DEVICES_MAX];
        size_t n;
        struct cuda *cuda; /* NULL: no CUDA device is configured */
};

/* Into a zeroed one. What was made before a failure is devices_deinit()'s. */
int devices_init(struct devices *devices, const struct config *config, struct wake *wake, struct error *error);
void devices_deinit(struct devices *devices);

/* Where host memory sits next to all of them. */
struct numa_choice devices_numa(const struct devices *devices);

#endif
