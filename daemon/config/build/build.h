/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds from the settings, which are borrowed: the devices, and what remote sources need (the HTTP client, credentials
 * by host, S3 endpoints, the Hub).
 */
#pragma once

#include "daemon/base/sys/numa.h"
#include "daemon/config/config.h"
#include "daemon/device/cuda/cuda.h"
#include "daemon/source/source.h"

#define DEVICES_MAX 64

struct devices {
        struct device *v[DEVICES_MAX];
        size_t n;
        struct cuda *cuda; /* NULL: no CUDA device is configured */
        struct device_absence absent[DEVICES_MAX];
        size_t n_absent;
};

/* Into a zeroed one. What was made before a failure is devices_deinit()'s. */
int devices_init(struct devices *devices, const struct config *config, struct wake *wake, struct error *error);
void devices_deinit(struct devices *devices);

/* Where host memory sits next to all of them. */
struct numa_choice devices_numa(const struct devices *devices);

/* Sets http, hosts, s3 and hf. What was made before a failure is stores_free()'s. */
int stores_make(const struct config *config, struct sources *sources, struct error *error);
void stores_free(struct sources *sources);
