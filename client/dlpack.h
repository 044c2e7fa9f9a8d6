/* SPDX-License-Identifier: Apache-2.0
 *
 * The ABI of DLPack: of 0.8, which has no flag for read-only memory, and of 1.1.
 */
#pragma once

#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_MINOR 1
#define DLPACK_READ_ONLY UINT64_C(1)

struct dl_device {
        int32_t type; /* 1: CPU, 2: CUDA */
        int32_t id;
};

struct dl_data_type {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
};

struct dl_tensor {
        void *data;
        struct dl_device device;
        int32_t ndim;
        struct dl_data_type dtype;
        int64_t *shape;
        int64_t *strides; /* in elements */
        uint64_t byte_offset;
};

struct dl_managed_tensor {
        struct dl_tensor tensor;
        void *manager_ctx;
        void (*deleter)(struct dl_managed_tensor *self);
};

struct dl_managed_tensor_versioned {
        uint32_t major, minor;
        void *manager_ctx;
        void (*deleter)(struct dl_managed_tensor_versioned *self);
        uint64_t flags;
        struct dl_tensor tensor;
};
