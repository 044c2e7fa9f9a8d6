/* SPDX-License-Identifier: Apache-2.0
 *
 * A DLPack 0.8 capsule as a consumer sees it. Written after its ABI, apart from the library's own.
 */
#ifndef TESTS_LIB_DLPACK_H
#define TESTS_LIB_DLPACK_H

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

#endif
