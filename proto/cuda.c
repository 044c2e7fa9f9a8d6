/* SPDX-License-Identifier: Apache-2.0
 *
 * How a GPU is named: never by its number, which CUDA_VISIBLE_DEVICES and containers change.
 */
#include "proto/cuda.h"

#include <stdbool.h>
#include <stdio.h>

void cuda_uuid_text(const struct cu_uuid *uuid, char text[CUDA_UUID_TEXT])
{
        size_t used = (size_t)snprintf(text, CUDA_UUID_TEXT, "GPU-");
        for (unsigned i = 0; i < sizeof(uuid->bytes); i++) {
                bool dash = i == 4 || i == 6 || i == 8 || i == 10;
                used += (size_t)snprintf(text + used, CUDA_UUID_TEXT - used, "%s%02x", dash ? "-" : "",
                                         (unsigned)(unsigned char)uuid->bytes[i]);
        }
}
