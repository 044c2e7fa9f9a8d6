/* SPDX-License-Identifier: Apache-2.0
 *
 * A DLPack 0.8 capsule from a consumer's side, written from its ABI and independent of the library's declarations.
 */
#pragma once

#include <stdint.h>

struct dl {
        void *data;
        int32_t device_type, device_id, ndim;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
        void *manager_ctx;
        void (*deleter)(struct dl *self);
};
